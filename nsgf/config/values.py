"""Values of settings as YAML, as Python objects and in words.

Only plain YAML values are read. A number may have a sign, decimal digits with single ``_`` between
them, a fraction and an exponent, but no leading 0 and no base 8, 16 or 60.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from nsgf.system.errors import wrong_setting
from nsgf.system.files import Plain

Place = str | os.PathLike[str]
"""Types of a path that a caller passes."""
NULL = ("null", "Null", "NULL", "~")
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
NAMES[NoneType] = "null"
WRONG = (ValueError, OverflowError, AttributeError, yaml.YAMLError)
"""Errors that the conversion of a value of a wrong type may raise."""


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes texts such as ``08`` and ``no``, which readers of YAML 1.1 or 1.2 would
    convert."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader of plain values as in YAML 1.2: ``1e-4`` is a number, and ``no`` is a text. PyYAML's
    parser in C is ten times as fast as its parser in Python, but some builds lack it."""

    yaml_implicit_resolvers: Plain = {}  # noqa: RUF012

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = Counter(map(self.construct_object, dict(node.value)))
        for name, count in names.most_common(1):
            if count > 1:
                raise ValueError(f"{name}: twice in one section")
        return super().construct_mapping(node, deep)


_INTEGER = r"[-+]?(0|[1-9](_?[0-9])*)"
_NUMBER = r"[-+]?(\.[0-9]+|(0|[1-9](_?[0-9])*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
for _place, _kind, _pattern in (
    (_Loader, "null", rf"{'|'.join(NULL)}|"),
    (_Loader, "bool", r"true|True|TRUE|false|False|FALSE"),
    (_Loader, "int", _INTEGER),
    (_Loader, "float", _NUMBER),
    (_Dumper, "float", r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?"),
):
    _whole = re.compile(f"(?:{_pattern})$")
    _place.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _whole, None)


def dump_yaml(content: Plain) -> str:
    """Return YAML that :func:`load_yaml` reads back as the same values in the same order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or has an alias, a repeated key or an object of
            Python.
    """
    try:
        if yaml.AliasEvent in map(type, yaml.parse(text, _Loader)):
            raise ValueError("an alias (*name): write the values out, or use the section optim")
        return _Loader(text).get_single_data()
    except Exception as error:  # PyYAML raises many types for a value with a wrong tag
        raise yaml.YAMLError(str(error)) from error


def describe_type(kind: Any) -> str:
    """Return a type as text: ``a number or null``."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(arguments)}" if len(arguments) > 1 else arguments[0]
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(describe_type, arguments))
    if get_origin(kind) is dict:
        return "settings with their values, as in 'lr=1e-3,3e-3 peer.sigma=0,0.1'"
    if get_origin(kind) is list:
        return f"a list, each {describe_type(arguments[0])}"
    return NAMES[kind]


def format_value(value: Any) -> str:
    """Return the text of a plain value in a YAML file."""
    return json.dumps(value, ensure_ascii=False).replace('"', "")


def format_layer(layer: Plain) -> str:
    """Return settings with their values as text: ``nsgf.lr 0.001, seed 3``."""
    return ", ".join(f"{key} {format_value(value)}" for key, value in layer.items())


def to_plain(value: Any) -> Any:
    """Return an argument of a Python function as a plain value: a path as text; an array, a tensor,
    a range, an iterator or a tuple as a list. Values in lists and dictionaries are converted
    too."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | range | Iterator):
        return [to_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: to_plain(part) for name, part in value.items()}
    return value


def read_value(key: str, kind: Any, value: Any) -> Any:
    """Return a value of the declared type. If the type is not a string, the value may also be YAML
    text, as on the command line. Raise UserError for a wrong type."""
    try:
        return _convert(kind, value)
    except WRONG:
        text = "null" if value is None else value
        raise wrong_setting(key, text, f"must be {describe_type(kind)}") from None


def _convert(kind: Any, value: Any) -> Any:
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if NoneType in parts and (value is None or (value in NULL and str not in parts)):
            return None  # if texts are allowed, null may be a name
        for part in parts:
            with suppress(*WRONG):
                return _convert(part, value)
        raise ValueError
    if kind is Any:
        return value
    is_text = isinstance(value, str)
    if origin is dict:
        if is_text:
            pairs = [word.split("=", 1) for word in value.split()]
            value = dict(pairs)
            if len(value) < len(pairs):
                raise ValueError
        return {
            _convert(str, name): _convert(parts[1], part_value)
            for name, part_value in value.items()
        }
    if origin is Literal or kind is str:
        if not is_text or (parts and value not in parts):
            raise ValueError
        return value
    if is_text and kind is bool:
        value = WORDS.get(value.lower())
    elif is_text:
        is_bare = origin is list and not value.startswith("[")
        value = load_yaml(f"[{value}]" if is_bare else value)
    if origin is list and isinstance(value, list | tuple):
        return [_convert(parts[0], part) for part in value]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or value is None or not math.isfinite(value):
        raise ValueError
    return value


def is_path(text: str) -> bool:
    """Whether a text can be a path. In ``~NAME``, the user must exist."""
    try:
        return bool(text and Path(text).expanduser())
    except RuntimeError:  # there is no user NAME of ~NAME
        return False


def expand_path(key: str, path: Place) -> Path:
    """Return a user's path with ``~`` replaced by the home folder. Raise UserError if the path is
    empty, not printable or no path, or if the user of ``~NAME`` does not exist."""
    text = os.fspath(path)
    if not text.isprintable() or not is_path(text):
        raise wrong_setting(key, path, "must be a path (~NAME of an existing user)")
    return Path(text).expanduser()
