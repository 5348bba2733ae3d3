"""Read configuration files as nested plain values, and merge layers of settings.

Within a layer, the section ``optim`` applies to every phase that does not override it.
:mod:`nsgf.cli.arguments` decides the order of the layers.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nsgf.config.describe import format_value
from nsgf.config.leaves import leaves
from nsgf.config.parser import settings_parser
from nsgf.config.schema import OF_PHASES, Config, TrackingConfig
from nsgf.config.yaml_loader import load_yaml, to_plain
from nsgf.system.errors import UserError, cause, name_setting, one_line

Content = dict[str, Any]
"""Nested sections of a configuration, without defaults."""
Schema = TypeVar("Schema")


def config_folder() -> Path:
    """Return the folder of the shipped YAML files, in an installed wheel or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def experiments() -> list[str]:
    """Return the names of the shipped experiments."""
    return sorted(file.stem for file in config_folder().glob("*.yaml"))


def methods() -> list[str]:
    """Return the names of the shipped methods."""
    return sorted(file.stem for file in config_folder().glob("methods/*.yaml"))


def pretrained_runs() -> dict[str, Path]:
    """Return the folders of the exported runs that the package ships, by name."""
    files = sorted(Path(__file__).parents[1].glob("pretrained/*/config.json"))
    return {file.parent.name: file.parent for file in files}


def read_settings(file: Path) -> Content:
    """Return the settings of a file, nested as in the file, with values of the declared types.

    The section ``methods`` of an experiment has one section of settings for each method.

    Raises:
        UserError: see :func:`read_plain`; or a key is unknown, a value has a wrong type, or the
            file names no experiment.
    """
    plain = read_plain(file)
    sections = plain.pop("methods", {})
    content = settings_parser().check_types(plain)
    if "exp" not in content:
        raise UserError(f"config {file}: must name its experiment, for example exp: {file.stem}")
    if not isinstance(sections, dict):
        raise UserError(f"config {file}: methods = {sections!r}: must hold a section for each one")
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(f"config {file}: methods.{name} = {section!r}: must be a section")
        try:
            content.setdefault("methods", {})[str(name)] = settings_parser().check_types(section)
        except UserError as error:
            raise UserError(f"methods.{name}.{error}") from error
    return content


def method_layers(content: Content, method: str | None = None) -> tuple[Content, Content]:
    """Return two layers: the settings of a method, and the settings of an experiment for it.

    The second layer wins over the first. ``optim`` is already applied to the phases of both.

    ``content`` is an experiment, from :func:`read_settings`. ``method`` is a shipped method, a YAML
    file, or a section of the experiment; None: the method that the experiment names, if any.

    Raises:
        UserError: the method does not exist, or the content is complete and names another method.
    """
    wanted = method or content.get("method")
    if not wanted:
        return {}, apply_optim(content)
    name = Path(wanted).stem if wanted.endswith((".yaml", ".yml")) else wanted
    if "phases" in content and method and name != content.get("method"):
        own = content.get("method", "no method")
        raise UserError(f"method = {method}: must be {own}, the method of these settings")
    base = merge_settings(content, content.get("methods", {}).get(name, {}))
    below = _method_settings(wanted, has_phases="phases" in base)
    return apply_optim(below), {**apply_optim(base), "method": name}


def overridden_settings(below: Content, merged: Content, prefix: str = "") -> Iterator[str]:
    """Yield a text for each setting of a layer that has another value after merging."""
    for key, value in below.items():
        if isinstance(value, dict):
            yield from overridden_settings(value, merged[key], f"{prefix}{key}.")
        elif merged[key] != value:
            yield f"{prefix}{key} {format_value(merged[key])} (file: {format_value(value)})"


def _method_settings(method: str, *, has_phases: bool) -> Content:
    """Return the settings of a method's file; empty if the experiment has them in its section."""
    names = methods()
    if method.endswith((".yaml", ".yml")):
        file = Path(method).expanduser()
    elif method in names:
        file = config_folder() / "methods" / f"{method}.yaml"
    elif has_phases:
        return {}
    else:
        near = difflib.get_close_matches(method, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(
            f"method = {method}: must be one of {', '.join(names)}, or a YAML file{hint}"
        )
    settings = settings_parser().check_types(read_plain(file))
    if "phases" not in settings:
        raise UserError(f"method {file}: must name its phases, for example phases: [nsgf]")
    return settings


def read_plain(file: Path) -> Content:
    """Return keys and plain values of a YAML file in UTF-8, unchecked.

    Raises:
        UserError: the file cannot be read, or is not YAML with keys and plain values.
    """
    try:
        if not file.is_file():
            raise UserError(f"config {file}: no such file")
        content = load_yaml(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"config {file}: cannot be read ({cause(error)})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config {file}: cannot be read ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    return content


def parse_settings(settings: Mapping[str, Any]) -> Content:
    """Return settings with dotted keys as nested settings with values of the declared types.

    Raises:
        UserError: a key is unknown, or a value has a wrong type.
    """
    flat = {str(key): to_plain(str(key), value) for key, value in settings.items()}
    return settings_parser().check_types(nest_keys(flat))


def gather_settings(arguments: Mapping[str, Any], overrides: Any = None) -> dict[str, Any]:
    """Return the arguments that are not None, by dotted key, over ``overrides``. Raise UserError
    unless those are a mapping."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UserError(f"{name_setting('overrides', overrides)}: must be a dictionary of settings")
    return {**(overrides or {}), **{k: v for k, v in arguments.items() if v is not None}}


def nest_keys(flat: Mapping[str, Any]) -> Content:
    """Turn ``{"nsgf.lr": 1}`` into ``{"nsgf": {"lr": 1}}``."""
    content: Content = {}
    for key, value in flat.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        content = merge_settings(content, value)
    return content


def merge_settings(*layers: Content) -> Content:
    """Merge layers of settings, value by value; later layers win."""
    result: Content = {}
    for layer in layers:
        for key, value in layer.items():
            inside = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge_settings(result[key], value) if inside else value
    return result


def apply_optim(content: Content) -> Content:
    """Copy the values of ``optim`` into each phase that does not set them, and drop ``optim`` and
    ``methods``."""
    result = {key: value for key, value in content.items() if key != "methods"}
    base = result.pop("optim", {})
    for phase in OF_PHASES if base else ():
        result[phase] = {**base, **content.get(phase, {})}
    return result


def drop_machine_settings(config: Config) -> Config:
    """Return the settings without paths, names of files, device and tracker, so that they can be
    shared."""
    paths = {key: item.default for key, _, item in leaves(config) if item.is_path}
    usual = build(Config, merge_settings(asdict(config), nest_keys(paths)))
    found = {key: value for key, value in config.data.found.items() if key != "broken"}
    data = replace(usual.data, found=found)
    return replace(usual, data=data, device=Config.device, tracking=TrackingConfig())


def build(schema: type[Schema], content: Content) -> Schema:
    """Return a dataclass of the schema with these values, and defaults for the others."""
    kinds: dict[str, Any] = {item.name: item.type for item in fields(schema)}  # type: ignore[arg-type]
    return schema(
        **{
            key: build(kinds[key], value) if is_dataclass(kinds[key]) else value
            for key, value in content.items()
        }
    )
