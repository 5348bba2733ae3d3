"""Image sets, held as uint8 tensors (N, C, H, W) in main memory.

To add a set, add reading functions and a record here, the name in config/schema.py, and a file of
settings in configs/.
"""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import STANDARD, DataConfig, Names
from nsgf.data.points import Target
from nsgf.system.errors import UserError, one_line, suggest, wrong_setting
from nsgf.system.seeding import make_generator

FAKE_IMAGES = 512
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class ImageSet(Target):
    """A set of images. Methods may train on all images except the test images."""

    name: str
    shape: tuple[int, int, int]
    """(C, H, W)."""
    read_images: Callable[[DataConfig, bool], Tensor]
    """Function (config, held_out) that returns training images, or test images if held_out, uint8,
    (N, C, H, W). May raise any exception."""
    read_labels: Callable[[DataConfig, bool], Tensor] | None = None
    """Function (config, held_out) that returns the classes of these images, integers (N,) in [0,
    classes - 1]."""
    has_test: bool = False
    """Whether the set has test images."""
    class_names: Names = ()
    is_images: bool = True
    uses: frozenset[str] = frozenset({"root", "fake", "flip"})
    """Includes ``root`` if the set reads files, and ``download`` if they can be downloaded."""
    unread: frozenset[str] = frozenset()
    sources: Names = (STANDARD,)
    mapped: Path | None = None

    def load(self, config: DataConfig, seed: int, *, held_out: bool = False) -> Tensor | None:
        if config.fake:
            return torch.randint(
                256,
                (FAKE_IMAGES, *self.shape),
                dtype=torch.uint8,
                generator=make_generator(seed, "fake"),
            )
        if held_out and not self.has_test:
            return None
        with self._in_one_line(config):
            images = self.read_images(config, held_out)
            if images.shape[1:] != self.shape or images.dtype != torch.uint8 or not len(images):
                raise ValueError(
                    f"images {tuple(images.shape)} of {images.dtype}, must be (N, {self.shape}) of "
                    "torch.uint8"
                )
        return images

    def from_units(self, samples: Tensor) -> Tensor:
        """Return bytes as floats in [-1, 1]."""
        return to_unit_range(samples) if samples.dtype == torch.uint8 else samples

    def in_units(self, samples: Tensor) -> Tensor:
        return samples.clamp(-1, 1)

    def labels(self, config: DataConfig, count: int, *, held_out: bool = False) -> Tensor:
        assert self.read_labels is not None
        classes = len(self.class_names)
        with self._in_one_line(config):
            labels = self.read_labels(config, held_out).long()
            if labels.shape != (count,) or not set(labels.tolist()) <= set(range(classes)):
                raise ValueError(f"labels are not {count} numbers from 0 to {classes - 1}")
        return labels

    @contextmanager
    def _in_one_line(self, config: DataConfig) -> Iterator[None]:
        """Turn errors of the reading functions into a UserError with a remedy."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # torchvision raises many types for damaged files
            raise wrong_setting(
                "data.root",
                config.root,
                f"no usable {self.name} ({one_line(error)}); put its "
                f"published files there, use {suggest('data.download', 'true')} or "
                f"{suggest('data.fake', 'true')}, or your images with {suggest('exp', 'images')}",
            ) from error


def data_root(config: DataConfig) -> Path:
    """Return the folder ``data.root``."""
    return Path(config.root).expanduser()


def to_unit_range(images: Tensor) -> Tensor:
    """Convert uint8 in [0, 255] to float32 in [-1, 1]."""
    # divide by a tensor: for a plain number, a card would multiply by the rounded inverse
    half = torch.full((), 127.5, dtype=torch.float32, device=images.device)
    return images.float().div_(half).sub_(1.0)


def to_colour(images: Tensor) -> Tensor:
    """Return images with three channels. With 1 or 2 channels, repeat the first channel. With 4
    channels, drop the last channel. (N, C, H, W) -> (N, 3, H, W)"""
    return images[:, : 1 if images.shape[1] < 3 else 3].expand(-1, 3, -1, -1)


def to_bytes(images: Tensor) -> Tensor:
    """Convert floats in [-1, 1] (clipped) to uint8 in [0, 255], the inverse of
    :func:`to_unit_range`."""
    return images.clamp(-1, 1).add(1.0).mul(127.5).round().to(torch.uint8)


def _digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits, uint8, (N, 1, 8, 8), and their labels, (N,)."""
    from sklearn.datasets import load_digits

    content = load_digits()
    grey = np.rint(content.images * (255 / 16)).astype(np.uint8)
    return torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(content.target)


def _mnist(config: DataConfig, held_out: bool, kind: str) -> Tensor:
    """Return the uint8 values of a file of MNIST. The file may be compressed. Names and folders of
    common copies of MNIST are accepted."""
    from torchvision.datasets import MNIST

    name = f"{'t10k' if held_out else 'train'}-{kind}-ubyte"
    root = data_root(config)
    raw = root / "MNIST" / "raw"
    stems = (name, name.replace("-idx", ".idx"))
    names = [stem + ending for stem in stems for ending in ("", ".gz")]
    # unpacked archives lie in a folder of the same name
    names += [f"{copy}/{copy}" for copy in names]
    # search only these folders: FashionMNIST has files of the same names elsewhere
    folders = (raw, root, raw.parent, root / "mnist")
    files = [folder / copy for folder in folders for copy in names]
    file = next(filter(Path.is_file, files), None)
    if file is None:
        MNIST(root, download=config.download)
        file = raw / name
    content = (gzip.decompress if file.suffix == ".gz" else bytes)(file.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, offset=4).tolist()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * axes).view(shape)


def _cifar10(config: DataConfig, held_out: bool) -> tuple[Tensor, Tensor]:
    """Return torchvision's training or test set, uint8, (N, 3, 32, 32), and its labels, (N,).
    Torchvision compares the md5 sums of the files with the published md5 sums before it unpickles
    the files."""
    from torchvision.datasets import CIFAR10

    root = data_root(config)
    is_there = (root / CIFAR10.base_folder).exists()  # a download would replace the files
    content = CIFAR10(root, not held_out, download=config.download and not is_there)
    return torch.from_numpy(content.data).permute(0, 3, 1, 2), torch.tensor(content.targets)


IMAGE_SETS = (
    ImageSet(
        name="digits",
        shape=(1, 8, 8),
        read_images=lambda *_: _digits()[0],
        read_labels=lambda *_: _digits()[1],
        class_names=DIGITS,
        uses=frozenset({"fake", "flip"}),
    ),
    ImageSet(
        name="mnist",
        shape=(1, 28, 28),
        read_images=lambda config, held_out: _mnist(config, held_out, "images-idx3")[:, None],
        read_labels=lambda config, held_out: _mnist(config, held_out, "labels-idx1"),
        has_test=True,
        class_names=DIGITS,
        uses=frozenset({"root", "download", "fake", "flip"}),
    ),
    ImageSet(
        name="cifar10",
        shape=(3, 32, 32),
        read_images=lambda *which: _cifar10(*which)[0],
        read_labels=lambda *which: _cifar10(*which)[1],
        has_test=True,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        uses=frozenset({"root", "download", "fake", "flip"}),
    ),
)
