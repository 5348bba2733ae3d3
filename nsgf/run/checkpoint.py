"""Checkpoints: each phase has one file, replaced every ``train.checkpoint_every`` updates and at
the phase's end, and beside it the one before. Phases hand over through these files and nothing
else.

    nsgf checkpoint FORMAT, lengths and checksums of what follows      one line of fixed length
    phase, step, configuration, versions                               JSON
    weights, average, optimizer, ...                                   as torch.save writes it

How far a phase is stands in the first kilobytes; the checksums are of every byte.
"""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor

from nsgf.run.folder import earlier, replacing, temporary, unused
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import versions

FORMAT = 3
MAGIC = b"nsgf checkpoint "
HEADER = ("phase", "step", "config")
"""Parts of a payload that are kept in the header."""
CHUNK = 1 << 22

Found = TypeVar("Found")


def save(file: Path, payload: dict[str, Any]) -> None:
    """Write a checkpoint, and keep the one before beside it (:func:`nsgf.run.folder.earlier`).

    At no time is there no good checkpoint under one of the two names. The payload is of nested
    dictionaries of tensors and plain values.

    Raises:
        UserError: it cannot be written; what was there before is still there.
    """
    header = {key: payload[key] for key in HEADER if key in payload}
    text = json.dumps({**header, "versions": versions()}).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            stream.write(_lead(text, 0, 0) + text)
            begin = stream.tell()
            rest = {key: value for key, value in payload.items() if key not in header}
            torch.save(rest, cast(IO[bytes], stream))
            size = stream.tell() - begin
            stream.seek(begin)
            checksum = _checksum(stream)
            stream.seek(0)
            stream.write(_lead(text, size, checksum))
            stream.flush()
            os.fsync(stream.fileno())
            if file.exists():
                _keep(file, earlier(file))
    except (OSError, RuntimeError) as failure:
        error: BaseException = failure
        while isinstance(error, RuntimeError) and error.__context__:
            error = error.__context__  # what torch hides behind an error of its own
        if not isinstance(error, OSError):  # e.g. a second Ctrl-C
            raise error from None
        raise UserError(
            f"checkpoint {file} cannot be written ({error.strerror or one_line(error)}); make "
            "room or name another folder with --out-dir DIR; what was saved before is kept"
        ) from error


def _lead(text: bytes, size: int, checksum: int) -> bytes:
    """The first line: length and checksum of the header ``text`` and of the content behind it."""
    words = f"{FORMAT} {len(text):08d} {zlib.crc32(text):08x} {size:016d} {checksum:08x}\n"
    return MAGIC + words.encode()


def _keep(file: Path, other: Path) -> None:
    """Give a file a second name without ever taking away its first."""
    with temporary(other) as partial:
        try:
            os.link(file, partial)
        except OSError:  # a file system without links
            shutil.copyfile(file, partial)
        partial.replace(other)


def read_header(file: Path) -> dict[str, Any]:
    """Phase, step, configuration and versions of a checkpoint; its content is not read.

    Raises:
        UserError: it is missing, cut off, or of another format.
    """
    with _opened(file) as stream:
        return _header(file, stream)[0]


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, tensors and plain values only.

    Raises:
        UserError: it is missing, damaged, or of another format.
    """
    with _opened(file) as stream:
        header, checksum = _header(file, stream)
        start = stream.tell()
        _check(file, stream, checksum)
        stream.seek(start)
        try:
            payload = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types for foreign files
            cause = one_line(error).partition(". ")[0]  # torch goes on with advice
            raise _unreadable(file, cause) from error
    if not isinstance(payload, dict):
        raise _unreadable(file, "it holds no dictionary")
    for part in ("model", "ema"):
        if not is_finite(payload.get(part)):
            raise _unreadable(file, f"{part} has values that are not finite")
    return {**payload, **header}


def damage(file: Path) -> str | None:
    """What is wrong with a checkpoint, its weights included; None: nothing.

    Raises:
        UserError: the system refuses to read it, which says nothing about its bytes.
    """
    try:
        load(file)
    except Unreadable as error:
        return error.cause
    return None


class Unreadable(UserError):
    """The bytes of a file are not those of a checkpoint."""

    cause = ""


def _unreadable(file: Path, cause: str, remedy: str = "remove it") -> Unreadable:
    error = Unreadable(f"checkpoint {file} cannot be read ({cause}); {remedy}")
    error.cause = cause
    return error


def _opened(file: Path) -> BinaryIO:
    if not file.is_file():
        raise UserError(f"no checkpoint {file}: train that phase first")
    try:
        return file.open("rb")
    except OSError as error:
        raise UserError(f"checkpoint {file} cannot be read ({error.strerror})") from error


def _header(file: Path, stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and the checksum of the content, at whose beginning the stream is left."""
    lead = stream.read(len(_lead(b"", 0, 0)))
    if lead[:4] == b"PK\3\4":
        raise UserError(
            f"checkpoint {file} is of format 2 or older, this program reads {FORMAT}: go on with "
            "the version that wrote it, or train anew"
        )
    try:
        words = lead.removeprefix(MAGIC).split()
        if lead.startswith(MAGIC) and int(words[0]) > FORMAT:
            newer = f"it is of the newer format {int(words[0])}, this program reads {FORMAT}"
            raise _unreadable(file, newer, "go on with the version that wrote it")
        text, size, checksum = stream.read(int(words[1])), int(words[3]), int(words[4], 16)
        if lead != _lead(text, size, checksum):
            raise ValueError("its header does not fit its checksum")
        header = json.loads(text)
    except (ValueError, IndexError) as error:
        raise _unreadable(file, f"no header of format {FORMAT}") from error
    missing = stream.tell() + size - os.fstat(stream.fileno()).st_size
    if missing:
        raise _unreadable(file, f"{missing} bytes are missing" if missing > 0 else "it is too long")
    return header, checksum


def _check(file: Path, stream: BinaryIO, checksum: int) -> None:
    if _checksum(stream) != checksum:
        raise _unreadable(file, "its content does not fit its checksum")


def _checksum(stream: BinaryIO) -> int:
    """Of what follows in a stream."""
    summed = 0
    while part := stream.read(CHUNK):
        summed = zlib.crc32(part, summed)
    return summed


def is_finite(state: Any) -> bool:
    """Whether all values of a network's state are; what is no state is left to others."""
    if not isinstance(state, Mapping):
        return True
    tensors = (value for value in state.values() if isinstance(value, Tensor))
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def mend(file: Path, log: Callable[[str], None]) -> None:
    """Put the checkpoint before in the place of one that is damaged or gone, and log a line.

    Raises:
        UserError: the system refuses to read it.
    """
    before = earlier(file)
    problem = damage(file) if file.exists() else "it is gone"
    if problem is None or not before.exists() or damage(before):
        return
    aside = "there is none"
    if file.exists():
        aside = f"it is kept as {file.replace(unused(file, 'damaged')).name}"
    _keep(before, file)
    log(f"checkpoint {file} is damaged ({problem}; {aside}); going on from the one before")


def load_good(file: Path) -> tuple[dict[str, Any], str]:
    """The newest checkpoint that can be read; nothing is changed.

    Returns:
        The payload, and a remark for people, empty for the newest.

    Raises:
        UserError: neither it nor the one before can be read.
    """
    return _first_good(file, load)


def good_header(file: Path) -> dict[str, Any]:
    """The header of the newest checkpoint that has one; errors as in :func:`load_good`."""
    return _first_good(file, read_header)[0]


def _first_good(file: Path, read: Callable[[Path], Found]) -> tuple[Found, str]:
    before = earlier(file)
    try:
        return read(file), ""
    except UserError as error:
        if not before.exists():
            raise
        try:
            found = read(before)
        except UserError:
            raise error from None
    state = "damaged" if file.exists() else "gone"
    return found, f"; {file.name} is {state}, this is the one before"


def check_phase(file: Path, header: dict[str, Any], phase: str) -> None:
    """
    Raises:
        UserError: the checkpoint is of another phase.
    """
    if header.get("phase") != phase:
        raise UserError(
            f"checkpoint {file} is of phase {header.get('phase')}, not of {phase}; remove it"
        )


def what_is_lost(file: Path, phase: str) -> str:
    """A line for people about a phase that is interrupted without saving."""
    try:
        step = good_header(file)["step"]
    except UserError:
        return f"{phase}: interrupted; there is no checkpoint of it yet, --resume begins it anew"
    return f"{phase}: interrupted; updates after {step} are lost, --resume goes on from {file}"
