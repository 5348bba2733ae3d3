"""Checkpoints and the run folder.

A run folder holds ``config.yaml``, ``versions.json``, ``checkpoints/``, ``metrics.jsonl``,
``log.txt`` and, later, ``samples/`` and ``metrics.json``. Each phase has one checkpoint file, which
is replaced every ``train.checkpoint_every`` updates and at the phase's end: step and iterations
inside say whether the phase is done. Phases hand over through these files and nothing else.
"""

import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from nsgf.config import PHASES, Config, PhaseName
from nsgf.errors import UserError
from nsgf.hardware import versions

FORMAT = 1


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def samples(self) -> Path:
        """Folder of pictures and generated samples."""
        return self.path / "samples"

    def checkpoint_file(self, phase: PhaseName) -> Path:
        """Checkpoint of a phase, e.g. ``checkpoints/phase2_nsf.pt``."""
        return self.path / "checkpoints" / f"phase{PHASES.index(phase) + 1}_{phase}.pt"

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """A new folder ``OUT_DIR/EXP-YYYYmmdd_HHMMSS`` with the configuration in it.

        Raises:
            UserError: the folder cannot be written.
        """
        stem = f"{config.exp}-{datetime.now():%Y%m%d_%H%M%S}"
        base = Path(config.out_dir).expanduser()
        try:
            base.mkdir(parents=True, exist_ok=True)
            for suffix in ("", *(f"_{count}" for count in range(2, 100))):
                run = cls(base / (stem + suffix))
                if not run.path.exists():
                    break
            (run.path / "checkpoints").mkdir(parents=True)
            run.write_config(config)
        except OSError as error:
            raise UserError(
                f"out_dir = {config.out_dir}: cannot be written ({error.strerror}); "
                "name another folder with --out-dir DIR"
            ) from error
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder.

        Raises:
            UserError: it is none.
        """
        run = cls(path.expanduser())
        if not run.config_file.is_file():
            raise UserError(f"run = {path}: no run folder (it has no config.yaml)")
        return run

    @classmethod
    def newest(cls, out_dir: Path, exp: str) -> "RunFolder":
        """The newest run of an experiment.

        Raises:
            UserError: there is none.
        """
        runs = [
            path
            for path in out_dir.expanduser().glob(f"{exp}-*")
            if (path / "config.yaml").is_file() and _is_run_of(path.name, exp)
        ]
        if not runs:
            raise UserError(
                f"no run of {exp} in {out_dir}: train one, or name its folder with --run DIR"
            )
        return cls(max(runs, key=_age_order))

    def write_config(self, config: Config) -> None:
        """Save the resolved configuration and the versions beside it."""
        self.config_file.write_text(dump_config(config))
        (self.path / "versions.json").write_text(_json(versions()))

    def set_aside(self, first: PhaseName) -> list[str]:
        """Rename the checkpoints of ``first`` and later phases to ``*.previous.pt``."""
        renamed = []
        for phase in PHASES[PHASES.index(first) :]:
            file = self.checkpoint_file(phase)
            if file.exists():
                file.replace(file.with_suffix(".previous.pt"))
                renamed.append(file.name)
        return renamed


def dump_config(config: Config) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def save(file: Path, payload: dict[str, Any]) -> None:
    """Write a checkpoint: to a temporary file first, renamed when it is whole on the disk.

    Args:
        file: final path.
        payload: nested dictionaries of tensors and plain values.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("wb") as stream:
            torch.save({"format": FORMAT, "versions": versions(), **payload}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, tensors and plain values only.

    Raises:
        UserError: it is missing, damaged, or of another format.
    """
    if not file.is_file():
        raise UserError(f"no checkpoint {file}: train that phase first")
    try:
        payload = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types for damaged or foreign files
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"checkpoint {file} cannot be read ({cause}); remove it") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise UserError(f"checkpoint {file} is none of this program's (format {FORMAT})")
    return payload


def is_done(payload: dict[str, Any], iterations: int) -> bool:
    """Whether a phase's checkpoint has all the updates now asked for."""
    return int(payload["step"]) >= iterations


def _is_run_of(name: str, exp: str) -> bool:
    """``2d-20240131_120000`` is a run of 2d; ``2d-big-20240131_120000`` is not."""
    return name[len(exp) + 1 :][:1].isdigit() and "-" not in name[len(exp) + 1 :]


def _age_order(path: Path) -> tuple[str, int]:
    """Sort key of run folders: the time in the name, then the number of the same second."""
    stamp = path.name.rsplit("-", 1)[1].split("_")
    return "_".join(stamp[:2]), int(stamp[2]) if len(stamp) > 2 else 1


def _json(values: dict[str, Any]) -> str:
    import json

    return json.dumps(values, indent=2) + "\n"
