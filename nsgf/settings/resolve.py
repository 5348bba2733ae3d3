"""Combine the layers of settings of a command or a Python call into one checked configuration.

Later layers win. The layers are, in this order:

1. the default values
2. the method's file
3. choices for the user's data (:mod:`nsgf.settings.choices`)
4. the experiment's file
5. the section for the method in the experiment's file
6. the file of --config, on top of the shipped experiment that it names
7. the section for the method in the file of --config
8. the settings of --smoke
9. short flags, which set several settings at once
10. flags for one setting

Within a layer, the section ``optim`` applies to each phase whose section does not set the value. A
command that uses a run starts from the run's saved configuration, not from the files. This module
reports typos before it imports torch.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from nsgf.config.files import (
    CONFIGS,
    EXPERIMENT_NAMES,
    PRETRAINED,
    Recipe,
    method_layers,
    read_recipe,
)
from nsgf.config.layers import (
    SETTINGS,
    Layer,
    build,
    change,
    shorter_warmups,
    spread_optim,
)
from nsgf.config.schema import OF_PHASES, Config, OwnName, PointName
from nsgf.config.values import expand_path, format_layer, format_value
from nsgf.settings.effects import check_effects, find_ineffective
from nsgf.system.errors import UserError, list_names, suggest, wrong_setting

if TYPE_CHECKING:
    from nsgf.experiment import Experiment
    from nsgf.run.folder import RunFolder

WITHOUT_RUN = ("compare", "preflight")
ONE_TARGET = {"data.name", "data.source"}
"""Settings that name data. If one of them is set, a comparison uses these data in place of its
targets."""
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
"""Settings that --smoke changes in a new run, besides ``smoke`` itself. Flags override these
settings."""
TRACKER = "tracking.tracker"
LEAST_FLOWS = 16
"""Smallest number of flows to which a pool shrinks if a run has fewer updates than its recipe."""


@dataclass
class Request:
    """A command with its experiment."""

    command: str
    config: Config
    """All settings. For a comparison, the settings of the experiment's method."""
    run: "RunFolder | None" = None
    """The run that the command uses; None: a new run, or no run."""
    methods: Sequence[Config] = ()
    """Settings of each method of a comparison, by name."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user."""
    fixed: Collection[str] = ()
    """Settings of flags or arguments."""
    options: Layer = field(default_factory=dict)
    """Options of the command that are not settings, e.g. ``{"nfe": 10}``. The option ``words`` has
    the words of the command line after the command."""

    @cached_property
    def experiment(self) -> "Experiment":
        """The resolved experiment."""
        from nsgf.experiment import Experiment  # loads torch

        return Experiment(self.config)

    @property
    def opened(self) -> "RunFolder":
        """The run of a command that needs a run."""
        assert self.run is not None
        return self.run


def resolve(
    command: str,
    arguments: Layer,
    options: Layer,
    *,
    run: "RunFolder | None" = None,
    keeps_total: bool = False,
) -> Request:
    """Return the request of a command.

    Args:
        command: name of the command.
        arguments: settings from flags or arguments, and facts that the caller knows.
        options: options that are not settings. The options ``run``, ``config``, ``pretrained``,
            ``compare``, ``resume`` and ``resume-phase`` determine where the remaining settings come
            from.
        run: the run that the command uses, if it is already open.
        keeps_total: whether the pool keeps its total number of trajectories if the number of
            particles per flow changes.

    Raises:
        UserError: a setting or an option is wrong, or a file or run is missing or damaged.
    """
    if command == "list":  # list uses only out_dir, and the checks would load torch
        return Request(command, build(spread_optim(arguments)))
    options = _expand_options(command, options)
    layers = Layers(command, arguments, options, keeps_total)
    if run is None and "run" not in options:
        layers.add_shipped_experiment()
    run = run or _find_run(layers)
    layers.use_run(run)

    # configure the experiment, or each method of a comparison
    from nsgf.experiment import Experiment
    from nsgf.settings.checks import check_training

    method = layers.arguments.pop("method", None) if layers.is_new else None
    shrinks_pool = command != "compare" and "pool.num_batches" not in layers.file.settings
    config = layers.fit_warmups(method, layers.configure(method, shrinks_pool))
    if command in ("train", "preflight"):
        check_training(Experiment(config))
    methods = layers.configure_methods(config.compare.methods if command == "compare" else ())

    # report settings without effect, and a missing package
    notes = layers.notes
    if "compare" not in options:  # the page of a comparison uses no settings
        notes += layers.find_useless(methods or [config])
    is_chosen = layers.is_new or TRACKER in {**layers.file.settings, **layers.arguments}
    if command in ("train", "compare") and is_chosen:
        _check_tracker(config.tracking.tracker)
    return Request(command, config, run, methods, notes, {*layers.arguments}, options)


def _expand_options(command: str, options: Layer) -> Layer:
    """Return the options with expanded paths, and the folder of a pretrained run as ``run``."""
    if command == "export" and "to" not in options:
        raise UserError("export needs --to DIR, the folder that it writes")
    options = dict(options)
    if shipped := options.pop("pretrained", None):
        options["run"] = PRETRAINED[shipped]
    for key in {"run", "config", "compare", "start", "to"} & options.keys():
        options[key] = expand_path(key, options[key])
    return options


class Layers:
    """The layers of settings of a command. They are read one after the other."""

    def __init__(self, command: str, arguments: Layer, options: Layer, keeps_total: bool) -> None:
        self.command = command
        self.options = options
        self.flags = dict(arguments)
        """Settings of flags or arguments, as they were given."""
        self.arguments = spread_optim(arguments)
        """Settings of flags or arguments, with ``optim`` copied to each phase, and facts about the
        user's data."""
        self.keeps_total = keeps_total
        self.is_new = True
        """Whether the settings come only from files and flags, and not from a saved run."""
        self.notes: list[str] = []
        """Lines for the user."""
        if command == "compare" and ONE_TARGET & self.arguments.keys():
            self.arguments = {"compare.targets": [], **self.arguments}
        self.file = Recipe({}, {})
        """The file of --config."""
        if "config" in options:
            content = read_recipe(options["config"])
            self.file = Recipe(spread_optim(content.settings), content.methods)
        # the settings of the file override the smoke settings. If the file names data, these data
        # replace the targets of a comparison
        smoke_settings = spread_optim(SMOKE) if self.file.settings.get("smoke") else {}
        if command == "compare" and ONE_TARGET & self.file.settings.keys():
            smoke_settings["compare.targets"] = []
        self.recipe = Recipe({**smoke_settings, **self.file.settings}, self.file.methods)
        """The file of --config on top of the shipped experiment."""
        self.warmup_recipe = self.recipe
        """A copy of the recipe in which each warm-up is beside the number of updates for which it
        was chosen."""

    @property
    def hint(self) -> str:
        """A hint for a user who gives the name of a 2D set as the name of an experiment."""
        name = self.arguments.get("data.name", self.exp)
        if name not in get_args(PointName):
            return ""
        return f"; for {name} use {suggest('exp', '2d')} and {suggest('data.name', name)}"

    @property
    def exp(self) -> str | None:
        """Name of the experiment."""
        return self.arguments.get("exp", self.file.settings.get("exp"))

    def add_shipped_experiment(self) -> None:
        """Put the file of --config on top of the shipped experiment that has its name."""
        exp = self.exp
        file_exp = self.file.settings.get("exp")
        if file_exp not in (None, exp):
            raise wrong_setting("exp", exp, f"the file of config has exp {file_exp}; leave one out")
        if exp in EXPERIMENT_NAMES:
            shipped = read_recipe(CONFIGS / f"{exp}.yaml")
            # keep each warm-up beside the number of updates from the same file. So drop a number of
            # updates if the file of --config has no warm-up for it
            with_warmups = {
                key: value
                for key, value in self.recipe.settings.items()
                if not key.endswith(".iterations")
                or key.replace("iterations", "warmup_steps") in self.file.settings
            }
            self.warmup_recipe = _put_on_top(shipped, with_warmups, self.file.methods)
            self.recipe = _put_on_top(shipped, self.recipe.settings, self.file.methods)
        elif exp and not self.file.settings:
            names = ", ".join(EXPERIMENT_NAMES)
            raise wrong_setting("exp", exp, f"must be one of {names}{self.hint}")

    def use_run(self, run: "RunFolder | None") -> None:
        """Take the settings of the saved run, if the command uses one. Raise UserError if the
        settings name neither a run nor data."""
        if run:
            self.is_new = False
            if run.results_name:
                _check_export(run)
            self.recipe = Recipe(_settings_of_run(run, self), {})
        elif "compare" in self.options:
            folder = os.path.abspath(self.options["compare"])
            self.recipe = Recipe({"out_dir": os.path.dirname(folder)}, {})
        elif not {"exp", "data.name"} <= {**self.recipe.settings, **self.arguments}.keys():
            raise UserError(
                f"use {suggest('exp', 'NAME')} ({', '.join(EXPERIMENT_NAMES)}), or "
                f"{suggest('config', 'FILE')} that has one of these as exp, or its own exp and "
                f"data.name{self.hint}"
            )

    def configure(self, method: str | None, shrinks_pool: bool = False) -> Config:
        """Return the checked configuration of a run, or of one method of an experiment. Add facts
        about the user's data to the arguments, and lines to the notes. If the configuration has
        fewer updates than the recipe, shrink the pool if its size was chosen for the user's data.
        With ``shrinks_pool``, also shrink a pool whose size is set in the recipe."""
        # imported here, because these modules load torch: typos are reported before
        from nsgf.experiment import Experiment
        from nsgf.settings.checks import check

        method_settings: Layer = {}
        settings = self.recipe.settings
        if self.is_new:
            method_settings, settings = method_layers(self.recipe, method)
        data_choices = self._choose_for_data({**method_settings, **settings, **self.arguments})
        recipe = {**method_settings, **data_choices, **settings}
        is_smoke = self.is_new and bool(self.arguments.get("smoke"))
        smoke_settings = spread_optim(SMOKE) if is_smoke else {}
        config = build({**recipe, **smoke_settings, **self.arguments})
        if self.command == "compare":
            config = change(config, _unused_of_method(config, self.arguments))
        if method and method.endswith((".yaml", ".yml")):
            self._note_lost_settings(method, method_settings, recipe, config.phases)
        if self.is_new and config.data.conditional:
            config = self._fit_classes(config)
        if not smoke_settings and "pool.num_batches" not in self.arguments:
            is_free = shrinks_pool if "pool.num_batches" in settings else bool(data_choices)
            config = self._fit_pool(build(recipe), config, is_free)
        check(Experiment(config))
        # later commands may start in another folder
        places = {key: SETTINGS[key].get(config) for key in ("data.path", "data.source_path")}
        absolute = {
            key: str(Path(path).expanduser().absolute()) for key, path in places.items() if path
        }
        return change(config, absolute)

    def configure_methods(self, names: Sequence[str]) -> list[Config]:
        """Return the checked configuration of each method of a comparison. Raise UserError with the
        name of the method if its settings are wrong."""
        from nsgf.experiment import Experiment
        from nsgf.settings.checks import check_training

        methods = []
        notes = self.notes
        for name in names:
            self.notes = []
            try:
                methods.append(self.fit_warmups(name, self.configure(name)))
                check_training(Experiment(methods[-1]))
            except UserError as error:
                raise UserError(f"{error} (method {name})") from error
            lines = [line for line in self.notes if line.startswith("method ")]
            notes += [line for line in lines if line not in notes]
        self.notes = notes
        return methods

    def _choose_for_data(self, layer: Layer) -> Layer:
        """For a new run, inspect the user's data, and return settings for these data."""
        if self.is_new and layer.get("data.name") in get_args(OwnName):
            from nsgf.settings.checks import check_values
            from nsgf.settings.choices import choose_settings

            classes: Layer = {"data.conditional": True} if layer.get("data.label") else {}
            draft = build({**classes, **layer})
            check_values(draft)
            data_choices, facts, lines = choose_settings(draft)
            self.arguments |= facts
            self.notes += lines
            return {**classes, **data_choices}
        is_automatic = self.arguments.get("data.size", 0) in ("auto", None)
        if is_automatic and layer.get("data.name") == "images":
            del self.arguments["data.size"]  # the size comes from the inspection, not from the user
        return {}

    def _note_lost_settings(
        self, method: str, method_settings: Layer, recipe: Layer, phases: Sequence[str]
    ) -> None:
        """Add a line about settings of the method's file that later layers override."""
        layer = {**recipe, **self.arguments}
        unused = {"method", *OF_PHASES} - {*phases}
        lost = [
            f"{key} {format_value(layer[key])} (file: {format_value(value)})"
            for key, value in method_settings.items()
            if key.partition(".")[0] not in unused and layer[key] != value
        ]
        if lost:
            self.notes.append(
                f"method {method}: experiment, flags or choices for your data win: "
                f"{list_names(lost)}"
            )

    def _fit_classes(self, config: Config) -> Config:
        """Return the configuration with settings that keep classes apart."""
        from nsgf.experiment import Experiment
        from nsgf.settings.checks import fit_to_classes

        classes = Experiment(config).target.classes
        fitted = fit_to_classes(config, classes)
        if not fitted:
            return config
        self.notes.append(
            f"method {config.method}: chosen for {classes} classes: {format_layer(fitted)}"
        )
        return change(config, {**fitted, **self.arguments})

    def _fit_pool(self, recipe: Config, config: Config, is_free: bool) -> Config:
        """Return the configuration with a new number of flows. If the pool keeps its total, choose
        the number that gives as many trajectories as the recipe. If not, start from the recipe's
        number of flows. If the pool ``is_free`` to shrink and the run has fewer updates than the
        recipe, reduce the number of flows."""
        from nsgf.experiment import Experiment

        key = "pool.num_batches"
        flows = recipe.pool.num_batches
        if self.keeps_total:
            total = flows * recipe.sinkhorn.batch_size
            flows = -(-total // max(1, config.sinkhorn.batch_size))
            self.notes.append(
                f"{key} {recipe.pool.num_batches} -> {flows} keeps the pool's total of {total} "
                f"trajectories (use {suggest(key)} for another)"
            )
        updates = config.nsgf.iterations
        recipe_updates = recipe.nsgf.iterations
        if self.is_new and is_free and updates < recipe_updates and "nsgf" in config.phases:
            # keep the number of times that each pair is drawn
            proportional = -(-flows * updates // recipe_updates)
            classes = Experiment(config).target.classes
            fewer = min(flows, max(proportional, LEAST_FLOWS, classes))
            self.notes.append(
                f"{key} {flows} -> {fewer} for {updates} updates in place of {recipe_updates} "
                f"(use {suggest(key)} for another)"
            )
            flows = fewer
        return change(config, {key: flows})

    def fit_warmups(self, method: str | None, config: Config) -> Config:
        """Return the configuration of a new run. If the run has fewer updates than the recipe,
        shorten the warm-ups, and add a line about the warm-ups to the notes."""
        if not self.is_new:
            return config
        method_settings, settings = method_layers(self.warmup_recipe, method)
        recipe = build({**method_settings, **settings})
        fitted = shorter_warmups(recipe, config, self.arguments)
        if fitted:
            self.notes.append(
                f"method {config.method}: fewer updates than in the recipe, so "
                f"{format_layer(fitted)}"
            )
        return change(config, fitted)

    def find_useless(self, configs: Sequence[Config]) -> list[str]:
        """Return lines about settings that have no effect on the command. Raise UserError if a
        setting has no effect because of another setting."""
        from nsgf.experiment import Experiment

        experiments = [*map(Experiment, configs)]
        only_file = "out" in self.options
        lines = check_effects(self.command, self.flags, experiments, only_file=only_file)
        if "start" in self.options and "sampling.num_samples" in self.flags:
            lines.append("no effect with start: sampling.num_samples")
        settings = self.file.settings
        keys = [key for key, value in settings.items() if value != SETTINGS[key].default]
        if names := find_ineffective(self.command, keys, experiments):
            lines.append(f"config: without effect on this {self.command}: {list_names(names)}")
        return lines


def _unused_of_method(config: Config, layer: Layer) -> Layer:
    """Return the settings in ``layer`` that this method does not use, each as null. Skip settings
    whose default is not null. Another method of the comparison may use them."""
    return {
        key: None
        for key, item in SETTINGS.items()
        if key in layer
        and item.default is None
        and not all(condition.holds(config) for condition in item.conditions)
    }


def _put_on_top(shipped: Recipe, settings: Layer, methods: dict[str, Layer]) -> Recipe:
    """Add settings, and sections for methods, to a shipped experiment. The settings also override
    values in the experiment's sections for methods."""
    sections = dict(methods)
    for name, section in shipped.methods.items():
        sections[name] = {**section, **settings, **sections.get(name, {})}
    return Recipe({**spread_optim(shipped.settings), **settings}, sections)


def _find_run(layers: Layers) -> "RunFolder | None":
    """Return the run folder that the command uses; None for a new run."""
    command = layers.command
    options = layers.options
    arguments = layers.arguments
    is_new = command == "train" and not {"run", "resume", "resume-phase"} & options.keys()
    if command in WITHOUT_RUN or "compare" in options or is_new:
        return None
    # a run stores the file's name, not the path
    if str(arguments.get("method")).endswith((".yaml", ".yml")):
        arguments["method"] = Path(arguments["method"]).stem
    from nsgf.run.folder import newest_run
    from nsgf.settings.checks import check_values
    from nsgf.share import open_run

    if "run" in options:
        run = open_run(options["run"])
        if run.results_name and command not in ON_EXPORTS:
            raise wrong_setting(
                "run", run.path, f"an exported run, for {' and '.join(ON_EXPORTS)} only"
            )
        return run
    if "exp" not in {**layers.recipe.settings, **arguments}:
        more = ", or --pretrained NAME" if command in ON_EXPORTS else ""
        raise UserError(f"{command} needs --run DIR, or --exp NAME for its newest run{more}")
    config = build({**spread_optim(layers.recipe.settings), **arguments})
    check_values(config)
    run, line = newest_run(
        config.out_path,
        config.exp,
        smoke=config.smoke,
        method=arguments.get("method"),
        resume=command == "train",
    )
    layers.notes.append(line)
    return run


def _settings_of_run(run: "RunFolder", layers: Layers) -> Layer:
    """Return the settings and the facts of a run, without unsafe settings. The settings of --config
    FILE override the settings of the run. Raise UserError if settings of the command contradict the
    run."""
    from nsgf.run.folder import drop_unsafe_settings

    arguments = layers.arguments
    is_training = layers.command == "train"
    saved = spread_optim(run.read_settings())
    by_user = {**layers.file.settings, **arguments}
    source = by_user.get("data.source")
    kind = None if source is None else build({"data.source": source}).data.source
    for key, name in (
        ("exp", by_user.get("exp")),
        ("method", arguments.get("method")),
        ("data.source", kind),
    ):
        if name not in (None, saved.get(key)):
            raise wrong_setting(key, name, f"{run.path} has {key} {saved.get(key)}")
    if arguments.get("smoke") and not saved.get("smoke"):
        raise UserError(f"smoke: {run.path} is no smoke run; leave it out, or train a new run")
    tracker = saved.get(TRACKER)
    safe = {**drop_unsafe_settings(saved, by_user), **layers.file.settings}
    if "method" in saved:  # the file of --config cannot change the method
        safe["method"] = saved["method"]
    if is_training and TRACKER not in by_user and safe.get(TRACKER) != tracker:
        layers.notes.append(
            f"the run's tracker {tracker} is not used: add {suggest(TRACKER, tracker)} to use it"
        )
    home = (run.path.resolve() if run.path.name == ".." else run.path).parent
    if run.results_name is None:  # the folder that holds the run now
        safe["out_dir"] = str(home)
    out = Path(arguments.get("out_dir", home)).expanduser()
    if is_training and "run" in layers.options and out.resolve() != home.resolve():
        raise wrong_setting("out_dir", out, f"the run stays in {run.path}; omit out_dir")
    return safe


def _check_export(run: "RunFolder") -> None:
    """Raise UserError if a setting of an exported run is wrong."""
    from nsgf.experiment import Experiment
    from nsgf.settings.checks import check
    from nsgf.share import CONFIG_FILE

    try:
        check(Experiment(build(run.read_settings())))
    except UserError as error:
        raise UserError(
            f"{run.path / CONFIG_FILE}: is no exported run, or damaged ({error})"
        ) from error


def _check_tracker(tracker: str) -> None:
    """Raise UserError if the package of the chosen tracker is missing."""
    if tracker == "tensorboard" and find_spec("tensorboard") is None:
        raise UserError(
            "tracking.tracker = tensorboard: needs tensorboard; pip install tensorboard, or use "
            "none"
        )
