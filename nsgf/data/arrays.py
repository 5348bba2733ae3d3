"""The user's own images as arrays in a file .npz: ``images``, and for classes ``labels``.

Shapes: N images, C channels, S x S pixels, K classes.
"""

import hashlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data import folder
from nsgf.data.folder import LEAST_OF_CLASS, notes_about
from nsgf.data.images import ImageSet, to_bytes
from nsgf.data.own import LEAST, Found, Inspection, check_same_data, data_path, read_found
from nsgf.system.errors import UserError, one_line


def is_array(config: DataConfig) -> bool:
    """Whether ``data.path`` is a file of arrays; else it is a folder."""
    return data_path(config).suffix.lower() == ".npz"


def inspect_images(config: DataConfig) -> Inspection:
    """Describe the images of ``data.path``, a folder or a file of arrays.

    Raises:
        UserError: as :func:`nsgf.data.folder.inspect_images` or :func:`read_images`.
    """
    if not is_array(config):
        return folder.inspect_images(config)
    images, _, names, checksum = _read(config)
    count, *shape = images.shape
    if config.size not in (None, shape[1]):
        raise UserError(f"data.size = {config.size}: must be {shape[1]}, as in {config.path}")
    found = Found(count, shape, checksum, len(names), class_names=names)
    return found, notes_about(found, config)


def image_set(config: DataConfig) -> ImageSet:
    """Return the record of the images of ``data.path``; errors as for
    :func:`nsgf.data.folder.image_set`."""
    record = folder.image_set(config)
    if not is_array(config):
        return record
    labels = read_labels if record.classes else None
    return replace(record, read_images=read_images, read_labels=labels)


def read_images(config: DataConfig) -> Tensor:
    """Return all images of a file.  uint8, (N, C, S, S)

    Raises:
        UserError: it cannot be read, holds something else, or other images than the run was begun
            with.
    """
    images, *_, checksum = _read(config)
    check_same_data(config, checksum == read_found(config).checksum)
    return images


def read_labels(config: DataConfig) -> Tensor:
    """Return the class of each image of a file.  int64, (N,)"""
    return torch.from_numpy(_read(config)[1])


def _read(config: DataConfig) -> tuple[Tensor, np.ndarray | None, list[str], str]:
    """Return the images of a file, uint8, (N, C, S, S), their classes, (N,), the names of these,
    and the checksum of images and classes."""
    file = data_path(config)
    try:
        with np.load(file, allow_pickle=False) as content:
            images, labels = image_bytes(content["images"]), content.get("labels")
        names, classes = ([], None) if labels is None else class_numbers(labels, len(images))
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"data.path = {file}: {one_line(error)}") from error
    digest = hashlib.sha256(repr(images.shape).encode())
    for part in (images, classes):
        digest.update(b"" if part is None else part.tobytes())
    return torch.from_numpy(images), classes, names, digest.hexdigest()[:12]


def image_bytes(images: np.ndarray) -> np.ndarray:
    """Return images (N, C, S, S) of bytes, or of floats in [-1, 1], as bytes.

    Raises:
        ValueError: they have another shape, type or range.
    """
    is_square = images.ndim == 4 and images.shape[2] == images.shape[3]
    is_right = is_square and images.shape[1] in (1, 3) and len(images) >= LEAST
    if not is_right or (images.dtype != np.uint8 and images.dtype.kind != "f"):
        raise ValueError(
            f"images: {images.dtype} of shape {images.shape}, must be (N, C, S, S), "
            f"N >= {LEAST}, C 1 or 3, of uint8 or floats in [-1, 1]"
        )
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    if not (-1 <= low < 0 and high <= 1):  # also if one is nan
        raise ValueError(
            f"images: values from {low:g} to {high:g}, floats must be in [-1, 1] with some below "
            "0; for values in [0, 1] use 2 * images - 1"
        )
    return to_bytes(torch.from_numpy(images).float()).numpy()


def class_numbers(labels: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the K classes, in their order, and the classes of ``count`` images as
    numbers 0 to K - 1, int64, (N,).

    Raises:
        ValueError: there are not as many, they are neither whole numbers nor names, or a class has
            too few images.
    """
    is_wrong = labels.shape != (count,) or labels.dtype.kind not in "iuU"
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    has_gaps = labels.dtype.kind != "U" and values.tolist() != list(range(len(values)))
    if is_wrong or has_gaps or len(values) < 2 or counts.min() < LEAST_OF_CLASS:
        raise ValueError(
            f"labels: {labels.dtype} of shape {labels.shape} with {len(values)} classes, must be "
            f"one for each of {count} images: whole numbers from 0 on without gaps, or names, of 2 "
            f"or more classes with {LEAST_OF_CLASS} or more images each"
        )
    return [one_line(str(name)) for name in values], numbers.astype(np.int64)
