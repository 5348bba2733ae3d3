"""A folder of the user's own images, decoded by Pillow into one uint8 tensor.

Images are taken in the order of their names. Subfolders on the first level are the classes, as for
torchvision's ImageFolder; images may also lie deeper, or all in the folder itself.
"""

import hashlib
import io
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.images import ImageSet
from nsgf.data.own import LEAST, Found, Inspection, check_same_data, read_found
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import available_bytes, format_bytes

LEAST_OF_CLASS = 10
"""Smallest number of images in each class that a classifier is trained on."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats that Pillow may read; it would start programs for some of the others."""
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
)
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes without colour; those with an I hold 16 bits a pixel."""


def find_images(root: Path) -> tuple[list[Path], int]:
    """Return the images below a folder, relative to it and sorted, and the number of other files.

    Links are followed, each folder is visited once; hidden files and folders are left out.

    Raises:
        UserError: there is no such folder, or too few images in it.
        OSError: a folder in it cannot be read.
    """
    if not root.is_dir():
        what = "is a file; points are --exp points" if root.is_file() else "no such folder"
        raise UserError(f"data.path = {root}: {what}; name a folder of images with --data.path DIR")
    images, others, folders, visited = list[Path](), 0, [root], set[str]()
    while folders:
        folder = folders.pop()
        if (real := os.path.realpath(folder)) in visited:
            continue
        visited.add(real)
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if path.is_dir():
                folders.append(path)
            elif path.suffix.lower() not in SUFFIXES:
                others += 1
            elif path.is_file():
                images.append(path.relative_to(root))
    if len(images) < LEAST:
        raise UserError(
            f"data.path = {root}: {len(images)} images in it (and {others} other files), must be "
            f"at least {LEAST} of {', '.join(FORMATS)}; name a folder with more"
        )
    return sorted(images, key=lambda file: file.parts), others


def inspect_images(config: DataConfig) -> Inspection:
    """Count the images of ``data.path``, without decoding them, and find their colour and classes.

    Raises:
        UserError: there is no such folder, or a file in it is not an image or cannot be opened.
    """
    root = Path(config.path or "").expanduser()
    files, others = find_images(root)
    digest, modes = hashlib.sha256(), Counter[bool]()
    for file in files:
        modes[_opened(root, file, digest).mode in GREY_MODES] += 1
    size = config.size or 32
    shape = [3 if modes[False] else 1, size, size]
    classes, note = _classes(files)
    notes = [
        f"data: {len(files)} images of {root}, {shape[0]} x {size} x {size}, "
        f"{format_bytes(len(files) * math.prod(shape))} of memory"
        + (f", {others} other files left out" if others else "")
    ]
    found = Found(len(files), shape, digest.hexdigest()[:12], classes)
    return Inspection(found, (*notes, note))


def _classes(files: list[Path]) -> tuple[int, str]:
    """Return the number of classes, 0 if they cannot be used, and a line about them."""
    counts = Counter(_class_names(files))
    fewest, least = min(((count, name) for name, count in counts.items()), default=(0, ""))
    if not counts:
        why = "images that lie outside of subfolders have no class"
    elif len(counts) < 2:
        why = f"all images are of one class, {least}"
    elif fewest < LEAST_OF_CLASS:
        why = f"class {least} has {fewest} images and needs {LEAST_OF_CLASS}"
    else:
        return len(counts), f"data: {len(counts)} classes by subfolder"
    return 0, f"evaluation.classifier: off, {why}"


def _class_names(files: list[Path]) -> list[str]:
    """Return the first subfolder of each image; no names if an image lies in none."""
    return [file.parts[0] for file in files] if all(len(f.parts) > 1 for f in files) else []


def image_set(config: DataConfig) -> ImageSet:
    """Return the record of the images of ``data.path``, which follows from ``data.found``.

    Raises:
        UserError: ``data.found`` is empty or wrong, or contradicts the settings.
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
        classes=found.classes,
        # about as many updates as for the shipped sets, whatever the number of images
        classifier_epochs=max(4, min(30, 400_000 // found.samples)),
        uses=frozenset({"path", "size", "flip"}),
        files="images",
    )


def read_images(config: DataConfig) -> Tensor:
    """Return all images of ``data.path``.  uint8, (N, C, size, size)

    Raises:
        UserError: one is broken, or they are not those that the run was begun with.
    """
    found = read_found(config)
    root, digest = Path(config.path or "").expanduser(), hashlib.sha256()
    files, _ = find_images(root)
    check_same_data(config, len(files) == found.samples)
    needed, free = len(files) * math.prod(found.shape), available_bytes()
    if needed > free:
        raise UserError(
            f"data.size = {config.size}: {len(files)} images need {format_bytes(needed)} of main "
            f"memory, {format_bytes(free)} are free; use a smaller --data.size"
        )
    images = torch.empty(len(files), *found.shape, dtype=torch.uint8)
    for image, file in zip(images, files, strict=True):
        opened = _opened(root, file, digest)
        try:
            image.copy_(_pixels(opened, found.shape))
        except Exception as error:  # Pillow raises many types for truncated files
            raise _unusable(root, file, error) from error
    check_same_data(config, digest.hexdigest()[:12] == found.checksum)
    return images


def read_labels(config: DataConfig) -> Tensor:
    """Return the class of each image; classes are numbered in the order of their names.  (N,)"""
    files, _ = find_images(Path(config.path or "").expanduser())
    names = _class_names(files)
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return torch.tensor([numbers[name] for name in names])


def _opened(root: Path, file: Path, digest: Any) -> Any:
    """Return Pillow's image, not decoded yet, and add name and content of the file to a digest."""
    from PIL import Image

    try:
        content = (root / file).read_bytes()
        name = file.as_posix().encode("utf-8", "surrogateescape")
        digest.update(b"%d %s %d " % (len(name), name, len(content)))
        digest.update(content)
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:  # Pillow raises many types for damaged files
        raise _unusable(root, file, error) from error


def _unusable(root: Path, file: Path, error: Exception) -> UserError:
    from PIL import UnidentifiedImageError

    is_unknown = isinstance(error, UnidentifiedImageError)
    why = f"none of {', '.join(FORMATS)}" if is_unknown else one_line(error)
    return UserError(
        f"data.path = {root}: {file} is no usable image ({why}); remove it, or save it anew"
    )


def _pixels(image: Any, shape: list[int]) -> Tensor:
    """Return Pillow's image in the shape of its set.  uint8, (C, size, size)"""
    from PIL import Image, ImageOps

    channels, size = shape[0], (shape[2], shape[1])
    image.draft(None, (2 * size[0], 2 * size[1]))  # decodes large JPEG photos six times faster
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # white instead of the colour hidden below
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, size, Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image, np.uint8).reshape(*size, channels)).permute(2, 0, 1)


def _eight_bits(image: Any) -> Any:
    """Return an image of 16 bits with 8 bits, which Pillow itself would cut off at 255."""
    from PIL import Image

    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels have 32 bits, must have 8 or 16")
    return Image.fromarray((values.astype(np.int64) >> 8).astype(np.uint8))
