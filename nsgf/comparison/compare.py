"""Run a comparison: train and measure the missing trials, then report."""

import math
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

from nsgf.comparison.measure import Yardstick
from nsgf.comparison.results import (
    FORMAT,
    Row,
    counted_file,
    measure_file,
    read_measure,
    table_csv,
)
from nsgf.comparison.tables import save_pictures, write_report
from nsgf.comparison.trials import (
    FLOOR,
    NOISE_ROW,
    Comparison,
    Trial,
    count_updates,
    method_title,
    trial_sampler,
)
from nsgf.config.schema import Config, PhaseName
from nsgf.config.settings import find_contradictions
from nsgf.data import build_source
from nsgf.experiment import train, training_plan
from nsgf.metrics.names import name_of
from nsgf.phases import get_phase
from nsgf.preflight import try_phases
from nsgf.run.checkpoint import read_good_header, restore_previous
from nsgf.run.folder import RunFolder
from nsgf.run.foreign import check_links
from nsgf.run.lock import WAIT_SECONDS, Busy, lock_folder, wait_for_lock
from nsgf.run.log import read_costs
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sampling.generate import generate
from nsgf.sampling.solvers import load_odeint
from nsgf.system.errors import UserError, name_setting
from nsgf.system.files import write_text
from nsgf.system.hardware import pick_device
from nsgf.system.output import show
from nsgf.system.units import format_hours

Log = Callable[[str], None]


def compare(
    comparison: Comparison,
    stop: StopRequest | None = None,
    log: Log = show,
    *,
    reports: bool = True,
) -> list[Path]:
    """Train and measure all trials, write tables and pictures, and return their files.

    Several processes may run the same comparison at once: each skips the trials that another one
    works on, and ends when all are finished. The tables are written after each trial.

    Args:
        comparison: the experiment and the methods.
        stop: ends training early, after a checkpoint.
        log: takes the lines about progress.
        reports: whether this process writes the tables and pictures.

    Raises:
        Stopped: a stop was requested.
        UserError: see :func:`comparison_plan`.
    """
    for line in comparison_plan(comparison):
        log(line)
    work = Work(comparison, stop or StopRequest(comparison.config.train.max_hours), log)
    work.measure_functions()  # first: an error in them shows before hours of training
    pending = [trial for trial in comparison.trials() if not work.is_measured(trial)]
    while pending:
        left = []
        for trial in pending:
            if not work.finish(trial):
                left.append(trial)
            elif reports:
                with suppress(Busy), lock_folder(comparison.folder):
                    write_report(comparison, work.rows())
        if len(left) == len(pending):
            time.sleep(WAIT_SECONDS)
        pending = left
    if not reports:
        return []
    with wait_for_lock(comparison.folder, work.check_stop):
        tables = write_report(comparison, work.rows())
        return [*tables, *save_pictures(comparison, work.device)]


def comparison_plan(comparison: Comparison) -> list[str]:
    """Check a comparison, and return lines that describe what it is going to do.

    Raises:
        UserError: the data are conditional, a trial's configuration is wrong or differs from the
            one that it was trained with, ``compare.nfe`` is too small, a package is missing, or
            this machine has too little memory.
    """
    config, methods = comparison.config, comparison.methods
    if any(own.data.conditional for own in methods.values()):
        raise UserError("data.conditional = true: must be false; compare does not support classes")
    todo = [trial for trial in comparison.trials() if comparison.trial_nfe(trial)]
    if not todo:
        raise UserError(
            f"{name_setting('compare.nfe', config.compare.nfe)}: no method can make so few calls"
        )
    load_odeint(config.sampling.solver)
    check_links(comparison.folder)
    device, planned = pick_device(config.device), set()
    for trial in todo:
        own, run = comparison.trial_config(trial), RunFolder(comparison.trial_folder(trial))
        check_trained(own, run)
        if trial[:2] not in planned:  # other seeds need the same memory
            planned.add(trial[:2])
            left = [phase for phase in own.phases if not is_trained(own, run, phase)]
            training_plan(own, left, device, run)
    measures = [measure_files(comparison, trial).values() for trial in todo]
    done = sum(all(map(read_measure, files)) for files in measures)
    names = ", ".join(map(method_title, [*comparison.functions, *methods]))
    targets = ", ".join(sorted({trial.target for trial in todo}))
    total = sum(count_updates(methods[trial.method]) for trial in todo)
    return [
        f"compare: {names} on {targets}, seeds: {config.compare.seeds}, NFE {config.compare.nfe}",
        f"compare: trials: {len(todo)}, measured: {done}, updates in all: {total}",
    ]


def is_trained(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    """Whether a phase has made all its updates."""
    if not run.has_checkpoint(phase):
        return False
    step: int = read_good_header(run.checkpoint_file(phase))["step"]
    return step >= getattr(config, phase).iterations


def check_trained(config: Config, run: RunFolder) -> None:
    """Raise UserError if a phase was trained with other settings."""
    for phase in filter(run.has_checkpoint, config.phases):
        saved = read_good_header(run.checkpoint_file(phase))["config"]
        frozen = [*get_phase(phase).follows, phase, "train.precision"]
        if texts := find_contradictions(saved, config, frozen):
            raise UserError(
                f"{run.path} was trained with other settings ({'; '.join(texts)}); "
                "remove it, or use another out_dir"
            )


def measure_files(comparison: Comparison, trial: Trial) -> dict[tuple[int, int], Path]:
    """Return the file of each measure of a trial; the keys are (NFE, draw)."""
    config, folder = comparison.trial_config(trial), comparison.trial_folder(trial)
    return {
        (nfe, draw): measure_file(folder, trial.method, config, nfe, draw)
        for nfe in comparison.trial_nfe(trial)
        for draw in range(config.compare.draws)
    }


class Work:
    """Trains and measures the trials of one comparison; arguments as in :func:`compare`."""

    def __init__(self, comparison: Comparison, stop: StopRequest, log: Log) -> None:
        self._comparison, self._stop, self._log = comparison, stop, log
        self.device = pick_device(comparison.config.device)
        self._of_functions: list[Row] = []
        self._estimated: set[str] = set()
        self._yardsticks: dict[str, Yardstick] = {}
        self._files = {trial: measure_files(comparison, trial) for trial in comparison.trials()}
        self._rows: dict[Path, Row] = {}
        for trial in self._files:
            if trial.target not in self._yardsticks:
                config = comparison.trial_config(trial)
                self._yardsticks[trial.target] = Yardstick(config, self.device, log)

    def is_measured(self, trial: Trial) -> bool:
        """Whether all measures of a trial exist."""
        return all(self._read(trial.target, file) for file in self._files[trial].values())

    def _read(self, target: str, file: Path) -> Row | None:
        """Return the measure in a file, which is read once; None if there is none."""
        if file not in self._rows and (row := read_measure(file, self._yardsticks[target].names)):
            self._rows[file] = row
        return self._rows.get(file)

    def finish(self, trial: Trial) -> bool:
        """Train and measure a trial; return False if another process works on it."""
        if self.is_measured(trial):
            return True
        self.check_stop()
        config = self._comparison.trial_config(trial)
        run = RunFolder.prepare(self._comparison.trial_folder(trial))
        try:
            with lock_folder(run.path):
                title = method_title(trial.method)
                self._log(f"compare: {title}, {trial.target}, seed {trial.seed}")
                for phase in config.phases:
                    restore_previous(run.checkpoint_file(phase), self._log)
            if not all(is_trained(config, run, phase) for phase in config.phases):
                self._log_estimate(trial.method, config)
                train(config, run, stop=self._stop)
            with lock_folder(run.path):
                for (nfe, draw), file in self._files[trial].items():
                    if not self._read(trial.target, file):
                        self.check_stop()
                        write_text(file, table_csv([self._measure(trial, nfe, draw)]))
        except Busy:
            return False
        return True

    def _log_estimate(self, method: str, config: Config) -> None:
        """Log how long training takes, estimated from a few updates; once for each method."""
        if not config.smoke and method not in self._estimated:
            self._estimated.add(method)
            # a killed comparison leaves nothing in its own folder
            elsewhere = replace(config, out_dir=tempfile.gettempdir())
            seconds = sum(needed for _, needed in try_phases(elsewhere, self.device))
            each, seeds = format_hours(seconds), config.compare.seeds
            together = f"seeds: {seeds}, together {format_hours(seeds * seconds)}"
            self._log(f"compare: {method_title(method)}: training takes about {each}, {together}")

    def measure_functions(self) -> None:
        """Measure the caller's functions, which may have changed since the last call."""
        comparison, settings = self._comparison, self._comparison.config.compare
        places = dict.fromkeys((trial.target, trial.seed) for trial in comparison.trials())
        cells = product(places, comparison.functions, settings.nfe, range(settings.draws))
        for (target, seed), name, nfe, draw in cells:
            self.check_stop()
            self._of_functions.append(self._measure(Trial(target, name, seed), nfe, draw))

    def _measure(self, trial: Trial, nfe: int, draw: int) -> Row:
        """Draw samples with ``nfe`` network calls each, and measure them. All methods start from
        the same noise. Measures are inf if a sample is not finite."""
        comparison, yardstick = self._comparison, self._yardsticks[trial.target]
        config = comparison.trial_config(trial)
        sampler = trial_sampler(comparison, trial, nfe, self.device)
        source = build_source(config.data, config.seed, "compare", str(draw))
        started = time.perf_counter()
        samples = generate(sampler, source, yardstick.samples, self.device)
        seconds = round(time.perf_counter() - started, 2)
        values = dict.fromkeys(yardstick.names, math.inf)
        if samples.finite:
            values = yardstick.measure(samples.x, config.seed, draw)
        texts = ", ".join(f"{name_of(name)} {value:.4g}" for name, value in values.items())
        self._log(f"compare: {method_title(trial.method)}, NFE {samples.nfe:g}: {texts}")
        updates, training = 0, 0.0
        if trial.method in comparison.methods:
            updates, costs = count_updates(config), read_costs(comparison.trial_folder(trial))
            training = sum(costs[phase].seconds for phase in config.phases if phase in costs)
        place = (trial.target, trial.method, trial.seed, draw, nfe)
        return Row(*place, samples.nfe, updates, round(training, 1), seconds, values)

    def check_stop(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self._stop.reason is not None:
            raise Stopped("between two measures")

    def rows(self) -> list[Row]:
        """Return all measures so far, and the floors, which are measured if missing."""
        rows = [*self._of_functions]
        for trial, files in self._files.items():
            rows += filter(None, (self._read(trial.target, file) for file in files.values()))
        for target in dict.fromkeys(row.target for row in rows):
            places = dict.fromkeys((row.seed, row.draw) for row in rows if row.target == target)
            for seed, draw in self._yardsticks[target].floor_places(places):
                rows.append(self._floor(Trial(target, rows[0].method, seed), draw))
            if noise := self._yardsticks[target].noise:
                rows.append(Row(target, NOISE_ROW, 0, 0, None, 0.0, 0, 0.0, 0.0, noise))
        return rows

    def _floor(self, trial: Trial, draw: int) -> Row:
        """Return the floor of a trial's target, measured if it is missing."""
        comparison, yardstick = self._comparison, self._yardsticks[trial.target]
        config, folder = comparison.trial_config(trial), comparison.folder / trial.target
        file = counted_file(folder, f"{FLOOR}{FORMAT}", config, draw)
        if (row := self._read(trial.target, file)) is None:
            values = yardstick.floor(trial.seed, draw)
            row = Row(trial.target, FLOOR, trial.seed, draw, None, 0.0, 0, 0.0, 0.0, values)
            folder.mkdir(parents=True, exist_ok=True)  # no trial of this target has begun
            write_text(file, table_csv([row]))
        return row
