"""What is known of a cell: seconds of training, and measures. One file for each run folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsgf.checkpoint import write_text
from nsgf.compare.cells import at_nfe, updates
from nsgf.compare.measure import Measured
from nsgf.config import Config, MethodName


class Record:
    """``compare.json`` of a run folder; two methods may share a folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "compare.json"
        self._content: dict[str, Any] = {"train_seconds": {}, "measures": []}
        try:
            found = json.loads(self._file.read_text())
            found["train_seconds"].items(), [dict(row) for row in found["measures"]]
            self._content = found
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # none yet, or not ours: measured anew

    @property
    def train_seconds(self) -> float:
        """Seconds that training took in this folder so far, all sessions."""
        return float(sum(self._content["train_seconds"].values()))

    def add_train_seconds(self, method: MethodName, seconds: float) -> None:
        """Count in a session of training."""
        known = self._content["train_seconds"]
        known[method] = known.get(method, 0.0) + seconds
        self._save()

    def find(self, method: MethodName, config: Config, nfe: int) -> Measured | None:
        """The measure of a method with these settings; None: not measured yet."""
        key = _key(method, config, nfe)
        for row in self._content["measures"]:
            if row.get("key") == key:
                return Measured(**row["found"])
        return None

    def add(self, method: MethodName, config: Config, nfe: int, found: Measured) -> None:
        """Keep a measure."""
        row = {"key": _key(method, config, nfe), "found": asdict(found)}
        self._content["measures"].append(row)
        self._save()

    def _save(self) -> None:
        write_text(self._file, json.dumps(self._content, indent=1) + "\n")


def _key(method: MethodName, config: Config, nfe: int) -> dict[str, Any]:
    """All that changes a measure of a run folder."""
    return {
        "method": method,
        "nfe": nfe,
        "updates": updates(config),
        "samples": config.evaluation.num_samples,
        "w2_samples": config.evaluation.w2_samples,
        "sampling": {**asdict(at_nfe(config, nfe).sampling), "num_samples": 0, "batch_size": 0},
    }
