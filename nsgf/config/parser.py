"""The parser of settings in flags and files: jsonargparse with errors in one line."""

import argparse
import difflib
import functools
import operator
import re
import textwrap
from types import GenericAlias
from typing import Any, Literal, NoReturn, get_args, get_origin

from jsonargparse import ArgumentParser, set_loader
from yaml import YAMLError

from nsgf.config.describe import describe_type, format_value, setting_descriptions
from nsgf.config.leaves import leaves
from nsgf.config.schema import OF_PHASES, Settings
from nsgf.config.yaml_loader import Integer, Number, load_yaml
from nsgf.system.errors import UserError, name_setting

WRONG_TYPE = re.compile(r'Parser key "([^"]+)":\s')
REMOVED = {"evaluation": ("classifier", "inception")}
"""Settings that files of earlier runs have, and that no run depends on. They are ignored."""


class _WrongType(Exception):
    """The name of an argument whose value has the wrong type."""


class Parser(ArgumentParser):
    """A parser that raises UserError, reads values as YAML, and returns no defaults."""

    def __init__(self, **kwargs: Any) -> None:
        set_loader("nsgf", load_yaml, (YAMLError,))
        super().__init__(
            allow_abbrev=False,
            print_config=None,
            parser_mode="nsgf",
            argument_default=argparse.SUPPRESS,
            formatter_class=functools.partial(  # type: ignore[arg-type]  # one line for each flag
                argparse.RawDescriptionHelpFormatter, max_help_position=38, width=100
            ),
            **kwargs,
        )

    @property
    def flags(self) -> dict[str, Any]:
        """Every flag and its action."""
        return {flag: action for action in self._actions for flag in action.option_strings}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise UserError with one line, or _WrongType."""
        if wrong := WRONG_TYPE.match(message):
            raise _WrongType(wrong[1])
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            raise UserError(f"{stray}: must follow a flag, as in --exp 2d")
        raise UserError(message.removeprefix("argument "))

    def _type_error(self, wrong: _WrongType, values: dict[str, Any]) -> UserError:
        """Return the error for one of the values, which are by flag."""
        flag, action = next(pair for pair in self.flags.items() if pair[1].dest == str(wrong))
        must = f"must be {describe_type(action._typehint)}"
        return UserError(f"{name_setting(flag.removeprefix('--'), values[flag])}: {must}")

    def parse_flags(self, words: list[str]) -> dict[str, Any]:
        """Return the settings of a command line, nested.

        Raises:
            UserError: a flag is unknown or occurs twice, or a value has a wrong type.
        """
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        for flag in flags:
            if flag not in self.flags:
                self._refuse_unknown(flag)
            if flags.count(flag) > 1:
                raise UserError(f"{flag}: given twice")
        try:
            result: dict[str, Any] = self.parse_args(words).as_dict()
        except _WrongType as error:
            cut = [word.partition("=") for word in words]
            following = zip(cut, [*words[1:], ""], strict=True)
            values = {flag: text if equals else next for (flag, equals, text), next in following}
            raise self._type_error(error, values) from None
        except AttributeError as error:  # from PyYAML
            raise UserError(f"a value of the command line cannot be read: {error}") from error
        return result

    def check_types(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of a file, with values converted to the declared types.

        Raises:
            UserError: a key is unknown, or a value has a wrong type.
        """
        for section, names in REMOVED.items():
            if isinstance(own := content.get(section), dict):
                content = {**content, section: {k: v for k, v in own.items() if k not in names}}
        values = self._by_flag(content)
        try:
            result: dict[str, Any] = self.parse_object(content).as_dict()
        except _WrongType as error:
            raise self._type_error(error, values) from None
        return result

    def _by_flag(self, content: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
        """Return the values of a file by flag; raise UserError if a key is unknown."""
        flags, found = self.flags, {}
        for name, value in content.items():
            key = f"{prefix}{name}"
            if f"--{key}" in flags:
                found[f"--{key}"] = value
            elif isinstance(value, dict):
                found |= self._by_flag(value, f"{key}.")
            else:
                self._refuse_unknown(key)
        return found

    def _refuse_unknown(self, name: str) -> NoReturn:
        """Raise UserError for an unknown flag (with dashes) or an unknown key of a file."""
        key = name.removeprefix("--")
        known = {flag.removeprefix("--"): action for flag, action in self.flags.items()}
        if any(other.startswith(f"{key}.") for other in known):
            raise UserError(f"{name} is a section; set its keys, as in {name}.KEY")
        shown = [
            other
            for other in known
            if known[other].help != argparse.SUPPRESS
            and (self.prog == "nsgf compare" or not other.startswith("compare."))
        ]
        nearest = [other for other in shown if other.endswith(f".{key}")]
        for among in (shown, known):
            nearest = nearest or difflib.get_close_matches(key, among, 1)
        dashes, kind = ("--", "flag") if key != name else ("", "key")
        hint = f"did you mean {' or '.join(dashes + other for other in nearest)}?"
        if not nearest:
            hint = f"{self.prog} --help lists them"
        raise UserError(f"{name}: unknown {kind}; {hint}")


def add_settings(parser: Parser) -> Any:
    """Add a flag for each setting of the schema, grouped by section; return the group without
    section.

    Settings that phases inherit appear in the help only once, under ``optim``.
    """
    words, groups = setting_descriptions(), {}
    for key, default, item in leaves(Settings()):
        section = key.rpartition(".")[0]
        if section not in groups:
            title = f"{section} ({_brief(words[section], 75)})" if section else "flags"
            groups[section] = parser.add_argument_group(title)
        extra: Any = {"nargs": "?", "const": True} if key == "smoke" else {}
        action = groups[section].add_argument(
            f"--{key}",
            type=_with_strict_numbers(item.kind),
            metavar=format_value(default) or "NAME",
            help=_brief(words[key], 60) if key in words else argparse.SUPPRESS,
            **extra,
        )
        action.option_strings = [f"--{key}"]  # drop --KEY+, which appends to a list
    groups["optim"].title = f"optim (of one phase only, as --nsgf.lr: {', '.join(OF_PHASES)})"
    return groups[""]


def _with_strict_numbers(kind: Any) -> Any:
    """Return a type whose numbers are read by :mod:`nsgf.config.yaml_loader`."""
    parts = get_args(kind)
    if not parts or get_origin(kind) is Literal:
        return {int: Integer, float: Number}.get(kind, kind)
    inner = tuple(map(_with_strict_numbers, parts))
    is_list = get_origin(kind) is list
    return GenericAlias(list, inner) if is_list else functools.reduce(operator.or_, inner)


def _brief(meaning: str, width: int) -> str:
    """Return the first sentence of a description, shortened to ``width`` characters."""
    sentence = meaning.split(". ")[0].rstrip(".").replace("%", "%%")
    return textwrap.shorten(sentence, width, placeholder=" ...")


@functools.cache
def settings_parser() -> Parser:
    """Return the parser of configuration files."""
    parser = Parser(prog="nsgf train", add_help=False)
    add_settings(parser)
    return parser
