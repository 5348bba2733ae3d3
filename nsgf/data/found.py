"""What is common to a user's own images and own points."""

from typing import NamedTuple

from nsgf.config.schema import DataConfig, FoundConfig
from nsgf.system.errors import UserError

LEAST = 16
"""Smallest number of images or points that is trained on."""


class Seen(NamedTuple):
    """What a look at ``data.path`` tells."""

    found: FoundConfig
    notes: tuple[str, ...]
    """Lines for the user."""


def refuse_others(config: DataConfig, same: bool) -> None:
    """
    Raises:
        UserError: what is at ``data.path`` is not what the run was begun with.
    """
    if not same:
        raise UserError(
            f"data.path = {config.path}: holds other {config.name} than the run was begun with "
            f"({config.found.samples} of them, checksum {config.found.checksum}); put those back, "
            "name where they are with --data.path, or train a new run"
        )
