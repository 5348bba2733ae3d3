"""Fields of the configuration with an allowed range, which :mod:`nsgf.checks` checks."""

from dataclasses import field
from typing import Any

MANY = 10**9
"""Largest value of a count that names none of its own: more than any run could ever use."""


def at_least(minimum: float, default: Any, maximum: float = MANY) -> Any:
    """Field whose value must be >= ``minimum`` and <= ``maximum``."""
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum})


def above(bound: float, default: Any) -> Any:
    """Field whose value must be > ``bound``."""
    return field(default=default, metadata={"above": bound})


def inside(low: float, high: float, default: Any, *, closed_low: bool = False) -> Any:
    """Field whose value must lie in (low, high), or in [low, high) with ``closed_low``."""
    lower = "minimum" if closed_low else "above"
    return field(default=default, metadata={lower: low, "below": high})


def list_of(*default: Any, minimum: float = 1, maximum: float = MANY) -> Any:
    """List field whose items must be >= ``minimum`` and <= ``maximum``."""
    return field(
        default_factory=lambda: list(default), metadata={"minimum": minimum, "maximum": maximum}
    )
