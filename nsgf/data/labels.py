"""Labels of the image sets, in the order of :func:`nsgf.data.images.load_images`."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.data.cifar import CLASSES, read_labels
from nsgf.data.images import cifar10_files, published_cifar10, published_mnist, unusable
from nsgf.system.errors import UserError


def load_labels(name: str, root: Path, *, verify: bool, download: bool) -> Tensor:
    """Labels of the training images of the set ``name``.

    Args:
        name: ``digits``, ``mnist`` or ``cifar10``.
        root: folder in torchvision's layout; unused for digits.
        verify: compare CIFAR-10's files with the published md5 sums.
        download: fetch what is missing.

    Returns:
        int64, (N,), in [0, 9].

    Raises:
        UserError: the files are not there, are damaged, or could not be downloaded.
    """
    if name == "digits":
        return _digits()
    try:
        labels = _mnist(root, download) if name == "mnist" else _cifar10(root, verify, download)
        if labels.ndim != 1 or not len(labels) or labels.min() < 0 or labels.max() >= CLASSES:
            raise ValueError(f"labels are not one of 0 to {CLASSES - 1} for each image")
    except Exception as error:  # damaged files make torchvision and pickle raise nearly anything
        raise UserError(unusable(name, root, verify, download, error)) from error
    return labels


def _digits() -> Tensor:
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().target).long()


def _mnist(root: Path, download: bool) -> Tensor:
    return published_mnist(root, download).targets.long()


def _cifar10(root: Path, verify: bool, download: bool) -> Tensor:
    published = published_cifar10(root, verify, download)
    if published is None:
        return torch.from_numpy(np.concatenate([read_labels(file) for file in cifar10_files(root)]))
    return torch.tensor(published.targets)
