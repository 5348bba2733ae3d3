"""The commands, their flags, and how a command line becomes a :class:`Request`."""

import textwrap
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from functools import partial
from typing import Any, Literal, NoReturn, get_args, get_origin

from nsgf.config.docstrings import setting_docs
from nsgf.config.files import experiments, pretrained_runs, refuse_unknown
from nsgf.config.schema import OF_PHASES
from nsgf.config.settings import KEYS, Layer, is_inherited, spread_optim
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
OPTIONS = {"nfe": int, "session_hours": float, "resume_phase": int}
"""Types of the options that are no settings; the others are texts."""


def short_flags(command: str) -> dict[str, tuple[str, ...]]:
    """Return the short flags of a command, with the settings that each changes."""
    return {**SHORT_FLAGS, **(OF_SAMPLING if command in ON_SAMPLES else {})}


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
    short flag, or ``@NAME`` for an option that is no setting. Only ``has_help`` adds texts."""
    parser = _Parser(command)
    docs = setting_docs() if has_help else {}
    groups = _add_settings(parser, docs)
    group = groups.get("", parser)
    _add_options(group, command)
    for flag, keys in short_flags(command).items():
        meaning = _shorten(docs[keys[0]], 60) if docs else SUPPRESS
        meaning += ", of every phase" if docs and keys[0].startswith("optim.") else ""
        group.add_argument(flag, dest=flag, metavar="X", help=meaning)
    if command == "compare":
        meaning = _shorten(docs["compare.methods"], 60) if docs else SUPPRESS
        group.add_argument("--methods", dest="--methods", metavar="X", help=meaning)
    fake = "random images in place of the image set"
    group.add_argument("--fake-data", dest="data.fake", action="store_true", help=fake)
    return parser


def _add_settings(parser: ArgumentParser, docs: dict[str, str]) -> dict[str, Any]:
    """Add a flag for each setting. With ``docs`` group them by section, and return the groups;
    settings that phases inherit are shown only once, under ``optim``."""
    groups: dict[str, Any] = {}
    for key, item in KEYS.items():
        section, how = key.rpartition(".")[0], dict[str, Any](help=SUPPRESS)
        if docs and section not in groups:
            title = f"{section} ({_shorten(docs[section], 75)})" if section else "flags"
            if section == "optim":
                title = f"optim (of one phase only, as --nsgf.lr: {', '.join(OF_PHASES)})"
            groups[section] = parser.add_argument_group(title)
        if docs and not is_inherited(key):
            meaning = _shorten(docs[key], 60)
            if key == "exp":
                meaning = f"experiment: {', '.join(experiments())}"
            how = {"help": meaning, "metavar": format_value(item.default) or "NAME"}
            how["choices"] = get_args(item.kind) if get_origin(item.kind) is Literal else None
        extra = {"nargs": "?", "const": True} if key == "smoke" else {}
        groups.get(section, parser).add_argument(f"--{key}", dest=key, **extra, **how)
    return groups


def _shorten(meaning: str, width: int) -> str:
    """Return the first sentence of a description, shortened to ``width`` characters."""
    sentence = meaning.split(". ")[0].rstrip(".").replace("%", "%%")
    return textwrap.shorten(sentence, width, placeholder=" ...")


def _add_options(group: Any, command: str) -> None:
    """Add the flags of a command that are no settings."""

    def add(flag: str, meaning: str, place: Any = group, **how: Any) -> None:
        place.add_argument(flag, dest=f"@{flag[2:].replace('-', '_')}", help=meaning, **how)

    add("--config", "YAML file instead of --exp; over a run: on top", metavar="FILE")
    add("--print-config", "print all settings that hold, and stop", action="store_true")
    if command not in WITHOUT_RUN:
        which = group.add_mutually_exclusive_group()
        meaning = "run folder; default: the newest of --exp that can be used"
        add("--run", meaning, which, metavar="DIR")
    if command in ON_EXPORTS:
        meaning = f"a run that comes with the program: {', '.join(pretrained_runs())}"
        add("--pretrained", meaning, which, metavar="NAME")
    if command == "sample":
        add("--nfe", "network calls for each sample, or the nearest number below", metavar="N")
        out = "write only FILE.csv, FILE.npz, or DIR/ for PNG files; must be new"
        add("--out", out, metavar="PATH")
    if command == "train":
        either = group.add_mutually_exclusive_group()
        add("--resume", "resume the run from its newest checkpoint", either, action="store_true")
        phase = "resume at phase N, anew if phase N is finished"
        add("--resume-phase", phase, either, metavar="N")
    elif command == "export":
        add("--to", "folder that is written", metavar="DIR")
        add("--half", "write weights as float16: half the bytes", action="store_true")
    elif command == "preflight":
        add("--session-hours", "hours of a session, for the plan (default: 12)", metavar="H")
    elif command == "report":
        add("--compare", "write a page about this comparison", metavar="DIR")
        kinds, figures = ("png", "svg", "pdf"), "files of the figures, besides PNG (default: png)"
        add("--figures", figures, choices=kinds)


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
            refuse_unknown(flag, known, command)
        if flags.count(flag) > 1:
            raise UserError(f"{flag}: given twice")
    short, fanned, settings, options = short_flags(command), Layer(), Layer(), Layer()
    for name, text in vars(parser.parse_args(words)).items():
        if name.startswith("@"):
            kind = OPTIONS.get(name[1:])
            options[name[1:]] = read_value(name[1:], kind, text) if kind else text
        elif name == "--methods":
            names = [part.strip() for part in text.strip("[]").split(",")]
            settings["compare.methods"] = list(filter(None, names))
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
