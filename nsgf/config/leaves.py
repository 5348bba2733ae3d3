"""Annotations of the schema's leaves: range, and whether a leaf may change on resume.

Both stand in the annotation, ``iterations: Annotated[int, Range(0)] = 20_000``.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

MANY = 10**9
"""Largest value of a number without a maximum of its own."""
FREE_ON_RESUME: Final = "free on resume"
"""Marks a leaf that changes files, permissions, memory or time, but no result."""
MACHINE_PATH: Final = "machine path"
"""Marks a leaf that names a file or a folder of this machine."""


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a list."""

    minimum: float | None = None
    """Smallest value."""
    maximum: float = MANY
    """Largest value; no bound of its own where ``below`` is given."""
    above: float | None = None
    """Values are larger than this."""
    below: float | None = None
    """Values are smaller than this."""

    def refusal(self, number: float) -> str | None:
        """Return what a number out of the range must be; None if it is inside."""
        if isinstance(number, float) and not math.isfinite(number):
            return "a finite number"
        inside = (
            (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
            and number <= self.maximum
        )
        return None if inside else str(self)

    def __str__(self) -> str:
        bounds = [(">=", self.minimum), (">", self.above), ("<", self.below)]
        if self.below is None:
            bounds.append(("<=", self.maximum))
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)


class Leaf(NamedTuple):
    """A setting of a configuration."""

    key: str
    """Dotted, as in a flag."""
    value: Any
    field: "dataclasses.Field[Any]"
    """Its type, default and annotations."""


def leaves(node: Any, prefix: str = "") -> Iterator[Leaf]:
    """Yield every leaf of a configuration, or of a section of it.

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
    """Return all leaves of some sections by dotted key, except those that are free on resume."""
    return {
        key: value
        for key, value, item in leaves(config)
        if key.partition(".")[0] in sections and not is_free(item)
    }


def range_of(item: "dataclasses.Field[Any]") -> Range | None:
    """Return the range in a leaf's annotation, if it has one."""
    return next((note for note in _notes(item) if isinstance(note, Range)), None)


def is_free(item: "dataclasses.Field[Any]") -> bool:
    """Whether a leaf may change on resume although its section may not."""
    return FREE_ON_RESUME in _notes(item)


def is_path(item: "dataclasses.Field[Any]") -> bool:
    """Whether a leaf names a file or a folder of this machine."""
    return MACHINE_PATH in _notes(item)


def plain_type(item: "dataclasses.Field[Any]") -> Any:
    """Return a leaf's type without its annotations."""
    return get_args(item.type)[0] if _notes(item) else item.type


def default_of(item: "dataclasses.Field[Any]") -> Any:
    """Return the default value of a leaf."""
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _notes(item: "dataclasses.Field[Any]") -> tuple[Any, ...]:
    return getattr(item.type, "__metadata__", ())
