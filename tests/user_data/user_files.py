"""Images and points as users have them."""

from dataclasses import replace

import numpy as np
from PIL import Image

from nsgf.config.schema import DataConfig
from nsgf.settings.choices import INSPECTORS


def write_images(folder, count=20, mode="RGB", classes=0, suffix=".png"):
    """Random images of different sizes, in as many subfolders as there are classes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        width, height = generator.integers(8, 30, 2)
        pixels = generator.integers(256, size=(height, width, 3), dtype=np.uint8)
        place = folder / f"class{number % classes}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert(mode).save(place / f"{number:03}{suffix}")
    return folder


def own_points(count=40, dim=3):
    """Points whose coordinates have units of their own."""
    rows = np.random.default_rng(1).standard_normal((count, dim))
    powers = 10.0 ** np.arange(dim)
    return rows * powers - 5 * powers


def write_points(file, points=None):
    """Those points, or others, as .npy."""
    np.save(file, own_points() if points is None else points)
    return file


def write_csv(file, *lines):
    file.write_text("\n".join(lines))
    return file


def inspected(name, place, **other):
    """The section of a new run, with what is found."""
    config = DataConfig(name=name, path=str(place), **other)
    return replace(config, found=INSPECTORS[name](config)[0])
