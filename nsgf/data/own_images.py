"""The user's own images: a folder, decoded by Pillow into one uint8 tensor, or a file .npz.

Images of a folder are taken in the order of their names. Subfolders on the first level are the
classes, as for torchvision's ImageFolder; images may also lie deeper, or all in the folder itself.
A file has the array ``images``, or ``data.key``, and for classes ``labels`` (N,).
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.images import ImageSet, to_bytes
from nsgf.data.own import (
    LEAST,
    Found,
    Inspection,
    check_same_data,
    choose_array,
    data_path,
    read_found,
)
from nsgf.system.errors import UserError, list_names, name_setting, one_line, suggest
from nsgf.system.hardware import available_bytes
from nsgf.system.units import format_bytes

LEAST_OF_CLASS = 10
"""Smallest number of images in each class."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may read; it would start programs for some of the others."""
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
)
GREY = "1LI"
"""First letters of Pillow's modes without colour; those with an I hold 16 bits a pixel."""
SLACK = 1e-3
"""Allowed distance of floats from [-1, 1], a fraction of the step between two bytes."""


def find_images(root: Path, broken: Collection[str] = ()) -> list[Path]:
    """Return the images below a folder, relative to it and sorted, without hidden and broken ones;
    raise UserError if there is no such folder, or too few images in it. Links are followed, except
    to a folder that they lie in."""
    if not root.is_dir():
        raise UserError(
            f"{name_setting('data.path', root)}: no such folder; name a folder of images or a file "
            f".npz, or a file of points with {suggest('exp', 'points')}"
        )
    home, left_out, images = root.resolve(), {*broken}, list[Path]()
    for base, folders, names in os.walk(home, followlinks=True):
        place = Path(base)
        above = {os.path.realpath(one) for one in (place, *place.parents)} if folders else set()
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in shown if os.path.realpath(place / name) not in above]
        files = [place / name for name in names if not name.startswith(".")]
        images += [one.relative_to(home) for one in files if one.suffix.lower() in SUFFIXES]
    images = [one for one in images if (root / one).is_file()]
    images = [one for one in images if one_line(one.as_posix()) not in left_out]
    if len(images) < LEAST:
        raise UserError(
            f"{name_setting('data.path', root)}: {len(images)} images in it, must be at least "
            f"{LEAST} of {', '.join(FORMATS)}; name a folder with more"
        )
    return sorted(images, key=lambda file: file.parts)


def is_array(config: DataConfig) -> bool:
    """Whether ``data.path`` is a file of arrays; else it is a folder."""
    return data_path(config).suffix.lower() == ".npz"


def inspect_images(config: DataConfig) -> Inspection:
    """Describe the images of ``data.path``; of a folder only some are decoded.

    Raises:
        UserError: there is no such folder or file, or what is in it cannot be used as images.
    """
    found, largest = (_find_arrays(config), 0) if is_array(config) else _find_files(config)
    shape, memory = " x ".join(map(str, found.shape)), found.samples * math.prod(found.shape)
    broken, classes = found.broken or [], found.class_names or []
    notes = [f"data: {found.samples} images of {config.path}, {shape}, {format_bytes(memory)}"]
    if broken:
        notes.insert(0, f"data: left out {len(broken)} broken images: {list_names(broken, 5)}")
    if 0 < largest < 2**15:
        wider = f"they become dark; multiply them by {(2**16 - 1) // largest}"
        notes.append(f"data: the largest of all 16-bit values is {largest}, not 65535: {wider}")
    told = f"data: {len(classes)} classes: {list_names(classes)}"
    return found, (*notes, *[told] * bool(classes))


def _find_arrays(config: DataConfig) -> Found:
    images, _, names, checksum = _read_arrays(config)
    count, *shape = images.shape
    if config.size not in (None, shape[1]):
        raise UserError(f"data.size = {config.size}: must be {shape[1]}, as in {config.path}")
    _check_content(config, images)
    return Found(count, shape, checksum, len(names), class_names=names)


def _find_files(config: DataConfig) -> tuple[Found, int]:
    """Return what is found in a folder, and the largest value of 16-bit images; 0: there are
    none."""
    if config.key:
        raise UserError(f"{name_setting('data.key', config.key)}: must be null for a folder")
    root, digest, size = data_path(config), hashlib.sha256(), config.size or 32
    files, broken = _readable(config, None)
    are_grey, largest = zip(*_each(root, files, digest, _inspect_pixels), strict=True)
    shape = [1 if all(are_grey) else 3, size, size]
    _check_content(
        config, _each(root, files, hashlib.sha256(), lambda image: _pixels(image, shape))
    )
    counts = Counter(_class_names(files))
    has_classes = len(counts) > 1 and min(counts.values()) >= LEAST_OF_CLASS
    classes = [_in_print(name) for name in sorted(counts)] if has_classes else []
    checksum = digest.hexdigest()[:12]
    found = Found(len(files), shape, checksum, len(classes), class_names=classes, broken=broken)
    return found, max(largest)


def _readable(config: DataConfig, broken: list[str] | None) -> tuple[list[Path], list[str]]:
    """Return the images of the folder that are not broken, and the names of those that are; None:
    they are not known, as in exported runs."""
    root = data_path(config)
    if broken is None:
        tried = find_images(root) if config.skip_broken else []
        broken = [one_line(file.as_posix()) for file in tried if _is_broken(root, file)]
    return find_images(root, broken), broken


def _is_broken(root: Path, file: Path) -> bool:
    """Whether an image cannot be decoded."""

    def decode(image: Any) -> None:
        _inspect_pixels(image)
        _pixels(image, [3, 8, 8])

    try:
        list(_each(root, [file], hashlib.sha256(), decode))
    except UserError:
        return True
    return False


def _inspect_pixels(image: Any) -> tuple[bool, int]:
    """Return whether Pillow's image has no colour, and the largest value of 16 bits, else 0; raise
    ValueError for pixels without a known range."""
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        raise ValueError("its pixels are floats, signed or of 32 bits; save them in 8 or 16 bits")
    return image.mode[0] in GREY, int(np.max(image)) if image.mode[0] == "I" else 0


def _check_content(config: DataConfig, images: Iterable[Tensor]) -> None:
    """Raise UserError if all pixels of all images (C, S, S) have one colour."""
    colour = None
    for image in images:
        colour = image[:, :1, :1] if colour is None else colour
        if not image.equal(colour.expand_as(image)):
            return
    raise UserError(f"{name_setting('data.path', config.path)}: all pixels of all images are equal")


def _class_names(files: list[Path]) -> list[str]:
    """Return the first subfolder of each image; no names if an image lies in none."""
    names = [file.parts[0] for file in files if len(file.parts) > 1]
    return names if len(names) == len(files) else []


def _in_print(name: str) -> str:
    """Return the name of a class in printable characters; different names stay different."""
    is_plain = name.isprintable() and "\\" not in name
    return name if is_plain else name.encode("unicode_escape").decode()


def image_set(config: DataConfig) -> ImageSet:
    """Return the record of the images of ``data.path``, which follows from ``data.found``; raise
    UserError if ``data.size`` is another one."""
    found = read_found(config)
    channels, height, width = found.shape
    if config.size != height:
        raise UserError(f"data.size = {config.size}: must be {height} as when the run was begun")
    return ImageSet(
        name=config.name,
        shape=(channels, height, width),
        read_images=read_images,
        read_labels=read_labels if found.classes else None,
        class_names=tuple(map(str, found.class_names or range(found.classes))),
        uses=frozenset({"path", "size", "flip", "skip_broken", "key"}),
    )


def read_images(config: DataConfig) -> Tensor:
    """Return all images of ``data.path``.  uint8, (N, C, S, S)

    Raises:
        UserError: one is broken, or they are not those that the run was begun with.
    """
    if is_array(config):
        arrays, *_, checksum = _read_arrays(config)
        check_same_data(config, checksum)
        return arrays
    found, root, digest = read_found(config), data_path(config), hashlib.sha256()
    files, _ = _readable(config, found.broken)
    needed, free = len(files) * math.prod(found.shape), available_bytes()
    if needed > free:
        raise UserError(
            f"data.size = {config.size}: {len(files)} images need {format_bytes(needed)} of main "
            f"memory, {format_bytes(free)} are free; use a smaller one"
        )
    images = torch.empty(len(files), *found.shape, dtype=torch.uint8)
    decoded = _each(root, files, digest, lambda image: _pixels(image, found.shape))
    for image, pixels in zip(images, decoded, strict=True):
        image.copy_(pixels)
    check_same_data(config, digest.hexdigest()[:12])
    return images


def read_labels(config: DataConfig) -> Tensor:
    """Return the class of each image; classes are numbered in the order of their names.  (N,)"""
    if is_array(config):
        return torch.from_numpy(_read_arrays(config)[1])
    names = _class_names(_readable(config, read_found(config).broken)[0])
    return torch.from_numpy(np.unique(names, return_inverse=True)[1])


def _each(root: Path, files: list[Path], digest: Any, read: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield ``read(image)`` for each file, where Pillow has not decoded ``image`` yet, and add
    names and contents of the files to a digest; raise UserError for a file that cannot be read."""
    from PIL import Image

    for file in files:
        try:
            content = (root / file).read_bytes()
            name = file.as_posix().encode("utf-8", "surrogateescape")
            digest.update(b"%d %s %d " % (len(name), name, len(content)))
            digest.update(content)
            value = read(Image.open(BytesIO(content), formats=FORMATS))
        except Exception as error:  # Pillow raises many types
            raise UserError(
                f"{name_setting('data.path', root)}: {file} cannot be read as one of "
                f"{', '.join(FORMATS)} ({one_line(error)}); remove it, or say "
                f"{suggest('data.skip_broken', 'true')}"
            ) from error
        yield value


def _pixels(image: Any, shape: list[int]) -> Tensor:
    """Return Pillow's image in the shape of its set.  uint8, (C, size, size)"""
    from PIL import Image, ImageOps

    channels, size = shape[0], (shape[2], shape[1])
    image.draft(None, (2 * size[0], 2 * size[1]))  # decodes large JPEG photos six times faster
    image = ImageOps.exif_transpose(image)
    if image.mode[0] == "I":  # Pillow itself would cut off 16 bits at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # white instead of the colour hidden below
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image, np.uint8).reshape(*size, channels)).permute(2, 0, 1)


def _read_arrays(config: DataConfig) -> tuple[Tensor, np.ndarray | None, list[str], str]:
    """Return the images of a file, uint8, (N, C, S, S), their classes, (N,), the names of these,
    and the checksum of images and classes."""
    file = data_path(config)
    try:
        with np.load(file, allow_pickle=False) as content:
            key = config.key or ("images" if "images" in content else None)
            images, labels = image_bytes(choose_array(content, key)), content.get("labels")
        names, classes = ([], None) if labels is None else class_numbers(labels, len(images))
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"{name_setting('data.path', file)}: {one_line(error)}") from error
    digest = hashlib.sha256(repr(images.shape).encode())
    for part in (images, classes):
        digest.update(b"" if part is None else part.tobytes())
    return torch.from_numpy(images), classes, names, digest.hexdigest()[:12]


def image_bytes(images: np.ndarray) -> np.ndarray:
    """Return images (N, C, S, S), (N, S, S, C) or (N, S, S), of bytes or of floats in [-1, 1], as
    bytes, (N, C, S, S); raise ValueError for another shape, type or range."""
    shape = images.shape
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and shape[1] == shape[2] != shape[3] in (1, 3):
        images = np.ascontiguousarray(np.moveaxis(images, 3, 1))
    is_square = images.ndim == 4 and images.shape[2] == images.shape[3]
    is_right = is_square and images.shape[1] in (1, 3) and len(images) >= LEAST
    if not is_right or (images.dtype != np.uint8 and images.dtype.kind != "f"):
        raise ValueError(
            f"images: {images.dtype} of shape {shape}, must be (N, C, S, S) or (N, S, S, C), "
            f"N >= {LEAST}, C 1 or 3, of uint8 or floats in [-1, 1]"
        )
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    if not (-1 - SLACK <= low < 0 and high <= 1 + SLACK):  # also if one is nan
        raise ValueError(
            f"images: values from {low:g} to {high:g}, floats must be in [-1, 1] with some below "
            "0; for values in [0, 1] use 2 * images - 1"
        )
    return to_bytes(torch.from_numpy(images.astype(np.float32))).numpy()  # in any byte order


def class_numbers(labels: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
    """Return the names of the K classes, in their order, and the classes of ``count`` images as
    numbers 0 to K - 1, int64, (N,); raise ValueError for other labels, or too few of a class."""
    is_wrong = labels.shape != (count,) or labels.dtype.kind not in "iuU"
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    has_gaps = labels.dtype.kind != "U" and values.tolist() != list(range(len(values)))
    if is_wrong or has_gaps or len(values) < 2 or counts.min() < LEAST_OF_CLASS:
        raise ValueError(
            f"labels: {labels.dtype} of shape {labels.shape} with {len(values)} classes, must be "
            f"one for each of {count} images: whole numbers from 0 on without gaps, or names, of 2 "
            f"or more classes with {LEAST_OF_CLASS} or more images each"
        )
    return [_in_print(str(name)) for name in values], numbers.astype(np.int64)
