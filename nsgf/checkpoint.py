"""Checkpoints and the run folder.

A run folder holds ``config.yaml``, ``versions.json``, ``checkpoints/``, ``pool/``,
``metrics.jsonl``, ``log.txt``, ``samples/`` and, later, ``metrics.json``. Each phase has one
checkpoint file, which is replaced every ``train.checkpoint_every`` updates and at the phase's end:
step and iterations inside say whether the phase is done. Phases hand over through these files and
nothing else.
"""

import json
import os
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from nsgf.config import PHASES, Config, PhaseName
from nsgf.errors import UserError
from nsgf.hardware import versions

FORMAT = 2


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def pool(self) -> Path:
        """Folder of the trajectory pool."""
        return self.path / "pool"

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
        runs = {
            path: started
            for path in out_dir.expanduser().glob(f"{exp}-*")
            if (path / "config.yaml").is_file() and (started := _started(path, exp))
        }
        if not runs:
            raise UserError(
                f"no run of {exp} in {out_dir}: train one, or name its folder with --run DIR"
            )
        return cls(max(runs, key=runs.__getitem__))

    def write_config(self, config: Config) -> None:
        """Save the resolved configuration and the versions beside it."""
        write_text(self.config_file, dump_config(config))
        write_text(self.path / "versions.json", json.dumps(versions(), indent=2) + "\n")

    def set_aside(self, phase: PhaseName) -> Path:
        """Rename a phase's checkpoint to the first free ``*.previousN.pt``."""
        file, number = self.checkpoint_file(phase), 1
        while (kept := file.with_suffix(f".previous{number}.pt")).exists():
            number += 1
        return file.replace(kept)


def dump_config(config: Config) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def write_text(file: Path, text: str) -> None:
    """Write a small file as a whole: to a temporary one first, then renamed."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text)
    partial.replace(file)


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


def check_content(file: Path, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload of a phase's checkpoint, once what its readers rely on is there.

    Raises:
        UserError: a part is missing or of another kind.
    """
    kinds = {"step": int, "config": dict, "model": dict, "ema": dict}
    wrong = [key for key, kind in kinds.items() if not isinstance(payload.get(key), kind)]
    if wrong:
        raise UserError(f"checkpoint {file}: no usable {', '.join(wrong)} in it; remove it")
    return payload


def _started(path: Path, exp: str) -> tuple[str, int] | None:
    """When a run of ``exp`` was started: time in its name, number within that second."""
    stamp = re.fullmatch(re.escape(exp) + r"-(\d{8}_\d{6})(?:_(\d+))?", path.name)
    return (stamp[1], int(stamp[2] or 1)) if stamp else None
