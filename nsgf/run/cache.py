"""Cache computed tensors and plain values in a file of torch.save."""

import hashlib
import zipfile
from collections.abc import Callable
from os.path import lexists
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsgf.system.errors import one_line
from nsgf.system.files import replacing

T = TypeVar("T")


def fingerprint(tensor: Tensor) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a tensor's shape, type and values."""
    digest = hashlib.sha256(repr((tuple(tensor.shape), tensor.dtype)).encode())
    digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def load_or_compute(
    file: Path,
    check: Callable[[Any], T],
    compute: Callable[[], Any],
    log: Callable[[str], None],
) -> T:
    """Load a value from its file; if that fails, log it, compute the value and save the file.

    ``check`` converts the file's content, tensors and plain values, to the value, or raises any
    exception; ``compute`` returns the content.
    """
    if lexists(file):
        try:
            return check(_read(file))
        except Exception as error:  # torch raises many types for damaged and foreign files
            log(f"{file} cannot be used ({one_line(error)[:100]}); computing it again")
    content = compute()
    try:
        with replacing(file) as stream:
            torch.save(content, stream)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if the disk is full
        log(f"{file} cannot be saved ({one_line(error)[:100]})")
    return check(content)


def _read(file: Path) -> Any:
    """Return the content of a file of torch.save, after a check of the checksums in it, which torch
    does not check."""
    with file.open("rb") as stream:
        with zipfile.ZipFile(stream) as archive:
            if broken := archive.testzip():
                raise ValueError(f"wrong checksum of {broken}")
        stream.seek(0)
        return torch.load(stream, map_location="cpu", weights_only=True)
