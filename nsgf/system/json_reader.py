"""Read JSON that may be cut off, damaged or foreign."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text. Raise ValueError if it is not an object, or contains a
    number that is not finite, or an integer of more than 64 bits."""
    try:
        found = json.loads(
            text, parse_float=_finite, parse_constant=_finite, parse_int=whole_number
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return expect(found, dict)


def expect(value: Any, kind: type[T]) -> T:
    """Return a value. Raise ValueError if it has another type; integers are accepted as float."""
    typed: Any = float(value) if kind is float and type(value) is int else value
    if type(typed) is not kind:
        raise ValueError(f"a {type(value).__name__} instead of a {kind.__name__}")
    return typed


def fields(record: Any, **kinds: type) -> list[Any]:
    """Return the named fields of an object. Raise ValueError if a field has another type."""
    known = expect(record, dict)
    return [expect(known.get(name), kind) for name, kind in kinds.items()]


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if the file cannot be read."""
    try:
        return parse_object(file.read_bytes())
    except (OSError, ValueError):
        return {}


def read_lines(file: Path, **kinds: type) -> Iterator[list[Any]]:
    """Yield the named fields of each line of a file; skip lines without them."""
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            yield fields(parse_object(line), **kinds)
        except ValueError:
            continue  # cut off by an interruption, or written by another version


def _finite(text: str) -> float:
    """Parse a number. Raise ValueError if it is not finite."""
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.20} is not finite")
    return float(text)


def whole_number(text: str) -> int:
    """Return the integer in a text. Raise ValueError if it has more than 64 bits."""
    number = int(text)
    if number.bit_length() > 64:
        raise ValueError(f"{text:.20}... is too large")
    return number
