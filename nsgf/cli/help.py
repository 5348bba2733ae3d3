"""Help texts and shell completion."""

import ast
import inspect
import textwrap
from argparse import SUPPRESS, ArgumentParser, HelpFormatter
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

from nsgf.cli.arguments import COMMANDS, FLAG_NAMES, OPTIONS, flags_of
from nsgf.config import schema
from nsgf.config.files import experiments, methods, pretrained_runs, refuse_unknown
from nsgf.config.settings import KEYS, SECTIONS, is_inherited
from nsgf.config.values import format_value
from nsgf.system.errors import UserError

FIRST = {
    "train": "exp method dataset data.path train-iters batch-size sinkhorn-batch max-hours device "
    "out-dir resume smoke",
    "sample": "exp run pretrained num-samples nfe label steps seed device out",
    "evaluate": "exp run pretrained num-samples evaluation.features inception-weights data-root "
    "seed device out-dir",
    "report": "exp run compare figures device out-dir",
    "list": "out-dir help",
    "compare": "exp methods dataset compare.nfe compare.seeds compare.updates max-hours device "
    "out-dir smoke",
    "export": "exp run to half",
    "preflight": "exp method dataset data.path session-hours train-iters batch-size "
    "sinkhorn-batch device out-dir",
}
"""The flags of each command that people need first."""
CHOICES = {
    **{"exp": experiments, "method": methods, "compare.methods": methods},
    "pretrained": pretrained_runs,
}
"""Functions that return the choices of a flag whose type is a text."""
METAVARS = {"an integer": "N", "a number": "X", "true or false": "BOOL", "a list": "LIST"}
"""Placeholders of values, by the beginning of the description of their type."""


class _Formatter(HelpFormatter):
    """Wraps texts to the width of the terminal, and only between words."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width - len(indent))), indent)


def help_topic(words: list[str]) -> str | None:
    """Return KEY of ``--help KEY``, empty without a key; None if the words ask for no help."""
    for word, after in pairwise([*words, ""]):
        flag, _, topic = word.partition("=")
        if flag in ("-h", "--help"):
            return (topic or after).removeprefix("--")
    return None


def help_parser(command: str, topic: str = "") -> ArgumentParser:
    """Return a parser that shows or completes flags, and parses nothing.

    Args:
        command: the command whose flags are shown.
        topic: empty for short flags and options; ``all`` for all settings too; or the name of a
            flag, a setting or a section to explain.

    Raises:
        UserError: there is no such topic.
    """
    docs, flags, first = setting_docs(), flags_of(command), FIRST[command].split()
    about: dict[str, Any] = {"description": COMMANDS[command], "usage": f"nsgf {command} [flags]"}
    if topic in ("", "all"):
        shown = [name for name in flags if name not in first and (topic or "." not in name)]
        shown = [*first, *(name for name in shown if not is_inherited(name))]
        about["epilog"] = f"nsgf {command} --exp NAME --print-config prints the settings that hold."
        if not topic:
            about["epilog"] = (
                f"nsgf {command} --help all lists every setting that the command uses, and "
                f"nsgf {command} --help KEY explains a flag, a setting or a section."
            )
    else:
        flags |= {key: (key,) for key in KEYS}
        begin = f"{topic}."
        shown = [name for name in flags if topic in (name, *flags[name]) or name.startswith(begin)]
        about, first = {"usage": SUPPRESS}, []
        if not shown:
            refuse_unknown(f"--{topic}", flags, command, FLAG_NAMES)
    parser = ArgumentParser(prog="", formatter_class=_Formatter, add_help=False, **about)
    groups: dict[str, Any] = {}
    for name in shown:
        title = name.rpartition(".")[0] or ("other flags" if first else "")
        title = "most used flags" if name in first else title
        if title not in groups:
            groups[title] = parser.add_argument_group(
                title or None, docs.get(title) if title else None
            )
        groups[title].add_argument(f"--{name}", **_explain(name, flags[name], docs, topic))
    return parser


def _explain(name: str, keys: tuple[str, ...], docs: dict[str, str], topic: str) -> dict[str, Any]:
    """Return text, placeholder and choices of a flag that sets ``keys``, as arguments of
    ``add_argument``. With a topic the text also says what is allowed, and the default."""
    key, more = (*keys, name)[0], ""
    is_full = topic not in ("", "all") or (topic == "all" and name == key)
    if keys:
        item, source = KEYS[key], f"optim.{key.rpartition('.')[2]}" if is_inherited(key) else key
        kind, text = item.kind, docs[source]
        marks = [mark for begin, mark in METAVARS.items() if item.allowed.startswith(begin)]
        metavar = "PATH" if item.is_path else (*marks, "NAME")[0]
        if name != key:
            more += " It holds for every phase." if key.startswith("optim.") else ""
            more += f" It sets {' and '.join(keys)}." if is_full or len(keys) > 1 else ""
        if is_full:
            default = f"; default: {format_value(item.default)}" if item.default != "" else ""
            more += f" ({item.allowed}{default})"
    else:
        _, kind, metavar, text = OPTIONS[name.replace("-", "_")]
    choices = get_args(kind) if get_origin(kind) is Literal else [*CHOICES.get(key, tuple)()]
    if any(choice not in text + more for choice in choices):
        more = f" Choices: {', '.join(choices)}.{more}"
    how: dict[str, Any] = {"help": (text + more).replace("%", "%%")}
    if name == "fake-data" or (kind is bool and not keys):
        return {**how, "action": "store_true"}
    how |= {"nargs": "?"} if name in ("smoke", "help") else {}
    return {**how, "metavar": metavar, "choices": choices or None}


def completion(shell: str) -> str:
    """Return the script that completes commands, flags and names in a shell, made by shtab. Raise
    UserError if shtab is missing or knows no such shell."""
    program = ArgumentParser(prog="nsgf")
    commands = program.add_subparsers()
    try:
        import shtab

        for name, meaning in COMMANDS.items():
            parent = help_parser(name, "all")
            for action in parent._actions:
                if action.metavar in ("PATH", "FILE", "DIR"):
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
            commands.add_parser(name, help=meaning, parents=[parent], add_help=False)
        return shtab.complete(program, shell).rstrip("\n")
    except (ImportError, NotImplementedError) as error:
        raise UserError(f"--print-completion {shell}: {error}") from error


def setting_docs() -> dict[str, str]:
    """Return the docstrings of sections and settings by dotted key, in the order of the schema.

    The empty key is the configuration itself. Settings that phases inherit appear once, under
    ``optim``."""
    below = {
        node.name: {
            ast.unparse(this.target): " ".join(ast.literal_eval(text.value).split())
            for this, text in pairwise(node.body)
            if isinstance(this, ast.AnnAssign) and isinstance(text, ast.Expr)
        }
        for node in ast.parse(inspect.getsource(schema)).body
        if isinstance(node, ast.ClassDef)
    }
    found = {}
    for section, kind in SECTIONS.items():
        if kind is schema.OptimConfig and section != "optim":
            found[section] = "The keys of optim, for this phase only."
            continue
        found[section] = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        for name, text in below[kind.__name__].items():
            found[f"{section}.{name}".lstrip(".")] = text
    return found
