"""Turn a command line into a :class:`Request`.

Settings come in layers, later ones win: defaults; the method's file; choices for own data
(:mod:`nsgf.data.choices`); the experiment's file; its section for the method; --smoke; short flags
for several leaves at once; flags for one leaf. Within a layer the section ``optim`` holds for every
phase that does not set a value of its own. A command that works on a run takes the run's saved
configuration in place of both files.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsgf.cli.flags import COMMANDS, ON_SAMPLES, SMOKE, WITHOUT_RUN, command_parser, short_flags
from nsgf.config.files import (
    Content,
    build,
    config_folder,
    experiments,
    given,
    inherited,
    merged,
    nested,
    read_settings,
    with_method,
)
from nsgf.config.schema import Config
from nsgf.system.errors import UserError, cause

if TYPE_CHECKING:
    from nsgf.run.folder import RunFolder


MOVED = {
    "digits-paper": ("digits", "nsgf++"),
    "mnist-paper": ("mnist", "nsgf++"),
    "2d-onecall": ("2d", "onecall+"),
    "digits-onecall": ("digits", "onecall"),
    "mnist-onecall": ("mnist", "onecall"),
}
"""Experiments of earlier versions, as an experiment and a method of today."""


@dataclass
class Request:
    """A parsed command line."""

    command: str
    config: Config
    run: Path | None = None
    resume: bool = False
    resume_phase: int | None = None
    print_config: bool = False
    to: str | None = None
    session_hours: float = 12.0
    figures: str = "png"
    compare: Path | None = None
    methods: tuple[Config, ...] = ()
    """Settings of each method of a comparison; ``config`` are those of the experiment's own."""
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Words behind the command."""


def parse(argv: list[str]) -> Request:
    """Return the request of a command line.

    Raises:
        UserError: anything wrong with it, in one line.
    """
    with _in_one_line():
        if not argv or argv[0] not in COMMANDS:
            named = repr(argv[0]) if argv else "missing"
            raise UserError(f"unknown command {named}: must be one of {', '.join(COMMANDS)}")
        control, flags, smaller_batches = _flags(argv[0], argv[1:])
        return _request(argv[0], control, flags, tuple(argv[1:]), smaller_batches)


def request(command: str, control: Content, settings: Mapping[str, Any]) -> Request:
    """Return the request of a call from Python.

    Args:
        command: one of :data:`nsgf.cli.flags.COMMANDS`.
        control: what is no setting, as ``{"run": "runs/2d-..."}``.
        settings: what flags would set, by dotted key.

    Raises:
        UserError: as :func:`parse`.
    """
    with _in_one_line():
        return _request(command, control, given(settings), (), False)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn errors of the system and too large input into UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot use {error.filename or 'a path'}: {cause(error)}") from error
    except (MemoryError, RecursionError) as error:
        kind = type(error).__name__
        raise UserError(f"command line or configuration: too large or nested ({kind})") from error


def _request(
    command: str, control: Content, flags: Content, words: tuple[str, ...], smaller_batches: bool
) -> Request:
    flags = inherited(flags)  # --optim.KEY is a flag of every phase
    if command == "export":
        _refuse_changes(control, flags)
    has_settings = command != "list" and "compare" not in control
    if not has_settings:
        _refuse_settings(command, {*flags, *control})
    file = _file(control, flags)
    run = _find_run(command, control, flags, file)
    content = Content()
    if has_settings:
        content = _content(run, file, flags, laid_over_run="config" in control)
    elif "compare" in control:
        content = {"out_dir": os.path.dirname(os.path.abspath(_place("compare", control)))}
    if flags.get("data", {}).get("found"):
        raise UserError("--data.found: is filled in by the program; leave it out")
    asked = flags.pop("method", None) if run is None else None
    config, flags, notes = _configure(content, asked, flags, run, smaller_batches)
    if command == "train" and run and "run" in control:
        _refuse_move(run, flags)
    methods: tuple[Config, ...] = ()
    if command == "compare":
        methods = tuple(
            _configure(content, method, flags, None, smaller_batches)[0]
            for method in config.compare.methods
        )
    if run:
        from nsgf.run.folder import drop_unsafe_settings
        from nsgf.run.trackers import require_tracker

        laid_over = read_settings(file) if file is not None and "config" in control else {}
        given = {
            f"{section}.{key}"
            for section in ("data", "tracking")
            for key in (*laid_over.get(section, {}), *flags.get(section, {}))
        }
        if command in ON_SAMPLES and "out_dir" in flags:
            given.add("out_dir")
        wanted, config = config.tracking.tracker, drop_unsafe_settings(config, run, given)
        if command == "train" and "tracking.tracker" in given:
            require_tracker(config)
        if command == "train" and wanted != config.tracking.tracker:
            notes += (
                f"{wanted} is not used, though the run's settings say so: add --tracker {wanted}",
            )
    how = {key: value for key, value in control.items() if key not in ("config", "run")}
    if "compare" in how:
        how["compare"] = _place("compare", control)
    where = run.path if run else None
    return Request(command, config, where, methods=methods, notes=notes, words=words, **how)


def _configure(
    content: Content,
    method: str | None,
    flags: Content,
    run: "RunFolder | None",
    smaller_batches: bool,
) -> tuple[Config, Content, tuple[str, ...]]:
    """Return the checked configuration of a method of an experiment, or of a run.

    Besides it the flags, with what was found of own data, and notes for the user.

    Raises:
        UserError: there is no such method, or a setting is wrong.
    """
    # loads torch: a typo need not wait for it
    from nsgf.checks import check, check_values, fit_to_classes
    from nsgf.data import target_set
    from nsgf.data.choices import with_own_data

    below, own = with_method(content, method) if run is None else (Content(), content)
    base, flags, notes = with_own_data(below, own, flags, check_values, is_new=run is None)
    smoke = nested(SMOKE) if flags.get("smoke") and not run else {}
    settings = merged(base, smoke)
    config = build(Config, merged(settings, flags))
    if not run and (smoke or "conditional" in flags.get("data", {})):
        chosen, fitted = fit_to_classes(config)
        config = build(Config, merged(merged(settings, chosen), flags))
        notes += fitted
    if smaller_batches and not (smoke or "num_batches" in flags.get("pool", {})):
        planned = build(Config, base)
        check_values(planned)
        config, kept = _keep_pool_total(config, planned)
        notes += kept
    check(config)
    if "download" in flags.get("data", {}) and "download" not in target_set(config.data).uses:
        raise UserError(f"--data.download: has no effect for {config.data.name}; leave it out")
    return config, flags, notes


def _flags(command: str, words: list[str]) -> tuple[Content, Content, bool]:
    """Return control flags, settings, and whether --sinkhorn-batch is given."""
    given = command_parser(command).given(words)
    control, short = given.pop("control", {}), given.pop("short", {})
    settings: dict[str, Any] = {}
    names_data = "--dataset" in short or {"name", "source"} & set(given.get("data", {}))
    if command == "compare" and names_data:
        settings["compare.targets"] = []
    for flag, value in short.items():
        settings.update(dict.fromkeys(short_flags(command)[flag], value))
    return control, merged(nested(settings), given), "--sinkhorn-batch" in short


# --- files and runs -----------------------------------------------------------------------------


def _file(control: Content, flags: Content) -> Path | None:
    """Return the file of --config FILE or --exp NAME; None without either.

    Raises:
        UserError: there is none of that name.
    """
    if "config" in control:
        return Path(control["config"])
    exp = flags.get("exp")
    if exp is None or "run" in control:
        return None
    names = experiments()
    if exp in MOVED:
        raise UserError(f"exp = {exp}: is now --exp {MOVED[exp][0]} --method {MOVED[exp][1]}")
    if exp not in names:
        raise UserError(f"exp = {exp}: must be one of {', '.join(names)}, or use --config")
    return config_folder() / f"{exp}.yaml"


def _find_run(
    command: str, control: Content, flags: Content, file: Path | None
) -> "RunFolder | None":
    """Return the run folder that the command works on; None for a new run.

    Raises:
        UserError: there is none, or it is a run of another experiment.
    """
    if (
        command in WITHOUT_RUN
        or "compare" in control
        or (command == "train" and not {"run", "resume", "resume_phase"} & set(control))
    ):
        return None
    from nsgf.checks import check_values
    from nsgf.run.folder import RunFolder, check_links

    if "run" in control:
        run = RunFolder.open(_place("run", control))
    elif file is None:
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run")
    else:
        content = {key: value for key, value in read_settings(file).items() if key != "methods"}
        config = build(Config, merged(inherited(content), flags))
        check_values(config)
        run = RunFolder.newest(
            Path(config.out_dir), config.exp, smoke=config.smoke, method=flags.get("method")
        )
    check_links(run.path)
    return run


def _place(key: str, control: Content) -> Path:
    """Return the folder that a flag names, with ``~`` expanded."""
    from nsgf.checks import expanded

    return Path(expanded(key, control[key]))


def _content(
    run: "RunFolder | None", file: Path | None, flags: Content, *, laid_over_run: bool
) -> Content:
    """Return the settings of the experiment's file, or of the run with ``--config FILE`` on top.

    Raises:
        UserError: there is no file, or the run is not of this experiment or method, or no smoke
            run.
    """
    if run is None:
        if file is None:
            raise UserError(f"say --exp NAME ({', '.join(experiments())}) or --config FILE")
        return read_settings(file)
    saved = read_settings(run.config_file)
    for key in ("exp", "method"):
        if flags.get(key) not in (None, saved.get(key)):
            raise UserError(f"{key} = {flags[key]}: {run.path} has {key} {saved.get(key)}")
    if flags.get("smoke") and not saved.get("smoke"):
        raise UserError(f"--smoke: {run.path} is no smoke run; leave it out, or train a new run")
    own = read_settings(file) if file is not None and laid_over_run else {}
    own.pop("methods", None)
    return merged(inherited(saved), inherited(own))


def _refuse_settings(command: str, keys: set[str]) -> None:
    """Raise UserError if a command that trains and samples nothing is given settings."""
    allowed = {"list": ("out_dir",), "report": ("compare", "figures", "out_dir")}[command]
    if others := sorted(keys - {*allowed}):
        what = "list" if command == "list" else "report --compare"
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in allowed if key != "compare")
        raise UserError(f"{others[0]}: has no effect on {what}, which takes {flags} alone")


def _refuse_changes(control: Content, flags: Content) -> None:
    """Raise UserError if an export names no folder, or settings other than the run's."""
    if "to" not in control:
        raise UserError("export needs --to DIR, the folder that it writes")
    other = sorted(set(flags) - {"exp", "out_dir", "smoke", "sampling"})
    if other:
        raise UserError(
            f"--{other[0]}: an export has its run's settings; only those of sampling may change"
        )


def _refuse_move(run: "RunFolder", flags: Content) -> None:
    """Raise UserError if --out-dir would move a run that is trained further."""
    out, home = flags.get("out_dir"), os.path.dirname(os.path.abspath(run.path))
    if out is not None and os.path.abspath(os.path.expanduser(out)) != home:
        raise UserError(
            f"out_dir = {out}: the run stays where it is, {run.path}; leave --out-dir out, "
            "or move the folder"
        )


def _keep_pool_total(config: Config, base: Config) -> tuple[Config, tuple[str, ...]]:
    """Return the settings with more batches for a smaller --sinkhorn-batch, and a note."""
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
