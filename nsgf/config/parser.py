"""The parser of settings in flags and files: jsonargparse with errors in one line."""

import argparse
import difflib
import functools
import re
import textwrap
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, set_loader
from yaml import YAMLError

from nsgf.config.describe import describe_type, format_value, setting_descriptions
from nsgf.config.leaves import leaves
from nsgf.config.schema import OF_PHASES, Settings
from nsgf.config.yaml_loader import load_yaml
from nsgf.system.errors import UserError

WRONG_TYPE = re.compile(r'Parser key "([^"]+)":.*?(?:Got|Given) value:(.*)', re.DOTALL)
REMOVED = {"evaluation": ("classifier", "inception")}
"""Settings that files of earlier runs have, and that no run depends on. They are ignored."""


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
        """Raise UserError with one line; for a wrong type it names the key and the allowed type."""
        wrong = WRONG_TYPE.match(message)
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            raise UserError(f"{stray}: must follow a flag, as in --exp 2d")
        if not wrong:
            raise UserError(message.removeprefix("argument "))
        flag, action = next(pair for pair in self.flags.items() if pair[1].dest == wrong[1])
        allowed = describe_type(action._typehint)
        raise UserError(f"{flag.removeprefix('--')} = {wrong[2].strip()}: must be {allowed}")

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
        except (AttributeError, OverflowError) as error:  # from PyYAML and jsonargparse
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
        self._check_keys(content)
        try:
            result: dict[str, Any] = self.parse_object(content).as_dict()
        except OverflowError as error:
            raise UserError(f"a number of the settings is too large: {error}") from error
        return result

    def _check_keys(self, content: dict[Any, Any], prefix: str = "") -> None:
        """Raise UserError if a key of a file is unknown."""
        flags = self.flags
        for name, value in content.items():
            key = f"{prefix}{name}"
            if f"--{key}" not in flags:
                if not isinstance(value, dict):
                    self._refuse_unknown(key)
                self._check_keys(value, f"{key}.")

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
            type=item.kind,
            metavar=format_value(default) or "NAME",
            help=_brief(words[key], 60) if key in words else argparse.SUPPRESS,
            **extra,
        )
        action.option_strings = [f"--{key}"]  # drop --KEY+, which appends to a list
    groups["optim"].title = f"optim (of one phase only, as --nsgf.lr: {', '.join(OF_PHASES)})"
    return groups[""]


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
