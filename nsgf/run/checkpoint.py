"""Checkpoints and the run folder.

A run folder holds ``config.yaml``, ``versions.json``, ``checkpoints/``, ``pool/``,
``metrics.jsonl``, ``costs.jsonl``, ``log.txt``, ``samples/`` and, later, ``metrics.json``. Each
phase has one checkpoint file, replaced every ``train.checkpoint_every`` updates and at the phase's
end, and beside it the one before: step and iterations inside say whether the phase is done. Phases
hand over through these files and nothing else.
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from nsgf.config.schema import PEER_PHASES, PHASES, Config, PhaseName
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import versions

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
        return self.path / "checkpoints" / f"{phase_stem(phase)}.pt"

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """A new folder ``OUT_DIR/EXP-YYYYmmdd_HHMMSS`` with the configuration in it.

        It is named as the newest one there, also where the clock went back since the last.

        Raises:
            UserError: the folder cannot be written.
        """
        base, now = Path(config.out_dir).expanduser(), f"{datetime.now():%Y%m%d_%H%M%S}"
        try:
            base.mkdir(parents=True, exist_ok=True)
            others = [_started(path, config.exp) for path in base.iterdir()]
            stem = f"{config.exp}-{max([now, *(started[0] for started in others if started)])}"
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
    def prepare(cls, path: Path) -> "RunFolder":
        """The run folder at this path, made if there is none.

        Raises:
            UserError: it cannot be written.
        """
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"out_dir: {path} cannot be written ({error.strerror}); "
                "name another folder with --out-dir DIR"
            ) from error
        return cls(path)

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
        file = self.checkpoint_file(phase)
        earlier(file).unlink(missing_ok=True)  # or it would be taken for the new one's
        return file.replace(unused(file, "previous"))


def phase_stem(phase: PhaseName) -> str:
    """Beginning of the names of a phase's files, e.g. ``phase2_nsf`` or ``phase1_peer``."""
    family = PHASES if phase in PHASES else PEER_PHASES
    return f"phase{family.index(phase) + 1}_{phase}"


def dump_config(config: Config) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def write_text(file: Path, text: str) -> None:
    """Write a small file as a whole: to a temporary one first, then renamed."""
    partial = file.with_name(file.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def save(file: Path, payload: dict[str, Any]) -> None:
    """Write a checkpoint, and keep the one before beside it (:func:`earlier`).

    It is written to a temporary file first, renamed when it is whole on the disk; at no time is
    there no good checkpoint under one of the two names.

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
        if file.exists():
            _keep(file, earlier(file))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def earlier(file: Path) -> Path:
    """Where the checkpoint before the newest is: ``phase2_nsf.earlier.pt``."""
    return file.with_suffix(".earlier.pt")


def _keep(file: Path, other: Path) -> None:
    """Give a file a second name without ever taking away its first."""
    partial = other.with_name(other.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(file, partial)
    except OSError:  # a file system without links
        shutil.copyfile(file, partial)
    partial.replace(other)


def damage(file: Path) -> str | None:
    """What is wrong with the bytes of a checkpoint; None: nothing.

    A checkpoint is a zip archive with a checksum of each tensor, which torch itself does not
    compare when it reads.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
    except Exception as error:  # a damaged directory makes zipfile raise nearly anything
        return one_line(error)
    return f"{broken} does not fit its checksum" if broken else None


def mend(file: Path, log: Callable[[str], None]) -> None:
    """Put the checkpoint before in the place of one that is damaged or gone.

    Args:
        file: the newest checkpoint of a phase, if there is one.
        log: takes a line about what was done.
    """
    before = earlier(file)
    found = damage(file) if file.exists() else "it is gone"
    if found is None or not before.exists() or damage(before):
        return
    aside = "there is none"
    if file.exists():
        aside = f"it is kept as {file.replace(unused(file, 'damaged')).name}"
    _keep(before, file)
    log(f"checkpoint {file} is damaged ({found}; {aside}); going on from the one before")


def unused(file: Path, name: str) -> Path:
    """The first free ``*.NAME1.pt``, ``*.NAME2.pt``, ... beside a checkpoint."""
    number = 1
    while (free := file.with_suffix(f".{name}{number}.pt")).exists():
        number += 1
    return free


def load_good(file: Path) -> tuple[dict[str, Any], str]:
    """The newest checkpoint, or where it is damaged the one before; nothing is changed.

    Returns:
        The payload, and a remark for people, empty for the newest.

    Raises:
        UserError: neither can be read.
    """
    if file.exists() and damage(file) and earlier(file).exists() and not damage(earlier(file)):
        return load(earlier(file)), f"; {file.name} is damaged, this is the one before"
    return load(file), ""


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, tensors and plain values only.

    Raises:
        UserError: it is missing, damaged, or of another format.
    """
    if not file.is_file():
        raise UserError(f"no checkpoint {file}: train that phase first")
    found = damage(file)
    if found:
        raise UserError(f"checkpoint {file} cannot be read ({found}); remove it")
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
