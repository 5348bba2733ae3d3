"""Checkpoints: each phase has one file, replaced every ``train.checkpoint_every`` updates and at
the phase's end, and beside it the one before. Phases hand over through these files and nothing
else.
"""

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nsgf.run.folder import earlier, unused
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import versions

FORMAT = 2


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
