"""Training seconds and measures of a trial, kept in one file for each run folder, and the floors of
each target, in one file for each target."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nsgf.compare.measure import Measured
from nsgf.compare.trials import at_nfe
from nsgf.config.schema import Config, PhaseName
from nsgf.run.folder import write_text
from nsgf.system.json_reader import expect, fields, read_object

FORMAT = 1
"""Raised when a measure of the same name is computed in another way."""


class Record:
    """The file ``compare.json`` of a folder; two methods may share one."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "compare.json"
        self._seconds: dict[str, float] = {}
        self._measures: dict[str, Measured] = {}
        try:
            seconds, rows = fields(read_object(self._file), seconds=dict, measures=list)
            self._seconds = {name: expect(value, float) for name, value in seconds.items()}
            for row in rows:
                key, nfe, taken, measures = fields(
                    row, key=str, nfe=float, sample_seconds=float, values=dict
                )
                values = {
                    name: math.inf if value is None else expect(value, float)
                    for name, value in measures.items()
                }
                self._measures[key] = Measured(nfe, taken, values)
        except ValueError:
            self._seconds, self._measures = {}, {}  # no such file, or a damaged one

    def train_seconds(self, phases: tuple[PhaseName, ...]) -> float:
        """Return the seconds that training these phases took; 0 if one of them is not known."""
        if not all(phase in self._seconds for phase in phases):
            return 0.0
        return sum(self._seconds[phase] for phase in phases)

    def add_train_seconds(self, phase: PhaseName, seconds: float, resumed: bool) -> None:
        """Add the time of a training session. The time of a resumed phase is not known if an
        earlier session was killed before it was added."""
        if resumed and phase not in self._seconds:
            return
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        self._save()

    def find(self, key: str, names: Sequence[str]) -> Measured | None:
        """Return the measure of this key with the values of these names; None if one is missing."""
        found = self._measures.get(key)
        if found is None or not found.values.keys() >= set(names):
            return None
        return replace(found, values={name: found.values[name] for name in names})

    def add(self, key: str, measured: Measured) -> None:
        """Add a measure to the file."""
        self._measures[key] = measured
        self._save()

    def _save(self) -> None:
        measures = [
            {"key": key, **asdict(measured), "values": _as_json(measured.values)}
            for key, measured in self._measures.items()
        ]
        content = {"seconds": self._seconds, "measures": measures}
        write_text(self._file, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _as_json(values: dict[str, float]) -> dict[str, float | None]:
    """Return the values with null for infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def measure_key(method: str, config: Config, nfe: int, draw: int) -> str:
    """Return what a measure depends on besides the training settings of its folder."""
    sampling = asdict(replace(at_nfe(config, nfe).sampling, num_samples=1))
    for name in ("label", "guidance"):  # compared methods know no classes
        del sampling[name]
    updates = [getattr(config, phase).iterations for phase in config.phases]
    sampling["precision"] = config.train.precision
    own = {"method": method, "nfe": nfe, "draw": draw, "iterations": updates, "sampling": sampling}
    return _key(config, own)


def floor_key(config: Config, draw: int) -> str:
    """Return what a floor depends on besides the target, which has a folder of its own."""
    return _key(config, {"seed": config.seed, "floor of draw": draw})


def _key(config: Config, own: dict[str, Any]) -> str:
    evaluation = config.evaluation
    counts = {"samples": evaluation.num_samples, "w2_samples": evaluation.w2_samples}
    return json.dumps({"format": FORMAT, **counts, **own}, sort_keys=True)
