"""Every setting of the schema by its dotted key, and functions that read or build a configuration.

A layer is a dictionary of values by dotted key: ``{"nsgf.lr": 1e-4}``. Facts are values that a run
measured (:data:`FACTS`). They are stored beside the settings. No file or flag sets them.
"""

import copy
import dataclasses
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from nsgf.config.schema import (
    CHANGED_SETS,
    FREE_ON_RESUME,
    MACHINE_PATH,
    OF_PHASES,
    SOURCE_FILE,
    SOURCES,
    STANDARD,
    Config,
    DataFacts,
    OnlyIf,
    OptimConfig,
    Range,
)
from nsgf.system.files import Plain

Layer = dict[str, Any]
"""Values of some settings by dotted key."""


class Setting(NamedTuple):
    """Properties of a setting in the schema."""

    kind: Any
    """Type, without annotations."""
    default: Any
    get: Callable[[Config], Any]
    """Function that returns the value in a configuration."""
    range: Range | None = None
    is_free: bool = False
    """Whether the setting may change on resume although its section may not."""
    is_path: bool = False
    """Whether the value is a file or a folder on this machine."""
    conditions: tuple[OnlyIf, ...] = ()
    """Conditions on further settings. If a condition does not hold, this setting has no effect."""


SECTIONS: dict[str, type] = {}
"""Class of each section, by its key. The key of the whole configuration is empty."""


def _walk(node: Any, section: str) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    SECTIONS[section] = type(node)
    for item in dataclasses.fields(node):
        key = f"{section}.{item.name}".lstrip(".")
        value = getattr(node, item.name)
        if dataclasses.is_dataclass(value):
            settings |= _walk(value, key)
            continue
        notes = getattr(item.type, "__metadata__", ())
        settings[key] = Setting(
            kind=get_args(item.type)[0] if notes else item.type,
            default=value,
            get=attrgetter(key),
            range=next((note for note in notes if isinstance(note, Range)), None),
            is_free=FREE_ON_RESUME in notes,
            is_path=MACHINE_PATH in notes,
            conditions=tuple(note for note in notes if isinstance(note, OnlyIf)),
        )
    return settings


VALUES = _walk(Config(), "")
"""All settings and facts, by dotted key."""
FACTS_OF_DATA = "data.found"
DEFAULT_FACTS = {
    item.name: item.default
    for item in dataclasses.fields(DataFacts)
    if item.default is not dataclasses.MISSING
}
"""Defaults of facts that only some data have. A saved run may lack such a fact."""
FACTS = {key: VALUES[key] for key in (FACTS_OF_DATA, "model.network")}
"""All facts by dotted key. A new run stores the class of the caller's network, and a description of
the data at ``data.path``. Both facts must be the same when the run is resumed."""
SETTINGS = {key: item for key, item in VALUES.items() if key not in FACTS}
"""All settings of a configuration by dotted key."""
EDITION = "data.edition"
VALUES[EDITION] = Setting(int, 1, attrgetter(EDITION))
"""The edition of the data follows from settings. It is saved with the settings, and must agree on
resume."""
PARTS = [*SECTIONS][1:]
"""Keys of the sections of a configuration."""
KEYS = {**SETTINGS, **_walk(OptimConfig(), "optim")}
"""All keys of files and flags, including the keys of ``optim``, which apply to all phases."""


def is_inherited(key: str) -> bool:
    """Whether a setting of a phase is also a setting of ``optim``."""
    section, _, name = key.partition(".")
    return section in OF_PHASES and f"optim.{name}" in KEYS


def values(config: Config) -> Layer:
    """Return all settings and facts of a configuration by dotted key."""
    return {key: item.get(config) for key, item in VALUES.items()}


def saved_values(config: Config) -> Layer:
    """Return the values of :func:`values` as plain values, which a checkpoint can store."""
    facts = config.data.found
    return {**values(config), FACTS_OF_DATA: {} if facts is None else facts.plain()}


def sections_of(config: Config) -> Plain:
    """Return all settings as nested sections, without the facts."""
    return nest({key: copy.deepcopy(item.get(config)) for key, item in SETTINGS.items()})


def build(layer: Layer) -> Config:
    """Return a configuration with these values, and defaults for all missing settings. If
    ``data.source`` is a path, the path becomes ``data.source_path``."""
    sections: dict[str, Plain] = {section: {} for section in ("", *PARTS)}
    source = layer.get("data.source", STANDARD)
    if source not in SOURCES:
        layer = {**layer, "data.source": SOURCE_FILE, "data.source_path": source}
    for key in layer.keys() - {EDITION}:
        section, _, name = key.rpartition(".")
        sections[section][name] = layer[key]
    for section in reversed(PARTS):  # subsections come after their section
        parent, _, name = section.rpartition(".")
        sections[parent][name] = SECTIONS[section](**sections[section])
    return Config(**sections[""])


def change(config: Config, layer: Layer) -> Config:
    """Return a copy of a configuration with new values of some settings."""
    return build({**values(config), **layer})


def shorter_warmups(recipe: Config, config: Config, fixed: Collection[str] = ()) -> Layer:
    """Return shorter warm-ups for phases with fewer updates than in the recipe. A warm-up keeps its
    share of the updates. ``fixed``: settings that do not change."""
    layer: Layer = {}
    for phase in config.phases:
        key = f"{phase}.warmup_steps"
        usual = getattr(recipe, phase)
        updates = getattr(config, phase).iterations
        if usual.warmup_steps and updates < usual.iterations and key not in fixed:
            layer[key] = usual.warmup_steps * updates // usual.iterations
    return layer


def nest(layer: Layer) -> Plain:
    """Return a layer as nested sections: ``{"nsgf": {"lr": 1e-4}}``."""
    nested: Plain = {}
    for key, value in layer.items():
        *sections, name = key.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return nested


def look_up(sections: Any, key: str, default: Any = None) -> Any:
    """Return the value at a dotted key of nested sections, or the default."""
    if key == "flow.kind" and look_up(sections, "sinkhorn.solver") == "geomloss":
        return "geomloss"  # a file of an earlier version
    for part in key.split("."):
        sections = sections.get(part, default) if isinstance(sections, dict) else default
    return sections


def spread_optim(layer: Layer) -> Layer:
    """Copy the values of ``optim`` to each phase that has no value, and drop ``optim``."""
    spread = {key: value for key, value in layer.items() if not key.startswith("optim.")}
    for key in layer.keys() - spread.keys():
        for phase in OF_PHASES:
            spread.setdefault(key.replace("optim", phase), layer[key])
    return spread


def drop_machine_settings(config: Config) -> Config:
    """Return the settings without paths, device and tracker, so that they can be shared."""
    defaults = {
        key: item.default
        for key, item in SETTINGS.items()
        if item.is_path or key.startswith(("device", "tracking."))
    }
    facts = config.data.found
    if facts:
        source = facts.source and dataclasses.replace(facts.source, broken=None)
        facts = dataclasses.replace(facts, broken=None, source=source)
    return change(config, {**defaults, FACTS_OF_DATA: facts})


def fixed_values(config: Config, names: Collection[str | None]) -> Layer:
    """Return the plain values of some sections and dotted settings, without settings that are free
    on resume."""
    return {
        key: value
        for key, value in saved_values(config).items()
        if (key in names or key.partition(".")[0] in names) and not VALUES[key].is_free
    }


def agrees(key: str, saved: Any, value: Any) -> bool:
    """Whether a saved value of a setting equals a plain value of :func:`fixed_values`. If an
    earlier version did not save a fact, the fact has the default value."""
    if key != FACTS_OF_DATA:
        return saved == value
    if saved and isinstance(saved, dict):  # a damaged file may hold any value
        saved = {**DEFAULT_FACTS, **saved}
        if isinstance(saved["source"], dict):
            saved["source"] = {**DEFAULT_FACTS, **saved["source"]}
    return (saved or {}) == value


def find_contradictions(
    saved: Plain, config: Config, frozen: Collection[str], running: str | None = None
) -> list[str]:
    """Return a text for each setting of ``config`` that contradicts ``saved``, the nested
    configuration of a checkpoint. If an older checkpoint lacks a setting, the default is compared.

    Args:
        frozen: sections and dotted settings that must agree, as in ``Phase.follows``.
        running: the unfinished phase to resume. The section of this phase must agree too, except
            for the number of iterations.
    """
    texts = []
    for key, value in fixed_values(config, {*frozen, running}).items():
        before = look_up(saved, key, VALUES[key].default)
        if agrees(key, before, value) or key == f"{running}.iterations":
            continue
        if key == EDITION:
            names = (config.data.name, config.data.source)
            changed = " and ".join(name for name in CHANGED_SETS if name in names)
            texts.append(f"{changed}: an earlier version had another distribution; train a new run")
        else:
            texts.append(f"{key}: the checkpoint has {before}, this command {value}")
    return texts
