"""The user's data: images of a folder or a file, and points of a table."""

from dataclasses import replace

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS, Data, ImageSet, Target
from nsgf.user_data.files import saved_facts
from nsgf.user_data.images import image_set
from nsgf.user_data.points import TableSet


def find_target(config: DataConfig) -> Target:
    """Return the record of the data set that the section ``data`` names. The record has names of
    classes only if networks get labels. Raise UserError if a user's data were not inspected."""
    if config.name == "points":
        return TableSet(saved_facts(config), config.path)
    target = image_set(config) if config.name == "images" else DATA_SETS[config.name]
    if isinstance(target, ImageSet) and not config.conditional:
        return replace(target, class_names=())
    return target


def load_data(config: DataConfig, seed: int) -> Data:
    """Return source and target of the section ``data``. Raise UserError if files are missing or
    damaged, or a class is empty."""
    return Data(find_target(config), config, seed)
