"""The commands, their flags, and how a command line becomes a :class:`Request`."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Collection
from typing import Any, Literal, NoReturn

from nsgf.config.files import PRETRAINED, refuse_unknown
from nsgf.config.settings import KEYS, Layer
from nsgf.config.values import read_value
from nsgf.effects import ON_RUNS, STRICT, USES, accepts, is_used
from nsgf.resolve import ON_EXPORTS, WITHOUT_RUN, Request, resolve
from nsgf.system.errors import UserError, naming

COMMANDS = {
    "train": "Train the phases of an experiment, or resume them.",
    "sample": "Draw samples and pictures from a trained run.",
    "evaluate": "Measure a trained run: W2, FID, precision and recall.",
    "report": "Write a page about a trained run, or about a comparison.",
    "list": "List the runs in --out-dir, with progress, last loss, time and size.",
    "compare": "Train and measure NSGF and other methods on equal terms. Resumable.",
    "export": "Write the averaged weights of a run as a folder to share.",
    "preflight": "Say what training would take on this machine, without training.",
}

Keys = tuple[str, ...]
"""Settings that a flag changes; empty if the flag is not a setting."""
Flags = dict[str, Keys]
SHORT_FLAGS: Flags = {
    "train-iters": ("optim.iterations",),
    "batch-size": ("optim.batch_size",),
    "lr": ("optim.lr",),
    "pool-batches": ("pool.num_batches",),
    "sinkhorn-batch": ("sinkhorn.batch_size",),
    "steps": ("flow.steps",),
    "dataset": ("data.name",),
    "data-root": ("data.root",),
    "out-dir": ("out_dir",),
    "num-samples": ("sampling.num_samples", "evaluation.num_samples"),
    "label": ("sampling.label",),
    "precision": ("train.precision",),
    "accumulate": ("train.accumulate",),
    "max-hours": ("train.max_hours",),
    "inception-weights": ("evaluation.inception_weights",),
    "tracker": ("tracking.tracker",),
}
"""Short flags with a value, without dashes, and the settings that each flag changes. They override
``--optim.KEY``."""
FLAG_NAMES = {keys[0]: f"--{flag}" for flag, keys in SHORT_FLAGS.items()}
"""Short flags by the key of their setting, for messages."""
OF_SAMPLING = {"steps": ("sampling.nsgf_steps",)}
"""Short flags with another meaning in commands that train nothing."""
HAS_SETTINGS = COMMANDS.keys() - {"list"}
WITH_RUN = HAS_SETTINGS.difference(WITHOUT_RUN)
SHIPPED: Any = Literal[tuple(PRETRAINED)]
OPTIONS: dict[str, tuple[Collection[str], Any, str, str]] = {
    "help": (COMMANDS, str, "KEY", "Explain a flag, a setting or a section; all: every setting."),
    "config": (HAS_SETTINGS, str, "FILE", "YAML file instead of --exp, or on top of --run."),
    "print-config": (HAS_SETTINGS, bool, "", "Print the settings that hold, and stop."),
    "run": (WITH_RUN, str, "DIR", "Run folder. Without it, the newest run of --exp is used."),
    "pretrained": (ON_EXPORTS, SHIPPED, "NAME", "Run that comes with the program."),
    "nfe": (["sample"], int, "N", "Largest number of network calls for each sample."),
    "out": (
        ["sample", "report"],
        str,
        "PATH",
        "sample: write only a new .csv, .tsv, .parquet, .npz, .npy, .gif, .webp or DIR/ of PNGs. "
        "report: write the page also to FILE.html.",
    ),
    "resume": (["train"], bool, "", "Resume the run from its newest checkpoint."),
    "resume-phase": (["train"], int, "N", "Resume at phase N, or repeat it if it is finished."),
    "minutes": (["train"], float, "N", "Choose as many updates as fit into N minutes here."),
    "to": (["export"], str, "DIR", "Folder to write. It must be new or empty."),
    "half": (["export"], bool, "", "Write weights as float16, in half the bytes."),
    "session-hours": (["preflight"], float, "H", "Hours of one session; default: 12."),
    "compare": (["report"], str, "DIR", "Write a page about the comparison in this folder."),
    "figures": (["report"], Literal["png", "svg", "pdf"], "KIND", "Format of figures beside PNG."),
}
"""Flags that are not settings: their commands, type, placeholder and meaning."""
ONE_OF = {
    "pretrained": "run",
    "resume-phase": "resume",
    "sampling.nsgf_steps": "nfe",
    "sampling.straight_steps": "nfe",
    "sampling.omega": "nfe",
}
"""Flags that exclude an option."""


def flags_of(command: str) -> Flags:
    """Return all flags of a command, without dashes, and the settings that each flag changes."""
    options = [name for name, (owners, *_) in OPTIONS.items() if command in owners]
    flags = {**dict.fromkeys(options, ()), **SHORT_FLAGS, "fake-data": ("data.fake",)}
    if command in ON_RUNS:
        flags |= OF_SAMPLING
    if command == "compare":
        flags["methods"] = ("compare.methods",)
    return flags | {key: (key,) for key in KEYS}


def used_flags(command: str) -> Flags:
    """Return the flags that have an effect on a command."""
    return {
        name: keys
        for name, keys in flags_of(command).items()
        if not keys or (is_used(command, keys[0]) and name != "out_dir")
    }


def form_of(name: str, keys: Keys) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for reading the value of a flag."""
    if name == "fake-data" or (not keys and OPTIONS[name][1] is bool):
        return {"action": "store_true"}
    return {"nargs": "?", "const": True} if name in ("smoke", "help") else {}


class _Parser(ArgumentParser):
    """A parser that raises UserError, and returns only the flags on the command line."""

    def error(self, message: str) -> NoReturn:
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            raise UserError(
                f"{stray}: must follow a flag, as in --exp 2d or --run DIR; lists have commas: 5,10"
            )
        raise UserError(message.removeprefix("argument "))


@naming(FLAG_NAMES, are_flags=True)
def parse(argv: list[str]) -> Request:
    """Return the request of a command line.

    Raises:
        UserError: the command or a flag is unknown, a flag occurs twice, a value has a wrong type;
            and the errors of :func:`nsgf.resolve.resolve`.
    """
    command, *words = argv
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}: must be one of {', '.join(COMMANDS)}")
    flags = flags_of(command)
    parser = _Parser(allow_abbrev=False, argument_default=SUPPRESS, add_help=False)
    given = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    for name in given:
        if name not in flags:
            owners = sorted(OPTIONS[name][0]) if name in OPTIONS else ()
            refuse_unknown(f"--{name}", used_flags(command), owners)
        if given.count(name) > 1:
            raise UserError(f"--{name}: given twice")
        parser.add_argument(f"--{name}", dest=name, **form_of(name, flags[name]))
    fanned = Layer()
    settings = Layer()
    options = Layer()
    for name, text in vars(parser.parse_args(words)).items():
        keys = flags[name]
        if keys:
            value = read_value(name, KEYS[keys[0]].kind, text)
            layer = settings if name in KEYS else fanned
            layer |= dict.fromkeys([key for key in keys if accepts(command, key)] or keys, value)
        else:
            options[name] = read_value(name, OPTIONS[name][1], text)
    for option, other in ONE_OF.items():
        if {option, other} <= {*fanned, *settings, *options}:
            raise UserError(f"--{option}: not allowed with --{other}")
    name = "report --compare" if "compare" in options else command
    for key in {**fanned, **settings, **options} if name in STRICT else ():
        if not is_used(name, key):
            takes = ", ".join(USES[name].split())
            raise UserError(f"{key}: has no effect on {name}, which takes only {takes}")
    # a short flag overrides --optim.KEY, and --PHASE.KEY overrides both
    common = {key: value for key, value in fanned.items() if key.startswith("optim.")}
    return resolve(
        command,
        {**fanned, **settings, **common},
        {**options, "words": words},
        keeps_total="sinkhorn-batch" in given,
    )
