"""Read and write YAML with plain values only, and read numbers: decimal digits with single ``_``
between them, a sign, a fraction and an exponent; no leading 0, no base 8, 16 or 60."""

import functools
import math
import os
import re
from collections import Counter
from contextlib import suppress
from typing import Any

import yaml
from jsonargparse.typing import register_type

from nsgf.system.errors import UserError, name_setting


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes texts such as ``08`` and ``no``, which YAML 1.1 or 1.2 would convert."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the loader refuses aliases


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader of plain values as in YAML 1.2: 1e-4 is a number, no is a text. Repeated keys are
    errors. PyYAML's parser in C is ten times as fast, but not in every build."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        is_number = str(node.tag).endswith((":int", ":float"))
        if is_number and self.resolve(yaml.ScalarNode, node.value, (True, False)) != node.tag:
            raise yaml.YAMLError(f"{node.tag} {node.value}: not a number")  # as !!int 1:30
        return super().construct_object(node, deep)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        count = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in count.items():
            if times > 1:
                raise yaml.YAMLError(f"{key}: twice in one section")
        return super().construct_mapping(node, deep)


_INTEGER = r"[-+]?(0|[1-9](_?[0-9]){0,30})"
_NUMBER = r"[-+]?(\.[0-9]+|(0|[1-9](_?[0-9])*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
for _place, _kind, _pattern in (
    (_Loader, "null", r"null|Null|NULL|~|"),
    (_Loader, "bool", r"true|True|TRUE|false|False|FALSE"),
    (_Loader, "int", _INTEGER),
    (_Loader, "float", _NUMBER),
    (_Loader, "float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
    (_Dumper, "float", r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?"),
):
    _whole = re.compile(f"(?:{_pattern})$")
    _place.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _whole, None)


def dump_yaml(content: dict[str, Any]) -> str:
    """Return YAML that :func:`load_yaml` reads back as the same values in the same order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or has an alias, a repeated key or a tag that is not
            a plain value.
    """
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_Loader)):
            raise yaml.YAMLError("an alias (*name): write the values out, or use the section optim")
        return _Loader(text).get_single_data()
    except Exception as error:  # PyYAML raises many types for a value with a wrong tag
        raise yaml.YAMLError(str(error)) from error


def to_plain(key: str, value: Any) -> Any:
    """Return a caller's value for a setting: paths become texts, numbers and arrays of numpy and
    torch those of Python. Raise UserError for all that no setting has."""
    found = value
    with suppress(Exception):  # as of a sparse tensor
        found = value.tolist() if hasattr(value, "tolist") else os.fspath(value)
    if isinstance(found, list | tuple):
        return [to_plain(key, part) for part in found]
    if isinstance(found, dict):
        return {name: to_plain(key, part) for name, part in found.items()}
    if found is not None and not isinstance(found, bool | int | float | str):
        raise UserError(f"{name_setting(key, value)}: must be a number, a text, or a list of these")
    return found


class Integer(int):
    """Type of a whole number in a parser; :func:`load_yaml` reads it, also from a quoted text."""


class Number(float):
    """Type of a number, likewise."""


def _read_number(value: Any, kinds: tuple[type, ...] = (int, float)) -> Any:
    found = load_yaml(value) if isinstance(value, str) else value
    if type(found) not in kinds or not math.isfinite(found):
        raise ValueError
    return kinds[-1](found)


for _class, _kinds in ((Integer, (int,)), (Number, (int, float))):
    register_type(
        _class,
        deserializer=functools.partial(_read_number, kinds=_kinds),
        deserializer_exceptions=(ValueError, OverflowError, yaml.YAMLError),
        type_check=lambda *_: False,
    )
