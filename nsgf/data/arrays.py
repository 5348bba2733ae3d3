"""The user's own images as arrays in a file .npz: ``images``, and for classes ``labels``.

Shapes: N images, C channels, H x W pixels, S pixels of a side.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data import folder
from nsgf.data.folder import LEAST_OF_CLASS
from nsgf.data.images import ImageSet, to_bytes
from nsgf.data.own import LEAST, Found, Inspection, check_same_data, data_path, read_found
from nsgf.system.errors import UserError, list_names, one_line
from nsgf.system.hardware import format_bytes


def is_array(config: DataConfig) -> bool:
    """Whether ``data.path`` is a file of arrays; else it is a folder."""
    return data_path(config).suffix.lower() == ".npz"


def inspect_images(config: DataConfig) -> Inspection:
    """Describe the images of ``data.path``, a folder or a file of arrays.

    Raises:
        UserError: as :func:`nsgf.data.folder.inspect_images`, or as :func:`read_images`, or images
            of the file are not square and ``data.size`` is not given.
    """
    if not is_array(config):
        return folder.inspect_images(config)
    images, _, names, checksum = _read(config)
    count, channels, height, width = images.shape
    if config.size is None and height != width:
        raise UserError(
            f"data.path = {config.path}: images of {height} x {width} pixels, must be square; "
            "--data.size S takes the middle square of each and scales it to S pixels"
        )
    size = config.size or height
    shape, classes = [channels, size, size], len(names)
    notes = [
        f"data: {count} images of {config.path}, {channels} x {size} x {size}, "
        f"{format_bytes(count * math.prod(shape))} of memory",
        f"data: {classes} classes: {list_names(names)}"
        if classes
        else "evaluation.classifier: off, it needs labels",
    ]
    return Found(count, shape, checksum, classes, class_names=names), tuple(notes)


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
    images, _, _, checksum = _read(config)
    check_same_data(config, checksum == read_found(config).checksum)
    size = config.size or images.shape[2]
    if images.shape[2:] == (size, size):
        return images
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    side, bicubic = min(images.shape[2:]), InterpolationMode.BICUBIC
    parts = center_crop(images, [side, side]).split(1024)  # each becomes floats for a moment
    return torch.cat([resize(part, [size, size], bicubic, antialias=True) for part in parts])


def read_labels(config: DataConfig) -> Tensor:
    """Return the class of each image of a file.  int64, (N,)"""
    labels = _read(config)[1]
    assert labels is not None
    return labels


def _read(config: DataConfig) -> tuple[Tensor, Tensor | None, list[str], str]:
    """Return the images of a file, uint8, (N, C, H, W), their classes, the names of these, and the
    checksum of images and classes."""
    file, names = data_path(config), list[str]()
    try:
        with np.load(file, allow_pickle=False) as content:
            images, labels = image_bytes(content["images"]), None
            if "labels" in content:
                names, labels = class_numbers(content["labels"], len(images))
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"data.path = {file}: {one_line(error)}") from error
    digest = hashlib.sha256(repr(images.shape).encode())
    for part in (images, labels):
        digest.update(b"" if part is None else np.ascontiguousarray(part).data)
    classes = None if labels is None else torch.from_numpy(labels)
    return torch.from_numpy(images), classes, names, digest.hexdigest()[:12]


def image_bytes(images: np.ndarray) -> np.ndarray:
    """Return images (N, C, H, W) of bytes, or of floats in [-1, 1], as bytes.

    Raises:
        ValueError: they have another shape, type or range.
    """
    is_wrong = images.ndim != 4 or len(images) < LEAST or images.shape[1] not in (1, 3)
    if is_wrong or (images.dtype != np.uint8 and images.dtype.kind != "f"):
        raise ValueError(
            f"images of shape {images.shape} and type {images.dtype}, must be (N, C, H, W), "
            f"N >= {LEAST}, C 1 or 3, of uint8 or floats in [-1, 1]"
        )
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    if not (-1 <= low < 0 and high <= 1):  # also if one is nan
        raise ValueError(
            f"images with values from {low:g} to {high:g}, floats must be in [-1, 1] with some "
            "below 0; for values in [0, 1] use 2 * images - 1"
        )
    return to_bytes(torch.from_numpy(images).float()).numpy()


def class_numbers(labels: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the K classes, in their order, and the classes of ``count`` images as
    numbers 0 to K - 1, int64, (N,).

    Raises:
        ValueError: there are not as many, they are neither whole numbers nor names, or a class has
            too few images.
    """
    if labels.shape != (count,) or labels.dtype.kind not in "iuU":
        raise ValueError(
            f"labels: {labels.dtype} of shape {labels.shape}, must be {count} whole numbers from 0 "
            "on, or names, one for each image"
        )
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    has_gaps = labels.dtype.kind != "U" and (values != np.arange(len(values))).any()
    if has_gaps or len(values) < 2 or counts.min() < LEAST_OF_CLASS:
        numbers_of = dict(zip(values.tolist()[:20], counts.tolist(), strict=False))
        raise ValueError(
            f"labels: {numbers_of} images by class; must be 2 or more classes, numbered from 0 "
            f"without gaps or named, with {LEAST_OF_CLASS} or more images each"
        )
    return [one_line(str(name)) for name in values], numbers.astype(np.int64)
