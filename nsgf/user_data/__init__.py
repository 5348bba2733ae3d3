"""The user's data, which are images of a folder or a file, or points of a table."""

from dataclasses import replace

from nsgf.config.schema import SOURCE_FILE, DataConfig
from nsgf.data import DATA_SETS, Data, ImageSet, Target
from nsgf.system.seeding import derive_seed
from nsgf.user_data.files import reading_source, saved_facts
from nsgf.user_data.images import image_set
from nsgf.user_data.points import SourceTable, TableSet


def find_target(config: DataConfig) -> Target:
    """Return the record of the data set that the section ``data`` names. The record has names of
    classes only if networks get labels. Raise UserError if the program has not inspected a user's
    data."""
    if config.name == "points":
        return TableSet(saved_facts(config), config.path, has_classes=config.conditional)
    target = image_set(config) if config.name == "images" else DATA_SETS[config.name]
    if isinstance(target, ImageSet) and not config.conditional:
        return replace(target, class_names=())
    return target


def load_data(config: DataConfig, seed: int) -> Data:
    """Return source and target of the section ``data``. Raise UserError if files are missing or
    damaged, or a class is empty."""
    return Data(find_target(config), config, seed, load_source(config, seed))


def load_source(config: DataConfig, seed: int) -> Data | None:
    """Return data whose target is the source file. Return None if the source is a distribution.
    Raise UserError if files are missing, damaged or changed, or a class is empty."""
    if config.source != SOURCE_FILE:
        return None
    with reading_source(config) as section:
        record: Target
        if config.name == "points":
            record = SourceTable(
                saved_facts(config), config.source_path, has_classes=config.conditional
            )
        else:
            record = find_target(section)
        return Data(record, section, derive_seed(seed, "source"), place="data.source")
