"""The types of leaves: values of them, and their names for people."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from nsgf.config.yaml_loader import load_yaml

NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def typed(value: Any, kind: Any) -> Any:
    """A plain value as one of a type of the schema; an integer may stand for a number.

    null is left as it is: what must have a value is checked when all settings are known.

    Raises:
        ValueError: it is none.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, UnionType):
        for part in arguments:
            try:
                return typed(value, part)
            except ValueError:
                continue
    elif origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
    elif origin is list:
        if isinstance(value, list) and None not in value:
            return [typed(item, arguments[0]) for item in value]
    elif kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(value) from error
    elif type(value) is kind:
        return value
    raise ValueError(value)


def from_text(text: str, kind: Any) -> Any:
    """What the text of a flag stands for: the text itself, or YAML where the type is no text.

    Raises:
        ValueError: no value of the type.
    """
    if kind is str or str in get_args(kind):
        return None if text == "null" and kind is not str else text
    try:
        value = load_yaml(text)
    except Exception:  # no YAML, so no value either
        raise ValueError(text) from None
    return typed(value, kind)


def type_words(kind: Any) -> str:
    """A type in words: ``a number or null``."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        values = ", ".join(map(str, arguments))
        return f"one of {values}" if len(arguments) > 1 else values
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(type_words(part) for part in arguments)
    if get_origin(kind) is list:
        item = type_words(arguments[0])
        return "a list of " + {"an integer": "integers"}.get(item, item.removeprefix("one of "))
    return "null" if kind is NoneType else NAMES[kind]


def yaml_words(value: Any) -> str:
    """A plain value as a file has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(yaml_words, value))}]"
    return str(value)
