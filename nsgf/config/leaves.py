"""Settings of the schema: ranges, types, defaults, and which may change on resume.

The annotation of a field holds range and marks: ``iterations: Annotated[int, Range(0)] = 20_000``.
"""

import dataclasses
import functools
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

MANY = 10**9
"""Largest value of a number for which the schema sets no maximum."""
FREE_ON_RESUME: Final = "free on resume"
"""Marks a setting that does not change results, only files, memory or time."""
MACHINE_PATH: Final = "machine path"
"""Marks a setting that names a file or a folder of this machine."""


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a list."""

    minimum: float = -math.inf
    """Smallest allowed value."""
    maximum: float = MANY
    """Largest allowed value."""
    above: float = -math.inf
    """Values are larger than this."""
    below: float = math.inf
    """Values are smaller than this."""

    def __contains__(self, number: float | None) -> bool:
        if number is None:
            return False
        return self.minimum <= number <= self.maximum and self.above < number < self.below

    def __str__(self) -> str:
        maximum = self.maximum if self.below == math.inf else math.inf
        bounds = [(">=", self.minimum), (">", self.above), ("<", self.below), ("<=", maximum)]
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if math.isfinite(bound))


class Setting(NamedTuple):
    """Properties of a setting in the schema."""

    kind: Any
    """Type, without annotations."""
    default: Any
    range: Range | None
    is_free: bool
    """Whether the setting may change on resume although the rest of its section may not."""
    is_path: bool
    """Whether the value is a file or a folder on this machine."""


class Leaf(NamedTuple):
    """A setting with its value in a configuration."""

    key: str
    """Dotted key, as in a flag."""
    value: Any
    setting: Setting


def leaves(node: Any, prefix: str = "") -> list[Leaf]:
    """Return every setting of a configuration, or of a section of it; ``prefix`` is the start of
    each key, for example ``model.``."""
    found = []
    for name, setting in settings_of(node.__class__).items():
        value = getattr(node, name)
        if dataclasses.is_dataclass(value):
            found += leaves(value, f"{prefix}{name}.")
        else:
            found.append(Leaf(f"{prefix}{name}", value, setting))
    return found


@functools.cache
def settings_of(schema: type) -> dict[str, Setting]:
    """Return the settings and sections of a dataclass of the schema by name."""
    found = {}
    for item in dataclasses.fields(schema):
        notes = getattr(item.type, "__metadata__", ())
        kind = get_args(item.type)[0] if notes else item.type
        factory = item.default_factory
        default = item.default if factory is dataclasses.MISSING else factory()
        allowed = next((note for note in notes if isinstance(note, Range)), None)
        is_free, is_path = FREE_ON_RESUME in notes, MACHINE_PATH in notes
        found[item.name] = Setting(kind, default, allowed, is_free, is_path)
    return found


def fixed_values(config: Any, sections: tuple[str, ...]) -> dict[str, Any]:
    """Return all settings of some sections by dotted key, except those that are free on resume."""
    return {
        key: value
        for key, value, item in leaves(config)
        if key.partition(".")[0] in sections and not item.is_free
    }


def find_contradictions(
    saved: dict[str, Any], config: Any, frozen: Collection[str], running: str | None = None
) -> list[str]:
    """Return one text for each setting of ``config`` that differs from ``saved``, the nested
    configuration of a checkpoint, although both must agree.

    Args:
        frozen: sections and dotted settings that must agree, as in ``Phase.follows``.
        running: the unfinished phase to resume. Its section must agree too, except for the number
            of iterations.
    """
    texts = []
    for key, value, item in leaves(config):
        section, _, name = key.partition(".")
        is_frozen = section in frozen or key in frozen
        is_frozen |= section == running and name != "iterations"
        before = _lookup(saved, key, item.default)
        if is_frozen and not item.is_free and before != value:
            texts.append(f"{key}: the checkpoint has {before}, this command {value}")
    return texts


def _lookup(node: Any, key: str, default: Any) -> Any:
    """Return the value at a dotted key, or the default if the file is older than the setting."""
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return default
        node = node[part]
    return node
