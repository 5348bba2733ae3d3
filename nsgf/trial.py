"""Measure the time of training on this machine; choose numbers of updates that fit into minutes."""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.checks import fit_to_classes
from nsgf.config.schema import Config
from nsgf.config.settings import SETTINGS, change
from nsgf.data import Data, data_classes
from nsgf.models import OwnNetwork
from nsgf.phases import get_phases
from nsgf.phases.base import TRIAL_SAMPLES, Phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import CALLBACK, Stopped, StopRequest
from nsgf.samples import show_preview
from nsgf.system.errors import UserError
from nsgf.system.files import ensure_writable, read_lines
from nsgf.system.hardware import existing_folder, peak_memory, release_memory
from nsgf.system.output import format_bytes, format_hours, show, silence
from nsgf.training.loop import fit
from nsgf.training.task import Session, Task

UPDATES = 6
"""Number of updates in the trial of a phase. The loss scale of fp16 needs a few to settle."""
TRIED = 0.02
"""Fraction of the minutes in which further updates of each phase are measured."""
MEASURED = 0.2
"""Fraction of the minutes after which measuring ends."""
LONGEST = 30.0
"""Largest time in seconds in which further updates of a phase are measured."""
OTHERS = 2**14
"""Position of samples whose pairs do not depend on the first ones."""
PREPARED = "pool.num_batches", "nsf.starts", "reflow.pairs"
"""Amounts that are prepared before the updates. With fewer updates they shrink."""
LEAST = 16
"""Smallest value of each of these, and of warm-ups."""
MOST_MINUTES = 10_000


class Trial(NamedTuple):
    """Estimated time of a phase."""

    line: str
    """Line for the user."""
    prepare: float
    """Seconds before the first update, and for starts of lines, which are computed when needed."""
    updates: float
    """Seconds of all updates."""
    rest: float
    """Seconds for reading data, checkpoints and the picture of samples."""


class TrialStop(StopRequest):
    """Request to stop the updates of a trial, also if the training is requested to stop."""

    def __init__(self, training: StopRequest) -> None:
        super().__init__()
        self._training = training

    @property
    def reason(self) -> str | None:
        return self._training.reason or super().reason


def try_phases(
    config: Config,
    device: torch.device,
    seconds: float,
    stop: StopRequest,
    network: OwnNetwork | None = None,
    ends: float = math.inf,
) -> Iterator[Trial]:
    """Train each phase for a few updates in a temporary folder, then for ``seconds`` more to
    measure more precisely. Raise Stopped if ``stop`` requests it.

    After the time ``ends`` (of ``time.perf_counter``), only what cannot be left out is done: one
    preparation and one finite update of a phase. A later phase is not tried if there is no time for
    one more update."""
    started = time.perf_counter()
    data = Data(config.data, config.seed)
    place = ensure_writable(existing_folder(config.out_path))
    with tempfile.TemporaryDirectory(prefix=".nsgf-preflight-", dir=place) as folder:
        run = RunFolder.prepare(Path(folder) / "run")
        run.network = network
        phases = get_phases(config.phases)
        update = 0.0
        for number, phase in enumerate(phases):
            now = time.perf_counter()
            if number and now + update >= ends:
                return
            phase_ends = now + (ends - now) / (len(phases) - number)
            short, times = phase.trial(config, device)
            key = f"{phase.name}.iterations"
            count = UPDATES
            with silence(), RunLog(run.path) as log:
                short = change(short, {key: count, "train.max_hours": None})
                session = Session(short, run, log, device, stop=stop)
                preparations = 0
                prepared = 0.0
                while preparations < 2:  # the first time loads libraries
                    begin = time.perf_counter()
                    if preparations and begin + prepared >= phase_ends:
                        break
                    task = phase.task(session, data)
                    task.draw(range(TRIAL_SAMPLES))
                    drawn = time.perf_counter()
                    prepared = drawn - begin
                    preparations += 1
                if drawn < phase_ends:  # the same from what is prepared now
                    task.draw(range(OTHERS, OTHERS + TRIAL_SAMPLES))
                    prepared = max(0.0, prepared - (time.perf_counter() - drawn))
                count = fit_until(phase, task, session, stop, phase_ends)
                rows = read_lines(run.path / "costs.jsonl", phase=str, steps_per_second=float)
                speeds = [speed for name, speed in rows if name == phase.name]
                update = 1 / max(speeds[-UPDATES // 2 :])
                left = min(seconds, phase_ends - time.perf_counter())
                if more := max(0, int(left / update)):  # these have their share of groups to pair
                    session.config = change(short, {key: count + more})
                    begin = time.perf_counter()
                    more = fit_until(phase, task, session, stop, phase_ends) - count
                    update = (time.perf_counter() - begin) / more
                    count += more
                if time.perf_counter() < phase_ends:
                    show_preview(session, data, phase)
            del task
            release_memory(device)
            file = run.checkpoint_file(phase.name)
            begin = time.perf_counter()
            checkpoint.load(file)
            now = time.perf_counter()
            prepare = times * prepared
            updates = getattr(config, phase.name).iterations * update
            line = (
                f"ok {phase.name}: {update:.3g} s an update, about "
                f"{format_hours(prepare + updates)} with {format_hours(prepare)} of preparation, "
                f"checkpoint of {format_bytes(file.stat().st_size)} read in {now - begin:.1f} s"
            )
            if device.type == "cuda":
                line += f", peak {format_bytes(peak_memory(device))} on the card"
            rest = now - started - preparations * prepared - count * update
            yield Trial(line, prepare, updates, rest)
            started = time.perf_counter()


def fit_until(phase: Phase, task: Task, session: Session, stop: StopRequest, ends: float) -> int:
    """Train a phase until its last update, or at least for one update until the time ``ends``.
    Return the number of updates that are done. Raise Stopped if ``stop`` requests it."""
    session.stop = TrialStop(stop)
    if math.isfinite(ends):
        session.on_log = lambda _, __, loss, ___: loss is None or time.perf_counter() < ends
    try:
        fit(phase.name, task, session)
    except Stopped:
        if session.stop.reason != CALLBACK:
            raise
    session.stop = stop
    return int(checkpoint.load(session.run.checkpoint_file(phase.name), only_header=True)["step"])


def fit_minutes(
    config: Config,
    minutes: float,
    device: torch.device,
    stop: StopRequest,
    network: OwnNetwork | None,
) -> tuple[Config, str]:
    """Return settings with which training takes these minutes, measuring included, and a line about
    them. Phases keep their shares of the updates. With fewer updates, warm-ups are shorter and less
    is prepared. If the minutes are too few, each phase has an update. Raise UserError if ``stop``
    ends the measuring, and KeyboardInterrupt after Ctrl-C."""
    given = f"minutes = {minutes:g}"
    show(f"{given}: measuring updates")
    begin = time.perf_counter()
    try:
        seconds = min(60 * minutes * TRIED, LONGEST)
        ends = begin + 60 * minutes * MEASURED
        tried = [*try_phases(config, device, seconds, stop, network, ends)]
    except Stopped as stopped:  # there is no run yet
        kind = KeyboardInterrupt if stop.reason == "SIGINT" else UserError
        raise kind(f"{given}: stopped while measuring ({stop.reason})") from stopped
    prepare, updates, rest = (sum(part) for part in list(zip(*tried, strict=True))[1:])
    counts = {f"{phase}.iterations": getattr(config, phase).iterations for phase in config.phases}
    # updates of phases that were not tried count as those that were
    updates *= sum(counts.values()) / sum([*counts.values()][: len(tried)])
    left = 60 * minutes - (time.perf_counter() - begin) - rest
    # with more updates than in the recipe, nothing more is prepared
    share = max(min(left / (prepare + updates), 1), (left - prepare) / updates)
    chosen = {key: max(1, int(share * count)) for key, count in counts.items()}
    line = f"{given}: {sum(chosen.values()):,} updates; recipe {sum(counts.values()):,}"
    if share * min(counts.values()) < 1:
        line += "; too few minutes on this machine now, so training takes longer"
    least = max(LEAST, data_classes(config.data))
    for key in (*PREPARED, *(f"{phase}.warmup_steps" for phase in config.phases)):
        amount = SETTINGS[key].get(config)
        if amount and key.partition(".")[0] in ("pool", *config.phases):
            fitted = min(amount, max(least, int(share * amount)))
            if fitted != amount:
                chosen[key] = fitted
                line += f"; {key} {fitted:,}"
    config = change(config, chosen)
    return change(config, fit_to_classes(config)), line
