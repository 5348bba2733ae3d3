"""A configuration file as nested plain values, and settings laid over each other.

Settings come in layers: defaults, a file, flags. Within a file the section ``optim`` holds for
every phase that does not set a value of its own.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from jsonargparse import Namespace

from nsgf.config.leaves import default_of, is_path, leaves
from nsgf.config.parser import settings_parser
from nsgf.config.schema import OF_PHASES, PEER_PHASES, PHASES, Config, TrackingConfig
from nsgf.config.yaml_loader import load_yaml
from nsgf.system.errors import UserError, one_line

MAX_BYTES = 2**20
"""Of a file; the shipped ones have 3 KB."""

Content = dict[str, Any]
"""Nested sections of a configuration with the values that are given, and no others."""
Schema = TypeVar("Schema")


def config_folder() -> Path:
    """Folder of the shipped YAML files: inside an installed wheel, or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def experiments() -> list[str]:
    """Names of the shipped YAML files."""
    return sorted(file.stem for file in config_folder().glob("*.yaml"))


def read_settings(file: Path) -> Content:
    """What a configuration file says, nested as it stands there, with values of the right types.

    Args:
        file: YAML in UTF-8.

    Raises:
        UserError: as :func:`read_plain`, or it has an unknown key or a value of a wrong type, or
            names no experiment.
    """
    content = settings_parser().checked(read_plain(file))
    if "exp" not in content:
        raise UserError(f"config {file}: must name its experiment, for example exp: {file.stem}")
    return content


def read_plain(file: Path) -> Content:
    """Keys and plain values of a file, unchecked: YAML in UTF-8, of which JSON is a part.

    Raises:
        UserError: it cannot be read, is too large, or is no YAML of keys and plain values.
    """
    if not file.is_file():
        raise UserError(f"config {file}: no such file")
    if file.stat().st_size > MAX_BYTES:
        raise UserError(f"config {file}: must have at most {MAX_BYTES} bytes")
    try:
        content = load_yaml(file.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config {file}: cannot be read ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    return content


def given(settings: Mapping[str, Any]) -> Content:
    """Settings that a program gives by dotted key, nested, with values of the right types.

    Raises:
        UserError: an unknown key, or a value of a wrong type.
    """
    if not (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)):
        raise UserError(f"settings {settings!r}: must be values by key, as {{'nsgf.lr': 1e-4}}")
    flat = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in settings.items()
    }
    try:
        return settings_parser().checked(nested(flat))
    except KeyError as error:  # jsonargparse's, of keys that are empty or have spaces
        raise UserError(f"settings {settings!r}: {error.args[0]}") from error


def nested(flat: dict[str, Any]) -> Content:
    """``{"nsgf.lr": 1}`` -> ``{"nsgf": {"lr": 1}}``."""
    namespace = Namespace()
    for key, value in flat.items():
        namespace[key] = value
    content: Content = namespace.as_dict()
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


def drop_machine_settings(config: Config) -> Config:
    """Return the settings without what they say of the machine and its user, to be handed on."""
    paths = {key: default_of(item) for key, _, item in leaves(config) if is_path(item)}
    usual = build(Config, merged(asdict(config), nested(paths)))
    return replace(usual, device=Config.device, tracking=TrackingConfig())


def build(schema: type[Schema], content: Content) -> Schema:
    """A dataclass of the schema with the given values, and defaults for the others."""
    kinds: dict[str, Any] = {item.name: item.type for item in fields(schema)}  # type: ignore[arg-type]
    return schema(
        **{
            key: build(kinds[key], value) if is_dataclass(kinds[key]) else value
            for key, value in content.items()
        }
    )
