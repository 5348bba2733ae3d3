"""Write and read checkpoints.

Each phase keeps its last two checkpoints. It writes one every ``train.checkpoint_every`` updates
and at its end. Later phases read the last one. Content of a file:

    nsgf checkpoint FORMAT, lengths and checksums of the rest          one line of fixed length
    phase, step, configuration, versions                               JSON
    weights, average, optimizer, ...                                   written by torch.save

The step can be read without the weights; the checksums cover every byte.
"""

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from nsgf.system.errors import UserError, cause, one_line, suggest
from nsgf.system.files import link_or_copy, replacing, sync_folder
from nsgf.system.json_reader import fields, parse_object
from nsgf.system.versions import versions

FORMAT = 3
MAGIC = b"nsgf checkpoint "
HEADER = ("phase", "step", "precision", "config")
"""Keys of a payload that are stored in the header."""
CHUNK = 1 << 22


def previous_file(file: Path) -> Path:
    """Return the file of the checkpoint before the newest: ``phase2_nsf.earlier.pt``."""
    return file.with_suffix(".earlier.pt")


def unused_file(file: Path, name: str) -> Path:
    """Return the first unused name of ``*.NAME1.pt``, ``*.NAME2.pt``, ... beside a checkpoint."""
    number = 1
    while (free := file.with_suffix(f".{name}{number}.pt")).exists():
        number += 1
    return free


def save(file: Path, payload: dict[str, Any]) -> None:
    """Write a checkpoint, and keep the previous one (:func:`previous_file`).

    At any time, one of the two files is a complete checkpoint. ``payload`` is nested dictionaries
    of tensors and plain values. Raise UserError if it cannot be written; the existing checkpoints
    do not change."""
    header = {key: payload[key] for key in HEADER if key in payload}
    text = json.dumps({**header, "versions": versions()}, allow_nan=False).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            stream.write(_first_line(text, 0, 0) + text)
            begin = stream.tell()
            rest = {key: value for key, value in payload.items() if key not in header}
            torch.save(rest, cast(IO[bytes], stream))
            size = stream.tell() - begin
            stream.seek(begin)
            checksum = _checksum(stream)
            stream.seek(0)
            stream.write(_first_line(text, size, checksum))
            stream.flush()
            os.fsync(stream.fileno())
            if file.exists():
                link_or_copy(file, previous_file(file))
    except (OSError, RuntimeError) as failure:
        error = _original_error(failure)
        if not isinstance(error, OSError):  # e.g. a second Ctrl-C
            raise error from None
        raise UserError(
            f"checkpoint {file} cannot be written ({cause(error)}); free disk space, or use "
            f"another folder with {suggest('out_dir', 'DIR')}; the previous checkpoint is kept"
        ) from error


def _original_error(error: BaseException) -> BaseException:
    """Return the original error behind an error of torch."""
    while isinstance(error, RuntimeError) and error.__context__:
        error = error.__context__
    return error


def _first_line(text: bytes, size: int, checksum: int) -> bytes:
    """Return the first line of a file: lengths and checksums of header and content."""
    words = f"{FORMAT} {len(text):08d} {zlib.crc32(text):08x} {size:016d} {checksum:08x}\n"
    return MAGIC + words.encode()


def read_header(file: Path) -> dict[str, Any]:
    """Return phase, step, configuration and versions of a checkpoint, without reading its weights.
    Raises the errors of :func:`load`."""
    with _open_checkpoint(file) as stream:
        return _parse_header(file, stream)[0]


def load(file: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU: tensors and plain values only.

    Raises:
        Unreadable: the file is damaged.
        UserError: the file is missing, has a newer format, or the system cannot read it.
    """
    with _open_checkpoint(file) as stream:
        header, checksum = _parse_header(file, stream)
        start = stream.tell()
        if _checksum(stream) != checksum:
            raise Unreadable(file, "wrong checksum")
        stream.seek(start)
        try:
            payload = torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as failure:  # torch raises many types for foreign files
            error = _original_error(failure)
            if isinstance(error, OSError | MemoryError) or "allocate memory" in str(error):
                raise OSError(errno.EIO, one_line(error)) from failure
            raise Unreadable(file, one_line(error).partition(". ")[0]) from failure
    if not isinstance(payload, dict):
        raise Unreadable(file, "not a dictionary")
    for part in ("model", "ema"):
        if not is_finite(payload.get(part)):
            raise Unreadable(file, f"{part} has values that are not finite")
    return {**payload, **header}


class Unreadable(UserError):
    """A file is damaged, or is not a checkpoint."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"checkpoint {file} cannot be read ({cause}); remove it")
        self.cause = cause


def find_damage(file: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if it is good. Raise UserError if the system
    cannot read it, or it has a newer format, which is no damage."""
    try:
        load(file)
    except Unreadable as error:
        return error.cause
    return None


def newer_format_error(file: str, its: int, ours: int) -> UserError:
    """Return the error for a file that a later version of this program wrote."""
    return UserError(
        f"{file} cannot be read (it has the newer format {its}, this program reads {ours}); "
        "use the version that wrote it"
    )


@contextmanager
def _open_checkpoint(file: Path) -> Iterator[BinaryIO]:
    """Open a checkpoint. Raise UserError if there is none, or the system cannot read it."""
    try:
        if not file.is_file():
            raise UserError(f"no checkpoint {file}: train that phase first")
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"checkpoint {file} cannot be read ({cause(error)})") from error


def _parse_header(file: Path, stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return the header and the checksum of the content; leave the stream before the content."""
    lead = stream.read(len(_first_line(b"", 0, 0)))
    if lead.startswith(b"PK"):  # written by torch.save without a header
        raise UserError(f"checkpoint {file} has format 2 or older; use the version that wrote it")
    try:
        words = lead.removeprefix(MAGIC).split()
        if lead.startswith(MAGIC) and int(words[0]) > FORMAT:
            raise newer_format_error(f"checkpoint {file}", int(words[0]), FORMAT)
        text, size, checksum = stream.read(int(words[1])), int(words[3]), int(words[4], 16)
        if lead != _first_line(text, size, checksum):
            raise ValueError("wrong checksum of the header")
        header = parse_object(text)
        fields(header, phase=str, step=int, config=dict)
    except (ValueError, IndexError) as error:
        raise Unreadable(file, f"no header of format {FORMAT}") from error
    if stream.tell() + size != os.fstat(stream.fileno()).st_size:
        raise Unreadable(file, "the file's length differs from its header")
    return header, checksum


def _checksum(stream: BinaryIO) -> int:
    """Return the checksum of the rest of a stream."""
    summed = 0
    while part := stream.read(CHUNK):
        summed = zlib.crc32(part, summed)
    return summed


def is_finite(state: Any) -> bool:
    """Whether all tensors in a network's state are finite. True for anything but a dictionary."""
    if not isinstance(state, Mapping):
        return True
    finite = [part.isfinite().all() for part in state.values() if isinstance(part, Tensor)]
    return not finite or bool(torch.stack(finite).all())  # one result to wait for, not many


def restore_previous(file: Path, log: Callable[[str], None]) -> None:
    """Replace a damaged or missing checkpoint by the previous one, and log a line. Raise the errors
    of :func:`find_damage`."""
    before = previous_file(file)
    problem = find_damage(file) if file.exists() else "missing"
    if problem is None or not before.exists() or find_damage(before):
        return
    kept = ""
    if file.exists():
        kept = f"; kept as {file.replace(unused_file(file, 'damaged')).name}"
    link_or_copy(before, file)
    sync_folder(file.parent)
    log(f"checkpoint {file} is damaged ({problem}{kept}); the previous one is used")


def load_good(
    file: Path, read: Callable[[Path], dict[str, Any]] = load
) -> tuple[dict[str, Any], str]:
    """Apply ``read`` to the newest checkpoint, or to the previous one if that is damaged. Return
    the result and a remark, which is empty for the newest. Changes no file. Raise UserError if
    neither can be read."""
    before, is_gone = previous_file(file), not file.exists()
    try:
        return read(file), ""
    except UserError as error:
        if not (is_gone or isinstance(error, Unreadable)) or not before.exists():
            raise
        try:
            found = read(before)
        except UserError:
            raise error from None
    state = "missing" if is_gone else "damaged"
    return found, f"; {file.name} is {state}, this is the previous one"


def read_good_header(file: Path) -> dict[str, Any]:
    """Return the header of the newest readable checkpoint; see :func:`load_good`."""
    return load_good(file, read_header)[0]


def check_phase(file: Path, header: dict[str, Any], phase: str) -> None:
    """Raise UserError if a checkpoint belongs to another phase."""
    if header["phase"] != phase:
        raise UserError(f"checkpoint {file} is of phase {header['phase']}, not {phase}; remove it")


def interrupted_message(file: Path, phase: str) -> str:
    """Return the message for a phase that was interrupted without saving."""
    try:
        step = read_good_header(file)["step"]
    except UserError:
        return f"{phase}: interrupted; it has no checkpoint yet"
    return f"{phase}: interrupted; updates after {step} are lost, resuming continues from {file}"
