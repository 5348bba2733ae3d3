"""The commands and their flags."""

import functools
from typing import Any

from jsonargparse import ArgumentParser

from nsgf.config.files import experiments, pretrained_runs
from nsgf.config.parser import Parser, add_settings
from nsgf.config.schema import OF_PHASES, PHASE_NUMBERS
from nsgf.config.yaml_loader import Integer, Number
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
WITHOUT_RUN = ("list", "compare", "preflight")
ON_EXPORTS = ("sample", "evaluate")
"""Commands that also take exported runs."""
ON_SAMPLES = ("sample", "evaluate", "report")
"""Commands that draw samples of a run and train nothing."""


def _of_all_phases(name: str) -> tuple[str, ...]:
    return tuple(f"{phase}.{name}" for phase in OF_PHASES)


SHORT_FLAGS: dict[str, tuple[str, ...]] = {
    "--train-iters": _of_all_phases("iterations"),
    "--batch-size": _of_all_phases("batch_size"),
    "--lr": _of_all_phases("lr"),
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
"""Short flags with a value and every leaf they set; --seed, --device and --exp are leaves."""
FLAG_NAMES = {keys[0].replace("nsgf.", "optim."): flag for flag, keys in SHORT_FLAGS.items()}
"""Short flags by the key of their setting, for messages."""
OF_SAMPLING = {"--steps": ("sampling.nsgf_steps",)}
"""Short flags with another meaning in commands that train nothing."""
SMOKE: dict[str, Any] = {
    **dict.fromkeys(_of_all_phases("iterations"), 5),
    **dict.fromkeys(_of_all_phases("batch_size"), 4),
    **{"pool.num_batches": 2, "sinkhorn.batch_size": 8, "sinkhorn.target_batch": None},
    "nsf.coupling_batch": None,
    **{"train.accumulate": 1, "compare.updates": []},
    **{"train.log_every": 1, "train.checkpoint_every": 3},
    **{"sampling.num_samples": 4, "sampling.straight_steps": 2, "evaluation.num_samples": 4},
    "evaluation.w2_samples": 4,
    "evaluation.features": "none",
    **{"compare.seeds": 1, "compare.nfe": [1, 2, 4], "reflow.pairs": 16},
}
"""What --smoke sets in a new run besides ``smoke``; explicit flags win."""


def short_flags(command: str) -> dict[str, tuple[str, ...]]:
    """Return the short flags of a command, with the settings that each changes."""
    return {**SHORT_FLAGS, **(OF_SAMPLING if command in ON_SAMPLES else {})}


def comma_separated(text: str | list[str]) -> list[str]:
    """Return ``nsgf,otcfm`` or ``[nsgf, otcfm]`` as a list."""
    if isinstance(text, list):  # the parser calls this function twice
        return text
    return [name.strip() for name in text.strip("[]").split(",") if name.strip()]


@functools.cache
def command_parser(command: str) -> Parser:
    """Return the parser of a command. Its sections ``control`` and ``short`` hold what is no
    setting."""
    parser = Parser(
        prog=f"nsgf {command}",
        usage=f"nsgf {command} [flags]",
        description=f"{COMMANDS[command]}.",
    )
    group = add_settings(parser)
    parser.flags["--exp"].help = f"experiment: {', '.join(experiments())}"
    _add_control(group, command)
    for flag, keys in short_flags(command).items():
        leaf = parser.flags[f"--{keys[0]}"]
        meaning = leaf.help
        if len(keys) == len(OF_PHASES):
            meaning = f"{parser.flags[keys[0].replace('nsgf', '--optim')].help}, of every phase"
        kind = leaf._typehint
        group.add_argument(flag, dest=f"short.{flag}", type=kind, metavar="X", help=meaning)
    if command == "compare":
        meaning = parser.flags["--compare.methods"].help
        group.add_argument(
            "--methods", dest="compare.methods", type=comma_separated, metavar="X", help=meaning
        )
    fake = "random images in place of the image set"
    group.add_argument("--fake-data", dest="data.fake", action="store_true", help=fake)
    return parser


def _add_control(group: Any, command: str) -> None:
    """Add the flags of a command that are no settings."""

    def add(flag: str, meaning: str, place: Any = group, **how: Any) -> None:
        place.add_argument(flag, dest=f"control.{flag[2:].replace('-', '_')}", help=meaning, **how)

    file = "YAML file instead of --exp; over a run: on top"
    add("--config", file, type=str, metavar="FILE")
    add("--print-config", "print all settings that hold, and stop", action="store_true")
    if command not in WITHOUT_RUN:
        which = group.add_mutually_exclusive_group()
        meaning = "run folder; default: the newest of --exp that can be used"
        add("--run", meaning, which, type=str, metavar="DIR")
    if command in ON_EXPORTS:
        meaning = f"a run that comes with the program: {', '.join(pretrained_runs())}"
        add("--pretrained", meaning, which, type=str, metavar="NAME")
    if command == "sample":
        nfe = "network calls for each sample, or the nearest number below"
        add("--nfe", nfe, type=Integer, metavar="N")
        out = "write only FILE.csv, FILE.npz, or DIR/ for PNG files; must be new"
        add("--out", out, type=str, metavar="PATH")
    if command == "train":
        either, numbers = (
            group.add_mutually_exclusive_group(),
            range(1, max(PHASE_NUMBERS.values()) + 1),
        )
        add("--resume", "resume the run from its newest checkpoint", either, action="store_true")
        phase = "resume at phase N, anew if phase N is finished"
        add("--resume-phase", phase, either, type=Integer, choices=numbers, metavar="N")
    elif command == "export":
        add("--to", "folder that is written", type=str, metavar="DIR")
        add("--half", "write weights as float16: half the bytes", action="store_true")
    elif command == "preflight":
        hours = "hours of a session, for the plan (default: 12)"
        add("--session-hours", hours, type=Number, metavar="H")
    elif command == "report":
        add("--compare", "write a page about this comparison", type=str, metavar="DIR")
        kinds, figures = ("png", "svg", "pdf"), "files of the figures, besides PNG (default: png)"
        add("--figures", figures, type=str, choices=kinds)


def completion(shell: str) -> str:
    """Return the script that completes commands and flags in a shell, made by shtab. Raise
    UserError if shtab is missing or knows no such shell."""
    program = ArgumentParser(prog="nsgf")
    commands = program.add_subcommands()
    for name, meaning in COMMANDS.items():
        # parsers cannot be used after the script is written
        commands.add_subcommand(name, command_parser.__wrapped__(name), help=meaning)
    try:
        return program.get_completion_script(f"shtab-{shell}").rstrip("\n")
    except ValueError as error:
        raise UserError(f"--print-completion {shell}: {error}") from error
