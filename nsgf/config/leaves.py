"""Settings of the schema: ranges, types, defaults, and which may change on resume.

Ranges and marks stand in the annotation, ``iterations: Annotated[int, Range(0)] = 20_000``.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

MANY = 10**9
"""Largest value of a number without a maximum of its own."""
FREE_ON_RESUME: Final = "free on resume"
"""Marks a setting that changes files, permissions, memory or time, but no result."""
MACHINE_PATH: Final = "machine path"
"""Marks a setting that names a file or a folder of this machine."""


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a list."""

    minimum: float = -math.inf
    """Smallest value."""
    maximum: float = MANY
    """Largest value."""
    above: float = -math.inf
    """Values are larger than this."""
    below: float = math.inf
    """Values are smaller than this."""

    def __contains__(self, number: float) -> bool:
        return self.minimum <= number <= self.maximum and self.above < number < self.below

    def __str__(self) -> str:
        maximum = self.maximum if self.below == math.inf else math.inf
        bounds = [(">=", self.minimum), (">", self.above), ("<", self.below), ("<=", maximum)]
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if math.isfinite(bound))


class Leaf(NamedTuple):
    """A setting of a configuration."""

    key: str
    """Dotted, as in a flag."""
    value: Any
    field: "dataclasses.Field[Any]"
    """Its type, default and annotations."""


def leaves(node: Any, prefix: str = "") -> Iterator[Leaf]:
    """Yield every setting of a configuration, or of a section of it.

    Args:
        node: a dataclass of the schema.
        prefix: goes before each key, ``model.`` for that section.
    """
    for item in dataclasses.fields(node):
        value = getattr(node, item.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{item.name}.")
        else:
            yield Leaf(f"{prefix}{item.name}", value, item)


def fixed_values(config: Any, sections: tuple[str, ...]) -> dict[str, Any]:
    """Return all settings of some sections by dotted key, except those that are free on resume."""
    return {
        key: value
        for key, value, item in leaves(config)
        if key.partition(".")[0] in sections and not is_free(item)
    }


def contradictions(
    saved: dict[str, Any], config: Any, frozen: Collection[str], running: str | None = None
) -> list[str]:
    """Return the settings of ``config`` that a run with the settings ``saved`` cannot take over.

    Args:
        saved: the configuration in a checkpoint, nested plain values.
        config: the configuration of this command.
        frozen: sections and dotted settings that must agree, as in ``Phase.follows``.
        running: the phase that continues in its middle. Its section must agree too, except for the
            number of iterations.

    Returns:
        One text per contradiction, with both values.
    """
    texts = []
    for key, value, item in leaves(config):
        section, _, name = key.partition(".")
        is_frozen = section in frozen or key in frozen
        is_frozen |= section == running and name != "iterations"
        before = _lookup(saved, key, default_of(item))
        if is_frozen and not is_free(item) and before != value:
            texts.append(f"{key}: the checkpoint has {before}, this command {value}")
    return texts


def _lookup(node: Any, key: str, default: Any) -> Any:
    """Return the value at a dotted key; a setting that is newer than the file has its default."""
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return default
        node = node[part]
    return node


def range_of(item: "dataclasses.Field[Any]") -> Range | None:
    """Return the range in a setting's annotation, if it has one."""
    return next((note for note in _notes(item) if isinstance(note, Range)), None)


def is_free(item: "dataclasses.Field[Any]") -> bool:
    """Whether a setting may change on resume although its section may not."""
    return FREE_ON_RESUME in _notes(item)


def is_path(item: "dataclasses.Field[Any]") -> bool:
    """Whether a setting names a file or a folder of this machine."""
    return MACHINE_PATH in _notes(item)


def plain_type(item: "dataclasses.Field[Any]") -> Any:
    """Return a setting's type without its annotations."""
    return get_args(item.type)[0] if _notes(item) else item.type


def default_of(item: "dataclasses.Field[Any]") -> Any:
    """Return the default value of a setting."""
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _notes(item: "dataclasses.Field[Any]") -> tuple[Any, ...]:
    return getattr(item.type, "__metadata__", ())
