"""The parser of settings in flags and files: jsonargparse with errors in one line."""

import argparse
import difflib
import functools
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, set_loader
from yaml import YAMLError

from nsgf.config.describe import Section, sections, type_words, yaml_words
from nsgf.config.leaves import leaves, plain_type
from nsgf.config.schema import OF_PHASES, Settings
from nsgf.config.yaml_loader import load_yaml
from nsgf.system.errors import UserError

WIDTH = 100
"""Columns of a line of help."""
INSTEAD = dict.fromkeys(("--wandb", "--tracking.wandb"), "--tracker wandb, or wandb-offline")
INSTEAD["--nfe"] = "--sampling.nsgf_steps and --sampling.straight_steps; in compare --compare.nfe"
"""Flags that do not exist, and what to use instead."""
REMOVED: dict[str, Any] = {
    "data.fit": "crop",
    "tracking.project": ...,
    "tracking.entity": ...,
    "data.color": ...,
    "data.verify": True,
    "train.keep": "all",
    "peer.coupling": "batch",
    "compare.coupling": "ot",
    "compare.coupling_batch": ...,
    "compare.handover_steps": ...,
    "semidiscrete.passes": ...,
    "generator.features": "pixels",
    "generator.relative": True,
    "generator.eta": 1.0,
    "generator.normalize": False,
    "generator.init_run": None,
    "generator.max_iterations": 2000,
    "flow.allow_many_steps": ...,
    "sampling.precision": "auto",
    "sampling.weights": "ema",
    "sampling.rtol": 1e-5,
    "sampling.atol": 1e-5,
    "evaluation.repeats": ...,
    "sinkhorn.max_iterations": ...,
    "reflow.ode_steps": 100,
    "model.kind": ...,
    "model.mlp.time_features": 32,
    "model.unet.scale_shift": True,
    "model.unet.head_channels": None,
    "train.checkpoint_minutes": ...,
    "train.data_on_device": ...,
    "train.prefetch": ...,
    "train.channels_last": ...,
    "train.cudnn_benchmark": ...,
    "train.tf32": ...,
    "train.deterministic": ...,
    "train.max_skipped": ...,
    "train.detect_anomaly": ...,
}
"""Settings of earlier versions, with the value that now always holds. ... means that any value is
accepted and ignored, because it does not affect results."""
WRONG_TYPE = re.compile(r'Parser key "([^"]+)":.*?(?:Got|Given) value:(.*)', re.DOTALL)


class Parser(ArgumentParser):
    """A parser that raises errors, reads values as YAML, and returns only what is given."""

    def __init__(self, **kwargs: Any) -> None:
        self.elsewhere: dict[str, str] = {}
        """Flags that other commands take, and which."""
        set_loader("nsgf", load_yaml, (YAMLError,))
        super().__init__(
            allow_abbrev=False,
            print_config=None,
            parser_mode="nsgf",
            argument_default=argparse.SUPPRESS,
            formatter_class=functools.partial(  # type: ignore[arg-type]  # one line for each flag
                argparse.RawDescriptionHelpFormatter, max_help_position=38, width=WIDTH
            ),
            **kwargs,
        )

    @property
    def flags(self) -> dict[str, Any]:
        """Every flag and its action."""
        return {flag: action for action in self._actions for flag in action.option_strings}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise UserError in one line, for a wrong type with its key and what is allowed."""
        wrong = WRONG_TYPE.match(message)
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            raise UserError(f"{stray}: must follow a flag, as in --exp 2d")
        if not wrong:
            raise UserError(message.removeprefix("argument "))
        flag, action = next(pair for pair in self.flags.items() if pair[1].dest == wrong[1])
        allowed = type_words(action._typehint)
        raise UserError(f"{flag.removeprefix('--')} = {wrong[2].strip()}: must be {allowed}")

    def given(self, words: list[str]) -> dict[str, Any]:
        """Return what a command line sets, nested.

        Raises:
            UserError: a flag that there is not or that stands twice, or a value of a wrong type.
        """
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        for flag in flags:
            if flag not in self.flags:
                self._unknown(flag)
            if flags.count(flag) > 1:
                raise UserError(f"{flag}: given twice")
        try:
            result: dict[str, Any] = self.parse_args(words).as_dict()
        except (AttributeError, OverflowError) as error:  # PyYAML's, jsonargparse's
            raise UserError(f"a value of the command line cannot be read: {error}") from error
        return result

    def checked(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a file with values of the right types.

        Raises:
            UserError: an unknown or removed key, or a value of a wrong type.
        """
        content = _without_removed(_renewed(content))
        for key, value in _flat(content):
            if f"--{key}" not in self.flags:
                self._unknown(key, value)
        try:
            result: dict[str, Any] = self.parse_object(content).as_dict()
        except OverflowError as error:
            raise UserError(f"a number of the settings is too large: {error}") from error
        return result

    def _unknown(self, name: str, value: object = None) -> NoReturn:
        """Refuse a flag with its two dashes, or the key of a file."""
        dashes, is_flag = "" if name.startswith("--") else "--", name.startswith("--")
        if any(known.startswith(f"{dashes}{name}.") for known in self.flags):
            said = f"{name} is" if is_flag else f"{name} = {value}: must be"
            raise UserError(f"{said} a section; set its keys, as in {name}.KEY")
        if name in INSTEAD:
            raise UserError(f"{name}: unknown flag; say {INSTEAD[name]}")
        if name.removeprefix("--") in REMOVED:
            raise UserError(f"{name}: this setting was removed; leave it out")
        if name in self.elsewhere:
            raise UserError(f"{name}: no flag of {self.prog}, but of {self.elsewhere[name]}")
        nearest = self._nearest(name.removeprefix("--"))
        hint = f"{self.prog} --help lists them"
        if nearest:
            hint = (
                f"did you mean {' or '.join(f'--{key}'.removeprefix(dashes) for key in nearest)}?"
            )
        raise UserError(f"{name}: unknown {'flag' if is_flag else 'key'}; {hint}")

    def _nearest(self, name: str) -> list[str]:
        """Return the keys of this name in any section, or else the most similar key."""
        known = [flag.removeprefix("--") for flag in self.flags]
        known = [key for key in known if "_" not in key or key.replace("_", "-") not in known]
        called = [key for key in known if key.endswith(f".{name}")]
        once = [key for key in called if key.partition(".")[0] not in OF_PHASES]
        return once or called or difflib.get_close_matches(name, known, 1)


def _renewed(content: dict[Any, Any]) -> dict[Any, Any]:
    """Return settings of an earlier version under today's names."""
    content = _with_heads(content)
    data = content.get("data")
    if isinstance(data, dict) and isinstance(found := data.get("found"), dict):
        data = {**data, "found": found if found.get("samples") else {}}
        content = {**content, "data": data}
    section = content.get("tracking")
    if not isinstance(section, dict) or "wandb" not in section or "tracker" in section:
        return content
    mode = section["wandb"]
    named = {"online": "wandb", "offline": "wandb-offline", "disabled": "none"}
    kept = {key: value for key, value in section.items() if key != "wandb"}
    return {**content, "tracking": {**kept, "tracker": named.get(str(mode), mode)}}


def _with_heads(content: dict[Any, Any]) -> dict[Any, Any]:
    """Replace the number of channels of each attention head by the number of heads, if all levels
    with attention have as many channels as the lowest."""
    try:
        unet, data = dict(content["model"]["unet"]), content["data"]
        side = {"images": data["size"] or 32, "cifar10": 32}[data["name"]]
        sides = [side >> level for level in range(len(unet["mult"]))]
        attended = {unet["mult"][sides.index(pixels)] for pixels in unet["attention"]}
        (factor,) = attended | {unet["mult"][-1]}
        heads = unet["channels"] * factor // unet["head_channels"]
        unet |= {"heads": heads, "head_channels": None}
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return content
    return {**content, "model": {**content["model"], "unet": unet}}


def _without_removed(content: dict[Any, Any], prefix: str = "") -> dict[Any, Any]:
    """Return settings without the removed ones, which runs of earlier versions still have.

    Raises:
        UserError: a removed setting has a value that no longer holds.
    """
    kept: dict[Any, Any] = {}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key not in REMOVED:
            inside = _without_removed(value, f"{key}.") if isinstance(value, dict) else value
            if inside or not value:  # a section of removed settings alone is left out
                kept[name] = inside
        elif value is not None and REMOVED[key] not in (..., value):
            raise UserError(
                f"{key} = {value}: this setting was removed, and {yaml_words(REMOVED[key])} always "
                "holds; leave it out"
            )
    return kept


def _flat(content: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and f"{prefix}{key}" != "data.found":
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def add_settings(parser: Parser) -> Any:
    """Add a flag for each leaf of the schema, grouped by section; return the topmost group.

    What phases inherit is left out of the help: it stands there once, at ``optim``.
    """
    described = sections()
    groups = {part.key: parser.add_argument_group(_title(part)) for part in described}
    entries = {entry.key: entry for part in described for entry in part.entries}
    for key, _, item in leaves(Settings()):
        extra: Any = {"nargs": "?", "const": True} if key == "smoke" else {}
        entry = entries.get(key)
        action = groups[key.rpartition(".")[0]].add_argument(
            f"--{key}",
            type=plain_type(item),
            metavar=entry and entry.default,
            help=_brief(entry.meaning, 60) if entry else argparse.SUPPRESS,
            **extra,
        )
        action.option_strings = [f"--{key}"]  # without --KEY+, which would append to nothing
    return groups[""]


def _title(section: Section) -> str:
    if section.key == "optim":
        return f"optim (of one phase alone, as --nsgf.lr: {', '.join(OF_PHASES)})"
    return f"{section.key} ({_brief(section.meaning, 75)})" if section.key else "flags"


def _brief(meaning: str, width: int) -> str:
    """Return the first sentence, shortened to ``width``."""
    sentence = meaning.split(". ")[0].rstrip(".").replace("%", "%%")
    return textwrap.shorten(sentence, width, placeholder=" ...")


@functools.cache
def settings_parser() -> Parser:
    """Return the parser of files."""
    parser = Parser(prog="nsgf train", add_help=False)
    add_settings(parser)
    return parser
