"""A configuration file as nested plain values, and settings laid over each other.

Settings come in layers: defaults, a file, flags. Within a file the section ``optim`` holds for
every phase that does not set a value of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from nsgf.config.leaves import plain_type
from nsgf.config.schema import PEER_PHASES, PHASES, Config, OptimConfig, Settings
from nsgf.config.types import type_words, typed
from nsgf.config.yaml_loader import load_yaml
from nsgf.system.errors import UserError

MAX_BYTES = 2**20
"""Of a file; the shipped ones have 3 KB."""

Content = dict[str, Any]
"""Nested sections of a configuration with the values that are given, and no others."""
Schema = TypeVar("Schema")
OF_PHASES = tuple(
    item.name
    for item in fields(Config)
    if isinstance(item.type, type) and issubclass(item.type, OptimConfig)
)
"""Sections that inherit from ``optim``, one for each phase."""


def config_folder() -> Path:
    """Folder of the shipped YAML files: inside an installed wheel, or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def read_settings(file: Path) -> Content:
    """What a configuration file says, nested as it stands there, with values of the right types.

    Args:
        file: YAML in UTF-8.

    Raises:
        UserError: it cannot be read, is too large, is no YAML of plain values, has an unknown key
            or a value of a wrong type, or names no experiment.
    """
    if not file.is_file():
        raise UserError(f"config {file}: no such file")
    if file.stat().st_size > MAX_BYTES:
        raise UserError(f"config {file}: must have at most {MAX_BYTES} bytes")
    try:
        content = load_yaml(file.read_text(encoding="utf-8-sig"))
    except Exception as error:  # yaml's constructors raise many types for a value of a wrong tag
        raise UserError(f"config {file}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    content = _checked(content, Settings, "")
    if "exp" not in content:
        raise UserError(f"config {file}: must name its experiment, for example exp: {file.stem}")
    return content


def _checked(content: Content, schema: Any, prefix: str) -> Content:
    """A section with known keys, and values of their types."""
    known = {item.name: item for item in fields(schema)}
    result: Content = {}
    for key, value in content.items():
        if key not in known:
            raise UserError(f"{prefix}{key}: unknown key; known here are {', '.join(known)}")
        section = known[key].type
        if not is_dataclass(section):
            result[key] = with_type(f"{prefix}{key}", value, plain_type(known[key]), typed)
            continue
        if not isinstance(value, dict):
            keys = ", ".join(item.name for item in fields(section))
            raise UserError(f"{prefix}{key} = {value!r}: must be a section with keys {keys}")
        result[key] = _checked(value, section, f"{prefix}{key}.")
    return result


def with_type(key: str, value: Any, kind: Any, read: Callable[[Any, Any], Any]) -> Any:
    """The value of a leaf as ``read`` makes it.

    Raises:
        UserError: it is of another type.
    """
    try:
        return read(value, kind)
    except ValueError as error:
        raise UserError(f"{key} = {value}: must be {type_words(kind)}") from error


def nested(flat: dict[str, Any]) -> Content:
    """``{"nsgf.lr": 1}`` -> ``{"nsgf": {"lr": 1}}``."""
    content: Content = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        node = content
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value
    return content


def merged(below: Content, above: Content) -> Content:
    """Settings with others laid over them, leaf by leaf."""
    result = dict(below)
    for key, value in above.items():
        inside = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inside else value
    return result


def inherited(content: Content) -> Content:
    """Settings in which each phase has the values of ``optim`` that it does not set itself.

    The updates of peers follow from those of other phases (see :func:`resolved`).
    """
    result = dict(content)
    base = result.pop("optim", {})
    for phase in OF_PHASES if base else ():
        left_out = ("iterations",) if phase in PEER_PHASES else ()
        taken = {key: value for key, value in base.items() if key not in left_out}
        result[phase] = {**taken, **content.get(phase, {})}
    return result


def resolved(content: Content, compared: Sequence[str] | None = None) -> Config:
    """The configuration in which every value is filled in.

    ``peer.iterations`` that is null or not given is the sum of the phases that the peer is compared
    with, ``reflow.iterations`` that of the peer.

    Args:
        content: values of the schema's types, without a section ``optim``.
        compared: the phases that peers are compared with where ``phases`` names peers alone;
            None: all of NSGF++.
    """
    config = build(Config, content)
    for phases in (config.phases, compared, PHASES):
        others = [name for name in phases or () if name in PHASES]
        if others:
            break
    total = sum(getattr(config, name).iterations or 0 for name in others)
    for phase in PEER_PHASES:
        if content.get(phase, {}).get("iterations") is None:
            getattr(config, phase).iterations = total
        total = getattr(config, phase).iterations
    return config


def build(schema: type[Schema], content: Content) -> Schema:
    """A dataclass of the schema with the given values, and defaults for the others."""
    kinds: dict[str, Any] = {item.name: item.type for item in fields(schema)}  # type: ignore[arg-type]
    return schema(
        **{
            key: build(kinds[key], value) if is_dataclass(kinds[key]) else value
            for key, value in content.items()
        }
    )
