"""Checksums of tensors, and files of torch.save."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def fingerprint(tensor: Tensor) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a tensor's shape, type and values."""
    digest = hashlib.sha256(repr((tuple(tensor.shape), tensor.dtype)).encode())
    digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def load_archive(file: Path) -> Any:
    """Return the content of a file of torch.save: tensors and plain values. Checksums are compared,
    which torch itself does not do.

    Raises:
        Exception: of many types, if the file is damaged or holds anything else.
    """
    with file.open("rb") as stream:
        with zipfile.ZipFile(stream) as archive:
            if broken := archive.testzip():
                raise ValueError(f"{broken} does not fit its checksum")
        stream.seek(0)
        return torch.load(stream, map_location="cpu", weights_only=True)
