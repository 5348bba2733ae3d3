"""Fingerprints of tensors, and files of tensors from elsewhere."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def fingerprint(tensor: Tensor) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a tensor's shape, type and values."""
    digest = hashlib.sha256(repr((tuple(tensor.shape), tensor.dtype)).encode())
    digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def load_archive(file: Path) -> Any:
    """What torch.save wrote: tensors and plain values, whose checksums torch does not compare.

    Raises:
        Exception: nearly any: the file is damaged, or holds anything else.
    """
    with file.open("rb") as stream:
        with zipfile.ZipFile(stream) as archive:
            if broken := archive.testzip():
                raise ValueError(f"{broken} does not fit its checksum")
        stream.seek(0)
        return torch.load(stream, map_location="cpu", weights_only=True)
