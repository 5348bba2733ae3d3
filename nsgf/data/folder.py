"""A folder of the user's own images, decoded by Pillow into one uint8 tensor.

Images are taken in the order of their names. Those of a set may lie in subfolders, whose names on
the first level are the classes.
"""

import hashlib
import io
import math
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig, FoundConfig
from nsgf.data.found import LEAST, Seen, refuse_others
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import available_bytes, format_bytes

LEAST_OF_CLASS = 10
"""Smallest number of images in each class that a classifier is trained on."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What Pillow may take a file for: it reads others, some of them with programs of the system."""
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".bmp", ".gif", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
)
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes without colour; those with an I hold 16 bits a pixel."""


def find_images(root: Path) -> tuple[list[Path], int]:
    """Images below a folder, relative to it, by name, and how many other files there are.

    Links are followed, each folder is visited once; hidden files and folders are left out.

    Raises:
        UserError: there is no such folder, or too few images in it.
        OSError: a folder in it cannot be read.
    """
    if not root.is_dir():
        what = "is a file; points are --exp points" if root.is_file() else "no such folder"
        raise UserError(f"data.path = {root}: {what}; name a folder of images with --data.path DIR")
    images, others = [], 0
    for file in _files(root):
        if file.suffix.lower() in SUFFIXES:
            images.append(file.relative_to(root))
        else:
            others += 1
    if len(images) < LEAST:
        raise UserError(
            f"data.path = {root}: {len(images) or 'no'} images in it (and {others} other files), "
            f"must be at least {LEAST} of {', '.join(FORMATS)}; name a folder with more"
        )
    return sorted(images, key=lambda file: file.parts), others


def _files(root: Path) -> Iterator[Path]:
    folders, visited = [root], {os.path.realpath(root)}
    while folders:
        for path in folders.pop().iterdir():
            if path.name.startswith("."):
                continue
            if path.is_file():
                yield path
            elif path.is_dir() and (real := os.path.realpath(path)) not in visited:
                visited.add(real)
                folders.append(path)


def holds_images(root: Path) -> bool:
    """Whether a folder has images in it or directly below it, for a hint."""
    try:
        return any(
            file.suffix.lower() in SUFFIXES
            for place in ("*", "*/*")
            for file in islice(root.glob(place), 1000)
        )
    except OSError:
        return False


def look_at_images(config: DataConfig) -> Seen:
    """Count the images of ``data.path``, without decoding them, and find their colour and classes.

    Raises:
        UserError: there is no such folder, or an image in it is none or cannot be opened.
    """
    root = Path(config.path or "").expanduser()
    files, others = find_images(root)
    digest, modes = hashlib.sha256(), Counter[bool]()
    for file in files:
        content = _content(root, file)
        _count_in(digest, file, content)
        modes[_opened(root, file, content).mode in GREY_MODES] += 1
    wanted = config.color if config.color in ("grey", "rgb") else None
    channels = {"grey": 1, "rgb": 3, None: 3 if modes[False] else 1}[wanted]
    classes, why = _classes(files)
    size = config.size or DataConfig.size or 32
    found = FoundConfig(len(files), [channels, size, size], classes, digest.hexdigest()[:12])
    notes = [
        f"data: {len(files)} images of {root}, {channels} x {size} x {size}, "
        f"{format_bytes(len(files) * channels * size**2)} of memory"
        + (f", {others} other files left out" if others else "")
    ]
    if wanted is None and modes[True] and modes[False]:
        notes.append(
            f"data.color: rgb, as {modes[False]} images have colour and {modes[True]} have none; "
            "--data.color grey takes it from all"
        )
    notes.append(
        f"data: {classes} classes by subfolder" if classes else f"evaluation.classifier: off, {why}"
    )
    return Seen(found, tuple(notes))


def _classes(files: list[Path]) -> tuple[int, str]:
    """Number of classes, or 0 and why there are none."""
    names = _class_names(files)
    if names is None:
        return 0, "images that lie outside of subfolders have no class"
    fewest, least = min((count, name) for name, count in Counter(names).items())
    if len(set(names)) < 2:
        return 0, f"all images are of one class, {least}"
    if fewest < LEAST_OF_CLASS:
        return 0, f"class {least} has {fewest} images and needs {LEAST_OF_CLASS}"
    return len(set(names)), ""


def _class_names(files: list[Path]) -> list[str] | None:
    """Of each image the subfolder on the first level; None: one lies in none."""
    return [file.parts[0] for file in files] if all(len(f.parts) > 1 for f in files) else None


def read_images(config: DataConfig) -> Tensor:
    """All images of ``data.path``, as ``data.found`` says they are.  uint8, (N, C, size, size)

    Raises:
        UserError: one is broken, or they are not those that the run was begun with.
    """
    found = config.found
    assert found.shape is not None
    root, digest = Path(config.path or "").expanduser(), hashlib.sha256()
    files, _ = find_images(root)
    refuse_others(config, len(files) == found.samples)
    needed, free = len(files) * math.prod(found.shape), available_bytes()
    if needed > free:
        raise UserError(
            f"data.size = {config.size}: {len(files)} images need {format_bytes(needed)} of main "
            f"memory, {format_bytes(free)} are free; use a smaller --data.size"
        )
    images = torch.empty(len(files), *found.shape, dtype=torch.uint8)
    for image, file in zip(images, files, strict=True):
        content = _content(root, file)
        _count_in(digest, file, content)
        image.copy_(_pixels(root, file, content, found.shape, config.fit or "crop"))
    refuse_others(config, digest.hexdigest()[:12] == found.checksum)
    return images


def read_labels(config: DataConfig) -> Tensor:
    """Of each image the number of its class, in the order of their names.  int64, (N,)"""
    files, _ = find_images(Path(config.path or "").expanduser())
    names = _class_names(files) or []
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return torch.tensor([numbers[name] for name in names])


def _count_in(digest: Any, file: Path, content: bytes) -> None:
    name = file.as_posix().encode("utf-8", "surrogateescape")
    digest.update(b"%d %s %d " % (len(name), name, len(content)))
    digest.update(content)


def _content(root: Path, file: Path) -> bytes:
    try:
        return (root / file).read_bytes()
    except OSError as error:
        raise _unusable(root, file, error) from error


def _opened(root: Path, file: Path, content: bytes) -> Any:
    """Pillow's image, of which the header is read."""
    from PIL import Image

    try:
        return Image.open(io.BytesIO(content), formats=FORMATS)
    except Exception as error:  # Pillow raises many types for damaged files
        raise _unusable(root, file, error) from error


def _pixels(root: Path, file: Path, content: bytes, shape: list[int], fit: str) -> Tensor:
    """One image as its set has it.  uint8, (C, size, size)"""
    from PIL import Image, ImageOps

    channels, size = shape[0], (shape[2], shape[1])
    image = _opened(root, file, content)
    try:
        image.draft(None, (2 * size[0], 2 * size[1]))  # JPEG alone: photos take a sixth
        image = _in_eight_bits(ImageOps.exif_transpose(image))
        image = _on_white(image).convert("L" if channels == 1 else "RGB")
        how = Image.Resampling.BICUBIC
        image = image.resize(size, how) if fit == "stretch" else ImageOps.fit(image, size, how)
        pixels = np.array(image, np.uint8).reshape(shape[1], shape[2], channels)
    except Exception as error:  # as above; truncated files are noticed here
        raise _unusable(root, file, error) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _in_eight_bits(image: Any) -> Any:
    """Pillow would cut 16 bits off at 255.

    Raises:
        ValueError: pixels of 32 bits.
    """
    from PIL import Image

    if not image.mode.startswith("I"):
        if image.mode == "F":
            raise ValueError("pixels are floats, must have 8 or 16 bits")
        return image
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels have 32 bits, must have 8 or 16")
    return Image.fromarray((values >> 8).astype(np.uint8))


def _on_white(image: Any) -> Any:
    """What is transparent shows white instead of the colour that is hidden below it."""
    from PIL import Image

    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _unusable(root: Path, file: Path, error: Exception) -> UserError:
    from PIL import UnidentifiedImageError

    unknown = isinstance(error, UnidentifiedImageError)
    why = f"none of {', '.join(FORMATS)}" if unknown else one_line(error)
    return UserError(
        f"data.path = {root}: {file} is no usable image ({why}); remove it, or save it anew"
    )
