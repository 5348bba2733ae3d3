"""The commands and their flags."""

import argparse
import functools
from typing import Any, Literal, get_args, get_origin

from nsgf.config.files import experiments
from nsgf.config.parser import Parser, add_settings
from nsgf.config.schema import OF_PHASES, PHASES
from nsgf.system.errors import UserError

COMMANDS = {
    "train": "train the phases of an experiment, or go on with them",
    "sample": "draw samples and pictures from a trained run",
    "evaluate": "measure a trained run: W2, FID, precision and recall",
    "report": "write a page about a trained run, or about a comparison",
    "list": "list the runs in --out-dir, how far they are and what they take",
    "compare": "train and measure NSGF and other methods on equal terms, resumable",
    "export": "write the averaged weights of a run as a folder to share",
    "preflight": "say what training would take on this machine, without training",
}
WITHOUT_RUN = ("list", "compare", "preflight")
ON_SAMPLES = ("sample", "evaluate", "report")
"""Commands that draw samples of a run and train nothing."""
OF_ONE_COMMAND = {
    "--session-hours": "preflight",
    **dict.fromkeys(("--compare", "--figures"), "report"),
    "--to": "export",
}


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
OF_SAMPLING = {"--steps": ("sampling.nsgf_steps",)}
"""Short flags with another meaning in commands that train nothing."""
OF_COMPARE = {"--methods": ("compare.methods",)}
"""Short flags of compare only."""
CONTROL: dict[str, dict[str, Any]] = {
    "--config": {
        "type": str,
        "metavar": "FILE",
        "help": "YAML file instead of --exp; over a run: on top",
    },
    "--print-config": {"action": "store_true", "help": "print all settings that hold, and stop"},
    "--run": {"type": str, "metavar": "DIR", "help": "run folder; default: the newest of --exp"},
    "--resume": {"action": "store_true", "help": "go on from the newest checkpoint of the run"},
    "--resume-phase": {
        "type": int,
        "choices": range(1, len(PHASES) + 1),
        "metavar": "N",
        "help": "go on at phase N, anew where phase N is finished",
    },
    "--to": {"type": str, "metavar": "DIR", "help": "folder that is written"},
    "--session-hours": {
        "type": float,
        "metavar": "H",
        "help": "hours of a session, for the plan (default: 12)",
    },
    "--compare": {
        "type": str,
        "metavar": "DIR",
        "help": "folder of a comparison, for a page about it instead",
    },
    "--figures": {
        "type": str,
        "choices": ("png", "svg", "pdf"),
        "help": "kind of files that the figures are written to, besides PNG (default: png)",
    },
}
"""Flags that are no settings."""
SMOKE: dict[str, Any] = {
    **dict.fromkeys(_of_all_phases("iterations"), 5),
    **dict.fromkeys(_of_all_phases("batch_size"), 4),
    **{"pool.num_batches": 2, "sinkhorn.batch_size": 8, "sinkhorn.target_batch": None},
    **{"nsf.coupling_batch": None, "peer.coupling_batch": None},
    **{"train.accumulate": 1, "compare.updates": []},
    **{"train.log_every": 1, "train.checkpoint_every": 3},
    **{"sampling.num_samples": 4, "sampling.straight_steps": 2, "evaluation.num_samples": 4},
    "evaluation.w2_samples": 4,
    **{"evaluation.inception": False, "evaluation.classifier": False},
    **{"compare.seeds": 1, "compare.nfe": [1, 2, 4], "reflow.pairs": 16},
}
"""What --smoke sets in a new run besides ``smoke``; explicit flags win."""


def short_flags(command: str) -> dict[str, tuple[str, ...]]:
    """Return the short flags of a command, with the settings that each changes."""
    own = OF_SAMPLING if command in ON_SAMPLES else {}
    return {**SHORT_FLAGS, **own, **(OF_COMPARE if command == "compare" else {})}


def comma_separated(text: str | list[str]) -> list[str]:
    """Return ``nsgf,otcfm`` or ``[nsgf, otcfm]`` as a list."""
    if isinstance(text, list):  # the parser calls it again with what it returned
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
    either = group.add_mutually_exclusive_group()
    for flag, how in CONTROL.items():
        resumes = flag.startswith("--resume")
        if (resumes and command != "train") or (flag == "--run" and command in WITHOUT_RUN):
            parser.elsewhere[flag] = "nsgf train" if resumes else "commands that work on a run"
            continue
        if OF_ONE_COMMAND.get(flag, command) != command:
            parser.elsewhere[flag] = f"nsgf {OF_ONE_COMMAND[flag]}"
            continue
        place = either if resumes else group
        place.add_argument(flag, dest=f"control.{flag[2:].replace('-', '_')}", **how)
    for flag, keys in short_flags(command).items():
        leaf = parser.flags[f"--{keys[0]}"]
        meaning = leaf.help
        if len(keys) == len(OF_PHASES):
            meaning = f"{parser.flags[keys[0].replace('nsgf', '--optim')].help}, of every phase"
        kind, dest = leaf._typehint, f"short.{flag}"
        if flag in OF_COMPARE:
            kind = comma_separated
        group.add_argument(flag, dest=dest, type=kind, metavar="X", help=meaning)
    fake = "random images in place of the image set"
    group.add_argument("--fake-data", dest="data.fake", action="store_true", help=fake)
    return parser


def completion(shell: str) -> str:
    """Return the script that completes commands and flags in a shell, made by shtab.

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
        parser = commands.add_parser(name, help=meaning, add_help=False)
        for flag, known in command_parser(name).flags.items():
            kind = getattr(known, "_typehint", None)
            values = get_args(kind) if get_origin(kind) is Literal else known.choices
            if flag == "--exp":
                values = experiments()
            parser.add_argument(flag, choices=values and [str(value) for value in values])
    text: str = shtab.complete(program, shell)
    return text.rstrip("\n")
