"""A configuration file as nested plain values, with every key known."""

import stat
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from nsgf.config import yaml_text
from nsgf.config.schema import Config
from nsgf.system.errors import UserError

MAX_ITEMS = 32
"""Of a list."""
MAX_BYTES = 64 * 1024
"""Of a file; the shipped ones have 3 KB."""


def _sections(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in schema.items():
        if isinstance(value, dict):
            yield prefix + key
            yield from _sections(value, f"{prefix}{key}.")


SECTIONS = frozenset(_sections(asdict(Config())))
"""Dotted keys of what holds keys itself."""


def config_folder() -> Path:
    """Folder of the shipped YAML files: inside an installed wheel, or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def read_settings(file: Path) -> dict[str, Any]:
    """What a configuration file says, nested as it stands there.

    Args:
        file: YAML in UTF-8.

    Raises:
        UserError: it cannot be read, is too large, is no YAML of plain values, has an unknown key
            or a value for a section, or names no experiment.
    """
    try:
        content = yaml_text.load(_text(file))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"config {file}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    _check_sections(content, asdict(Config()), "")
    if "exp" not in content:
        raise UserError(f"config {file}: must name its experiment, for example exp: {file.stem}")
    return content


def refuse_costly(text: str, key: str) -> None:
    """Refuse a value that would cost more than its length: the parser reads any text as YAML.

    Raises:
        UserError: it is too long, deep or large.
    """
    try:
        _refuse_long(yaml_text.load(text), key)
    except yaml_text.Refused as error:
        raise UserError(f"{key} = {text[:40]} ...: cannot be read ({error})") from error
    except yaml.YAMLError:  # a plain text then, which the parser takes or refuses
        return


def _refuse_long(value: Any, key: str) -> None:
    """The parser takes minutes for a list of thousands."""
    if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
        raise UserError(f"{key}: has {len(value)} items, must have at most {MAX_ITEMS}")


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested settings with others laid over them, leaf by leaf."""
    result = dict(below)
    for key, value in above.items():
        inside = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if inside else value
    return result


def _text(file: Path) -> str:
    if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for its other end
        raise OSError("no regular file")
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise yaml_text.Refused(f"more than {MAX_BYTES} bytes")
    return content.decode("utf-8-sig")


def _check_sections(content: dict[Any, Any], schema: dict[str, Any], prefix: str) -> None:
    for key, value in content.items():
        if key not in schema:
            known = ", ".join(schema)
            raise UserError(f"{prefix}{key}: unknown key; known here are {known}")
        if isinstance(schema[key], dict):
            if not isinstance(value, dict):
                raise UserError(
                    f"{prefix}{key} = {value!r}: must be a section with keys {list(schema[key])}"
                )
            _check_sections(value, schema[key], f"{prefix}{key}.")
        _refuse_long(value, f"{prefix}{key}")
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                refuse_costly(text, f"{prefix}{key}")
