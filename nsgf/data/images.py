"""Image sets, held as uint8 tensors (N, C, H, W) in main memory.

All that the program knows of a set is its :class:`ImageSet`. To add one: its reading functions and
its record here, its name in config/schema.py, and its settings in configs/.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.cifar import read_batch, read_labels
from nsgf.data.folder import holds_images
from nsgf.system.errors import UserError, one_line

FAKE_IMAGES = 512


@dataclass(frozen=True)
class Files:
    """Where the files of a set are, and what may be done with them."""

    root: Path
    verify: bool
    """Compare with published checksums."""
    download: bool
    """Fetch what is missing."""

    @classmethod
    def of(cls, config: DataConfig) -> "Files":
        """The files that the section ``data`` names."""
        return cls(Path(config.root).expanduser(), config.verify, config.download)


@dataclass(frozen=True)
class ImageSet:
    """A set of training images."""

    name: str
    """``data.name``."""
    shape: tuple[int, int, int]
    """(C, H, W), square."""
    read_images: Callable[[Files], Tensor]
    """uint8, (N, C, H, W); may raise anything."""
    read_labels: Callable[[Files], Tensor] | None = None
    """int64, (N,), in [0, classes - 1], in the order of the images; may raise anything."""
    classes: int = 10
    classifier_epochs: int = 8
    """Epochs of training of the small classifier (:mod:`nsgf.small_classifier`)."""
    uses: frozenset[str] = frozenset({"root", "fake", "flip"})
    """Settings of the section ``data`` that mean something for it, besides its name: ``root`` if
    it reads files, ``verify`` if they have published checksums, ``download`` if they can be
    fetched, ``fake`` and ``flip``."""
    files: str = "its files"
    """What ``data.root`` holds, for messages."""

    is_source = False

    def images(self, files: Files) -> Tensor:
        """The training images.  uint8, (N, C, H, W)

        Raises:
            UserError: the files are missing, damaged, of another shape, or cannot be downloaded.
        """
        images = self._read(self.read_images, files)
        if images.shape[1:] != self.shape or images.dtype != torch.uint8 or not len(images):
            raise UserError(
                f"data.root = {files.root}: {self.name} has images {tuple(images.shape)} of "
                f"{images.dtype}, must be (N, {', '.join(map(str, self.shape))}) of torch.uint8"
            )
        return images

    def labels(self, files: Files) -> Tensor:
        """The labels of the training images, in their order.  int64, (N,)

        Raises:
            UserError: there are none, or the files are missing, damaged or cannot be downloaded.
        """
        if self.read_labels is None:
            raise UserError(f"data.name = {self.name}: has no labels")
        labels = self._read(self.read_labels, files)
        if labels.ndim != 1 or not len(labels) or labels.min() < 0 or labels.max() >= self.classes:
            problem = ValueError(f"labels are not one of 0 to {self.classes - 1} for each image")
            raise UserError(self._unusable(files, problem)) from problem
        return labels.long()

    def fake_images(self, generator: torch.Generator) -> Tensor:
        """Random images of the set's shape, to try the machinery with.  uint8, (N, C, H, W)"""
        shape = (FAKE_IMAGES, *self.shape)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)

    def _read(self, read: Callable[[Files], Tensor], files: Files) -> Tensor:
        try:
            return read(files)
        except UserError:
            raise
        except Exception as error:  # for damaged files torchvision and pickle raise anything
            raise UserError(self._unusable(files, error)) from error

    def _unusable(self, files: Files, error: Exception) -> str:
        """One line about files that are missing or damaged, with what can be done."""
        if "path" in self.uses:
            return f"data.path: its {self.files} cannot be read ({one_line(error)})"
        remedies = [f"put {self.files} there"]
        if "download" in self.uses and not files.download:
            remedies.append("allow the download with --data.download true")
        if "verify" in self.uses and files.verify:
            remedies.append("accept a copy with other md5 sums with --data.verify false")
        remedies.append("name another folder with --data-root DIR")
        remedies.append("try the machinery with --fake-data")
        if holds_images(files.root):
            remedies.insert(0, "train on the images there with --exp images --data.path DIR")
        return (
            f"data.root = {files.root}: no usable {self.name} ({one_line(error)}); "
            f"{', or '.join(remedies)}"
        )


def to_unit_range(images: Tensor) -> Tensor:
    """uint8 in [0, 255] to float32 in [-1, 1]."""
    # a tensor: by a plain number a card does not divide, but multiply with its rounded inverse
    half = torch.full((), 127.5, device=images.device)
    return images.float().div_(half).sub_(1.0)


def to_bytes(images: Tensor) -> Tensor:
    """float in [-1, 1] (clipped) to uint8 in [0, 255], the inverse of :func:`to_unit_range`."""
    return images.clamp(-1, 1).add(1.0).mul(127.5).round().to(torch.uint8)


# --- scikit-learn's 8x8 digits, which come with it -----------------------------------------------


def _digits() -> Any:
    """scikit-learn's record, with ``images`` (N, 8, 8) in 0..16 and ``target``."""
    from sklearn.datasets import load_digits

    return load_digits()


def _digits_images(_: Files) -> Tensor:
    grey = np.rint(_digits().images * (255 / 16)).astype(np.uint8)
    return torch.from_numpy(grey).unsqueeze(1)


# --- MNIST, in torchvision's layout --------------------------------------------------------------


def _mnist(files: Files) -> Any:
    """torchvision's training set, with ``data`` and ``targets``."""
    from torchvision.datasets import MNIST as PUBLISHED

    class MNIST(PUBLISHED):  # torchvision names the folder after the class
        def _check_legacy_exist(self) -> bool:
            return False  # pickles of old versions, preferred by torchvision where they exist

    return MNIST(str(files.root), train=True, download=files.download)


# --- CIFAR-10, in torchvision's layout -----------------------------------------------------------


def _cifar10(files: Files, read: Callable[[Path], np.ndarray]) -> Tensor:
    """What ``read`` makes of the training set; torchvision fetches it and compares its md5 sums."""
    from torchvision.datasets import CIFAR10

    batches = [files.root / CIFAR10.base_folder / name for name, _ in CIFAR10.train_list]
    if files.verify or (files.download and not all(file.is_file() for file in batches)):
        CIFAR10(str(files.root), download=files.download)
    return torch.from_numpy(np.concatenate([read(file) for file in batches]))


IMAGE_SETS = (
    ImageSet(
        name="digits",
        shape=(1, 8, 8),
        read_images=_digits_images,
        read_labels=lambda _: torch.from_numpy(_digits().target),
        classifier_epochs=30,
        uses=frozenset({"fake", "flip"}),
    ),
    ImageSet(
        name="mnist",
        shape=(1, 28, 28),
        read_images=lambda files: _mnist(files).data.unsqueeze(1),
        read_labels=lambda files: _mnist(files).targets,
        classifier_epochs=4,
        uses=frozenset({"root", "download", "fake", "flip"}),
        files="torchvision's mnist files",
    ),
    ImageSet(
        name="cifar10",
        shape=(3, 32, 32),
        read_images=lambda files: _cifar10(files, read_batch),
        read_labels=lambda files: _cifar10(files, read_labels),
        classifier_epochs=8,
        uses=frozenset({"root", "verify", "download", "fake", "flip"}),
        files="torchvision's cifar10 files",
    ),
)
