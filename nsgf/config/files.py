"""Read files of experiments, methods and runs as layers of settings, with dotted keys."""

import difflib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from nsgf.config.settings import EDITION, FACTS, KEYS, Layer, is_inherited, look_up, spread_optim
from nsgf.config.values import load_yaml, read_value, to_plain
from nsgf.system.errors import UserError, cause, suggest, wrong_setting
from nsgf.system.files import Plain, parse_object

FACTS_FILE = "facts.json"
PACKAGE = Path(__file__).parents[1]
CONFIGS = PACKAGE / "configs"
"""Folder of the shipped YAML files: inside an installed wheel, else beside the package."""
if not CONFIGS.is_dir():
    CONFIGS = PACKAGE.parent / "configs"
EXPERIMENTS = sorted(file.stem for file in CONFIGS.glob("*.yaml"))
METHODS = sorted(file.stem for file in CONFIGS.glob("methods/*.yaml"))
"""Names of the shipped experiments and methods."""
PRETRAINED = {
    file.parent.name: file.parent for file in sorted(PACKAGE.glob("pretrained/*/config.json"))
}
"""Folders of the exported runs that the package ships, by name."""


class Experiment(NamedTuple):
    """The settings of an experiment's file."""

    settings: Layer
    methods: dict[str, Layer]
    """Settings for single methods, which override the others."""


def read_experiment(file: Path) -> Experiment:
    """Return the settings of an experiment's file, or of a run.

    Raises:
        UserError: see :func:`read_plain`; or a key is unknown, or a value has a wrong type.
    """
    plain = read_plain(file)
    sections = plain.pop("methods", {})
    settings = read_layer(plain)
    own = {}
    if not isinstance(sections, dict) or {*map(type, sections.values())} - {dict}:
        raise UserError(f"config {file}: methods = {sections!r}: must hold a section for each one")
    for name, section in sections.items():
        try:
            own[str(name)] = spread_optim(read_layer(section))
        except UserError as error:
            raise UserError(f"methods.{name}.{error}") from error
    return Experiment(settings, own)


def read_layer(sections: Mapping[Any, Any], prefix: str = "") -> Layer:
    """Return the settings of nested sections, with values of the declared types. Raise UserError if
    a key is unknown, or a value has a wrong type."""
    layer = {}
    for name, value in sections.items():
        key = f"{prefix}{name}"
        if key == "sinkhorn.solver":  # of earlier versions
            key = "flow.kind"
            value = "sinkhorn" if value == "batched" else value
        # exported runs have facts among their settings; the last one is of earlier versions
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
    facts = {}
    for key, item in FACTS.items():
        facts[key] = look_up(sections, key, item.default)
        if not isinstance(facts[key], item.kind):
            raise UserError(f"{key}: damaged; train a new run")
    return facts


def method_layers(experiment: Experiment, method: str | None) -> tuple[Layer, Layer]:
    """Return two layers: the settings of a method, and the settings of an experiment for it.

    The second layer wins over the first. In both, ``optim`` is already copied to each phase.
    ``method`` is a shipped method, a YAML file, or a section of the experiment; None: the method
    that the experiment names, if any.

    Raises:
        UserError: the method does not exist, or the settings are complete and name another method.
    """
    settings = experiment.settings
    wanted = method or settings.get("method")
    if not wanted:
        return {}, spread_optim(settings)
    is_file = wanted.endswith((".yaml", ".yml"))
    name = Path(wanted).stem if is_file else wanted
    if "phases" in settings and method and name != settings.get("method"):
        raise wrong_setting(
            "method",
            method,
            f"must be {settings.get('method', 'no method')}, the method of these settings",
        )
    base = {**settings, **experiment.methods.get(name, {}), "method": name}
    if not is_file and name not in METHODS:
        if "phases" in base:
            return {}, spread_optim(base)
        raise wrong_setting("method", name, f"must be one of {', '.join(METHODS)}, or a YAML file")
    file = Path(wanted).expanduser() if is_file else CONFIGS / "methods" / f"{name}.yaml"
    below = read_layer(read_plain(file))
    if "phases" not in below:
        raise UserError(f"method {file}: must name its phases, for example phases: [nsgf]")
    return spread_optim(below), spread_optim(base)


def read_plain(file: Path) -> Plain:
    """Return keys and plain values of a YAML file in UTF-8, unchecked.

    Raises:
        UserError: the file cannot be read, or is not YAML with keys and plain values.
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
    """Return ``overrides``, and the arguments of a Python call that are not None, by dotted key.
    The arguments win. Raise UserError for an unknown key or a wrong value."""
    given = {**(overrides or {}), **{k: v for k, v in arguments.items() if v is not None}}
    for key in {*FACTS, EDITION} & given.keys():
        refuse_unknown(key, KEYS)
    return read_layer(to_plain(given))


def refuse_unknown(name: str, known: Collection[str], owners: Sequence[str] = ()) -> NoReturn:
    """Raise UserError for an unknown flag, which begins with dashes, or an unknown key of a file.
    ``known``: the flags that a command uses, without dashes, or all keys. ``owners``: the commands
    that have this flag."""
    key = name.removeprefix("--")
    section = key.rpartition(".")[0]
    begin = f"{section}." if section else ""

    # possible spellings: names in other programs, and parts of our names; later ones win
    spelled: dict[str, list[str]] = {}
    others = read_plain(Path(__file__).with_name("other_names.yaml"))
    for ours, theirs in reversed(others.items()):
        meant = [begin + each.rpartition(".")[2] if section else each for each in ours.split()]
        if {*meant} <= {*known}:
            spelled |= {_letters(begin + each): meant for each in theirs.split()}
    parts = defaultdict(list)
    for each in sorted(known, key=lambda each: not each.startswith("optim.")):
        if not section and not is_inherited(each):
            parts[_letters(each.rpartition(".")[2])].append(each)
    spelled |= parts | {_letters(each): [each] for each in known}

    if _letters(key) not in spelled and any(each.startswith(f"{key}.") for each in known):
        raise UserError(f"{name} is a section; set its keys, as in {name}.KEY")
    close = difflib.get_close_matches(_letters(key), spelled, 1, 0.82)
    shown = [each if name == key else suggest(each) for match in close for each in spelled[match]]
    hint = "nsgf COMMAND --help all lists them"
    if shown:
        hint = f"did you mean {' or '.join(shown)}?"
    elif owners:
        hint = f"it belongs to {', '.join(owners)}"
    kind = "key" if name == key else "flag"
    raise UserError(f"{name}: unknown {kind}; {hint}")


def _letters(name: str) -> str:
    """Return a name in small letters without dots, dashes and underscores."""
    return re.sub("[-_.]", "", name).lower()
