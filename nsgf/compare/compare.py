"""The comparison itself: train what is not trained, measure what is not measured, report."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nsgf.compare.measure import (
    ImageYardstick,
    Measured,
    PointYardstick,
    Yardstick,
    measure,
    yardstick_of,
)
from nsgf.compare.pictures import save_pictures
from nsgf.compare.record import Record, floor_key, measure_key
from nsgf.compare.report import TABLE, write_report
from nsgf.compare.rows import Row, has_places_of
from nsgf.compare.tables import calls_of_methods, counted, empty_cells
from nsgf.compare.trials import (
    Comparison,
    Target,
    Trial,
    asked_nfe,
    count_updates,
    method_title,
    named_precision,
)
from nsgf.config.resume_rules import contradictions
from nsgf.config.schema import Config, PhaseName
from nsgf.experiment import train, training_plan
from nsgf.phases import get_phase
from nsgf.run.checkpoint import good_header, mend
from nsgf.run.folder import RunFolder, check_links
from nsgf.run.lock import WAIT_SECONDS, Busy, in_turn, only_process
from nsgf.run.mirrors import require_tracker
from nsgf.run.progress import track
from nsgf.run.stop import Stopped, StopRequest
from nsgf.sampling.solvers import check_solver
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from nsgf.system.output import show

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
    works on, and ends when all are finished. Tables are written after each trial, unless the ones
    in the folder have more measures.

    Args:
        comparison: the experiment and the methods.
        stop: ends training early, after a checkpoint.
        log: takes the lines about progress.
        reports: whether this process writes the tables and pictures.

    Raises:
        Stopped: a stop was requested.
        UserError: a trial's configuration is wrong, it was trained with another one, or
            something that it needs is missing.
    """
    for line in comparison_plan(comparison):
        log(line)
    work = Work(comparison, stop or StopRequest(comparison.config.train.max_hours), log)
    pending = [trial for trial in comparison.trials() if not _is_measured(comparison, trial)]
    try:
        while pending:
            left = []
            for trial in pending:
                if work.finish(trial):
                    if reports:
                        work.write_tables()
                else:
                    left.append(trial)
            if len(left) == len(pending):
                time.sleep(WAIT_SECONDS)
            pending = left
    except (Stopped, UserError):
        if reports:
            with suppress(OSError, UserError):  # a full disk must not hide why this ends
                work.write_tables()
        raise
    if not reports:
        return []
    with in_turn(comparison.folder, work.stop_if_asked):
        rows = [*work.rows(), *work.floors()]
        return [*write_report(comparison, rows), *save_pictures(comparison, work.device)]


def comparison_plan(comparison: Comparison) -> list[str]:
    """Return lines about what a comparison is going to do.

    Raises:
        UserError: the data are conditional, a trial's configuration is wrong, it was trained with
            another one, no method can be sampled with one of ``compare.nfe``, a package is
            missing, or this machine has too little memory.
    """
    config, methods = comparison.config, comparison.methods
    if any(own.data.conditional for own in methods.values()):
        raise UserError(
            "data.conditional = true: must be false, the compared methods know no classes"
        )
    todo = [trial for trial in comparison.trials() if asked_nfe(comparison.trial_config(trial))]
    if not todo:
        raise UserError(
            f"compare.nfe = {config.compare.nfe}: must have a number of calls that one of "
            f"compare.methods can be sampled with: {'; '.join(calls_of_methods(comparison))}"
        )
    require_tracker(config)
    check_solver(config.sampling)
    check_links(comparison.folder)
    for trial in todo:
        folder = comparison.trial_folder(trial)
        check_earlier(comparison.trial_config(trial), RunFolder(folder))
    device = pick_device(config.device)
    # the first seed of each method and target needs what all the others need
    for trial in {(trial.target, trial.method): trial for trial in reversed(todo)}.values():
        own, run = comparison.trial_config(trial), RunFolder(comparison.trial_folder(trial))
        left = [phase for phase in own.phases if not is_trained(own, run, phase)]
        training_plan(own, left, device, run)
    done = sum(_is_measured(comparison, trial) for trial in todo)
    names = ", ".join(map(method_title, methods))
    targets = sorted({trial.target.label for trial in todo})
    total = sum(count_updates(methods[trial.method]) for trial in todo)
    return [
        f"compare: {names} on {', '.join(targets)}, {counted(config.compare.seeds, 'seed')}, "
        f"NFE {', '.join(map(str, config.compare.nfe))}",
        f"compare: {counted(len(todo), 'trial')}, {done} measured, "
        f"{counted(total, 'update')} in all",
        *empty_cells(comparison),
    ]


def is_trained(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    """Whether a phase has all its updates."""
    file = run.checkpoint_file(phase)
    return (
        run.has_checkpoint(phase) and good_header(file)["step"] >= getattr(config, phase).iterations
    )


def check_earlier(config: Config, run: RunFolder) -> None:
    """Raise UserError if a phase of the run was trained with other settings."""
    differences: list[str] = []
    for phase in config.phases:
        file = run.checkpoint_file(phase)
        if not run.has_checkpoint(phase):
            continue
        header = good_header(file)
        saved = header["config"]
        wanted = header.get("precision", saved["train"]["precision"])  # earlier versions' have none
        precision = named_precision(wanted, pick_device(config.device))
        differences += contradictions(saved, config, get_phase(phase).follows, running=phase)
        optim = getattr(config, phase)
        for key, before, now in (
            (f"{phase}.iterations", saved[phase].get("iterations"), optim.iterations),
            ("train.precision", precision, config.train.precision),
        ):
            if before != now:
                differences.append(f"{key}: the checkpoint has {before}, this command {now}")
    if differences:
        raise UserError(
            f"{run.path} was trained with other settings ({'; '.join(differences)}); "
            "remove it, or name another --out-dir"
        )


def _is_measured(comparison: Comparison, trial: Trial) -> bool:
    record, own = Record(comparison.trial_folder(trial)), comparison.trial_config(trial)
    return all(_found(record, trial, own, nfe, draw) for nfe, draw in _measures(own))


def _found(record: Record, trial: Trial, config: Config, nfe: int, draw: int) -> Measured | None:
    """Return a measure of a trial with this configuration, if all its values are there."""
    key = measure_key(trial.method, config, nfe, draw)
    return record.find(key, yardstick_of(config).names)


def _measures(config: Config) -> list[tuple[int, int]]:
    """Return NFE and draw of each measure of a trial with this configuration."""
    return [(nfe, draw) for nfe in asked_nfe(config) for draw in range(config.compare.draws)]


class Work:
    """The trials of one comparison."""

    def __init__(
        self,
        comparison: Comparison,
        stop: StopRequest,
        log: Log,
        classifiers: Path | None = None,
    ) -> None:
        """Take the arguments of :func:`compare`; ``classifiers``: another folder for them.

        Raises:
            UserError: something that measuring needs is missing.
        """
        self._comparison, self._stop, self._log = comparison, stop, log
        self._classifiers = classifiers
        self._said: set[Trial] = set()
        self.device = pick_device(comparison.config.device)
        self._yardsticks: dict[Target, Yardstick] = {}
        for trial in comparison.trials():
            self._yardstick(trial)

    def finish(self, trial: Trial) -> bool:
        """Train and measure a trial, and return True; return False if another process works on it.

        Raises:
            Stopped: a stop was requested.
        """
        if _is_measured(self._comparison, trial):
            return True
        self.stop_if_asked()
        if trial not in self._said:
            title, target = method_title(trial.method), trial.target.label
            self._log(f"compare: {title}, {target}, seed {trial.seed}")
            self._said.add(trial)
        config = self._comparison.trial_config(trial)
        run = RunFolder.prepare(self._folder(trial))
        try:
            with only_process(run.path):
                for phase in config.phases:
                    mend(run.checkpoint_file(phase), self._log)
            for count in range(1, len(config.phases) + 1):
                self._train(replace(config, phases=config.phases[:count]), run)
            with only_process(run.path):
                self._measure(trial, config, run)
        except Busy:
            return False
        return True

    def _train(self, config: Config, run: RunFolder) -> None:
        """Train the last phase of the configuration; the others are finished."""
        phase = config.phases[-1]
        if is_trained(config, run, phase):
            return
        resumed, started = run.checkpoint_file(phase).exists(), time.perf_counter()
        try:
            train(config, run, stop=self._stop)
        finally:
            seconds = time.perf_counter() - started
            # another process may have the folder by now; its error must not hide one from here
            with suppress(Busy), only_process(run.path):
                Record(run.path).add_train_seconds(phase, seconds, resumed)

    def _measure(self, trial: Trial, config: Config, run: RunFolder) -> None:
        record = Record(run.path)
        for nfe, draw in _measures(config):
            if _found(record, trial, config, nfe, draw):
                continue
            self.stop_if_asked()
            measured = measure(config, run, nfe, draw, self._yardstick(trial), self.device)
            record.add(measure_key(trial.method, config, nfe, draw), measured)
            texts = [f"{name} {value:.4g}" for name, value in measured.values.items()]
            self._log(f"compare: NFE {measured.nfe:g}: {', '.join(texts)}")

    def stop_if_asked(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self._stop.reason is not None:
            raise Stopped("between two measures")

    def write_tables(self) -> None:
        """Write the tables of all measures so far, unless those in the folder have more."""
        folder = self._comparison.folder
        with suppress(Busy), only_process(folder):  # another process writes the same
            rows = [*self.rows(), *self.floors(known=True)]
            if rows and has_places_of(rows, folder / TABLE):
                write_report(self._comparison, rows)

    def rows(self) -> list[Row]:
        """Return all measures so far, a row for each trial, NFE and draw."""
        rows = []
        for trial in self._comparison.trials():
            own, record = self._comparison.trial_config(trial), Record(self._folder(trial))
            seconds = record.train_seconds(tuple(own.phases))
            for nfe, draw in _measures(own):
                measured = _found(record, trial, own, nfe, draw)
                if measured is not None:
                    rows.append(Row(trial, nfe, draw, count_updates(own), seconds, measured))
        return rows

    def floors(self, *, known: bool = False) -> list[Row]:
        """Return what samples of the targets themselves score, for each target that is measured;
        with ``known`` only the floors that are measured already."""
        todo = {(row.trial.target, row.trial.seed, row.draw): row.trial for row in self.rows()}
        places = [(trial, draw) for (_, _, draw), trial in todo.items()]
        found = [
            (trial, draw, self._floor(trial, draw, known=known))
            for trial, draw in (places if known else track(places, "floor", "draw"))
        ]
        return [Row(trial, None, draw, 0, 0.0, floor) for trial, draw, floor in found if floor]

    def _floor(self, trial: Trial, draw: int, *, known: bool) -> Measured | None:
        record = Record(self._folder(trial).parent)
        config = self._comparison.trial_config(trial)
        key = floor_key(config, draw)
        floor = record.find(key, yardstick_of(config).names)
        if floor is None and not known:
            floor = Measured(0.0, 0.0, self._yardstick(trial).floor(trial.seed, draw))
            record.add(key, floor)
        return floor

    def _folder(self, trial: Trial) -> Path:
        return self._comparison.trial_folder(trial)

    def _yardstick(self, trial: Trial) -> Yardstick:
        if trial.target not in self._yardsticks:
            config = self._comparison.trial_config(trial)
            if yardstick_of(config) is ImageYardstick:
                folder = self._classifiers or Path(config.out_dir).expanduser()
                self._yardsticks[trial.target] = ImageYardstick(
                    config, folder, self.device, self._log
                )
            else:
                self._yardsticks[trial.target] = PointYardstick(config)
        return self._yardsticks[trial.target]
