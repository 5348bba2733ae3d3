"""From a command line to a :class:`Request`.

Settings come from the dataclasses' defaults, then the YAML file (or the run's saved configuration),
then flags. Every leaf of the configuration is a flag; short flags stand for one or more leaves.
"""

import argparse
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from nsgf import __version__
from nsgf.checks import check, check_places, expanded, refuse_nulls
from nsgf.config.files import SECTIONS, config_folder, merged, read_settings, refuse_costly
from nsgf.config.parsers import ControlParser, Parser
from nsgf.config.schema import PEER_PHASES, PHASES, Config
from nsgf.run.folder import RunFolder, at_home, check_links
from nsgf.system.errors import UserError


def _of_all_phases(name: str) -> tuple[str, ...]:
    return tuple(f"{phase}.{name}" for phase in (*PHASES, *PEER_PHASES))


SHORT_FLAGS: dict[str, tuple[str, ...]] = {
    "--train-iters": _of_all_phases("iterations"),
    "--batch-size": _of_all_phases("batch_size"),
    "--lr": _of_all_phases("lr"),
    "--pool-batches": ("pool.num_batches",),
    "--sinkhorn-batch": ("sinkhorn.batch_size",),
    "--steps": ("flow.steps",),  # sampling.nsgf_steps where a trained flow is only used
    "--dataset": ("data.name",),
    "--data-root": ("data.root",),
    "--out-dir": ("out_dir",),
    "--num-samples": ("sampling.num_samples", "evaluation.num_samples"),
    "--precision": ("train.precision",),
    "--accumulate": ("train.accumulate",),
    "--max-hours": ("train.max_hours",),
    "--detect-anomaly": ("train.detect_anomaly",),
    "--inception-weights": ("evaluation.inception_weights",),
    "--wandb": ("tracking.wandb",),
}
"""Short flags with a value and every leaf they set; --seed, --device and --exp are leaves."""

SWITCHES: dict[str, tuple[str, ...]] = {
    "--fake-data": ("--data.fake", "true"),
    "--smoke": (
        *("--train-iters", "5", "--pool-batches", "2", "--sinkhorn-batch", "8"),
        *("--batch-size", "4", "--num-samples", "4", "--evaluation.repeats", "1"),
        *("--train.log_every", "1", "--train.checkpoint_every", "3"),
        *("--evaluation.inception", "false", "--evaluation.classifier", "false"),
        *("--sampling.straight_steps", "2", "--evaluation.w2_samples", "4"),
        *("--compare.seeds", "1", "--compare.nfe", "[2,4]"),
        *("--reflow.pairs", "16", "--reflow.ode_steps", "2"),
    ),
}
"""Flags without a value and what they stand for; explicit flags win over --smoke."""

COMMANDS = ("train", "sample", "evaluate", "compare", "preflight")
WITHOUT_RUN = ("compare", "preflight")
COMMAND_HELP = {
    "train": "train the phases of an experiment, or go on with them",
    "sample": "draw samples and pictures from a trained run",
    "evaluate": "measure a trained run: W2, FID, precision and recall",
    "compare": "train and measure NSGF and other methods on equal terms, resumable",
    "preflight": "say what training would take on this machine, without training",
}


@dataclass
class Request:
    """A parsed command line."""

    command: str
    config: Config
    run: Path | None = None
    resume: bool = False
    resume_phase: int | None = None
    print_config: bool = False
    notes: tuple[str, ...] = ()


def parse(argv: list[str]) -> Request:
    """The request behind a command line.

    Raises:
        UserError: anything wrong with it, in one line.
        SystemExit: after printing help or the version.
    """
    try:
        return _parse(argv)
    except OSError as error:
        raise UserError(f"cannot use {error.filename or 'a path'}: {error.strerror}") from error
    except (MemoryError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"command line or configuration: too large or nested ({kind})") from error


def _parse(argv: list[str]) -> Request:
    command = _command(argv)
    if "--help" in argv or "-h" in argv:
        _config_parser(command).print_help()
        raise SystemExit(0)
    control, _ = _control_parser(command).parse_known_args(argv[1:])
    for key, value in vars(control).items():
        if isinstance(value, list):  # what argparse makes of --key=--
            raise UserError(f"--{key} needs a value")
    if command == "train" and control.resume and control.resume_phase:
        raise UserError("--resume and --resume-phase exclude each other")
    run = _find_run(command, control, argv)
    base = _base_files(control, run)
    flags = _expand(argv[1:], command)
    config = _read(command, base, flags)
    if run and control.exp not in (None, _read(command, base[:1], []).exp):
        raise UserError(f"exp = {control.exp}: {run.path} is a run of another experiment")
    notes: tuple[str, ...] = ()
    kept = ("--pool-batches", "--pool.num_batches", "--smoke")
    if _given(argv, "--sinkhorn-batch") and not _given(argv, *kept):
        config, notes = _keep_pool_total(config, _read(command, base, []))
    check(config)
    if run:
        asked = _asked(flags, control)
        if command in ("sample", "evaluate") and _given(flags, "--out_dir"):
            asked.add("out_dir")
        config = at_home(config, run, asked)
    return Request(
        command=command,
        config=config,
        run=run.path if run else None,
        resume=getattr(control, "resume", False),
        resume_phase=getattr(control, "resume_phase", None),
        print_config=control.print_config,
        notes=notes,
    )


# --- what to read -------------------------------------------------------------------------------


def _command(argv: list[str]) -> str:
    if argv and argv[0] in COMMANDS:
        return argv[0]
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        raise SystemExit(0)
    if argv[0] == "--version":
        print(__version__)
        raise SystemExit(0)
    raise UserError(f"unknown command {argv[0]!r}: must be one of {', '.join(COMMANDS)}")


def _overview() -> str:
    lines = ["usage: nsgf COMMAND [flags]", "", "Neural Sinkhorn Gradient Flow (NSGF++).", ""]
    lines += [f"  {name:10} {text}" for name, text in COMMAND_HELP.items()]
    return "\n".join([*lines, "", "nsgf COMMAND --help lists the flags of a command."])


def _find_run(command: str, control: argparse.Namespace, argv: list[str]) -> RunFolder | None:
    """The run folder that the command works on; None for a new run."""
    if command in WITHOUT_RUN:
        return None
    if control.run is not None:
        return check_links(RunFolder.open(Path(expanded("run", control.run))))
    resumes = command == "train" and (control.resume or control.resume_phase is not None)
    if command == "train" and not resumes:
        return None
    if control.exp is None and control.config is None:
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run")
    where = _only(argv, "--out-dir", "--out_dir", "--exp")
    config = _read(command, [_config_file(control)], where)
    check_places(config)
    return check_links(RunFolder.newest(Path(config.out_dir), config.exp))


def _base_files(control: argparse.Namespace, run: RunFolder | None) -> list[Path]:
    """The files below the flags: the run's own settings with --config FILE on top, or one YAML."""
    if run is None:
        return [_config_file(control)]
    return [run.config_file, *([_config_file(control)] if control.config else [])]


def _config_file(control: argparse.Namespace) -> Path:
    """The YAML file behind --config FILE or --exp NAME."""
    if control.config is not None:
        file = Path(control.config)
        if not file.is_file():
            raise UserError(f"--config {file}: no such file")
        return file
    folder = config_folder()
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if control.exp is None:
        raise UserError(f"say --exp NAME ({', '.join(names)}) or --config FILE")
    if control.exp not in names:
        raise UserError(f"exp = {control.exp}: must be one of {', '.join(names)}, or use --config")
    return folder / f"{control.exp}.yaml"


# --- flags --------------------------------------------------------------------------------------


def _expand(arguments: list[str], command: str = "train") -> list[str]:
    """Command line with short flags replaced by the leaves they mean, --smoke's first."""
    smoke = list(SWITCHES["--smoke"]) if "--smoke" in arguments else []
    words = smoke + [word for word in arguments if word != "--smoke"]
    expanded: list[str] = []
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag.rstrip("+")[2:] in SECTIONS:
            raise UserError(f"{flag} is a section; set its keys: {flag}.KEY VALUE")
        if flag in SWITCHES and not equals:
            expanded += SWITCHES[flag]
        elif flag in SHORT_FLAGS:
            if not equals:
                if not words or words[0].startswith("--"):
                    raise UserError(f"{flag} needs a value")
                value = words.pop(0)
            leaves = SHORT_FLAGS[flag]
            if flag == "--steps" and command in ("sample", "evaluate"):
                leaves = ("sampling.nsgf_steps",)
            if flag == "--dataset" and command == "compare":
                expanded.append("--compare.targets=[]")
            expanded += [f"--{leaf}={value}" for leaf in leaves]
        else:
            expanded.append(word)
    return expanded


def _keep_pool_total(config: Config, base: Config) -> tuple[Config, tuple[str, ...]]:
    """More batches for a smaller --sinkhorn-batch, so that the pool keeps its total."""
    total = base.sinkhorn.batch_size * base.pool.num_batches
    n = config.sinkhorn.batch_size
    if n < 1:
        return config, ()
    batches = -(-total // n)
    note = (
        f"--sinkhorn-batch {n}: pool.num_batches {base.pool.num_batches} -> {batches}, which keeps "
        f"the pool's total of {total} flows (another number: --pool-batches)"
    )
    return replace(config, pool=replace(config.pool, num_batches=batches)), (note,)


def _given(argv: list[str], *flags: str) -> bool:
    return any(word.partition("=")[0] in flags for word in argv)


def _asked(flags: list[str], control: argparse.Namespace) -> set[str]:
    """Keys about the place of images that this command itself sets, not the run's own settings."""
    keys = {key for key in ("data.root", "data.download") if _given(flags, f"--{key}")}
    if control.config is not None:
        keys |= {f"data.{key}" for key in read_settings(Path(control.config)).get("data", {})}
    return keys


def _only(argv: list[str], *flags: str) -> list[str]:
    """The named flags of a command line with their values, expanded."""
    kept: list[str] = []
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.partition("=")[0] in flags:
            kept += [word] if "=" in word else [word, following]
    return _expand(kept)


# --- parsers ------------------------------------------------------------------------------------


def _add_control_arguments(parser: Any, command: str) -> None:
    """What says which run and which file; everything else is configuration."""
    parser.add_argument("--config", metavar="FILE", help="YAML file instead of --exp NAME")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved configuration and stop"
    )
    if command in WITHOUT_RUN:
        return
    parser.add_argument("--run", metavar="DIR", help="run folder; default: the newest of --exp")
    if command == "train":
        parser.add_argument(
            "--resume", action="store_true", help="go on from the newest checkpoint of the run"
        )
        parser.add_argument(
            "--resume-phase",
            type=int,
            choices=range(1, len(PHASES) + 1),
            metavar="N",
            help="go on at phase N after phase N-1; anew where phase N is finished",
        )


def _control_parser(command: str) -> argparse.ArgumentParser:
    parser = ControlParser(add_help=False, allow_abbrev=False)
    _add_control_arguments(parser, command)
    parser.add_argument("--exp")
    return parser


@functools.cache  # half the time of a command line; nothing of one stays in it
def _config_parser(command: str) -> ArgumentParser:
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = Parser(
        prog=f"nsgf {command}",
        description=COMMAND_HELP[command],
        epilog=_short_flag_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_control_arguments(parser, command)
    parser.add_class_arguments(Config)
    return parser


def _short_flag_help() -> str:
    lines = ["short flags:"]
    lines += [f"  {flag} VALUE: {', '.join(leaves)}" for flag, leaves in SHORT_FLAGS.items()]
    lines += [f"  {flag}: {' '.join(words)}" for flag, words in SWITCHES.items()]
    lines.append("  --sinkhorn-batch keeps the pool's total unless --pool-batches is given too")
    return "\n".join(lines)


def _read(command: str, base: list[Path], flags: list[str]) -> Config:
    """The configuration in the files ``base`` with ``flags`` on top, not yet checked for ranges."""
    content: dict[str, Any] = {}
    for file in base:
        content = merged(content, read_settings(file))
    for flag in flags:
        refuse_costly(flag.partition("=")[2] or flag, flag.partition("=")[0])
    parser = _config_parser(command)
    parsed = parser.parse_args(flags, namespace=parser.parse_object(content))
    found: Namespace = parser.instantiate(parsed)
    config = Config(**{name: getattr(found, name) for name in Config.__dataclass_fields__})
    refuse_nulls(config)
    return config
