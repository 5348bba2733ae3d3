"""``nsgf --print-completion SHELL``: a script by shtab that completes command lines."""

import argparse
from typing import Any, Literal, get_args, get_origin

from nsgf.config.files import config_folder
from nsgf.flags import COMMANDS, command_parser
from nsgf.system.errors import UserError

FILES = ("--config", "--data.path", "--inception-weights", "--evaluation.inception_weights")
FOLDERS = ("--run", "--to", "--out-dir", "--out_dir", "--data-root", "--data.root")


def script(shell: str) -> str:
    """The completion of commands, flags and the values of flags that have few.

    Raises:
        UserError: shtab is missing, or knows no such shell.
    """
    try:
        import shtab
    except ImportError as error:
        raise UserError("--print-completion: needs shtab; pip install shtab") from error
    if shell not in shtab.SUPPORTED_SHELLS:
        allowed = ", ".join(shtab.SUPPORTED_SHELLS)
        raise UserError(f"--print-completion {shell}: must be one of {allowed}")
    program = argparse.ArgumentParser("nsgf", add_help=False)
    commands = program.add_subparsers()
    for name, meaning in COMMANDS.items():
        parser = commands.add_parser(name, help=meaning, add_help=False, allow_abbrev=False)
        for flag, known in command_parser(name).flags.items():
            _add(parser, flag, known, shtab)
        parser.add_argument("--help-all", action="store_true", help="all flags")
    text: str = shtab.complete(program, shell)
    return text.rstrip("\n")


def _add(parser: argparse.ArgumentParser, flag: str, known: Any, shtab: Any) -> None:
    """Give a parser a flag with the meaning and values of a command's own."""
    meaning = None if known.help == argparse.SUPPRESS else known.help
    if known.nargs == 0:
        parser.add_argument(flag, action="store_true", help=meaning)
        return
    action = parser.add_argument(flag, help=meaning, choices=_choices(flag, known))
    if flag in FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif flag in FOLDERS:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _choices(flag: str, known: Any) -> list[str] | None:
    """The values of a flag, if they are few."""
    if flag == "--exp":
        return sorted(file.stem for file in config_folder().glob("*.yaml"))
    kind = getattr(known, "_typehint", None)
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [str(value) for value in known.choices] if known.choices else None
