"""Tensors and plain values that are computed once and kept in a file of torch.save."""

import hashlib
import zipfile
from collections.abc import Callable
from os.path import lexists
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsgf.run.folder import replacing
from nsgf.system.errors import one_line

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
    """Return a value from its file, or computed now and kept there.

    Args:
        file: where the value is kept.
        check: turns the file's content into the value; may raise any exception for another content.
        compute: returns the content, tensors and plain values.
        log: takes a line about a file that cannot be used.
    """
    if lexists(file):
        try:
            return check(_read(file))
        except Exception as error:  # torch raises many types for damaged and foreign files
            log(f"{file} cannot be used ({one_line(error)[:100]}); it is computed again")
    content = compute()
    try:
        with replacing(file) as stream:
            torch.save(content, stream)
    except (OSError, RuntimeError) as error:  # torch hides a full disk behind an error of its own
        log(f"{file} cannot be kept ({one_line(error)[:100]})")
    return check(content)


def _read(file: Path) -> Any:
    """Return the content of a file of torch.save. Checksums are compared, which torch itself does
    not do."""
    with file.open("rb") as stream:
        with zipfile.ZipFile(stream) as archive:
            if broken := archive.testzip():
                raise ValueError(f"{broken} does not fit its checksum")
        stream.seek(0)
        return torch.load(stream, map_location="cpu", weights_only=True)
