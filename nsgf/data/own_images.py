"""The user's own images: a folder, decoded by Pillow into one uint8 tensor, or a file .npz or .npy.

Images of a folder are taken in the order of their names. Subfolders on the first level are the
classes, as for torchvision's ImageFolder; images may also lie deeper, or all in the folder itself.
A .npz has the array ``images``, or ``data.key``, and for classes ``labels`` (N,). A .npy of uint8
(N, C, H, W) stays on the disk, and may be larger than memory.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

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
    data_path,
    load_arrays,
    read_found,
    split_rows,
)
from nsgf.system.errors import UserError, list_names, name_setting, one_line, suggest
from nsgf.system.hardware import available_bytes
from nsgf.system.output import format_bytes

T = TypeVar("T")
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
CHANNELS, LEAST_SIDE = range(1, 5), 4
"""Numbers of channels of images in a file, and the least pixels of a side."""
BLOCK_BYTES = 2**26
"""Bytes of an array that are read together."""
SLACK = 1e-3
"""Allowed distance of floats from [-1, 1], a fraction of the step between two bytes."""


def find_images(root: Path, broken: Collection[str] = ()) -> list[Path]:
    """Return the images below a folder, relative to it and sorted, without hidden and broken ones;
    raise UserError if there is no such folder, or too few images in it. Links are followed, except
    to a folder that they lie in."""
    if not root.is_dir():
        raise UserError(
            f"{name_setting('data.path', root)}: no such folder; name a folder of images or a file "
            f".npz or .npy, or a file of points with {suggest('exp', 'points')}"
        )
    home, images = root.resolve(), list[Path]()
    for base, folders, names in os.walk(home, followlinks=True):
        place = Path(base)
        above = {os.path.realpath(one) for one in (place, *place.parents)} if folders else set()
        shown = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in shown if os.path.realpath(place / name) not in above]
        files = [place / name for name in names if not name.startswith(".")]
        files = [one for one in files if one.suffix.lower() in SUFFIXES and one.is_file()]
        images += [one.relative_to(home) for one in files]
    images = [one for one in images if one_line(one.as_posix()) not in broken]
    if len(images) < LEAST:
        raise UserError(
            f"{name_setting('data.path', root)}: {len(images)} images in it, must be at least "
            f"{LEAST} of {', '.join(FORMATS)}; name a folder with more"
        )
    return sorted(images, key=lambda file: file.parts)


def is_array(config: DataConfig) -> bool:
    """Whether ``data.path`` is a file of arrays; else it is a folder."""
    return data_path(config).suffix.lower() in (".npz", ".npy")


def inspect_images(config: DataConfig) -> Inspection:
    """Describe the images of ``data.path``; of a folder only some are decoded.

    Raises:
        UserError: there is no such folder or file, or what is in it cannot be used as images.
    """
    inspect = _inspect_array if is_array(config) else _inspect_folder
    found, is_plain, notes = inspect(config)
    if is_plain:
        where = name_setting("data.path", config.path)
        raise UserError(f"{where}: all pixels of all images are equal")
    shape, memory = " x ".join(map(str, found.shape)), found.samples * math.prod(found.shape)
    if broken := found.broken:
        notes.append(f"data: left out {len(broken)} broken images: {list_names(broken, 5)}")
    notes.append(f"data: {found.samples} images of {config.path}, {shape}, {format_bytes(memory)}")
    if (channels := found.shape[0]) in (2, 4):
        notes.append(
            f"data: pictures and features show only the first {channels - 1} of {channels} channels"
        )
    if classes := found.class_names:
        notes.append(f"data: {len(classes)} classes: {list_names(classes)}")
    return found, tuple(notes)


def _inspect_array(config: DataConfig) -> tuple[Found, bool, list[str]]:
    """Return what is found in a file, whether all pixels are equal, and lines about it."""
    images, _, names, checksum = _read_arrays(config)
    count, *shape = images.shape
    if config.size not in (None, shape[1]):
        raise UserError(f"data.size = {config.size}: must be {shape[1]}, as in {config.path}")
    is_plain = all(bool((part == images[0, :, :1, :1]).all()) for part in _blocks(images.numpy()))
    return Found(count, shape, checksum, len(names), class_names=names), is_plain, []


def _inspect_folder(config: DataConfig) -> tuple[Found, bool, list[str]]:
    """Return what is found in a folder, as :func:`_inspect_array`."""
    root, digest, size = data_path(config), hashlib.sha256(), config.size or 32
    broken, are_grey, largest, colour, is_plain = list[str](), True, 0, None, True

    def inspect(image: Any) -> tuple[bool, int, Tensor | None]:
        """Return whether Pillow's image has no colour, the largest value of 16 bits, else 0, and
        its pixels if they are needed; raise ValueError for pixels without a known range."""
        if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
            raise ValueError("its pixels are floats, signed or of 32 bits; save 8 or 16 bits")
        highest = int(np.max(image)) if image.mode[0] == "I" else 0
        is_needed = is_plain or config.skip_broken
        return image.mode[0] in GREY, highest, _pixels(image, 3, size) if is_needed else None

    for file in (files := find_images(root)):
        try:
            is_grey, highest, pixels = _decode(root, file, digest, inspect)
        except UserError:
            if not config.skip_broken:
                raise
            broken.append(one_line(file.as_posix()))
            continue
        are_grey, largest = are_grey and is_grey, max(largest, highest)
        if is_plain and pixels is not None:
            colour = pixels[:, :1, :1] if colour is None else colour
            is_plain = bool((pixels == colour).all())
    files = find_images(root, broken) if broken else files
    counts = Counter(_folders(files))
    has_classes = len(counts) > 1 and min(counts.values()) >= LEAST_OF_CLASS
    classes = [repr(name)[1:-1] for name in sorted(counts)] if has_classes else []  # printable
    shape, checksum = [1 if are_grey else 3, size, size], digest.hexdigest()[:12]
    found = Found(len(files), shape, checksum, len(classes), class_names=classes, broken=broken)
    is_dark, wider = 0 < largest < 2**15, f"multiply them by {(2**16 - 1) // max(1, largest)}"
    notes = [f"data: all 16-bit values are at most {largest}, so images are dark; {wider}"]
    return found, is_plain, notes * is_dark


def _usable(config: DataConfig) -> list[Path]:
    """Return the images of the folder without the broken ones, which exported runs do not know."""
    broken = read_found(config).broken
    if broken is None and config.skip_broken:
        broken = _inspect_folder(config)[0].broken
    return find_images(data_path(config), broken or ())


def _folders(files: list[Path]) -> list[str]:
    """Return the first subfolder of each image; nothing if an image lies in none."""
    names = [file.parts[0] for file in files if len(file.parts) > 1]
    return names if len(names) == len(files) else []


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
        read_test=partial(read_images, held_out=True) if config.held_out else None,
        read_test_labels=partial(read_labels, held_out=True),
        class_names=tuple(map(str, found.class_names or range(found.classes))),
        uses=frozenset({"path", "size", "flip", "skip_broken", "held_out", "key"}),
    )


def read_images(config: DataConfig, held_out: bool = False) -> Tensor:
    """Return the images of ``data.path`` to train on, or those that are held out.  uint8, (N, C, S,
    S)

    Raises:
        UserError: one is broken, or they are not those that the run was begun with.
    """
    if is_array(config):
        arrays, *_, checksum = _read_arrays(config)
        check_same_data(config, checksum)
        if not config.held_out:
            return arrays
        rows = split_rows(config, len(arrays))[held_out]
        _check_memory(f"data.held_out = {config.held_out:g}", len(rows), arrays.shape[1:], "use 0")
        return arrays[rows]
    found, root, digest = read_found(config), data_path(config), hashlib.sha256()
    files, (channels, size, _) = _usable(config), found.shape
    chosen = split_rows(config, len(files))[held_out].tolist()
    _check_memory(f"data.size = {config.size}", len(chosen), found.shape, "use a smaller one")
    images = torch.empty(len(chosen), *found.shape, dtype=torch.uint8)
    places = dict(zip(chosen, images, strict=True))
    for number, file in enumerate(files):
        if number in places:
            pixels = _decode(root, file, digest, lambda image: _pixels(image, channels, size))
            places[number].copy_(pixels)
        else:
            _decode(root, file, digest, lambda _: None)
    check_same_data(config, digest.hexdigest()[:12])
    return images


def _check_memory(setting: str, count: int, shape: Sequence[int], remedy: str) -> None:
    """Raise UserError if images do not fit into the free memory."""
    needed, free = count * math.prod(shape), available_bytes()
    if needed > free:
        raise UserError(
            f"{setting}: {count} images need {format_bytes(needed)} of main memory, "
            f"{format_bytes(free)} are free; {remedy}"
        )


def read_labels(config: DataConfig, held_out: bool = False) -> Tensor:
    """Return the class of each image of :func:`read_images`; classes are numbered in the order of
    their names.  (N,)"""
    labels = _read_arrays(config)[1] if is_array(config) else None
    if labels is None:
        labels = np.unique(_folders(_usable(config)), return_inverse=True)[1]
    return torch.from_numpy(labels)[split_rows(config, len(labels))[held_out]]


def _decode(root: Path, file: Path, digest: Any, read: Callable[[Any], T]) -> T:
    """Return ``read(image)``, where Pillow has not decoded ``image`` yet, and add name and content
    of the file to a digest; raise UserError for a file that cannot be read."""
    from PIL import Image

    try:
        content = (root / file).read_bytes()
        value = read(Image.open(BytesIO(content), formats=FORMATS))
    except Exception as error:  # Pillow raises many types
        raise UserError(
            f"{name_setting('data.path', root)}: {file} cannot be read as one of "
            f"{', '.join(FORMATS)} ({one_line(error)}); remove it, or say "
            f"{suggest('data.skip_broken', 'true')}"
        ) from error
    name = file.as_posix().encode("utf-8", "surrogateescape")
    digest.update(b"%d %s %d " % (len(name), name, len(content)))
    digest.update(content)
    return value


def _pixels(image: Any, channels: int, size: int) -> Tensor:
    """Return Pillow's image in the shape of its set.  uint8, (C, size, size)"""
    from PIL import Image, ImageOps

    image.draft(None, (2 * size, 2 * size))  # decodes large JPEG photos six times faster
    image = ImageOps.exif_transpose(image)
    if image.mode[0] == "I":  # Pillow itself would cut off 16 bits at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # white instead of the colour hidden below
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image, np.uint8).reshape(size, size, -1)).permute(2, 0, 1)


def _read_arrays(config: DataConfig) -> tuple[Tensor, np.ndarray | None, list[str], str]:
    """Return the images of a file, uint8, (N, C, H, W), their classes, (N,), the names of these,
    and the checksum of images and classes."""
    try:
        images, labels = load_arrays(config)
        images = image_bytes(images)
        names, classes = ([], None) if labels is None else class_numbers(labels, len(images))
    except Exception as error:  # numpy raises many types for damaged and foreign files
        where = name_setting("data.path", data_path(config))
        raise UserError(f"{where}: {one_line(error)}") from error
    digest = hashlib.sha256(repr(images.shape).encode())
    for part in (*_blocks(images), classes):
        digest.update(b"" if part is None else part.tobytes())
    return torch.from_numpy(images), classes, names, digest.hexdigest()[:12]


def _blocks(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield images in parts of at most BLOCK_BYTES, or of one image."""
    count = max(1, BLOCK_BYTES // math.prod(images.shape[1:]))
    return (images[first : first + count] for first in range(0, len(images), count))


def image_bytes(images: np.ndarray) -> np.ndarray:
    """Return images (N, C, H, W), (N, H, W, C) or (N, H, W), of bytes or of floats in [-1, 1], as
    bytes, (N, C, H, W); raise ValueError for another shape, type or range."""
    shape = images.shape
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and not (shape[1] in CHANNELS and min(shape[2:]) >= LEAST_SIDE):
        images = np.ascontiguousarray(np.moveaxis(images, 3, 1))
    is_right = images.ndim == 4 and len(images) >= LEAST and images.shape[1] in CHANNELS
    is_right = is_right and min(images.shape[2:]) >= LEAST_SIDE
    if not is_right or (images.dtype != np.uint8 and images.dtype.kind != "f"):
        raise ValueError(
            f"images: {images.dtype} of shape {shape}, must be (N, C, H, W) or (N, H, W, C), "
            f"N >= {LEAST}, C 1 to 4, H and W >= {LEAST_SIDE}, of uint8 or floats in [-1, 1]"
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
    return [repr(str(name))[1:-1] for name in values], numbers.astype(np.int64)
