"""Read files of experiments, methods and runs as layers of settings, with dotted keys."""

import difflib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_type_hints

import yaml

from nsgf.config.layers import (
    EDITION,
    FACTS,
    FACTS_OF_DATA,
    KEYS,
    Layer,
    is_inherited,
    look_up,
    spread_optim,
)
from nsgf.config.schema import DataFacts
from nsgf.config.values import load_yaml, read_value, to_plain
from nsgf.system.errors import UserError, cause, suggest, wrong_setting
from nsgf.system.files import Plain, parse_object

FACTS_FILE = "facts.json"
PACKAGE = Path(__file__).parents[1]
CONFIGS = PACKAGE / "configs"
"""Folder of the shipped YAML files. It lies inside an installed package, otherwise beside the
package."""
if not CONFIGS.is_dir():
    CONFIGS = PACKAGE.parent / "configs"
EXPERIMENT_NAMES = sorted(file.stem for file in CONFIGS.glob("*.yaml"))
METHOD_NAMES = sorted(file.stem for file in CONFIGS.glob("methods/*.yaml"))
"""Names of the shipped experiments and methods."""
TITLES = {
    "nsgf": "NSGF",
    "nsgf++": "NSGF++",
    "nsgf++h": "NSGF++h",
    "icfm": "I-CFM",
    "otcfm": "OT-CFM",
    "otcfm+": "OT-CFM+",
    "sbcfm": "SB-CFM",
    "1rf": "1-RF",
    "2rf": "2-RF",
    "onecall": "One call",
    "onecall+": "One call+",
    "affine": "Affine",
}
"""Titles of the shipped methods in tables and pictures, in the order of their colours."""
PRETRAINED = {
    file.parent.name: file.parent for file in sorted(PACKAGE.glob("pretrained/*/config.json"))
}
"""Folders of the exported runs that the package ships, by name."""


class Recipe(NamedTuple):
    """The settings of an experiment's file."""

    settings: Layer
    methods: dict[str, Layer]
    """Settings for single methods. They override ``settings``."""


def read_recipe(file: Path) -> Recipe:
    """Return the settings of an experiment's file, or of a run.

    Raises:
        UserError: a key is unknown, a value has a wrong type, or :func:`read_plain` fails.
    """
    plain = read_plain(file)
    sections = plain.pop("methods", {})
    settings = read_layer(plain)
    methods = {}
    if not isinstance(sections, dict) or {*map(type, sections.values())} - {dict}:
        raise UserError(f"config {file}: methods = {sections!r}: must hold a section for each one")
    for name, section in sections.items():
        try:
            methods[str(name)] = spread_optim(read_layer(section))
        except UserError as error:
            raise UserError(f"methods.{name}.{error}") from error
    return Recipe(settings, methods)


def read_layer(sections: Mapping[Any, Any], prefix: str = "") -> Layer:
    """Return the settings of nested sections, with values of the declared types. Raise UserError if
    a key is unknown, or a value has a wrong type."""
    layer = {}
    for name, value in sections.items():
        key = f"{prefix}{name}"
        if key == "sinkhorn.solver":  # keys of earlier versions
            key = "flow.kind"
            value = "sinkhorn" if value == "batched" else value
        # exported runs store facts among the settings; the last name is from earlier versions
        if key in FACTS or key in (EDITION, "model.predictor_channels"):
            continue
        if key in KEYS:
            layer[key] = read_value(key, KEYS[key].kind, value)
        elif isinstance(value, dict):
            layer |= read_layer(value, f"{key}.")
        else:
            refuse_unknown(key, KEYS)
    return layer


def stored_facts(folder: Path) -> Layer:
    """Return the facts of a run or of a comparison. Raise UserError if they are damaged."""
    file = folder / FACTS_FILE
    try:
        return read_facts(parse_object(file.read_bytes())) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: damaged ({cause(error)}); train a new run") from error


def read_facts(sections: Plain) -> Layer:
    """Return the facts in the nested sections of a file of facts or of an exported run. Raise
    UserError if they are damaged."""
    facts = look_up(sections, FACTS_OF_DATA)
    network = look_up(sections, "model.network")
    if not isinstance(network, str | None):
        raise UserError("model.network: damaged; train a new run")
    if not facts:
        return {FACTS_OF_DATA: None, "model.network": network}
    try:
        return {FACTS_OF_DATA: _to_facts(facts), "model.network": network}
    except (AttributeError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{FACTS_OF_DATA}: damaged; train a new run") from error


def _to_facts(facts: Plain) -> DataFacts:
    """Return saved facts as a record. Damaged facts may raise UserError, AttributeError, KeyError
    or TypeError."""
    kinds = get_type_hints(DataFacts)
    source = facts.get("source")
    values = {
        name: read_value(name, kinds[name], value)
        for name, value in facts.items()
        if name != "source"
    }
    return DataFacts(**values, source=None if source is None else _to_facts(source))


def method_title(method: str) -> str:
    """Return the title of a shipped method, or the name of a user's method. The name may be
    followed by ``: SETTINGS``."""
    name, colon, settings = method.partition(":")
    return TITLES.get(name, name) + colon + settings


def method_layers(recipe: Recipe, method: str | None) -> tuple[Layer, Layer]:
    """Return two layers: the settings of a method, and the recipe's settings for this method.

    The second layer wins over the first. In both layers, ``optim`` is already copied to each phase.
    ``method`` is a shipped method, a YAML file, or a section of the recipe. None means the method
    that the recipe names, if there is one.

    Raises:
        UserError: the method does not exist, or the recipe has complete settings of another method.
    """
    settings = recipe.settings
    chosen = method or settings.get("method")
    if not chosen:
        return {}, spread_optim(settings)
    is_file = chosen.endswith((".yaml", ".yml"))
    name = Path(chosen).stem if is_file else chosen
    if "phases" in settings and method and name != settings.get("method"):
        raise wrong_setting(
            "method",
            method,
            f"must be {settings.get('method', 'no method')}, the method of these settings",
        )
    base = {**settings, **recipe.methods.get(name, {}), "method": name}
    if not is_file and name not in METHOD_NAMES:
        if "phases" in base:
            return {}, spread_optim(base)
        raise wrong_setting(
            "method", name, f"must be one of {', '.join(METHOD_NAMES)}, or a YAML file"
        )
    file = Path(chosen).expanduser() if is_file else CONFIGS / "methods" / f"{name}.yaml"
    below = read_layer(read_plain(file))
    if "phases" not in below:
        raise UserError(f"method {file}: must name its phases, for example phases: [nsgf]")
    return spread_optim(below), spread_optim(base)


def read_plain(file: Path) -> Plain:
    """Return keys and plain values of a YAML file in UTF-8, unchecked.

    Raises:
        UserError: the file cannot be read, or is not a YAML file of keys and plain values.
    """
    try:
        if not file.is_file():
            raise UserError(f"config {file}: no such file")
        content = load_yaml(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"config {file}: cannot be read as UTF-8 YAML ({cause(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    return content


def from_arguments(
    arguments: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> Layer:
    """Return the settings of a Python call by dotted key. The result has all of ``overrides``, and
    the arguments that are not None. If a key is in both, the argument wins. Raise UserError for an
    unknown key or a wrong value."""
    layer = {**(overrides or {}), **{k: v for k, v in arguments.items() if v is not None}}
    for key in {*FACTS, EDITION} & layer.keys():
        refuse_unknown(key, KEYS)
    return read_layer(to_plain(layer))


def refuse_unknown(name: str, names: Collection[str], owners: Sequence[str] = ()) -> NoReturn:
    """Raise UserError for an unknown flag (with dashes) or an unknown key of a file. ``names``: the
    flags that a command uses, without dashes, or all keys. ``owners``: the commands that have this
    flag."""
    key = name.removeprefix("--")
    section = key.rpartition(".")[0]
    begin = f"{section}." if section else ""

    # collect possible spellings: names in other programs, then parts of our names
    spelled: dict[str, list[str]] = {}
    synonyms = read_plain(Path(__file__).with_name("other_names.yaml"))
    for ours, theirs in reversed(synonyms.items()):
        keys = [begin + key.rpartition(".")[2] if section else key for key in ours.split()]
        if {*keys} <= {*names}:
            spelled |= {_letters(begin + word): keys for word in theirs.split()}
    parts = defaultdict(list)
    for setting in sorted(names, key=lambda setting: not setting.startswith("optim.")):
        if not section and not is_inherited(setting):
            parts[_letters(setting.rpartition(".")[2])].append(setting)
    spelled |= parts | {_letters(setting): [setting] for setting in names}

    if _letters(key) not in spelled and any(setting.startswith(f"{key}.") for setting in names):
        raise UserError(f"{name} is a section; set its keys, as in {name}.KEY")
    close = difflib.get_close_matches(_letters(key), spelled, 1, 0.82)
    hints = [
        setting if name == key else suggest(setting)
        for match in close
        for setting in spelled[match]
    ]
    hint = "nsgf COMMAND --help all lists them"
    if hints:
        hint = f"did you mean {' or '.join(hints)}?"
    elif owners:
        hint = f"it belongs to {', '.join(owners)}"
    kind = "key" if name == key else "flag"
    raise UserError(f"{name}: unknown {kind}; {hint}")


def _letters(name: str) -> str:
    """Return a name in small letters without dots, dashes and underscores."""
    return re.sub("[-_.]", "", name).lower()
