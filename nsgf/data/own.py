"""What is common to a user's own images and own points."""

from typing import NamedTuple

from nsgf.config.schema import DataConfig
from nsgf.system.errors import UserError

LEAST = 16
"""Smallest number of images or points that can be trained on."""


class Found(NamedTuple):
    """What was found at ``data.path``, as saved in ``data.found``."""

    samples: int
    """Number of images, or of points."""
    shape: list[int]
    """Shape of one sample: (C, H, W), or (D,)."""
    checksum: str
    """Checksum of the names and contents of all images, or of all points."""
    classes: int = 0
    """Number of classes of images; 0 if there are too few images of one for a classifier."""
    names: list[str] | None = None
    """Names of the D coordinates of points."""
    mean: list[float] | None = None
    """Mean of each coordinate, in the units of the file."""
    scale: list[float] | None = None
    """Standard deviation of each coordinate."""


class Inspection(NamedTuple):
    """Result of a look at ``data.path``."""

    found: Found
    notes: tuple[str, ...]
    """Lines for the user."""


def read_found(config: DataConfig) -> Found:
    """Return what was found at ``data.path`` when the run was begun.

    Raises:
        UserError: nothing was looked for yet, or a file of settings holds something else.
    """
    if not config.found:
        raise UserError(
            f"data.path = {config.path}: name the {config.name} to train on with --data.path"
        )
    try:
        found = Found(**config.found)
        is_valid = _is_valid(found, 3 if config.name == "images" else 1)
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise UserError(f"data.found: cannot be that of {config.name}; train a new run")
    return found


def _is_valid(found: Found, dimensions: int) -> bool:
    """Whether the program itself could have found this."""
    sizes = [found.samples, *found.shape]
    if not all(type(size) is int and size > 0 for size in sizes):
        return False
    if len(found.shape) != dimensions or type(found.classes) is not int or found.classes < 0:
        return False
    if dimensions == 3:
        channels, height, width = found.shape
        return channels in (1, 3) and height == width
    columns = (found.names, found.mean, found.scale)
    numbers = [*(found.mean or []), *(found.scale or [])]
    return all(len(column or []) == found.shape[0] for column in columns) and all(
        isinstance(number, float | int) for number in numbers
    )


def check_same_data(config: DataConfig, is_same: bool) -> None:
    """Raise UserError unless ``data.path`` holds the data that the run was begun with."""
    if not is_same:
        found = read_found(config)
        raise UserError(
            f"data.path = {config.path}: holds other {config.name} than the run was begun with "
            f"({found.samples} of them, checksum {found.checksum}); restore those, "
            "give their folder with --data.path, or train a new run"
        )
