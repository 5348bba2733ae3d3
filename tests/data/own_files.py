"""Images and points as users have them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from nsgf.config.schema import DataConfig
from nsgf.data.choices import INSPECTORS


def write_images(
    folder: Path, count: int = 20, mode: str = "RGB", classes: int = 0, suffix: str = ".png"
) -> Path:
    """Random images of different sizes, in as many subfolders as there are classes."""
    generator = np.random.default_rng(0)
    for number in range(count):
        width, height = generator.integers(8, 30, 2)
        pixels = generator.integers(256, size=(height, width, 3), dtype=np.uint8)
        place = folder / f"class{number % classes}" if classes else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert(mode).save(place / f"{number:03}{suffix}")
    return folder


def own_points(count: int = 40, dim: int = 3) -> np.ndarray:
    """Points whose coordinates have units of their own."""
    rows = np.random.default_rng(1).standard_normal((count, dim))
    powers = 10.0 ** np.arange(dim)
    return rows * powers - 5 * powers


def write_points(file: Path, points: np.ndarray | None = None) -> Path:
    """Those points, or others, as .npy."""
    np.save(file, own_points() if points is None else points)
    return file


def write_csv(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines))
    return file


def inspected(name: str, place: Path, **other) -> DataConfig:
    """The section of a new run, with what is found."""
    config = DataConfig(name=name, path=str(place), **other)
    return replace(config, found=INSPECTORS[name](config)[0]._asdict())
