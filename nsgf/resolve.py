"""Resolve the settings of a command or of a Python call: layers -> one checked configuration.

Later layers win: defaults; the method's file; choices for own data (:mod:`nsgf.data.choices`); the
experiment's file; its section for the method; the file of --config, which starts from the shipped
experiment that it names; its section for the method; --smoke; short flags for several settings at
once; flags for one setting. Within a layer the section ``optim`` applies to each phase that does
not set its own value. A command that works on a run uses the run's saved configuration instead of
the files. Typos are reported before this module imports torch.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from nsgf.config.files import (
    CONFIGS,
    EXPERIMENTS,
    PRETRAINED,
    Experiment,
    method_layers,
    read_experiment,
)
from nsgf.config.schema import OF_PHASES, Config, OwnName, PointName
from nsgf.config.settings import (
    SETTINGS,
    Layer,
    build,
    change,
    shorter_warmups,
    spread_optim,
)
from nsgf.config.values import expand_path, format_layer, format_value
from nsgf.effects import check_effects, find_ineffective
from nsgf.system.errors import UserError, list_names, suggest, wrong_setting

if TYPE_CHECKING:
    from nsgf.run.folder import RunFolder

WITHOUT_RUN = ("compare", "preflight")
ONE_TARGET = {"data.name", "data.source"}
"""Settings that replace the targets of a comparison by their own."""
ON_EXPORTS = ("sample", "evaluate")
"""Commands that also accept exported runs."""
SMOKE: Layer = {
    "optim.iterations": 5,
    "optim.batch_size": 4,
    "reflow.pairs": 16,
    "pool.num_batches": 2,
    "sinkhorn.batch_size": 8,
    "sinkhorn.target_batch": None,
    "nsf.coupling_batch": None,
    "train.log_every": 1,
    "train.checkpoint_every": 3,
    "train.accumulate": 1,
    "sampling.num_samples": 4,
    "sampling.straight_steps": 2,
    "evaluation.num_samples": 4,
    "evaluation.w2_samples": 4,
    "evaluation.features": "none",
    "compare.seeds": 1,
    "compare.nfe": [1, 2, 4],
    "compare.updates": [],
}
"""Settings of --smoke in a new run, besides ``smoke``. Explicit flags override them."""
LEAST_FLOWS = 16
"""Smallest number of flows when a pool shrinks because of fewer updates than in the recipe."""


@dataclass
class Request:
    """A command with its settings."""

    command: str
    config: Config
    run: "RunFolder | None" = None
    """The run that the command uses; None: a new run, or no run."""
    methods: Sequence[Config] = ()
    """Settings of each method of a comparison; ``config`` has those of the experiment's method."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user."""
    fixed: Collection[str] = ()
    """Settings of flags or arguments."""
    options: Layer = field(default_factory=dict)
    """Options of the command that are not settings, e.g. ``{"nfe": 10}``, and ``words``, those of
    the command line after the command."""

    @property
    def opened(self) -> "RunFolder":
        """The run of a command that needs a run."""
        assert self.run is not None
        return self.run


def resolve(
    command: str,
    given: Layer,
    options: Layer,
    *,
    run: "RunFolder | None" = None,
    keeps_total: bool = False,
) -> Request:
    """Return the request of a command.

    Args:
        command: its name.
        given: settings from flags or arguments, and facts that the caller knows.
        options: options that are not settings; ``run``, ``config``, ``pretrained``, ``compare``,
            ``resume`` and ``resume-phase`` decide where the other settings come from.
        run: the run that the command uses, if it is already open.
        keeps_total: whether the pool keeps its total size if the number of particles changes.

    Raises:
        UserError: a setting or an option is wrong, or a file or run is missing or damaged.
    """
    # options and flags
    flags = dict(given)
    given = spread_optim(given)
    notes: list[str] = []
    if command == "list":  # takes only out_dir, and the checks load torch
        return Request(command, build(given))
    if command == "export" and "to" not in options:
        raise UserError("export needs --to DIR, the folder that it writes")
    if command == "compare" and ONE_TARGET & given.keys():
        given = {"compare.targets": [], **given}
    options = dict(options)
    if shipped := options.pop("pretrained", None):
        options["run"] = PRETRAINED[shipped]
    for key in {"run", "config", "compare", "to"} & options.keys():
        options[key] = expand_path(key, options[key])

    # the experiment: the file of --config, on top of the shipped one that has its name
    top = Experiment({}, {})
    if "config" in options:
        top = read_experiment(options["config"])
    on_top = spread_optim(top.settings)
    named = on_top.get("exp")
    exp = given.get("exp", named)
    # a file's own settings win over those of a smoke run, and its data over an experiment's targets
    start = spread_optim(SMOKE) if on_top.get("smoke") else {}
    if command == "compare" and ONE_TARGET & on_top.keys():
        start["compare.targets"] = []
    own = Experiment({**start, **on_top}, top.methods)
    recipe = own
    meant = given.get("data.name", exp)
    hint = ""
    if meant in get_args(PointName):
        hint = f"; for {meant} use {suggest('exp', '2d')} and {suggest('data.name', meant)}"
    if run is None and "run" not in options:
        if named not in (None, exp):
            raise wrong_setting("exp", exp, f"the file of config has exp {named}; leave one out")
        if exp in EXPERIMENTS:
            below = read_experiment(CONFIGS / f"{exp}.yaml")
            # a warm-up belongs to the number of updates in the file that sets it
            with_warmup = {
                key: value
                for key, value in own.settings.items()
                if not key.endswith(".iterations")
                or key.replace("iterations", "warmup_steps") in on_top
            }
            recipe = _put_on_top(below, with_warmup, top.methods)
            own = _put_on_top(below, own.settings, top.methods)
        elif exp and not on_top:
            raise wrong_setting("exp", exp, f"must be one of {', '.join(EXPERIMENTS)}{hint}")

    # the run that the command uses, or the data of a new run
    run = run or _find_run(command, options, given, own.settings, notes)
    if run:
        own = Experiment(_settings_of_run(command, run, options, given, on_top, notes), {})
    elif "compare" in options:
        own = Experiment({"out_dir": os.path.dirname(os.path.abspath(options["compare"]))}, {})
    elif not {"exp", "data.name"} <= {**own.settings, **given}.keys():
        raise UserError(
            f"use {suggest('exp', 'NAME')} ({', '.join(EXPERIMENTS)}), or "
            f"{suggest('config', 'FILE')} that has one of these as exp, or its own exp and "
            f"data.name{hint}"
        )

    # one checked configuration, and for a comparison one for each method
    from nsgf.checks import check_training

    method = given.pop("method", None) if run is None else None
    fits_pool = command != "compare" and "pool.num_batches" not in on_top
    config = _configure(own, method, given, run is None, keeps_total, notes, fits_pool)
    if run is None:
        config = _fit_warmups(recipe, method, config, given, notes)
    if command in ("train", "preflight"):
        check_training(config)
    methods = []
    for name in config.compare.methods if command == "compare" else ():
        lines: list[str] = []
        try:
            configured = _configure(own, name, given, True, keeps_total, lines)
            methods.append(_fit_warmups(recipe, name, configured, given, lines))
            check_training(methods[-1])
        except UserError as error:
            raise UserError(f"{error} (method {name})") from error
        notes += [line for line in lines if line.startswith("method ") and line not in notes]
    # settings without effect
    if "compare" not in options:  # the page of a comparison takes no settings
        only_file = "out" in options
        notes += check_effects(command, flags, methods or [config], only_file=only_file)
        keys = [key for key, value in on_top.items() if value != SETTINGS[key].default]
        if names := find_ineffective(command, keys, methods or [config]):
            notes.append(f"config: without effect on this {command}: {list_names(names)}")

    # the saved tracker of a run may be missing on this machine
    tracks = command in ("train", "compare") and config.tracking.tracker == "tensorboard"
    is_chosen = run is None or "tracking.tracker" in {**on_top, **given}
    if tracks and is_chosen and find_spec("tensorboard") is None:
        raise UserError(
            "tracking.tracker = tensorboard: needs tensorboard; pip install tensorboard, or use "
            "none"
        )
    return Request(command, config, run, methods, notes, {*given}, options)


def _put_on_top(file: Experiment, settings: Layer, methods: dict[str, Layer]) -> Experiment:
    """Return a shipped experiment with further settings, which also override its sections for
    methods, and with further sections."""
    sections = dict(methods)
    for name, section in file.methods.items():
        sections[name] = {**section, **settings, **sections.get(name, {})}
    return Experiment({**spread_optim(file.settings), **settings}, sections)


def _fit_warmups(
    recipe: Experiment, method: str | None, config: Config, given: Layer, notes: list[str]
) -> Config:
    """Return the configuration with shorter warm-ups if it has fewer updates than the recipe. Add a
    line about them to ``notes``."""
    below, own = method_layers(recipe, method)
    fitted = shorter_warmups(build({**below, **own}), config, given)
    if fitted:
        shown = format_layer(fitted)
        notes.append(f"method {config.method}: fewer updates than in the recipe, so {shown}")
    return change(config, fitted)


def _find_run(
    command: str, options: Layer, given: Layer, own: Layer, notes: list[str]
) -> "RunFolder | None":
    """Return the run folder that the command uses; None for a new run. ``own``: settings of the
    experiment's file, whose ``out_dir`` is searched."""
    is_new = command == "train" and not {"run", "resume", "resume-phase"} & options.keys()
    if command in WITHOUT_RUN or "compare" in options or is_new:
        return None
    if str(given.get("method")).endswith((".yaml", ".yml")):  # a run has the name of the file
        given["method"] = Path(given["method"]).stem
    from nsgf.checks import check_values
    from nsgf.run.folder import newest_run
    from nsgf.share import open_run

    if "run" in options:
        run = open_run(options["run"])
        if run.results_name and command not in ON_EXPORTS:
            raise wrong_setting(
                "run", run.path, f"an exported run, for {' and '.join(ON_EXPORTS)} only"
            )
        return run
    if "exp" not in {**own, **given}:
        more = ", or --pretrained NAME" if command in ON_EXPORTS else ""
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run{more}")
    config = build({**spread_optim(own), **given})
    check_values(config)
    run, line = newest_run(
        config.out_path,
        config.exp,
        smoke=config.smoke,
        method=given.get("method"),
        resume=command == "train",
    )
    notes.append(line)
    return run


def _settings_of_run(
    command: str,
    run: "RunFolder",
    options: Layer,
    given: Layer,
    on_top: Layer,
    notes: list[str],
) -> Layer:
    """Return the settings and facts of a run, without unsafe ones, overridden by ``on_top``, the
    settings of --config FILE. Raise UserError if ``given`` settings do not fit the run."""
    from nsgf.run.folder import drop_unsafe_settings

    saved = spread_optim(run.read_settings())
    by_user = {**on_top, **given}
    for key, wanted in (("exp", by_user.get("exp")), ("method", given.get("method"))):
        if wanted not in (None, saved.get(key)):
            raise wrong_setting(key, wanted, f"{run.path} has {key} {saved.get(key)}")
    if given.get("smoke") and not saved.get("smoke"):
        raise UserError(f"smoke: {run.path} is no smoke run; leave it out, or train a new run")
    key = "tracking.tracker"
    tracker = saved.get(key)
    safe = {**drop_unsafe_settings(saved, by_user), **on_top}
    if "method" in saved:  # a file of --config cannot change it
        safe["method"] = saved["method"]
    if command == "train" and key not in by_user and safe.get(key) != tracker:
        notes.append(
            f"the run's tracker {tracker} is not used: add {suggest(key, tracker)} to use it"
        )
    home = (run.path.resolve() if run.path.name == ".." else run.path).parent
    if run.results_name is None:  # the run's current place
        safe["out_dir"] = str(home)
    out = Path(given.get("out_dir", home)).expanduser()
    if command == "train" and "run" in options and out.resolve() != home.resolve():
        raise wrong_setting("out_dir", out, f"the run stays in {run.path}; omit out_dir")
    return safe


def _configure(
    experiment: Experiment,
    method: str | None,
    given: Layer,
    is_new: bool,
    keeps_total: bool,
    notes: list[str],
    fits_pool: bool = False,
) -> Config:
    """Return the checked configuration of a run, or of one method of an experiment. Add facts about
    own data to ``given``, and lines for the user to ``notes``. For fewer updates, shrink a pool
    that is chosen for own data, or with ``fits_pool`` the pool of the experiment."""
    # these load torch; typos are reported before
    from nsgf.checks import check, check_values, fit_to_classes
    from nsgf.data import data_classes

    below, own = method_layers(experiment, method) if is_new else ({}, experiment.settings)
    pool = "pool.num_batches"

    # inspect own data first, because settings depend on them
    chosen: Layer = {}
    layer = {**below, **own, **given}
    if is_new and layer.get("data.name") in get_args(OwnName):
        from nsgf.data.choices import choose_for_own_data

        draft = build(layer)
        check_values(draft)
        chosen, found, lines = choose_for_own_data(draft)
        given |= found
        notes += lines
    elif given.get("data.size", 0) in ("auto", None) and layer.get("data.name") == "images":
        del given["data.size"]  # the size that was found
    base = {**below, **chosen, **own}

    # settings that depend on others
    smoke = spread_optim(SMOKE) if given.get("smoke") and is_new else {}
    config = build({**base, **smoke, **given})
    if method and method.endswith((".yaml", ".yml")):
        unused = {"method", *OF_PHASES} - {*config.phases}
        if lost := [
            f"{key} {format_value(now)} (file: {format_value(value)})"
            for key, value in below.items()
            if key.partition(".")[0] not in unused and (now := {**base, **given}[key]) != value
        ]:
            notes.append(
                f"method {method}: experiment, flags or choices for your data win: "
                f"{list_names(lost)}"
            )
    if is_new and config.data.conditional and (fitted := fit_to_classes(config)):
        shown = format_layer(fitted)
        notes.append(
            f"method {config.method}: chosen for {data_classes(config.data)} classes: {shown}"
        )
        config = change(config, {**fitted, **given})
    if not (smoke or pool in given):
        before = build(base)
        flows = before.pool.num_batches
        if keeps_total:
            total = flows * before.sinkhorn.batch_size
            flows = -(-total // max(1, config.sinkhorn.batch_size))
            notes.append(
                f"{pool} {before.pool.num_batches} -> {flows} keeps the pool's total of {total} "
                f"trajectories (use {suggest(pool)} for another)"
            )
        updates = config.nsgf.iterations
        is_free = fits_pool if pool in own else pool in chosen
        if is_new and is_free and updates < before.nsgf.iterations and "nsgf" in config.phases:
            wanted = -(-flows * updates // before.nsgf.iterations)  # each pair is drawn as often
            fewer = min(flows, max(wanted, LEAST_FLOWS, data_classes(config.data)))
            notes.append(
                f"{pool} {flows} -> {fewer} for {updates} updates in place of "
                f"{before.nsgf.iterations} (use {suggest(pool)} for another)"
            )
            flows = fewer
        config = change(config, {pool: flows})

    check(config)
    if config.data.path is None:
        return config
    from nsgf.data.own import data_path

    # later commands may start in another folder
    return change(config, {"data.path": str(data_path(config.data).absolute())})
