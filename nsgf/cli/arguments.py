"""The commands, their flags, and how a command line becomes a :class:`Request`."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from nsgf.config.files import PRETRAINED, refuse_unknown
from nsgf.config.layers import KEYS, Layer
from nsgf.config.values import read_value
from nsgf.settings.effects import ON_RUNS, STRICT, USES, accepts, is_used
from nsgf.settings.resolve import ON_EXPORTS, WITHOUT_RUN, Request, resolve
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
    "bits-per-dim": ("evaluation.bits_images",),
    "tracker": ("tracking.tracker",),
}
"""Short flags with a value, without dashes, and the settings that each flag changes. A short flag
overrides ``--optim.KEY``."""
USUAL_VALUES = {"smoke": True, "help": True, "bits-per-dim": "256"}
"""Flags that may stand without a value, and the value that is then used."""
FLAG_NAMES = {keys[0]: f"--{flag}" for flag, keys in SHORT_FLAGS.items()}
"""Short flag of each setting by the setting's key, for messages."""
OF_SAMPLING = {"steps": ("sampling.nsgf_steps",)}
"""Short flags that change another setting in commands that train nothing."""
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
    "start": (
        ["sample"],
        str,
        "PATH",
        "Move the samples of this file or folder, in their order, instead of new ones.",
    ),
    "trajectory": (
        ["sample"],
        bool,
        "",
        "Write the start and the state after each step too, into --out FILE.npz or .npy.",
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
"""Flags that are not settings, each with commands, type, placeholder and meaning."""
ONE_OF = {
    "pretrained": "run",
    "resume-phase": "resume",
    "sampling.nsgf_steps": "nfe",
    "sampling.straight_steps": "nfe",
    "sampling.omega": "nfe",
}
"""Pairs of flags that exclude each other."""


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
    usual = USUAL_VALUES.get(name)
    return {"nargs": "?", "const": usual} if usual else {}


class _Parser(ArgumentParser):
    """A parser that raises UserError, and returns only the flags on the command line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


@naming(FLAG_NAMES, are_flags=True)
def parse(argv: list[str]) -> Request:
    """Return the request of a command line.

    Raises:
        UserError: the command or a flag is unknown, a flag occurs twice, a value has a wrong type,
            or :func:`nsgf.settings.resolve.resolve` fails.
    """
    command, *words = argv
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}: must be one of {', '.join(COMMANDS)}")
    texts = _read_flags(command, words)
    values = _read_values(command, texts)
    _check_flags(command, values)
    return resolve(
        command,
        values.settings,
        {**values.options, "words": words},
        keeps_total="sinkhorn-batch" in texts,
    )


@dataclass
class _FlagValues:
    """Values of the flags of a command line."""

    short: Layer = field(default_factory=Layer)
    """Settings of short flags, by key."""
    full: Layer = field(default_factory=Layer)
    """Settings of flags whose name is the key of a setting, by key."""
    options: Layer = field(default_factory=Layer)
    """Values of flags that are not settings, by flag."""

    @property
    def settings(self) -> Layer:
        """All settings by key. A short flag overrides ``--optim.KEY``. ``--PHASE.KEY`` overrides
        the short flag and ``--optim.KEY``."""
        common = {key: value for key, value in self.short.items() if key.startswith("optim.")}
        return {**self.short, **self.full, **common}

    @property
    def keys(self) -> list[str]:
        """Keys of settings, and flags that are not settings."""
        return [*{**self.short, **self.full, **self.options}]


def _read_flags(command: str, words: list[str]) -> dict[str, Any]:
    """Return the text of each flag on a command line; True for a flag without text. Raise UserError
    if a flag is unknown or occurs twice, or if a word follows no flag."""
    flags = flags_of(command)
    parser = _Parser(allow_abbrev=False, argument_default=SUPPRESS, add_help=False)
    names = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    for name in names:
        if name not in flags:
            owners = sorted(OPTIONS[name][0]) if name in OPTIONS else ()
            refuse_unknown(f"--{name}", used_flags(command), owners)
        if names.count(name) > 1:
            raise UserError(f"--{name}: given twice")
        parser.add_argument(f"--{name}", dest=name, **form_of(name, flags[name]))
    texts, stray = parser.parse_known_args(words)
    if stray:
        raise UserError(
            f"{' '.join(stray)}: must follow a flag, as in --exp 2d or --run DIR; lists have "
            "commas: 5,10"
        )
    return vars(texts)


def _read_values(command: str, texts: dict[str, Any]) -> _FlagValues:
    """Return the values of flags. Raise UserError if a value has a wrong type."""
    values = _FlagValues()
    flags = flags_of(command)
    for name, text in texts.items():
        keys = flags[name]
        if keys:
            value = read_value(name, KEYS[keys[0]].kind, text)
            layer = values.full if name in KEYS else values.short
            accepted = [key for key in keys if accepts(command, key)]
            layer.update(dict.fromkeys(accepted or keys, value))
        else:
            values.options[name] = read_value(name, OPTIONS[name][1], text)
    return values


def _check_flags(command: str, values: _FlagValues) -> None:
    """Raise UserError if flags exclude each other, or if a command of STRICT does not use a
    flag."""
    for flag, option in ONE_OF.items():
        if {flag, option} <= {*values.keys}:
            raise UserError(f"--{flag}: not allowed with --{option}")
    name = "report --compare" if "compare" in values.options else command
    for key in values.keys if name in STRICT else ():
        if not is_used(name, key):
            takes = ", ".join(USES[name].split())
            raise UserError(f"{key}: has no effect on {name}, which takes only {takes}")
