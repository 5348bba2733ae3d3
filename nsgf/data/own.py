"""What is common to a user's own images and own points.

What is found at ``data.path`` when a run begins is saved with its settings, in ``data.found``; a
resumed run must find the same.
"""

from typing import NamedTuple

from nsgf.config.schema import DataConfig, FoundConfig
from nsgf.system.errors import UserError

LEAST = 16
"""Smallest number of images or points that can be trained on."""


class Inspection(NamedTuple):
    """Result of a look at ``data.path``."""

    found: FoundConfig
    notes: tuple[str, ...]
    """Lines for the user."""


def check_same_data(config: DataConfig, is_same: bool) -> None:
    """Raise UserError unless ``data.path`` holds the data that the run was begun with."""
    if not is_same:
        raise UserError(
            f"data.path = {config.path}: holds other {config.name} than the run was begun with "
            f"({config.found.samples} of them, checksum {config.found.checksum}); restore those, "
            "give their folder with --data.path, or train a new run"
        )


def found_data(config: DataConfig, dimensions: int) -> tuple[int, list[int]]:
    """Return number and shape of the samples that were found.

    Raises:
        UserError: ``data.path`` was not inspected yet, or no sample can have this shape.
    """
    size, shape = config.found.samples, config.found.shape
    if not size or shape is None:
        raise UserError(
            f"data.path = {config.path}: name the {config.name} to train on with --data.path"
        )
    is_image = dimensions == 3
    if len(shape) != dimensions or (is_image and (shape[0] not in (1, 3) or shape[1] != shape[2])):
        raise UserError(f"data.found.shape = {shape}: cannot be that of {config.name}")
    return size, shape
