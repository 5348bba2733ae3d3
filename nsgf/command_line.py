"""From a command line to a :class:`Request`.

Settings come in layers, later ones on top: defaults; the section ``optim`` of a file, or
``--optim.KEY``; what a phase sets itself in that file; --smoke; flags for several leaves at once;
flags for one leaf. In place of the file stands a run's saved configuration where a command works on
a run; there each phase has its own values already.
"""

import difflib
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsgf.config.files import (
    OF_PHASES,
    Content,
    config_folder,
    inherited,
    merged,
    nested,
    read_settings,
    resolved,
    with_type,
)
from nsgf.config.leaves import leaves, plain_type
from nsgf.config.schema import PHASES, Config, Settings
from nsgf.config.types import from_text
from nsgf.system.errors import UserError

if TYPE_CHECKING:
    from nsgf.run.folder import RunFolder

COMMANDS = {
    "train": "train the phases of an experiment, or go on with them",
    "sample": "draw samples and pictures from a trained run",
    "evaluate": "measure a trained run: W2, FID, precision and recall",
    "compare": "train and measure NSGF and other methods on equal terms, resumable",
    "preflight": "say what training would take on this machine, without training",
}
WITHOUT_RUN = ("compare", "preflight")


def _of_all_phases(name: str) -> tuple[str, ...]:
    return tuple(f"{phase}.{name}" for phase in OF_PHASES)


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
SWITCHES = {"--fake-data": "data.fake", "--smoke": "smoke", "--resume": "", "--print-config": ""}
"""Flags without a value, and the leaf that they make true, if they are settings."""
SMOKE: dict[str, Any] = {
    **dict.fromkeys(_of_all_phases("iterations"), 5),
    **dict.fromkeys(_of_all_phases("batch_size"), 4),
    **{"pool.num_batches": 2, "sinkhorn.batch_size": 8, "train.accumulate": 1},
    **{"train.log_every": 1, "train.checkpoint_every": 3},
    **{"sampling.num_samples": 4, "sampling.straight_steps": 2, "evaluation.num_samples": 4},
    **{"evaluation.repeats": 1, "evaluation.w2_samples": 4},
    **{"evaluation.inception": False, "evaluation.classifier": False},
    **{"compare.seeds": 1, "compare.nfe": [2, 4], "reflow.pairs": 16, "reflow.ode_steps": 2},
}
"""What --smoke sets besides ``smoke``; explicit flags win."""


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


@dataclass
class Control:
    """Flags that are no settings: which file, which run, what to do with it."""

    config: str | None = None
    run: str | None = None
    resume: bool = False
    resume_phase: int | None = None
    print_config: bool = False

    @property
    def resumes(self) -> bool:
        return self.resume or self.resume_phase is not None


CONTROL = {
    **dict.fromkeys(COMMANDS, ("config", "print_config", "run")),
    **dict.fromkeys(WITHOUT_RUN, ("config", "print_config")),
    "train": ("config", "print_config", "run", "resume", "resume_phase"),
}
"""Fields of :class:`Control` that are flags of a command."""


def parse(argv: list[str]) -> Request:
    """The request behind a command line.

    Raises:
        UserError: anything wrong with it, in one line.
    """
    try:
        if not argv or argv[0] not in COMMANDS:
            named = repr(argv[0]) if argv else "missing"
            raise UserError(f"unknown command {named}: must be one of {', '.join(COMMANDS)}")
        return _parse(argv[0], argv[1:])
    except OSError as error:
        raise UserError(f"cannot use {error.filename or 'a path'}: {error.strerror}") from error
    except (MemoryError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"command line or configuration: too large or nested ({kind})") from error


def _parse(command: str, words: list[str]) -> Request:
    given = _flags(command, words)
    control, flags = _typed(command, given)
    file = _file(control, flags)
    run = _find_run(command, control, flags, file)
    base, own = _base(run, file, flags, laid_over_run=control.config is not None)
    smoke = nested(SMOKE) if flags.get("smoke") else {}
    config = resolved(merged(merged(base, smoke), flags), base.get("phases"))
    notes: tuple[str, ...] = ()
    if "--sinkhorn-batch" in given and not (smoke or "num_batches" in flags.get("pool", {})):
        config, notes = _keep_pool_total(config, resolved(base))
    from nsgf.checks import check  # loads torch, for whose seconds a typo need not wait

    check(config)
    if run:
        from nsgf.run.folder import at_home

        asked = {
            f"{section}.{key}"
            for section in ("data", "tracking")
            for key in (*own.get(section, {}), *flags.get(section, {}))
        }
        if command in ("sample", "evaluate") and "out_dir" in flags:
            asked.add("out_dir")
        wanted, config = config.tracking.wandb, at_home(config, run, asked)
        if command == "train" and wanted != config.tracking.wandb:
            notes += (f"not mirrored as the run's settings say: add --wandb {wanted} for that",)
    where, what = run.path if run else None, (control.resume, control.resume_phase)
    return Request(command, config, where, *what, control.print_config, notes)


# --- flags --------------------------------------------------------------------------------------


def _flags(command: str, words: list[str]) -> dict[str, str]:
    """The flags of a command line with their values, each once; switches have ``true``.

    Raises:
        UserError: a flag that there is not, twice, without its value, or a word that is no flag.
    """
    given: dict[str, str] = {}
    left = list(words)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        _check_flag(command, flag)
        if flag in given:
            raise UserError(f"{flag}: given twice")
        if flag in SWITCHES:
            if equals:
                raise UserError(f"{flag} takes no value")
            value = "true"
        elif not equals:
            if not left or left[0].startswith("--"):
                raise UserError(f"{flag} needs a value")
            value = left.pop(0)
        given[flag] = value
    return given


def _check_flag(command: str, flag: str) -> None:
    known = _known(command)
    if flag in known:
        return
    if not flag.startswith("--"):
        raise UserError(f"{flag}: no flag; flags begin with --")
    if any(key.startswith(f"{flag}.") for key in known):
        raise UserError(f"{flag} is a section; set its keys: {flag}.KEY VALUE")
    nearest = difflib.get_close_matches(flag, sorted(known), 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"nsgf {command} --help lists them"
    raise UserError(f"{flag}: unknown flag; {hint}")


@functools.cache
def _known(command: str) -> frozenset[str]:
    control = ["--" + name.replace("_", "-") for name in CONTROL[command]]
    settings = [flag for flag, key in SWITCHES.items() if key]
    return frozenset([*control, *settings, *SHORT_FLAGS, *(f"--{key}" for key in _types())])


def _typed(command: str, given: dict[str, str]) -> tuple[Control, Content]:
    """Flags with values of the schema's types: those of :class:`Control`, and settings."""
    control: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if command == "compare" and "--dataset" in given:
        settings["compare.targets"] = []
    by_reach = sorted(given, key=lambda flag: flag not in SHORT_FLAGS)  # those of one leaf last
    for flag in by_reach:
        name = flag[2:].replace("-", "_")
        if name in CONTROL[command]:
            control[name] = True if flag in SWITCHES else given[flag]
            continue
        for key in _leaves_of(command, flag):
            settings[key] = with_type(key, given[flag], _types()[key], from_text)
    return _control(control), nested(settings)


def _leaves_of(command: str, flag: str) -> tuple[str, ...]:
    """The leaves that a flag sets; where a flow is trained, --steps are those of sampling."""
    if flag == "--steps" and command in ("sample", "evaluate"):
        return ("sampling.nsgf_steps",)
    return SHORT_FLAGS.get(flag) or (SWITCHES.get(flag) or flag[2:],)


@functools.cache
def _types() -> dict[str, Any]:
    """The type of each leaf, by dotted key."""
    return {key: plain_type(item) for key, _, item in leaves(Settings())}


def _control(values: dict[str, Any]) -> Control:
    number = values.get("resume_phase")
    if number is not None:
        if number not in map(str, range(1, len(PHASES) + 1)):
            raise UserError(f"--resume-phase {number}: must be 1 to {len(PHASES)}")
        values["resume_phase"] = int(number)
    control = Control(**values)
    if control.resume and control.resume_phase:
        raise UserError("--resume and --resume-phase exclude each other")
    return control


# --- files and runs -----------------------------------------------------------------------------


def _file(control: Control, flags: Content) -> Path | None:
    """The file behind --config FILE or --exp NAME, if the command line names one.

    Raises:
        UserError: there is none of that name.
    """
    if control.config is not None:
        return Path(control.config)
    exp = flags.get("exp")
    if exp is None or control.run is not None:
        return None
    folder = config_folder()
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if exp not in names:
        raise UserError(f"exp = {exp}: must be one of {', '.join(names)}, or use --config")
    return folder / f"{exp}.yaml"


def _find_run(
    command: str, control: Control, flags: Content, file: Path | None
) -> "RunFolder | None":
    """The run folder that the command works on; None for a new run.

    Raises:
        UserError: there is none, or it is a run of another experiment.
    """
    if command in WITHOUT_RUN or (command == "train" and not (control.run or control.resumes)):
        return None
    from nsgf.checks import check_places, expanded
    from nsgf.run.folder import RunFolder, check_links

    if control.run is not None:
        return check_links(RunFolder.open(Path(expanded("run", control.run))))
    if file is None:
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run")
    config = resolved(merged(_without_optim(read_settings(file)), _without_optim(flags)))
    check_places(config)
    return check_links(RunFolder.newest(Path(config.out_dir), config.exp, smoke=config.smoke))


def _base(
    run: "RunFolder | None", file: Path | None, flags: Content, *, laid_over_run: bool
) -> tuple[Content, Content]:
    """The settings below the flags, and of those what --config FILE says.

    ``--optim.KEY`` is taken out of the flags: it stands below what a phase sets itself.

    Raises:
        UserError: there is no file, or ``--optim.KEY`` would have no effect.
    """
    optim = {"optim": flags.pop("optim")} if "optim" in flags else {}
    if run is None:
        if file is None:
            names = ", ".join(sorted(file.stem for file in config_folder().glob("*.yaml")))
            raise UserError(f"say --exp NAME ({names}) or --config FILE")
        content = read_settings(file)
        return inherited(merged(content, optim)), content
    if optim:
        key = next(iter(optim["optim"]))
        raise UserError(
            f"--optim.{key}: in a run each phase has values of its own; "
            f"say --nsgf.{key} or that of another phase"
        )
    saved = read_settings(run.config_file)
    if flags.get("exp") not in (None, saved["exp"]):
        raise UserError(f"exp = {flags['exp']}: {run.path} is a run of another experiment")
    own = inherited(read_settings(file)) if file is not None and laid_over_run else {}
    return merged(inherited(saved), own), own


def _without_optim(content: Content) -> Content:
    return {key: value for key, value in content.items() if key != "optim"}


def _keep_pool_total(config: Config, base: Config) -> tuple[Config, tuple[str, ...]]:
    """More batches for a smaller --sinkhorn-batch, so that the pool keeps its total."""
    total = base.sinkhorn.batch_size * base.pool.num_batches
    n = config.sinkhorn.batch_size
    if n is None or n < 1:
        return config, ()
    batches = -(-total // n)
    note = (
        f"--sinkhorn-batch {n}: pool.num_batches {base.pool.num_batches} -> {batches}, which keeps "
        f"the pool's total of {total} trajectories (another number: --pool-batches)"
    )
    return replace(config, pool=replace(config.pool, num_batches=batches)), (note,)
