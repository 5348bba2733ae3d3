"""The commands, their flags, and how a command line becomes a :class:`Request`."""

import ast
import inspect
import textwrap
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Collection
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NoReturn, get_args, get_origin

from nsgf.config import schema
from nsgf.config.files import experiments, pretrained_runs, refuse_unknown
from nsgf.config.schema import OF_PHASES
from nsgf.config.settings import KEYS, SECTIONS, Layer, is_inherited, spread_optim
from nsgf.config.values import format_value, read_value
from nsgf.resolve import ON_EXPORTS, WITHOUT_RUN, Request, resolve
from nsgf.system.errors import UserError

COMMANDS = {
    "train": "train the phases of an experiment, or resume them",
    "sample": "draw samples and pictures from a trained run",
    "evaluate": "measure a trained run: W2, FID, precision and recall",
    "report": "write a page about a trained run, or about a comparison",
    "list": "list the runs in --out-dir, how far they are and what they take",
    "compare": "train and measure NSGF and other methods on equal terms, resumable",
    "export": "write the averaged weights of a run as a folder to share",
    "preflight": "say what training would take on this machine, without training",
}
ON_SAMPLES = ("sample", "evaluate", "report")
"""Commands that draw samples of a run and train nothing."""

SHORT_FLAGS: dict[str, tuple[str, ...]] = {
    "--train-iters": ("optim.iterations",),
    "--batch-size": ("optim.batch_size",),
    "--lr": ("optim.lr",),
    "--pool-batches": ("pool.num_batches",),
    "--sinkhorn-batch": ("sinkhorn.batch_size",),
    "--steps": ("flow.steps",),
    "--dataset": ("data.name",),
    "--data-root": ("data.root",),
    "--out-dir": ("out_dir",),
    "--num-samples": ("sampling.num_samples", "evaluation.num_samples"),
    "--label": ("sampling.label",),
    "--precision": ("train.precision",),
    "--accumulate": ("train.accumulate",),
    "--max-hours": ("train.max_hours",),
    "--inception-weights": ("evaluation.inception_weights",),
    "--tracker": ("tracking.tracker",),
}
"""Short flags with a value, and the settings that each changes. They win over ``--optim.KEY``."""
FLAG_NAMES = {keys[0]: flag for flag, keys in SHORT_FLAGS.items()}
"""Short flags by the key of their setting, for messages."""
OF_SAMPLING = {"--steps": ("sampling.nsgf_steps",)}
"""Short flags with another meaning in commands that train nothing."""
OF_COMPARE = {"--methods": ("compare.methods",)}
"""Short flags of ``compare`` only."""
WITH_RUN = tuple(name for name in COMMANDS if name not in WITHOUT_RUN)
OPTIONS: dict[str, tuple[Collection[str], Any, str, str]] = {
    "config": (COMMANDS, str, "FILE", "YAML file instead of --exp; over a run: on top"),
    "print_config": (COMMANDS, bool, "", "print all settings that hold, and stop"),
    "run": (WITH_RUN, str, "DIR", "run folder; default: the newest of --exp that can be used"),
    "pretrained": (ON_EXPORTS, str, "NAME", "a run that comes with the program: {pretrained}"),
    "nfe": (["sample"], int, "N", "network calls for each sample, or the nearest number below"),
    "out": (["sample"], str, "PATH", "write only FILE.csv, FILE.npz, or DIR/ for PNG files; new"),
    "resume": (["train"], bool, "", "resume the run from its newest checkpoint"),
    "resume_phase": (["train"], int, "N", "resume at phase N, anew if phase N is finished"),
    "to": (["export"], str, "DIR", "folder that is written"),
    "half": (["export"], bool, "", "write weights as float16: half the bytes"),
    "session_hours": (["preflight"], float, "H", "hours of a session (default: 12)"),
    "compare": (["report"], str, "DIR", "write a page about this comparison"),
    "figures": (["report"], Literal["png", "svg", "pdf"], "KIND", "also png (default), svg or pdf"),
}
"""Flags that are no settings: their commands, type, placeholder and meaning."""
ONE_OF = {"pretrained": "run", "resume_phase": "resume"}
"""Options that exclude another."""


def short_flags(command: str) -> dict[str, tuple[str, ...]]:
    """Return the short flags of a command, with the settings that each changes."""
    own = OF_SAMPLING if command in ON_SAMPLES else {}
    return {**SHORT_FLAGS, **(OF_COMPARE if command == "compare" else own)}


class _Parser(ArgumentParser):
    """A parser that raises UserError, and returns only what was given."""

    def __init__(self, command: str) -> None:
        super().__init__(
            prog=f"nsgf {command}",
            usage=f"nsgf {command} [flags]",
            description=f"{COMMANDS[command]}.",
            allow_abbrev=False,
            argument_default=SUPPRESS,
            formatter_class=partial(  # one line for each flag
                RawDescriptionHelpFormatter, max_help_position=38, width=100
            ),
        )

    def error(self, message: str) -> NoReturn:
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            raise UserError(f"{stray}: must follow a flag, as in --exp 2d")
        raise UserError(message.removeprefix("argument "))


def command_parser(command: str, *, has_help: bool = False) -> ArgumentParser:
    """Return the parser of a command. Values stay texts. The name of each is its setting, its
    short flag, or ``@NAME`` for an option that is no setting. Only ``has_help`` adds texts, grouped
    by section; settings that phases inherit are shown only once, under ``optim``."""
    parser, docs = _Parser(command), setting_docs() if has_help else {}
    groups: dict[str, Any] = {}
    for key, item in KEYS.items():
        section, how = key.rpartition(".")[0], dict[str, Any](help=SUPPRESS)
        if docs and section not in groups:
            title = f"{section} ({_shorten(docs[section], 75)})" if section else "flags"
            if section == "optim":
                title = f"optim (of one phase only, as --nsgf.lr: {', '.join(OF_PHASES)})"
            groups[section] = parser.add_argument_group(title)
        if docs and not is_inherited(key):
            how = {"help": _shorten(docs[key]), "metavar": format_value(item.default) or "NAME"}
            how["choices"] = get_args(item.kind) if get_origin(item.kind) is Literal else None
        if docs and key == "exp":
            how["help"] = f"experiment: {', '.join(experiments())}"
        extra = {"nargs": "?", "const": True} if key == "smoke" else {}
        groups.get(section, parser).add_argument(f"--{key}", dest=key, **extra, **how)
    group, either = groups.get("", parser), dict[str, Any]()
    for name, (commands, kind, metavar, meaning) in OPTIONS.items():
        if command in commands:
            place = ONE_OF.get(name, name)
            place = either.setdefault(place, group.add_mutually_exclusive_group())
            how = {"action": "store_true"} if kind is bool else {"metavar": metavar}
            how["help"] = meaning.replace("{pretrained}", ", ".join(pretrained_runs()))
            place.add_argument(f"--{name.replace('_', '-')}", dest=f"@{name}", **how)
    for flag, keys in short_flags(command).items():
        meaning = _shorten(docs[keys[0]]) if docs else SUPPRESS
        meaning += ", of every phase" if docs and keys[0].startswith("optim.") else ""
        group.add_argument(flag, dest=flag, metavar="X", help=meaning)
    fake = "random images in place of the image set"
    group.add_argument("--fake-data", dest="data.fake", action="store_true", help=fake)
    return parser


def _shorten(meaning: str, width: int = 60) -> str:
    """Return the first sentence of a description, shortened to ``width`` characters."""
    sentence = meaning.split(". ")[0].rstrip(".").replace("%", "%%")
    return textwrap.shorten(sentence, width, placeholder=" ...")


def parse(argv: list[str]) -> Request:
    """Return the request of a command line.

    Raises:
        UserError: the command or a flag is unknown, a flag occurs twice, a value has a wrong type;
            or see :func:`nsgf.resolve.resolve`.
    """
    if not argv or argv[0] not in COMMANDS:
        named = repr(argv[0]) if argv else "missing"
        raise UserError(f"unknown command {named}: must be one of {', '.join(COMMANDS)}")
    command, *words = argv
    parser = command_parser(command)
    known = parser._option_string_actions
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    for flag in flags:
        if flag not in known:
            refuse_unknown(flag, known, command, FLAG_NAMES)
        if flags.count(flag) > 1:
            raise UserError(f"{flag}: given twice")
    short, fanned, settings, options = short_flags(command), Layer(), Layer(), Layer()
    for name, text in vars(parser.parse_args(words)).items():
        if name.startswith("@"):
            flag = name[1:].replace("_", "-")
            options[name[1:]] = read_value(flag, OPTIONS[name[1:]][1], text)
        elif name in short:
            value = read_value(name[2:], KEYS[short[name][0]].kind, text)
            fanned |= spread_optim(dict.fromkeys(short[name], value))
        else:
            settings[name] = read_value(name, KEYS[name].kind, text)
    keeps_total = "--sinkhorn-batch" in flags
    request = resolve(command, {**fanned, **settings}, options, keeps_total=keeps_total)
    request.words = words
    return request


def completion(shell: str) -> str:
    """Return the script that completes commands and flags in a shell, made by shtab. Raise
    UserError if shtab is missing or knows no such shell."""
    program = ArgumentParser(prog="nsgf")
    commands = program.add_subparsers()
    for name, meaning in COMMANDS.items():
        parent = command_parser(name, has_help=True)
        commands.add_parser(name, help=meaning, parents=[parent], add_help=False)
    try:
        import shtab

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
