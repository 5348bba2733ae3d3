"""``nsgf --print-completion SHELL``: a script by shtab that completes command lines."""

import argparse
from typing import Any, Literal, get_args, get_origin

from nsgf.config.files import experiments
from nsgf.flags import COMMANDS, CONTROL, SHORT_FLAGS, command_parser
from nsgf.help import GROUPS, MEANINGS
from nsgf.system.errors import UserError

PLACES = {"FILE": "FILE", "PATH": "FILE", "DIR": "DIRECTORY"}
"""What help calls a value, and how shtab names what completes it."""
BY_PROGRAM = "--data.found."
"""Settings that the program fills in."""


def script(shell: str) -> str:
    """The completion of commands, flags and the values of flags that have few.

    Raises:
        UserError: shtab is missing, or knows no such shell.
    """
    try:
        import shtab
    except ImportError as error:
        raise UserError("--print-completion: needs shtab; pip install shtab") from error
    if not shell:
        *others, last = shtab.SUPPORTED_SHELLS
        raise UserError(f"--print-completion: needs a shell: {', '.join(others)} or {last}")
    if shell not in shtab.SUPPORTED_SHELLS:
        allowed = ", ".join(shtab.SUPPORTED_SHELLS)
        raise UserError(f"--print-completion {shell}: must be one of {allowed}")
    program = argparse.ArgumentParser("nsgf", add_help=False)
    commands, paths = program.add_subparsers(), places()
    for name, meaning in COMMANDS.items():
        parser = commands.add_parser(name, help=meaning, add_help=False, allow_abbrev=False)
        for flag, known in _offered(name).items():
            action = _add(parser, flag, known)
            if action and (place := paths.get(flag)):
                action.complete = getattr(shtab, place)  # type: ignore[attr-defined]
        if name != "list":
            parser.add_argument("--help-all", action="store_true", help="all flags")
    text: str = shtab.complete(program, shell)
    return text.rstrip("\n")


def _offered(command: str) -> dict[str, Any]:
    """The flags of a command that people may give: ``list`` takes no settings."""
    flags = command_parser(command).flags
    if command == "list":
        return {flag: flags[flag] for flag in ("-h", "--help", *GROUPS[command]["what"])}
    return {flag: known for flag, known in flags.items() if not flag.startswith(BY_PROGRAM)}


def places() -> dict[str, str]:
    """Flags whose values are paths: FILE or DIRECTORY."""
    named = {flag: value for flag, (value, _) in MEANINGS.items()}
    named |= {flag: how.get("metavar", "") for flag, how in CONTROL.items()}
    for flag, keys in SHORT_FLAGS.items():
        named |= {f"--{key}": named[flag] for key in keys if flag in named}
    return {flag: PLACES[value] for flag, value in named.items() if value in PLACES}


def _add(parser: argparse.ArgumentParser, flag: str, known: Any) -> argparse.Action | None:
    """Give a parser a flag with the meaning and values of a command's own; None: it takes none."""
    meaning = None if known.help == argparse.SUPPRESS else known.help
    if known.nargs == 0:
        parser.add_argument(flag, action="store_true", help=meaning)
        return None
    return parser.add_argument(flag, help=meaning, choices=_choices(flag, known))


def _choices(flag: str, known: Any) -> list[str] | None:
    """The values of a flag, if they are few."""
    if flag == "--exp":
        return experiments()
    kind = getattr(known, "_typehint", None)
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [str(value) for value in known.choices] if known.choices else None
