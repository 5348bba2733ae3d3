"""Estimate the time of training on this machine; choose updates that fit into minutes."""

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nsgf.commands.preview import show_preview
from nsgf.commands.train import training_plan
from nsgf.config.layers import SETTINGS, Layer
from nsgf.data import Data
from nsgf.experiment import Experiment
from nsgf.models import UserNetwork
from nsgf.phases.base import ESTIMATE_SAMPLES, Phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import CALLBACK, Stopped, StopRequest
from nsgf.settings.checks import fit_to_classes
from nsgf.system.errors import UserError
from nsgf.system.files import ensure_writable, read_lines
from nsgf.system.hardware import existing_folder, peak_memory, release_memory
from nsgf.system.output import format_bytes, format_hours, show, silence
from nsgf.training.loop import fit
from nsgf.training.task import Session, Task

ESTIMATE_UPDATES = 6
"""Number of updates in the estimate of a phase. The loss scale of fp16 needs a few updates to
settle."""
PHASE_FRACTION = 0.02
"""Time for measuring further updates of a phase, as a fraction of the minutes."""
MEASURING_FRACTION = 0.2
"""Time after which measuring ends, as a fraction of the minutes."""
LONGEST_SECONDS = 30.0
"""Largest time for measuring further updates of a phase, in seconds."""
LATER = 2**14
"""Position in the stream of samples. Samples from this position on are never paired with the first
samples."""
PREPARED = "pool.num_batches", "nsf.starts", "reflow.pairs"
"""Settings of the amount of work before the updates. With fewer updates, their values become
smaller."""
LEAST_PREPARED = 16
"""Smallest value of each setting in PREPARED, and of warm-ups."""
MOST_MINUTES = 10_000


class Estimate(NamedTuple):
    """Estimated time of a phase."""

    line: str
    """Line for the user."""
    prepare: float
    """Seconds before the first update, plus the seconds for starts of lines."""
    updates: float
    """Seconds of all updates."""
    extra: float
    """Seconds for reading data, checkpoints and the picture of samples."""


class EstimateStop(StopRequest):
    """Request that ends the updates of an estimate. It also reports a request to stop the
    training."""

    def __init__(self, training: StopRequest) -> None:
        super().__init__()
        self._training = training

    @property
    def reason(self) -> str | None:
        return self._training.reason or super().reason


def estimate_phases(
    experiment: Experiment,
    seconds: float,
    stop: StopRequest,
    network: UserNetwork | None = None,
    ends: float = math.inf,
) -> Iterator[Estimate]:
    """Train each phase for a few updates in a temporary folder. Then train it for ``seconds`` more,
    for a more precise estimate. Raise Stopped if ``stop`` requests it.

    ``ends`` is a time of ``time.perf_counter``. After this time, a phase gets only one preparation
    and one finite update. If no time is left for one more update, the later phases are not
    tried."""
    started = time.perf_counter()
    data = experiment.load_data()
    base = ensure_writable(existing_folder(experiment.config.out_path))
    with tempfile.TemporaryDirectory(prefix=".nsgf-preflight-", dir=base) as folder:
        run = RunFolder.prepare(Path(folder) / "run")
        run.network = network
        phases = experiment.phases()
        update = 0.0
        for number, phase in enumerate(phases):
            now = time.perf_counter()
            if number and now + update >= ends:
                return
            phase_ends = now + (ends - now) / (len(phases) - number)
            estimator = PhaseEstimator(experiment, phase, run, data, stop, phase_ends)
            estimate, update, counted = estimator.estimate(seconds)
            yield estimate._replace(extra=time.perf_counter() - started - counted)
            started = time.perf_counter()


@dataclass
class PhaseEstimator:
    """A phase that is trained for a few updates, to measure their time. Points in time come from
    ``time.perf_counter``."""

    experiment: Experiment
    phase: Phase
    run: RunFolder
    data: Data
    stop: StopRequest
    ends: float
    """Time after which only necessary work is done."""

    def estimate(self, seconds: float) -> tuple[Estimate, float, float]:
        """Return the estimate for this phase, the seconds of one update, and the seconds that the
        measured preparations and updates took. ``seconds``: see :func:`estimate_phases`."""
        name = self.phase.name
        device = self.experiment.device
        layer, times = self.phase.shortened(device)
        layer |= {f"{name}.iterations": ESTIMATE_UPDATES, "train.max_hours": None}
        short = self.experiment.change(layer)
        (phase,) = short.phases([name])
        with silence(), RunLog(self.run.path) as log:
            session = Session(short.config, short.target, self.run, log, device, stop=self.stop)
            task, preparations, prepared = self._prepare(phase, session)
            update, count = self._update(task, session, seconds)
            if time.perf_counter() < self.ends:
                show_preview(short, session, self.data, phase)
        del task
        release_memory(device)
        file = self.run.checkpoint_file(name)
        begin = time.perf_counter()
        checkpoint.load(file)
        reading = time.perf_counter() - begin
        prepare = times * prepared
        updates = self.phase.optim.iterations * update
        line = (
            f"{name}: {update:.3g} s an update, about "
            f"{format_hours(prepare + updates)} with {format_hours(prepare)} of preparation, "
            f"checkpoint of {format_bytes(file.stat().st_size)} read in {reading:.1f} s"
        )
        if device.type == "cuda":
            line += f", peak {format_bytes(peak_memory(device))} on the card"
        counted = preparations * prepared + count * update
        return Estimate(line, prepare, updates, 0.0), update, counted

    def _prepare(self, phase: Phase, session: Session) -> tuple[Task, int, float]:
        """Return the task, how many times it was prepared, and the seconds of one preparation."""
        preparations = 0
        prepared = 0.0
        while preparations < 2:  # the first preparation also loads libraries
            begin = time.perf_counter()
            if preparations and begin + prepared >= self.ends:
                break
            task = phase.task(session, self.data)
            task.draw(range(ESTIMATE_SAMPLES))
            drawn = time.perf_counter()
            prepared = drawn - begin
            preparations += 1
        if drawn < self.ends:  # subtract the time of an equal draw
            task.draw(range(LATER, LATER + ESTIMATE_SAMPLES))
            prepared = max(0.0, prepared - (time.perf_counter() - drawn))
        return task, preparations, prepared

    def _update(self, task: Task, session: Session, seconds: float) -> tuple[float, int]:
        """Return the seconds of one update, and the number of finished updates."""
        name = self.phase.name
        count = self._fit(task, session)
        rows = read_lines(self.run.path / "costs.jsonl", phase=str, steps_per_second=float)
        speeds = [speed for logged, speed in rows if logged == name]
        update = 1 / max(speeds[-ESTIMATE_UPDATES // 2 :])
        remaining = min(seconds, self.ends - time.perf_counter())
        # the time of further updates includes their share of the pairing
        if more := max(0, int(remaining / update)):
            longer = Experiment(session.config).change({f"{name}.iterations": count + more})
            session.config = longer.config
            begin = time.perf_counter()
            more = self._fit(task, session) - count
            update = (time.perf_counter() - begin) / more
            count += more
        return update, count

    def _fit(self, task: Task, session: Session) -> int:
        """Train to the last update or until the time :attr:`ends`, but for at least one update.
        Return the number of finished updates. Raise Stopped if :attr:`stop` requests it."""
        session.stop = EstimateStop(self.stop)
        if math.isfinite(self.ends):
            session.on_log = lambda _, __, loss, ___: (
                loss is None or time.perf_counter() < self.ends
            )
        try:
            fit(self.phase.name, task, session)
        except Stopped:
            if session.stop.reason != CALLBACK:
                raise
        session.stop = self.stop
        file = self.run.checkpoint_file(self.phase.name)
        return int(checkpoint.load(file, only_header=True)["step"])


def fit_minutes(
    experiment: Experiment,
    minutes: float,
    stop: StopRequest,
    network: UserNetwork | None = None,
    *,
    is_new: bool = True,
) -> tuple[Experiment, str]:
    """Choose numbers of updates so that measuring and training together take these minutes. Return
    the experiment of the new run, and a line about it. Phases keep their shares of the updates.
    With fewer updates, warm-ups and the preparation are shorter. Each phase gets at least one
    update, even if the minutes are too few. ``is_new``: whether a new run is trained in one
    process. If it is False, minutes are not allowed.

    Raises:
        UserError: the minutes are not allowed, the experiment cannot be trained, or ``stop`` ends
            the measuring.
        KeyboardInterrupt: Ctrl-C.
    """
    config = experiment.config
    option = f"minutes = {minutes:g}"
    if config.smoke or not is_new or not 0 < minutes <= MOST_MINUTES:
        raise UserError(
            f"{option}: must be > 0 and <= {MOST_MINUTES}, for a new run in one process without "
            "smoke"
        )
    amounts = {key: SETTINGS[key].get(config) for key in PREPARED}
    least = {key: amount and min(amount, LEAST_PREPARED) for key, amount in amounts.items()}
    training_plan(experiment.change(least), config.phases, network=network)
    show(f"{option}: measuring updates")
    begin = time.perf_counter()
    try:
        seconds = min(60 * minutes * PHASE_FRACTION, LONGEST_SECONDS)
        ends = begin + 60 * minutes * MEASURING_FRACTION
        estimates = [*estimate_phases(experiment, seconds, stop, network, ends)]
    except Stopped as stopped:  # no run folder exists yet
        kind = KeyboardInterrupt if stop.reason == "SIGINT" else UserError
        raise kind(f"{option}: stopped while measuring ({stop.reason})") from stopped
    remaining = 60 * minutes - (time.perf_counter() - begin)
    layer, line = _shrink(experiment, estimates, remaining)
    fitted = experiment.change(layer)
    classes = fitted.target.classes
    return fitted.change(fit_to_classes(fitted.config, classes)), f"{option}: {line}"


def _shrink(experiment: Experiment, estimates: list[Estimate], seconds: float) -> tuple[Layer, str]:
    """Return settings with which training takes these seconds, and a line about them. The settings
    are the numbers of updates, the warm-ups and the amounts to prepare."""
    config = experiment.config
    prepare, updates, extra = (sum(part) for part in list(zip(*estimates, strict=True))[1:])
    counts = dict(zip(config.phases, config.updates, strict=True))
    # a phase without an estimate gets the mean time per update of the phases before
    updates *= sum(config.updates) / sum(config.updates[: len(estimates)])
    remaining = seconds - extra
    # with more updates than in the recipe, the preparation is as long as in the recipe
    share = max(min(remaining / (prepare + updates), 1), (remaining - prepare) / updates)
    layer: Layer = {
        f"{phase}.iterations": max(1, int(share * count)) for phase, count in counts.items()
    }
    line = f"{sum(layer.values()):,} updates; recipe {sum(counts.values()):,}"
    if share * min(counts.values()) < 1:
        line += "; too few minutes on this machine now, so training takes longer"
    least = max(LEAST_PREPARED, experiment.target.classes)
    for key in (*PREPARED, *(f"{phase}.warmup_steps" for phase in config.phases)):
        amount = SETTINGS[key].get(config)
        if amount and key.partition(".")[0] in ("pool", *config.phases):
            fitted = min(amount, max(least, int(share * amount)))
            if fitted != amount:
                layer[key] = fitted
                line += f"; {key} {fitted:,}"
    return layer, line
