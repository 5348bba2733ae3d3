"""Run a comparison: train and measure the missing trials, then write the tables."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nsgf.commands.train import train, training_plan
from nsgf.comparison import Measured, Row, add_measure, read_measures
from nsgf.comparison.tables import save_pictures, targets_of, write_report
from nsgf.comparison.trials import (
    FLOOR,
    NOISE_ROW,
    Comparison,
    Trial,
    edition_key,
    measure_key,
)
from nsgf.comparison.tuning import ranking
from nsgf.config.files import method_title
from nsgf.config.layers import find_contradictions
from nsgf.config.schema import PhaseName
from nsgf.config.values import format_value
from nsgf.experiment import Experiment
from nsgf.metrics.measures import Measure, Values, keys_of, name_of, without_classes
from nsgf.metrics.yardstick import TUNE, Yardstick
from nsgf.phases import PHASES
from nsgf.report import trained_updates
from nsgf.run.checkpoint import read_good_header, restore_previous
from nsgf.run.folder import RunFolder, check_links
from nsgf.run.lock import WAIT_SECONDS, Busy, lock_folder, wait_for_lock
from nsgf.run.log import read_costs
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sampling.generate import generate
from nsgf.sampling.solvers import load_odeint
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.output import Log, show
from nsgf.training.loop import Diverged


def compare(
    comparison: Comparison,
    stop: StopRequest | None = None,
    log: Log = show,
    *,
    reports: bool = True,
) -> list[Path]:
    """Train and measure all trials, write tables and pictures, and return their files.

    Several processes may run the same comparison at once. A process skips the trials that another
    process trains, and ends when all trials are finished. The tables are written after each trial.

    Args:
        comparison: the experiment and the methods.
        stop: ends training early, after a checkpoint.
        log: function that takes lines about the progress.
        reports: whether this process writes the tables and pictures.

    Raises:
        Stopped: a stop was requested.
        UserError: see :func:`comparison_plan`.
    """
    for line in comparison_plan(comparison):
        log(line)
    work = Work(comparison, stop or StopRequest(comparison.config.train.max_hours), log)
    work.measure_functions()  # before training, so that their errors appear early
    # train the trials of the search
    work.finish_all(comparison.tuning_trials)
    ranked = ranking(work.rows_of(comparison.tuning_trials))
    chosen = {
        (trial.target, trial.method): trial.choice
        for trial in comparison.tuning_trials
        if trial.choice.title == ranked[trial.target, trial.method][0]
    }
    if chosen:
        comparison = replace(comparison, chosen=chosen)
        work.comparison = comparison
        _check_trials(comparison.trials)
    # train the trials of the tables
    work.finish_all(comparison.trials, reports=reports)
    if not reports:
        return []
    with wait_for_lock(comparison.folder, work.check_stop):
        return [
            *write_report(comparison, work.rows(), work.rows_of(comparison.tuning_trials)),
            *save_pictures(comparison, work.device),
        ]


def comparison_plan(comparison: Comparison) -> list[str]:
    """Check a comparison, and return lines that describe what it will do.

    Raises:
        UserError: ``sampling.label``, ``guidance`` or ``omega`` is set; a trial's configuration is
            wrong; a trial was trained with a different configuration; ``compare.nfe`` is too small;
            a package is missing; or this machine has too little memory.
    """
    config = comparison.config
    methods = comparison.methods
    for method in methods.values():
        for key, allowed in {"label": None, "guidance": 1, "omega": None}.items():
            value = getattr(method.sampling, key)
            if value != allowed:
                raise wrong_setting(
                    f"sampling.{key}", value, f"must be {format_value(allowed)} to compare"
                )
    todo = [trial for trial in comparison.trials if trial.nfe]
    if not todo:
        raise wrong_setting("compare.nfe", config.compare.nfe, "no method can make so few calls")
    load_odeint(config.sampling.solver)
    check_links(comparison.folder)
    tuning = comparison.tuning_trials
    for name in config.compare.tune:
        if not any(name in trial.choice.names for trial in tuning):
            raise wrong_setting("compare.tune", name, "must be a setting that a method uses")
    # the search selects settings of some trials, which are therefore checked after the search
    searched = {(trial.target, trial.method) for trial in tuning}
    settled = [trial for trial in todo if (trial.target, trial.method) not in searched]
    _check_trials(tuning + settled)
    done = sum(
        set(trial.keys.values()) <= read_measures(trial.measures).keys() for trial in tuning + todo
    )
    names = ", ".join(map(method_title, [*comparison.functions, *methods]))
    targets = ", ".join(sorted({trial.target for trial in todo}))
    total = sum(sum(methods[trial.method].updates) for trial in tuning + todo)
    search = f" and {len(tuning)} of the search" if tuning else ""
    return [
        f"compare: {names} on {targets}, seeds: {config.compare.seeds}, NFE {config.compare.nfe}",
        f"compare: trials: {len(todo)}{search}, measured: {done}, updates in all: {total}",
    ]


def _check_trials(trials: Sequence[Trial]) -> None:
    """Raise UserError if a trial was trained with different settings, or cannot be trained on this
    machine."""
    planned = set[str]()
    for trial in trials:
        config = trial.experiment.config
        run = trial.run
        for phase in filter(run.has_checkpoint, config.phases):
            saved = read_good_header(run.checkpoint_file(phase))["config"]
            frozen = [*PHASES[phase].follows, phase, "train.precision"]
            if texts := find_contradictions(saved, config, frozen):
                raise UserError(
                    f"{run.path} was trained with other settings ({'; '.join(texts)}); give its "
                    "settings as flags, use another out_dir, or remove it"
                )
        if trial.label not in planned:  # every seed and target needs the same memory
            planned.add(trial.label)
            training_plan(trial.experiment, untrained_phases(trial), run)


def untrained_phases(trial: Trial) -> list[PhaseName]:
    """Return the phases of a trial that have updates to do."""
    config = trial.experiment.config
    return [
        phase
        for phase, updates in zip(config.phases, config.updates, strict=True)
        if trained_updates(trial.run, phase) < updates
    ]


@dataclass
class Work:
    """Trains and measures the trials of one comparison. Arguments: see :func:`compare`."""

    comparison: Comparison
    stop: StopRequest
    log: Log

    def __post_init__(self) -> None:
        self.device = Experiment(self.comparison.config).device
        self._yardsticks = dict[str, Yardstick]()
        for trial in self.comparison.trials:
            if trial.target not in self._yardsticks:
                config = trial.experiment.config
                data = trial.experiment.load_data()
                yardstick = Yardstick(
                    data, config.evaluation, config.out_path, self.device, self.log
                )
                yardstick.check_comparison()
                self._yardsticks[trial.target] = yardstick

    def is_measured(self, trial: Trial) -> bool:
        """Whether all measures of a trial exist."""
        stored = read_measures(trial.measures)
        return not any(
            self._find_missing(trial.target, stored.get(key)) for key in trial.keys.values()
        )

    def _find_missing(self, target: str, stored: Measured | None) -> list[Measure]:
        """Return the measures of a comparison that are not stored yet."""
        values = stored.values if stored else {}
        compared = self._yardsticks[target].compared
        return [measure for measure in compared if not values.keys() >= measure.titles.keys()]

    def finish_all(self, trials: Sequence[Trial], *, reports: bool = False) -> None:
        """Train and measure trials. Wait for trials that another process trains. ``reports``:
        whether to write the tables after each trial."""
        pending = [trial for trial in trials if not self.is_measured(trial)]
        while pending:
            waiting = []
            for trial in pending:
                if not self.finish(trial):
                    waiting.append(trial)
                elif reports:
                    with suppress(Busy), lock_folder(self.comparison.folder):
                        tried = self.rows_of(self.comparison.tuning_trials)
                        write_report(self.comparison, self.rows(), tried)
            if len(waiting) == len(pending):
                time.sleep(WAIT_SECONDS)
            pending = waiting

    def finish(self, trial: Trial) -> bool:
        """Train and measure a trial. Return False if another process works on the trial, else
        True."""
        if self.is_measured(trial):
            return True
        self.check_stop()
        title = method_title(trial.label)
        run = RunFolder.prepare(trial.run.path)
        try:
            with lock_folder(run.path):
                self.log(f"compare: {title}, {trial.target}, seed {trial.seed}")
                for phase in trial.experiment.config.phases:
                    restore_previous(run.checkpoint_file(phase), self.log)
            if untrained_phases(trial):
                try:
                    train(trial.experiment, run, stop=self.stop)
                except Diverged as error:
                    if not trial.is_tuning:
                        raise
                    self.log(f"compare: {error}")
                    names = keys_of(self._yardsticks[trial.target].compared)
                    worst = Measured(0.0, 0.0, dict.fromkeys(names, math.inf))
                    for key in trial.keys.values():
                        add_measure(trial.measures, key, worst)
                    return True
            with lock_folder(run.path):
                stored = read_measures(trial.measures)
                for (nfe, draw), key in trial.keys.items():
                    if missing := self._find_missing(trial.target, stored.get(key)):
                        self._measure(trial, nfe, draw, missing)
        except Busy:
            return False
        return True

    def measure_functions(self) -> None:
        """Measure the caller's functions again, because they may have changed since the last
        call."""
        trials = self.comparison.trials_of(self.comparison.functions)
        for file in {trial.measures for trial in trials}:
            before = read_measures(file)
            file.unlink(missing_ok=True)
            for key, measured in before.items():
                if json.loads(key).get("method") not in self.comparison.functions:
                    add_measure(file, key, measured)
        for trial in trials:
            for nfe, draw in trial.keys:
                self._measure(trial, nfe, draw, self._yardsticks[trial.target].compared)

    def _measure(self, trial: Trial, nfe: int, draw: int, measures: Sequence[Measure]) -> None:
        """Draw samples with ``nfe`` network calls each, measure them, and store the measures. All
        methods start from the same noise. If a sample is not finite, all measures are inf."""
        self.check_stop()
        yardstick = self._yardsticks[trial.target]
        sampler = trial.sampler(nfe)
        source = trial.experiment.source("compare", str(draw), is_measured=not trial.is_tuning)
        started = time.perf_counter()
        samples = generate(sampler, source, yardstick.samples, self.device)
        seconds = round(time.perf_counter() - started, 2)
        values = dict.fromkeys(keys_of(measures), math.inf)
        if samples.finite:
            stream = TUNE if trial.is_tuning else "compare"
            values = yardstick.measure(measures, samples.x, trial.seed, draw, stream)
        texts = ", ".join(f"{name_of(key)} {values[key]:.4g}" for key in without_classes(values))
        self.log(f"compare: {method_title(trial.label)}, NFE {samples.nfe:g}: {texts}")
        key = trial.keys[nfe, draw]
        add_measure(trial.measures, key, Measured(samples.nfe, seconds, values))

    def check_stop(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self.stop.reason is not None:
            raise Stopped("between two measures")

    def rows(self) -> list[Row]:
        """Return all measures so far, and the floors. Missing floors are measured first."""
        comparison = self.comparison
        # functions of earlier calls that this call does not have come last
        files = sorted(comparison.folder.glob("*/functions.jsonl"))
        saved = [json.loads(key).get("method") for file in files for key in read_measures(file)]
        compared = {*comparison.functions, *comparison.methods}
        names = [name for name in saved if isinstance(name, str) and name not in compared]
        trials = (
            comparison.trials_of(comparison.functions)
            + comparison.trials
            + comparison.trials_of(dict.fromkeys(names))
        )
        rows = self.rows_of(trials)
        # add the floors, and for images the measures of pure noise
        for target in targets_of(rows):
            yardstick = self._yardsticks[target]
            file = comparison.folder / target / "floors.jsonl"
            draws = dict.fromkeys((row.seed, row.draw) for row in rows if row.target == target)
            if yardstick.network:  # floors of images do not depend on the seed
                draws = dict.fromkeys((0, split) for split in range(yardstick.network.splits))
            for seed, draw in draws:
                config = comparison.config
                key = measure_key(
                    config.evaluation, config.data, seed=seed, draw=draw, **edition_key(target)
                )
                if missing := self._find_missing(target, read_measures(file).get(key)):
                    add_measure(
                        file, key, Measured(0.0, 0.0, yardstick.measure(missing, None, seed, draw))
                    )
                values = self._compared(target, read_measures(file)[key].values)
                rows.append(Row(target, FLOOR, seed, draw, None, 0.0, 0, 0.0, 0.0, values))
            if yardstick.features:
                values = self._compared(target, yardstick.features.noise)
                rows.append(Row(target, NOISE_ROW, 0, 0, None, 0.0, 0, 0.0, 0.0, values))
        return rows

    def rows_of(self, trials: Iterable[Trial]) -> list[Row]:
        """Return the measures of these trials so far."""
        rows = []
        for trial in trials:
            costs = read_costs(trial.run.path)
            config = trial.experiment.config
            phases = config.phases if trial.is_trained else []
            updates = sum(config.updates) if trial.is_trained else 0
            training = sum(costs[phase].seconds for phase in phases if phase in costs)
            stored = read_measures(trial.measures)
            for (nfe, draw), key in trial.keys.items():
                if not self._find_missing(trial.target, stored.get(key)):
                    calls, seconds, values = stored[key]
                    row = Row(
                        target=trial.target,
                        method=trial.label,
                        seed=trial.seed,
                        draw=draw,
                        nfe=nfe,
                        calls=calls,
                        updates=updates,
                        train_seconds=round(training, 1),
                        sample_seconds=seconds,
                        values=self._compared(trial.target, values),
                    )
                    rows.append(row)
        return rows

    def _compared(self, target: str, values: Mapping[str, float]) -> Values:
        """Return the values of the measures that this comparison uses for a target."""
        return {name: values[name] for name in keys_of(self._yardsticks[target].compared)}
