"""Open an image file with Pillow, check it, and convert the image to bytes.

Pillow opens some kinds of TIFF, PNG and JPEG 2000 without an error, but decodes them to wrong
values. :func:`open_image` refuses such files. The user can convert them with another program.
"""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000", "AVIF")
"""Formats that Pillow may read. For some formats outside of this list, Pillow would start
programs."""
GREY = "1LI"
"""First letters of Pillow's modes without colour. Modes that begin with I have 16 bits per
pixel."""
FULL_RANGE = (0, 255, 128, 255, 128, 255)
"""Values of black and white for each of Y, Cb and Cr if the channels use the full range."""


def open_image(content: bytes) -> Any:
    """Return the image of a file as an image of Pillow. Its pixels are not decoded yet.

    Raises:
        ValueError: Pillow cannot read the file, Pillow would decode this kind of file to wrong
            values, or the range of the pixels is not known.
        Exception: A damaged file may raise any type of error.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:  # Pillow's message names an object in memory
        raise ValueError("damaged, or of a kind that Pillow does not read") from None
    problem = ""
    if image.format == "TIFF":
        problem = _tiff_problem(image)
    elif image.format == "PNG":
        problem = _png_problem(image, content)
    elif image.format == "JPEG2000":
        problem = _jpeg2000_problem(image, content)
    elif image.mode == "F":
        problem = "floats"
    if problem:
        raise ValueError(f"{image.format} with {problem}")
    return image


def _tiff_problem(image: Any) -> str:
    """Return the reason why Pillow would decode a TIFF to wrong values. Return an empty text if
    there is no reason. The numbers below come from the TIFF specification."""
    tags = image.tag_v2
    photometric = tags.get(262)
    bits = max(tags.get(258, (1,)))
    compression = tags.get(259, 1)
    is_plain = compression == 1
    is_reversed = tags.get(266, 1) == 2
    is_planar = tags.get(284, 1) == 2
    colours = tags.get(320, ())
    black_and_white = tags.get(532, FULL_RANGE)
    is_full_ycc = tags.get(530, (2, 2)) == (1, 1) and tuple(black_and_white) == FULL_RANGE
    problems = {
        # meaning of the pixels
        "no photometric interpretation": photometric is None,
        "Lab colours": photometric == 8,
        "floats or signed numbers": set(tags.get(339, (1,))) != {1},
        f"{bits} bits per sample": bits not in (1, 2, 4, 8, 16),
        "16 bits per sample where 0 is white": photometric == 0 and bits == 16,
        "an unusual colour map": photometric == 3
        and (len(colours) != 3 * 2**bits or max(colours) < 256),
        "inks other than CMYK": photometric == 5 and tags.get(332, 1) != 1,
        "reduced or narrow YCbCr": photometric == 6 and is_plain and not is_full_ycc,
        # position of the samples
        "planes stored apart": is_planar
        and (
            image.mode in ("LA", "PA")
            or (is_plain and (bits == 16 or photometric == 0 or is_reversed))
        ),
        "a predictor that its compression does not have": tags.get(317, 1) != 1
        and compression not in (5, 8, 32946, 34925, 50000),
        "a volume": tags.get(32997, 1) != 1,
        "a preview as its first page": tags.get(254, 0) & 1 and (image.is_animated or 330 in tags),
    }
    return next((problem for problem, applies in problems.items() if applies), "")


def _png_problem(image: Any, content: bytes) -> str:
    """Return the reason why Pillow would decode a PNG to wrong values, or an empty text."""
    bits = content[24]  # bit depth in the first chunk, IHDR
    has_colour_key = "transparency" in image.info and image.mode != "P"
    return f"a transparent colour of {bits} bits" if has_colour_key and bits not in (1, 8) else ""


def _jpeg2000_problem(image: Any, content: bytes) -> str:
    """Return the reason why Pillow would decode a JPEG 2000 to wrong values, or an empty text. If
    the file has several channels of more than 8 bits, Pillow decodes white as 0."""
    if len(image.getbands()) == 1:
        return ""
    size = content.index(b"\xff\x4f\xff\x51")  # the markers SOC and SIZ
    count = int.from_bytes(content[size + 40 : size + 42], "big")
    bits = 1 + max(depth & 0x7F for depth in content[size + 42 : size + 42 + 3 * count : 3])
    return f"{bits} bits per channel" if bits > 8 else ""


def has_more_pictures(image: Any) -> bool:
    """Whether an image file has pages or frames after the first. Call this function last, because
    it may change the image."""
    try:
        return getattr(image, "is_animated", False)
    except Exception:  # a second frame exists, but is damaged
        return True


def has_more_channels(image: Any) -> bool:
    """Whether Pillow leaves out channels of a TIFF, such as infrared."""
    return image.format == "TIFF" and image.tag_v2.get(277, 1) > len(image.getbands())


def image_pixels(image: Any, channels: int, size: int) -> Tensor:
    """Convert an image of Pillow to bytes. Rotate the image as the EXIF data say, put a white
    background behind transparent pixels, and scale the square in the middle. uint8, (C, size,
    size)"""
    from PIL import Image, ImageOps

    image.draft(None, (2 * size, 2 * size))  # large JPEG photos load six times as fast
    image = ImageOps.exif_transpose(image)
    if image.mode[0] == "I":  # Pillow would clip 16-bit values at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")  # transparent pixels become white
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image, np.uint8).reshape(size, size, -1)).permute(2, 0, 1)
