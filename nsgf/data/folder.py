"""A folder of the user's own images, decoded by Pillow into one uint8 tensor.

Images are taken in the order of their names. Subfolders on the first level are the classes, as for
torchvision's ImageFolder; images may also lie deeper, or all in the folder itself.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from glob import glob
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.images import ImageSet
from nsgf.data.own import LEAST, Found, Inspection, check_same_data, data_path, read_found
from nsgf.system.errors import UserError, list_names, one_line
from nsgf.system.hardware import available_bytes, format_bytes

T = TypeVar("T")
LEAST_OF_CLASS = 10
"""Smallest number of images in each class that a classifier is trained on."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may read; it would start programs for some of the others."""
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
)
GREY = "1LI"
"""First letters of Pillow's modes without colour; those with an I hold 16 bits a pixel."""


def find_images(root: Path, broken: Collection[str] = ()) -> list[Path]:
    """Return the images below a folder, relative to it and sorted, without hidden and broken ones.

    Raises:
        UserError: there is no such folder, or too few images in it.
    """
    if not root.is_dir():
        raise UserError(
            f"data.path = {root}: no such folder; name a folder of images with --data.path DIR, "
            "or a file of points with --exp points --data.path FILE"
        )
    files = (Path(name) for name in glob("**", root_dir=root, recursive=True))
    images = [one for one in files if one.suffix.lower() in SUFFIXES and (root / one).is_file()]
    left_out = frozenset(broken)
    images = [one for one in images if one_line(one.as_posix()) not in left_out]
    if len(images) < LEAST:
        raise UserError(
            f"data.path = {root}: {len(images)} images in it, must be at least {LEAST} of "
            f"{', '.join(FORMATS)}; name a folder with more"
        )
    return sorted(images, key=lambda file: file.parts)


def inspect_images(config: DataConfig) -> Inspection:
    """Count the images of ``data.path``, without decoding them, and find their colour and classes.

    Raises:
        UserError: there is no such folder, or a file in it is not an image or cannot be opened.
    """
    root, digest, size = data_path(config), hashlib.sha256(), config.size or 32
    files = find_images(root)
    broken = [file for file in files if config.skip_broken and _is_broken(root, file)]
    names = [one_line(file.as_posix()) for file in broken]
    files = find_images(root, names)
    modes = set(_each(root, files, digest, lambda image: image.mode[0]))
    shape = [1 if modes <= set(GREY) else 3, size, size]
    counts = Counter(_class_names(files))
    has_classes = len(counts) > 1 and min(counts.values()) >= LEAST_OF_CLASS
    classes = [one_line(name) for name in sorted(counts)] if has_classes else []
    checksum = digest.hexdigest()[:12]
    found = Found(len(files), shape, checksum, len(classes), class_names=classes, broken=names)
    left_out = f"data: {len(names)} broken images left out: {list_names(names, 5)}"
    return found, (*[left_out] * bool(names), *notes_about(found, config))


def notes_about(found: Found, config: DataConfig) -> tuple[str, ...]:
    """Return lines for the user about images."""
    shape, memory = " x ".join(map(str, found.shape)), found.samples * math.prod(found.shape)
    return (
        f"data: {found.samples} images of {config.path}, {shape}, {format_bytes(memory)} of memory",
        f"data: {found.classes} classes: {list_names(found.class_names or [])}"
        if found.classes
        else "evaluation.classifier: off, it needs labels, or all images in two or more "
        f"subfolders with {LEAST_OF_CLASS} or more in each",
    )


def _is_broken(root: Path, file: Path) -> bool:
    """Whether an image cannot be decoded."""
    try:
        list(_each(root, [file], hashlib.sha256(), lambda image: _pixels(image, [3, 8, 8])))
    except UserError:
        return True
    return False


def _class_names(files: list[Path]) -> list[str]:
    """Return the first subfolder of each image; no names if an image lies in none."""
    names = [file.parts[0] for file in files if len(file.parts) > 1]
    return names if len(names) == len(files) else []


def image_set(config: DataConfig) -> ImageSet:
    """Return the record of the images of ``data.path``, which follows from ``data.found``.

    Raises:
        UserError: ``data.found`` is empty, or ``data.size`` is another one.
    """
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
        # about as many updates as for the shipped sets, whatever the number of images
        classifier_epochs=max(4, min(30, 400_000 // found.samples)),
        uses=frozenset({"path", "size", "flip", "skip_broken"}),
    )


def read_images(config: DataConfig) -> Tensor:
    """Return all images of ``data.path``.  uint8, (N, C, size, size)

    Raises:
        UserError: one is broken, or they are not those that the run was begun with.
    """
    found, root, digest = read_found(config), data_path(config), hashlib.sha256()
    files = find_images(root, found.broken or ())
    needed, free = len(files) * math.prod(found.shape), available_bytes()
    if needed > free:
        raise UserError(
            f"data.size = {config.size}: {len(files)} images need {format_bytes(needed)} of main "
            f"memory, {format_bytes(free)} are free; use a smaller --data.size"
        )
    images = torch.empty(len(files), *found.shape, dtype=torch.uint8)
    decoded = _each(root, files, digest, lambda image: _pixels(image, found.shape))
    for image, pixels in zip(images, decoded, strict=True):
        image.copy_(pixels)
    check_same_data(config, digest.hexdigest()[:12] == found.checksum)
    return images


def read_labels(config: DataConfig) -> Tensor:
    """Return the class of each image; classes are numbered in the order of their names.  (N,)"""
    names = _class_names(find_images(data_path(config), read_found(config).broken or ()))
    _, numbers = np.unique(names, return_inverse=True)
    return torch.from_numpy(numbers)


def _each(root: Path, files: list[Path], digest: Any, read: Callable[[Any], T]) -> Iterator[T]:
    """Yield ``read(image)`` for each file, where Pillow has not decoded ``image`` yet, and add
    names and contents of the files to a digest.

    Raises:
        UserError: a file is not an image, or cannot be read; names it.
    """
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
                f"data.path = {root}: {file} cannot be read as one of {', '.join(FORMATS)} "
                f"({one_line(error)}); remove it, or say --data.skip_broken true"
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
