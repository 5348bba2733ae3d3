"""``--help``: the flags that people use, in groups; ``--help-all`` has every setting."""

import argparse
import copy
import textwrap
from typing import Any

from nsgf.flags import COMMANDS, command_parser, examples, usage

WIDTH = 80
"""Of a line, as terminals begin with."""
_WHICH = ("--exp", "--method", "--config")
_RUN = ("--run", "--exp")
_MODEL = ("--train-iters", "--batch-size", "--lr", "--precision", "--seed")
_FLOW = ("--steps", "--pool-batches", "--sinkhorn-batch", "--sinkhorn.blur")
_DATA = ("--dataset", "--data.path", "--data-root", "--fake-data")
_MACHINE = ("--device", "--accumulate")
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "what": (*_WHICH, "--run", "--resume", "--resume-phase", "--smoke"),
        "data": _DATA,
        "flow and pool": _FLOW,
        "training": (*_MODEL, *_MACHINE, "--max-hours"),
        "output": ("--out-dir", "--tracker", "--print-config"),
    },
    "sample": {
        "what": _RUN,
        "samples": ("--num-samples", "--steps", "--sampling.straight_steps", "--sampling.solver"),
        "machine": ("--seed", "--precision", "--sampling.batch_size", "--device"),
        "output": ("--out-dir", "--print-config"),
    },
    "evaluate": {
        "what": _RUN,
        "samples": ("--num-samples", "--steps", "--sampling.straight_steps", "--sampling.solver"),
        "measures": ("--evaluation.inception", "--inception-weights"),
        "machine": ("--seed", "--precision", "--sampling.batch_size", "--device"),
        "output": ("--out-dir", "--print-config"),
    },
    "report": {
        "what": (*_RUN, "--compare"),
        "output": ("--figures", "--out-dir"),
        "machine": ("--device",),
    },
    "list": {"what": ("--out-dir",)},
    "compare": {
        "what": (*_WHICH, "--dataset", "--smoke"),
        "comparison": ("--methods", "--compare.seeds", "--compare.nfe"),
        "training": (*_MODEL, *_MACHINE, "--max-hours"),
        "output": ("--out-dir", "--print-config"),
    },
    "export": {"what": _RUN, "output": ("--to",), "samples": ("--sampling.straight_steps",)},
    "preflight": {
        "what": (*_WHICH, "--session-hours"),
        "data": _DATA,
        "flow and pool": _FLOW,
        "training": (*_MODEL, *_MACHINE),
    },
}
"""By command and title, what most command lines consist of."""
MEANINGS = {
    "--smoke": ("", "5 updates a phase, to see whether everything works"),
    "--dataset": ("NAME", "8gaussians, moons, scurve or checkerboard, for --exp 2d"),
    "--data.path": ("PATH", "your own: a folder of images; a file .npz, .npy, .csv"),
    "--data-root": ("DIR", "where MNIST and CIFAR-10 are, or are downloaded to"),
    "--steps": ("N", "steps T of the flow, and of sampling with its network"),
    "--pool-batches": ("N", "flows that fill the pool"),
    "--sinkhorn-batch": ("N", "particles of a flow; the pool keeps its total"),
    "--sinkhorn.blur": ("B", "square root of the regularization eps"),
    "--train-iters": ("N", "optimizer updates of every phase"),
    "--batch-size": ("N", "samples of an update, of every phase"),
    "--lr": ("RATE", "Adam's learning rate, of every phase"),
    "--precision": ("P", "auto, fp32, bf16 or fp16"),
    "--seed": ("N", "every random number follows from it"),
    "--device": ("D", "auto, cpu, cuda or cuda:N"),
    "--accumulate": ("N", "parts of a batch: less memory, the same update"),
    "--max-hours": ("H", "then save, say how to go on, and end"),
    "--out-dir": ("DIR", "folder that holds the run folders"),
    "--tracker": ("NAME", "none, wandb, wandb-offline or tensorboard"),
    "--num-samples": ("N", "samples that are drawn"),
    "--sampling.straight_steps": ("N", "steps of the straight flow"),
    "--sampling.solver": ("NAME", "of the straight flow: euler, heun or dopri5"),
    "--sampling.batch_size": ("N", "samples that go through the networks together"),
    "--evaluation.inception": ("BOOL", "true: FID and its kin, of image sets"),
    "--inception-weights": ("FILE", "Inception's weights; otherwise downloaded"),
    "--method": ("NAME", "of configs/methods, or a YAML file of your own"),
    "--methods": ("LIST", "as nsgf,icfm,otcfm; YAML files of your own too"),
    "--compare.seeds": ("N", "training runs of each method"),
    "--compare.nfe": ("LIST", "network calls for each sample, as [10,100]"),
    "--figures": ("KIND", "png, svg or pdf"),
}
"""Value and meaning of flags, where the first sentence about a setting is too long for a line."""


class WholeWords(argparse.HelpFormatter):
    """argparse's, which would end a line inside of ``digits-onecall``."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def overview() -> str:
    """What the program can do."""
    lines = ["usage: nsgf COMMAND [flags]", "", "Neural Sinkhorn Gradient Flow (NSGF++).", ""]
    lines += [f"  {name:10} {text}" for name, text in COMMANDS.items()]
    lines += ["", "nsgf COMMAND --help lists the flags of a command. Examples:"]
    lines += [f"  {examples(name)[0]}" for name in COMMANDS]
    return "\n".join(
        [*lines, "", "nsgf --print-completion SHELL writes what completes these in a shell."]
    )


def command_help(command: str) -> str:
    """The flags of a command that most need, in groups, and examples."""
    parser = command_parser(command)
    shown = WholeWords(parser.prog, max_help_position=30, width=WIDTH)
    for title, flags in GROUPS.get(command, {"what": _WHICH}).items():
        shown.start_section(title)
        shown.add_arguments([_brief(flag, parser.flags[flag]) for flag in flags])
        shown.end_section()
    parts = [f"usage: {usage(command)}", f"{COMMANDS[command]}.", shown.format_help().strip()]
    parts.append("\n  ".join(["examples:", *examples(command)]))
    if command != "list":
        parts.append(f"every setting is a flag: nsgf {command} --help-all, docs/configuration.md")
    return "\n\n".join(parts)


def _brief(flag: str, known: Any) -> Any:
    """A flag in few words."""
    if flag not in MEANINGS:
        return known
    brief = copy.copy(known)
    brief.metavar, brief.help = MEANINGS[flag]
    if not brief.metavar:
        brief.nargs = 0
    return brief
