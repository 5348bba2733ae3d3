"""Describe settings in words, for ``--help``, messages and docs/configuration.md."""

import ast
import inspect
import json
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from nsgf.config import schema
from nsgf.config.yaml_loader import Integer, Number

NAMES: dict[Any, str] = {
    **{int: "an integer", float: "a number", bool: "true or false", str: "a text"},
    **{Integer: "an integer", Number: "a number"},
    **{dict[str, Any]: "a section", NoneType: "null"},
}


def setting_descriptions(kind: Any = schema.Settings, prefix: str = "") -> dict[str, str]:
    """Return the docstrings of sections and settings by dotted key, in the order of the schema.

    The empty key is the configuration itself. Settings that phases inherit appear once, under
    ``optim``. ``prefix`` is the start of each key, for example ``model.``.
    """
    found = {prefix.rstrip("."): inspect.cleandoc(kind.__doc__).replace("\n", " ")}
    inherits = issubclass(kind, schema.OptimConfig) and prefix != "optim."
    if kind is schema.OptimConfig and inherits:
        found = {prefix.rstrip("."): "The keys of optim, for this phase only."}
    for base in reversed(kind.__mro__[:-1]):
        if not (inherits and base is schema.OptimConfig):
            found |= {prefix + name: text for name, text in _docs()[base.__name__].items()}
    for item in fields(kind):
        if is_dataclass(item.type):
            found |= setting_descriptions(item.type, f"{prefix}{item.name}.")
    return found


@cache
def _docs() -> dict[str, dict[str, str]]:
    """Return, for each class of the schema, the docstrings below its fields."""
    return {
        node.name: {
            ast.unparse(this.target): " ".join(ast.literal_eval(below.value).split())
            for this, below in pairwise(node.body)
            if isinstance(this, ast.AnnAssign) and isinstance(below, ast.Expr)
        }
        for node in ast.parse(inspect.getsource(schema)).body
        if isinstance(node, ast.ClassDef)
    }


def describe_type(kind: Any) -> str:
    """Return a type as text: ``a number or null``."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        values = ", ".join(map(str, arguments))
        return f"one of {values}" if len(arguments) > 1 else values
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(describe_type(part) for part in arguments)
    if get_origin(kind) is list:
        return f"a list, each {describe_type(arguments[0])}"
    return NAMES[kind]


def format_value(value: Any) -> str:
    """Return a plain value as it is written in a YAML file."""
    return json.dumps(value, ensure_ascii=False).replace('"', "")
