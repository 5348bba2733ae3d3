"""Help texts and shell completion."""

import ast
import inspect
import textwrap
from argparse import SUPPRESS, ArgumentParser, HelpFormatter
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin

from nsgf.cli.arguments import COMMANDS, OPTIONS, Keys, flags_of, form_of, used_flags
from nsgf.config import schema
from nsgf.config.files import EXPERIMENT_NAMES, METHOD_NAMES, refuse_unknown
from nsgf.config.layers import KEYS, SECTIONS, is_inherited
from nsgf.config.values import describe_type, format_value
from nsgf.settings.effects import ON_RUNS
from nsgf.system.errors import UserError

ON_TRAINING = (
    "exp method methods dataset data.path session-hours compare.nfe compare.seeds compare.updates "
    "train-iters batch-size sinkhorn-batch max-hours device out-dir resume smoke"
)
"""The most used flags of commands that train."""
ON_TRAINED_RUN = (
    "exp run pretrained compare figures to half num-samples nfe label steps evaluation.features "
    "inception-weights bits-per-dim data-root seed device out out-dir"
)
"""The most used flags of commands on a trained run."""
CHOICES = {"exp": EXPERIMENT_NAMES, "method": METHOD_NAMES, "methods": METHOD_NAMES}
"""Choices for flags whose value is text."""
METAVARS = {"an integer": "N", "a number": "X", "true or false": "BOOL", "a list": "LIST"}
"""Placeholders for values. The keys are the first words of the description of a type."""


class _Formatter(HelpFormatter):
    """Wraps texts to the width of the terminal, and only between words."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def help_parser(command: str, topic: str) -> ArgumentParser:
    """Return a parser that only shows or completes flags.

    ``topic``: what the parser shows. Empty: short flags and options. ``all``: also all settings.
    The name of a flag, a setting or a section: its explanation. Raise UserError if the name does
    not exist.
    """
    docs = setting_docs()
    flags = used_flags(command)
    words = ON_TRAINED_RUN if command in (*ON_RUNS, "export") else ON_TRAINING
    # compare has --method and --methods: show only --methods
    first = [name for name in words.split() if name in flags and f"{name}s" not in flags]
    texts: dict[str, Any] = {"description": COMMANDS[command], "usage": f"nsgf {command} [flags]"}
    texts["epilog"] = "--help all lists every setting, and --help KEY explains one."
    if topic in ("", "all"):
        further = [name for name in flags if name not in first and (topic or "." not in name)]
        listed = first + [name for name in further if not is_inherited(name)]
    else:
        texts = {"usage": SUPPRESS}
        first = []
        flags = flags_of(command)
        begin = f"{topic}."
        listed = [name for name in flags if topic in (name, *flags[name]) or name.startswith(begin)]
        if not listed:
            refuse_unknown(f"--{topic}", flags)
    form = partial(_Formatter, max_help_position=30)
    parser = ArgumentParser(prog="", formatter_class=form, add_help=False, **texts)
    groups = {}
    for name in listed:
        title = "most used flags" if name in first else name.rpartition(".")[0]
        title = title or ("other flags" if first else "")
        if title not in groups:
            groups[title] = parser.add_argument_group(title or None, title and docs.get(title))
        groups[title].add_argument(f"--{name}", **_explain(name, flags[name], docs, bool(topic)))
    return parser


def _explain(name: str, keys: Keys, docs: dict[str, str], is_full: bool) -> dict[str, Any]:
    """Return text, placeholder and choices of a flag that sets ``keys``, as arguments of
    ``add_argument``. ``is_full``: whether the text also gives allowed values and the default."""
    if keys:
        key = keys[0]
        item = KEYS[key]
        kind = item.kind
        allowed = describe_type(kind)
        marks = [mark for begin, mark in METAVARS.items() if allowed.startswith(begin)]
        metavar = "PATH" if item.is_path else (*marks, "NAME")[0]
        text = docs[f"optim.{key.rpartition('.')[2]}" if is_inherited(key) else key]
        if key.startswith("optim.") and name != key:
            text += " It holds for every phase."
        text += "".join(f" Only if {condition}." for condition in item.conditions if is_full)
        if is_full and name != key:
            text += f" It sets {' and '.join(keys)}."
        if is_full:
            limits = f", {item.range}".removesuffix(f" and <= {schema.MANY}") if item.range else ""
            text += f" ({allowed}{limits}; default: {format_value(item.default) or 'none'})"
    else:
        _, kind, metavar, text = OPTIONS[name]
    names = get_args(kind) if get_origin(kind) is Literal else tuple(CHOICES.get(name, ()))
    if any(name not in text for name in names):
        text += f" Choices: {', '.join(names)}."
    form = {**form_of(name, keys), "help": text.replace("%", "%%")}
    return form if "action" in form else {**form, "metavar": metavar, "choices": names or None}


def completion(shell: str) -> str:
    """Return shtab's script that completes commands, flags and names in a shell. Raise UserError if
    shtab is missing or does not support the shell."""
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
    The empty key is the configuration itself. Inherited settings appear once, under ``optim``."""
    below = {
        node.name: {
            ast.unparse(this.target): " ".join(ast.literal_eval(text.value).split())
            for this, text in pairwise(node.body)
            if isinstance(this, ast.AnnAssign) and isinstance(text, ast.Expr)
        }
        for node in ast.parse(inspect.getsource(schema)).body
        if isinstance(node, ast.ClassDef)
    }
    docs = {}
    for section, kind in SECTIONS.items():
        if kind is schema.OptimConfig and section != "optim":
            docs[section] = "The keys of optim, for this phase only."
            continue
        docs[section] = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        for name, text in below[kind.__name__].items():
            if (key := f"{section}.{name}".lstrip(".")) in KEYS:
                docs[key] = text
    return docs
