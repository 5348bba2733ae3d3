"""Image sets, held as uint8 tensors (N, C, H, W) in main memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.data.cifar import read_batch
from nsgf.system.errors import UserError

IMAGE_SHAPES: dict[str, tuple[int, int, int]] = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
}
FAKE_IMAGES = 512


def to_unit_range(images: Tensor) -> Tensor:
    """uint8 in [0, 255] to float32 in [-1, 1]."""
    # a tensor: by a plain number a card does not divide, but multiply with its rounded inverse
    half = torch.full((), 127.5, device=images.device)
    return images.float().div_(half).sub_(1.0)


def to_bytes(images: Tensor) -> Tensor:
    """float in [-1, 1] (clipped) to uint8 in [0, 255], the inverse of :func:`to_unit_range`."""
    return images.clamp(-1, 1).add(1.0).mul(127.5).round().to(torch.uint8)


def load_images(name: str, root: Path, *, verify: bool, download: bool) -> Tensor:
    """Training images of the set ``name``.

    Args:
        name: ``digits``, ``mnist`` or ``cifar10``.
        root: folder in torchvision's layout; unused for digits.
        verify: compare CIFAR-10's files with the published md5 sums.
        download: fetch what is missing.

    Returns:
        uint8, (N, C, H, W).

    Raises:
        UserError: the files are not there, are damaged, or could not be downloaded.
    """
    if name == "digits":
        return _digits()
    loader = _mnist if name == "mnist" else _cifar10
    try:
        images = loader(root, verify, download)
    except Exception as error:  # damaged files make torchvision and pickle raise nearly anything
        raise UserError(unusable(name, root, verify, download, error)) from error
    _, height, width = IMAGE_SHAPES[name]
    if images.ndim != 4 or tuple(images.shape[2:]) != (height, width) or not len(images):
        raise UserError(f"data.root = {root}: {name} has images of shape {tuple(images.shape)}")
    return images


def fake_images(name: str, generator: torch.Generator) -> Tensor:
    """Random images with the shape of the set ``name``: for tests of the machinery.  uint8"""
    shape = (FAKE_IMAGES, *IMAGE_SHAPES[name])
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def _digits() -> Tensor:
    from sklearn.datasets import load_digits

    grey = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)  # 0..16 as published
    return torch.from_numpy(grey).unsqueeze(1)


def published_mnist(root: Path, download: bool) -> Any:
    """torchvision's training set, with ``data`` and ``targets``.

    Raises:
        Exception: nearly any, if files are missing or damaged.
    """
    from torchvision.datasets import MNIST as PUBLISHED

    class MNIST(PUBLISHED):  # torchvision names the folder after the class
        def _check_legacy_exist(self) -> bool:
            return False  # pickles of old versions, preferred by torchvision where they exist

    return MNIST(str(root), train=True, download=download)


def published_cifar10(root: Path, verify: bool, download: bool) -> Any:
    """torchvision's training set with ``data`` (N, H, W, C) and ``targets``, its md5 sums compared.

    None where the files are there and ``verify`` is false: they are read by :mod:`nsgf.data.cifar`
    from :func:`cifar10_files`.

    Raises:
        Exception: nearly any, if files are missing or damaged.
    """
    from torchvision.datasets import CIFAR10

    if verify or (download and not all(file.is_file() for file in cifar10_files(root))):
        return CIFAR10(str(root), train=True, download=download)
    return None


def cifar10_files(root: Path) -> list[Path]:
    """The five batches of the training set."""
    from torchvision.datasets import CIFAR10

    return [root / CIFAR10.base_folder / name for name, _ in CIFAR10.train_list]


def _mnist(root: Path, verify: bool, download: bool) -> Tensor:
    return published_mnist(root, download).data.unsqueeze(1)


def _cifar10(root: Path, verify: bool, download: bool) -> Tensor:
    published = published_cifar10(root, verify, download)
    if published is None:
        return torch.from_numpy(np.concatenate([read_batch(file) for file in cifar10_files(root)]))
    return torch.from_numpy(published.data).permute(0, 3, 1, 2).contiguous()


def unusable(name: str, root: Path, verify: bool, download: bool, error: Exception) -> str:
    """The one line about files that are missing or damaged, with what can be done."""
    cause = " ".join(str(error).split())
    remedies = [f"put torchvision's {name} files there"]
    if not download:
        remedies.append("allow the download with --data.download true")
    if name == "cifar10" and verify:
        remedies.append("accept a copy with other md5 sums with --data.verify false")
    remedies.append("name another folder with --data-root DIR")
    remedies.append("try the machinery with --fake-data")
    return f"data.root = {root}: no usable {name} ({cause}); " + ", or ".join(remedies)
