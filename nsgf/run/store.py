"""Store tensors and plain values in a file of ``torch.save``. The file is a zip archive, which can
also hold a header in JSON. The checksums in the archive detect damage. This module compares them,
because torch does not."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from nsgf.system.errors import one_line
from nsgf.system.files import Plain, parse_object, replacing
from nsgf.system.output import Log, show

if TYPE_CHECKING:
    from torch import Tensor  # torch takes seconds to load, and headers need no torch

Stored = TypeVar("Stored")

HEADER = "archive/header.json"
"""Name of the header in the archive. torch reads an archive only if all files lie in one folder."""


def fingerprint(tensor: "Tensor") -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a tensor's shape, type and values."""
    digest = hashlib.sha256(repr((tuple(tensor.shape), tensor.dtype)).encode())
    for part in tensor.unsqueeze(-1).split(4096):  # a mapped tensor may be larger than memory
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def write(stream: Any, content: Any, header: Plain | None = None) -> None:
    """Write tensors and plain values, and a header, which can be read without the tensors. If the
    disk is full, torch raises RuntimeError."""
    import torch

    torch.save(content, stream)
    if header is not None:
        with zipfile.ZipFile(stream, "a") as archive:
            archive.writestr(HEADER, json.dumps(header, allow_nan=False))


def read_header(stream: BinaryIO) -> Plain:
    """Return the header of a file. Raise KeyError if there is no header. A damaged file may raise
    any type of error."""
    with zipfile.ZipFile(stream) as archive:
        return parse_object(archive.read(HEADER))


def read(stream: BinaryIO) -> Any:
    """Return the content of a file on the CPU. A damaged file may raise any type of error. So may a
    file with objects that are neither tensors nor plain values."""
    import torch

    with zipfile.ZipFile(stream) as archive:
        if broken := archive.testzip():
            raise ValueError(f"wrong checksum of {broken}")
    stream.seek(0)
    return torch.load(stream, map_location="cpu", weights_only=True)


def find(file: Path, check: Callable[[Any], Stored], log: Log = show) -> Stored | None:
    """Return the content of a file, converted by ``check``; None if the file does not exist. If
    reading or ``check`` raises any exception, log a line and return None."""
    if not lexists(file):
        return None
    try:
        with file.open("rb") as stream:
            return check(read(stream))
    except Exception as error:  # zipfile and torch raise many types for damaged and foreign files
        log(f"{file} cannot be used ({one_line(error)[:100]}); computing it again")
        return None


def keep(file: Path, content: Any, log: Log = show) -> bool:
    """Save tensors and plain values, and return True. If the file cannot be written, log a line and
    return False."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            write(stream, content)
    except (OSError, RuntimeError) as error:
        log(f"{file} cannot be saved ({one_line(error)[:100]})")
        return False
    return True
