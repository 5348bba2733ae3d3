"""The schema in words, for ``--help`` and for docs/configuration.md."""

import ast
import inspect
import json
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from nsgf.config import schema
from nsgf.config.leaves import MANY, default_of, is_free, plain_type, range_of

NAMES = {
    **{int: "an integer", float: "a number", bool: "true or false", str: "a text"},
    dict[str, Any]: "a section",
}


class Entry(NamedTuple):
    """A setting, described in words."""

    key: str
    """Dotted key."""
    allowed: str
    """Its type and range."""
    default: str
    """Default value, as in a file."""
    meaning: str
    """The docstring below the field, on one line."""
    free: bool
    """Whether it may change on resume although its section may not."""


class Section(NamedTuple):
    """A part of a configuration file."""

    key: str
    """Dotted; empty for the leaves outside of any section."""
    meaning: str
    entries: list[Entry]
    """Its settings, without those that a phase inherits from ``optim``."""


def sections() -> list[Section]:
    """Return all sections in the order of the schema, ``optim`` before the phases that inherit
    it."""
    found = list(_sections(schema.Settings, ""))
    optim = found.pop([section.key for section in found].index("optim"))
    found.insert([section.key for section in found].index("nsgf"), optim)
    return found


def _sections(kind: Any, key: str) -> list[Section]:
    """Yield the section of a class of the schema, and the sections inside it."""
    docs, shared = _docs(kind), _docs(schema.OptimConfig)
    entries: list[Entry] = []
    inner: list[Section] = []
    for item in fields(kind):
        dotted = f"{key}.{item.name}" if key else item.name
        if is_dataclass(item.type):
            inner += _sections(item.type, dotted)
            continue
        if kind is not schema.OptimConfig and docs[item.name] == shared.get(item.name):
            continue  # told once, at optim
        allowed, words = range_of(item), type_words(plain_type(item))
        if allowed is not None:
            bounds = str(allowed).removesuffix(f" and <= {MANY}")
            words = f"{words}, {bounds}"
        entry = Entry(dotted, words, yaml_words(default_of(item)), docs[item.name], is_free(item))
        entries.append(entry)
    meaning = " ".join((kind.__doc__ or "").split())
    if kind is schema.OptimConfig and key != "optim":
        entries, meaning = [], "The keys of optim, for this phase alone."
    return [Section(key, meaning, entries), *inner]


@cache
def _docs(kind: Any) -> dict[str, str]:
    """Return the docstring below each field of a class, with those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ != schema.__name__:
            continue
        body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined]
        for this, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(this, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(this.target, ast.Name)
                assert isinstance(below.value, ast.Constant)
                found[this.target.id] = " ".join(str(below.value.value).split())
    return found


def type_words(kind: Any) -> str:
    """Return a type in words: ``a number or null``."""
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
    """Return a plain value as it stands in a file."""
    return json.dumps(value, ensure_ascii=False).replace('"', "")
