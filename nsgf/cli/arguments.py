"""Turn a command line into a :class:`Request`.

Settings come in layers; a later layer overrides earlier ones: defaults; the method's file; choices
for own data (:mod:`nsgf.data.choices`); the experiment's file; its section for the method; --smoke;
short flags for several settings at once; flags for one setting. Within a layer the section
``optim`` applies to each phase that does not set its own value. A command that works on a run uses
the run's saved configuration instead of both files.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsgf.cli.flags import COMMANDS, ON_EXPORTS, SMOKE, WITHOUT_RUN, command_parser, short_flags
from nsgf.config.files import (
    Content,
    apply_optim,
    build,
    config_folder,
    experiments,
    merge_settings,
    method_layers,
    nest_keys,
    overridden_settings,
    parse_settings,
    pretrained_runs,
    read_settings,
)
from nsgf.config.schema import OF_PHASES, Config
from nsgf.system.errors import UserError, list_names, suggest

if TYPE_CHECKING:
    from nsgf.run.folder import RunFolder

ALLOWED = {
    "list": {"out_dir"},
    "report --compare": {"compare", "figures", "out_dir"},
    "export": {"exp", "out_dir", "smoke", "sampling"},
}
"""Settings that a command takes, for commands that take only these."""


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
    half: bool = False
    nfe: int | None = None
    out: str | None = None
    session_hours: float = 12.0
    figures: str = "png"
    compare: Path | None = None
    methods: tuple[Config, ...] = ()
    """Settings of each method of a comparison; ``config`` has those of the experiment's method."""
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Arguments after the command."""


def parse(argv: list[str]) -> Request:
    """Return the request of a command line. Raise UserError if anything in it is wrong."""
    if not argv or argv[0] not in COMMANDS:
        named = repr(argv[0]) if argv else "missing"
        raise UserError(f"unknown command {named}: must be one of {', '.join(COMMANDS)}")
    command, words = argv[0], argv[1:]
    flags = command_parser(command).parse_flags(words)
    control, short = flags.pop("control", {}), flags.pop("short", {})
    keys = short_flags(command)
    fanned_out = {key: value for flag, value in short.items() for key in keys[flag]}
    settings = merge_settings(nest_keys(fanned_out), flags)
    result = _request(command, control, settings, "--sinkhorn-batch" in short)
    return replace(result, words=tuple(words))


def request(command: str, control: Content, settings: Mapping[str, Any]) -> Request:
    """Return the request of a call from Python. ``control`` holds arguments that are not settings,
    e.g. ``{"run": "runs/2d-..."}``. Settings have dotted keys. Raises as :func:`parse`."""
    return _request(command, control, parse_settings(settings))


def _request(
    command: str, control: Content, flags: Content, smaller_batches: bool = False
) -> Request:
    from nsgf.checks import expand_path

    flags = apply_optim(flags)  # --optim.KEY is a flag of every phase
    if command == "compare" and {"name", "source"} & set(flags.get("data", {})):
        flags = merge_settings({"compare": {"targets": []}}, flags)
    _check_allowed(command, control, flags)
    if name := control.pop("pretrained", None):
        if name not in pretrained_runs():
            raise UserError(f"pretrained = {name}: must be one of {', '.join(pretrained_runs())}")
        control["run"] = str(pretrained_runs()[name])
    for key in {"run", "config", "compare"} & set(control):
        control = {**control, key: expand_path(key, control[key])}
    file = _file(control, flags)
    own = read_settings(file) if file else {}
    run, found = _find_run(command, control, flags, own)
    if run:
        own = own if "config" in control else {}
        content = _settings_of_run(run, flags, own)
    elif "compare" in control:
        content = {"out_dir": os.path.dirname(os.path.abspath(control["compare"]))}
    elif own or command == "list":
        content = own
    else:
        names = ", ".join(experiments())
        raise UserError(f"use {suggest('exp', 'NAME')} ({names}) or {suggest('config', 'FILE')}")
    method = flags.pop("method", None) if run is None else None
    config, flags, notes = _configure(content, method, flags, run, smaller_batches)
    from nsgf.checks import check_training  # loads torch

    if command in ("train", "preflight"):
        check_training(config)
    methods: tuple[Config, ...] = ()
    for name in config.compare.methods if command == "compare" else ():
        try:
            each, _, told = _configure(content, name, flags, None, smaller_batches)
            check_training(each)
        except UserError as error:
            raise UserError(f"{error} (method {name})") from error
        methods += (each,)
        notes += tuple(note for note in told if note.startswith(f"method {name}: "))
    if run:
        home = os.path.dirname(os.path.abspath(run.path))
        out = os.path.abspath(os.path.expanduser(flags.get("out_dir", home)))
        if command == "train" and "run" in control and out != home:
            raise UserError(f"out_dir = {out}: the run stays in {run.path}; omit out_dir")
        config, told = _without_unsafe_settings(command, config, run, flags, own)
        notes = (found,) * bool(found) + notes + told
    how = {key: value for key, value in control.items() if key not in ("config", "run")}
    where = run.path if run else None
    return Request(command, config, where, methods=methods, notes=notes, **how)


def _configure(
    content: Content,
    method: str | None,
    flags: Content,
    run: "RunFolder | None",
    smaller_batches: bool,
) -> tuple[Config, Content, tuple[str, ...]]:
    """Return three things: the checked configuration of a run, or of one method of an experiment;
    the flags, completed by the inspection of own data; notes for the user."""
    # these load torch; typos are reported before
    from nsgf.checks import check, check_values, fit_to_classes
    from nsgf.data import target_set
    from nsgf.data.choices import choose_for_own_data
    from nsgf.data.own import data_path

    below, own = method_layers(content, method) if run is None else (Content(), content)
    base, flags, notes = choose_for_own_data(below, own, flags, check_values, is_new=run is None)
    smoke = nest_keys(SMOKE) if flags.get("smoke") and not run else {}
    config = build(Config, merge_settings(base, smoke, flags))
    if method and method.endswith((".yaml", ".yml")):
        unused = {"method", *OF_PHASES} - {*config.phases}
        file = {key: value for key, value in below.items() if key not in unused}
        if told := list(overridden_settings(file, merge_settings(base, flags))):
            notes += (f"method {method}: experiment or flags win: {list_names(told)}",)
    if not run and (smoke or "conditional" in flags.get("data", {})):
        chosen, fitted = fit_to_classes(config)
        config = build(Config, merge_settings(base, smoke, chosen, flags))
        notes += fitted
    if smaller_batches and not (smoke or "num_batches" in flags.get("pool", {})):
        planned = build(Config, base)
        for each in (planned, config):
            check_values(each)
        total = planned.sinkhorn.batch_size * planned.pool.num_batches
        batches = -(-total // config.sinkhorn.batch_size)
        config = replace(config, pool=replace(config.pool, num_batches=batches))
        notes += (
            f"pool.num_batches {planned.pool.num_batches} -> {batches} keeps the pool's total of "
            f"{total} trajectories (use {suggest('pool.num_batches')} for another number)",
        )
    check(config)
    if "download" in flags.get("data", {}) and "download" not in target_set(config.data).uses:
        raise UserError(f"data.download: has no effect for {config.data.name}; leave it out")
    if config.data.path is not None:  # later commands may start in another folder
        path = str(data_path(config.data).absolute())
        config = replace(config, data=replace(config.data, path=path))
    return config, flags, notes


def _check_allowed(command: str, control: Content, flags: Content) -> None:
    """Raise UserError for settings that have no effect on a command, or a missing --to."""
    name = "report --compare" if "compare" in control else command
    given = {*flags, *control} if name != "export" else {*flags}
    if name in ALLOWED and (others := sorted(given - ALLOWED[name])):
        allowed = ", ".join(sorted(ALLOWED[name]))
        raise UserError(f"{others[0]}: has no effect on {name}, which takes only {allowed}")
    if command == "export" and "to" not in control:
        raise UserError("export needs --to DIR, the folder that it writes")
    if flags.get("data", {}).get("found"):
        raise UserError("data.found: is filled in by the program; leave it out")


# --- files and runs -----------------------------------------------------------------------------


def _file(control: Content, flags: Content) -> Path | None:
    """Return the file of --config FILE or --exp NAME; None without either."""
    if "config" in control:
        return Path(control["config"])
    exp = flags.get("exp")
    if exp is None or "run" in control:
        return None
    if exp not in experiments():
        names = ", ".join(experiments())
        raise UserError(f"exp = {exp}: must be one of {names}, or use {suggest('config', 'FILE')}")
    return config_folder() / f"{exp}.yaml"


def _find_run(
    command: str, control: Content, flags: Content, own: Content
) -> tuple["RunFolder | None", str]:
    """Return the run folder that the command works on, None for a new run, and a line about how it
    was found. ``own``: settings of the experiment's file, whose ``out_dir`` is searched.
    """
    is_new = command == "train" and not {"run", "resume", "resume_phase"} & set(control)
    if command in WITHOUT_RUN or "compare" in control or is_new:
        return None, ""
    from nsgf.checks import check_values
    from nsgf.run.newest import newest_run
    from nsgf.share.exported import open_run

    if "run" in control:
        run = open_run(control["run"])
        if run.results_name and command not in ON_EXPORTS:
            allowed = " and ".join(ON_EXPORTS)
            raise UserError(f"run = {run.path}: an exported run, for {allowed} only")
        return run, ""
    if not own:
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run")
    config = build(Config, merge_settings(apply_optim(own), flags))
    check_values(config)
    return newest_run(
        Path(config.out_dir),
        config.exp,
        smoke=config.smoke,
        method=flags.get("method"),
        resume=command == "train",
    )


def _settings_of_run(run: "RunFolder", flags: Content, own: Content) -> Content:
    """Check that flags fit a run. Return its settings, overridden by those of --config FILE."""
    saved = read_settings(run.config_file)
    for key in ("exp", "method"):
        if flags.get(key) not in (None, saved.get(key)):
            raise UserError(f"{key} = {flags[key]}: {run.path} has {key} {saved.get(key)}")
    if flags.get("smoke") and not saved.get("smoke"):
        raise UserError(f"smoke: {run.path} is no smoke run; leave it out, or train a new run")
    return merge_settings(apply_optim(saved), apply_optim(own))


def _without_unsafe_settings(
    command: str, config: Config, run: "RunFolder", flags: Content, own: Content
) -> tuple[Config, tuple[str, ...]]:
    """Return the settings of a run, and notes for the user. Drop saved settings that a run's file
    may not decide; keep those given by ``flags`` or by --config FILE (``own``)."""
    from nsgf.run.foreign import drop_unsafe_settings
    from nsgf.run.trackers import require_tracker

    asked = {
        f"{section}.{key}"
        for section in ("data", "tracking")
        for key in (*own.get(section, {}), *flags.get(section, {}))
    }
    if "out_dir" in flags:
        asked.add("out_dir")
    wanted, config = config.tracking.tracker, drop_unsafe_settings(config, run, asked)
    if command == "train" and "tracking.tracker" in asked:
        require_tracker(config)
    if command == "train" and wanted != config.tracking.tracker:
        add = suggest("tracking.tracker", wanted)
        told = f"the run's tracker {wanted} is not used: add {add} to use it"
        return config, (told,)
    return config, ()
