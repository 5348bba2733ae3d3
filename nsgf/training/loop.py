"""The training loop that all phases share."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from nsgf.config.layers import nest, saved_values
from nsgf.config.schema import PhaseName
from nsgf.run import checkpoint
from nsgf.run.progress import Progress
from nsgf.run.stop import Stopped
from nsgf.system.errors import UserError, is_memory_full, one_line, suggest
from nsgf.system.hardware import peak_memory
from nsgf.system.output import format_bytes
from nsgf.system.process import fast_layers
from nsgf.system.seeding import derive_seed
from nsgf.training.state import PendingStats, StepStats, TrainState, lr_factor
from nsgf.training.task import Batch, OnLog, Session, Task, load_batches

CHECKPOINT_SECONDS = 600.0
"""Longest time between two checkpoints."""
LOSS_POINTS = 50
"""Smallest number of lines in metrics.jsonl for each phase. Loss curves show these lines."""
MAX_SKIPPED = 20
"""Training stops after this number of successive updates with a non-finite loss or gradient. The
loss scale of fp16 settles in fewer updates."""


class Diverged(UserError):
    """Flows, updates or weights are not finite."""


def fit(phase: PhaseName, task: Task, session: Session, prepare_seconds: float = 0.0) -> None:
    """Train one phase to the last update, and save it. If the phase has a checkpoint, continue from
    the checkpoint.

    ``prepare_seconds`` is the time spent before the first update, for ``costs.jsonl``.

    Raises:
        Stopped: ``session.stop`` ended training before the last update. A checkpoint is saved.
        Diverged: loss or gradient were not finite ``MAX_SKIPPED`` times in a row.
        UserError: the card's memory is too small for a single sample.
    """
    loop = PhaseLoop(phase, task, session, prepare_seconds)
    if session.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(session.device)
    with fast_layers(session.device):
        try:
            loop.run()
        finally:
            for line in task.remarks():
                loop.log(line)
    loop.log(f"peak memory {format_bytes(peak_memory(session.device))}")


@dataclass
class PhaseLoop:
    """Run the updates of one phase, with logs and checkpoints."""

    name: PhaseName
    task: Task
    session: Session
    prepare_seconds: float
    mean_loss: float | None = None
    saved_step: int | None = None
    skipped_in_a_row: int = 0

    def __post_init__(self) -> None:
        session = self.session
        self.config = session.config.train
        self.optim = session.config.of_phase(self.name)
        self.total = self.optim.iterations
        """Number of updates of the phase."""
        self.file = session.run.checkpoint_file(self.name)
        self.task.model.train()
        self.state = TrainState(
            self.task,
            self.optim,
            self.config,
            session.device,
            session.world,
            session.precision,
            derive_seed(session.config.seed, self.name),
            self.log,
        )
        self.window: list[StepStats] = []
        """Loss and gradient norm of the finite updates since the last log line."""
        self.saved_at = time.monotonic()

    def log(self, text: str) -> None:
        self.session.log.write(f"{self.name}: {text}")

    def run(self) -> None:
        session = self.session
        state = self.state
        self._load_checkpoint()
        session.log.tidy(session.config.phases, self.name, state.step)
        # for points, a thread would cost more time than it saves
        is_large = session.device.type == "cuda" and session.target.is_images
        loaded = load_batches(
            self.task,
            self.optim.batch_size,
            session.device,
            session.world,
            state.step,
            prefetch=self.task.reads_disk or is_large,
        )
        self.logged = (state.step, time.perf_counter())
        progress = session.log.progress(self.name, self.total, "step", state.step)
        with closing(loaded), progress:
            batches = self._compile(loaded) if self._must_compile() else loaded
            is_stopping = self._run_updates(batches, progress)
        # a checkpoint without updates could be sampled by mistake
        if state.step or not is_stopping:
            self._save_once()
        # if the last update is done, the next phase raises Stopped
        if is_stopping and state.step < self.total:
            raise Stopped(f"{self.name}: step {state.step} of {self.total}")

    def _load_checkpoint(self) -> None:
        """Continue after the last checkpoint, if there is one."""
        if not self.file.exists():
            return
        payload = checkpoint.load(self.file)
        try:
            self.state.load_state_dict(payload)
            self.window = [StepStats(*pair) for pair in payload["window"]]
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            if is_memory_full(error):
                raise
            raise UserError(
                f"checkpoint {self.file} does not fit ({one_line(error)}); pass the network "
                "that it was saved with, or remove it"
            ) from error
        self.saved_step = self.state.step
        self.log(f"continues after step {self.state.step} of {self.total}")

    def _must_compile(self) -> bool:
        """Whether the network is compiled before the first update."""
        return self.config.compile and self.state.step < self.total

    def _compile(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Compile the network with the first batch, and return all batches. Raise UserError if
        compiling fails."""
        from torch._dynamo.exc import TorchDynamoException  # the import takes seconds

        self.log("compiling")
        started = time.perf_counter()
        batch = next(batches)
        try:
            self.state.gradient(batch)
        except TorchDynamoException as error:
            why = one_line(str(error).partition("\n\n")[0])
            raise UserError(
                f"train.compile = true: cannot compile here ({why}); use false"
            ) from error
        self.log(f"compiled in {time.perf_counter() - started:.1f} s")
        return chain([batch], batches)

    def _run_updates(self, batches: Iterator[Batch], progress: Progress) -> bool:
        """Run all remaining updates, with records and checkpoints. Return whether a stop was
        requested."""
        session = self.session
        state = self.state
        log_every = min(self.config.log_every, max(1, self.total // LOSS_POINTS))
        pending = None
        while not (is_stopping := session.should_stop()) and state.step < self.total:
            # queue an update, then read the result of the previous update, which has finished
            try:
                outcome = self._update(batches)
            except Exception:  # from the data, the caller's network, or a full card
                self._rescue(pending, progress)
                raise
            self._settle(pending, progress)
            pending = outcome
            # records and checkpoints
            is_late = time.monotonic() - self.saved_at >= CHECKPOINT_SECONDS
            is_last = state.step == self.total
            logs = is_last or state.step % log_every == 0
            saves = is_last or state.step % self.config.checkpoint_every == 0
            saves = saves or (is_late and session.world.is_main)  # only the first process saves
            if logs or saves:
                self._settle(pending, progress)
                pending = None
            if logs:
                self._record()
                progress.update(0, loss=self.mean_loss)
            if saves:
                self._save()
            if logs and session.on_log:
                self._call_back(session.on_log, progress)
        self._settle(pending, progress)
        return is_stopping

    def _update(self, batches: Iterator[Batch]) -> PendingStats:
        """Queue the next update."""
        try:
            return self.state.update(next(batches))
        except torch.cuda.OutOfMemoryError as error:
            raise UserError(
                f"{self.name}: out of memory on the card at step {self.state.step + 1}, where "
                f"splitting the batch does not help; try a smaller {suggest('optim.batch_size')}"
            ) from error

    def _call_back(self, on_log: OnLog, progress: Progress) -> None:
        """Call the caller's function. If the function raises an exception, save a checkpoint first.
        If it returns False, request a stop."""
        step = self.state.step
        try:
            answer = on_log(self.name, step, self.mean_loss, self._save_once)
        except BaseException as error:  # includes Ctrl-C and sys.exit
            self._rescue(None, progress)
            self.log(
                f"{type(error).__name__} in the callback at step {step} of "
                f"{self.optim.iterations}; resuming continues after the last checkpoint"
            )
            raise
        if isinstance(answer, bool | np.bool_) and not answer:
            self.session.stop.by_callback()
        self.logged = (step, time.perf_counter())

    def _rescue(self, pending: PendingStats | None, progress: Progress) -> None:
        """Save a checkpoint before an exception reaches the caller. If saving fails, log a line, so
        that the caller sees the original exception."""
        try:
            self._settle(pending, progress)
            if self.state.step:  # a checkpoint without updates could be sampled by mistake
                self._save_once()
        except Exception as error:
            self.log(f"no checkpoint at step {self.state.step} ({one_line(error)})")

    def _settle(self, outcome: PendingStats | None, progress: Progress) -> None:
        """Read the result of a queued update. Raise Diverged if too many updates in a row were
        skipped."""
        if outcome is None:
            return
        reading = outcome.read()
        if reading.is_finite:
            self.window.append(reading)
            self.skipped_in_a_row = 0
            progress.update(loss=reading.loss if self.mean_loss is None else self.mean_loss)
            return
        progress.update()
        self.skipped_in_a_row += 1
        self.log(
            f"step {outcome.step} skipped, loss {reading.loss:g}, gradient norm {reading.norm:g}, "
            f"next loss scale {self.state.scaler.get_scale():g}"
        )
        if self.skipped_in_a_row >= MAX_SKIPPED:
            self._save()
            raise Diverged(
                f"{self.name}: no finite update in {self.skipped_in_a_row} steps up to "
                f"{outcome.step}; the last good weights are saved; resume with "
                f"{suggest('train.precision', 'fp32')}, or lower {self.name}.lr in a new run"
            )

    def _record(self) -> None:
        """Write a line of metrics and a line of costs."""
        step = self.state.step
        now = time.perf_counter()
        last_step, last = self.logged
        self.logged = (step, now)
        if not self.window:
            return
        losses, norms = zip(*self.window, strict=True)
        self.mean_loss = fmean(losses)
        self.window = []
        self.session.log.record(
            phase=self.name,
            step=step,
            loss=self.mean_loss,
            grad_norm=fmean(norms),
            lr=self.optim.lr * lr_factor(step - 1, self.optim),
        )
        self.session.log.record(
            "costs",
            phase=self.name,
            step=step,
            steps_per_second=round((step - last_step) / (now - last), 3),
            peak_memory=peak_memory(self.session.device),
            prepare_seconds=round(self.prepare_seconds, 3),
        )
        self.prepare_seconds = 0.0

    def _save_once(self) -> Path:
        """Save a checkpoint, unless this step already has one, and return the run folder."""
        if self.saved_step != self.state.step:
            self._save()
        return self.session.run.path

    def _save(self) -> None:
        """Save a checkpoint. Raise UserError if the weights are not finite, or if the phase ends
        without a single finite update."""
        content = self.state.state_dict()
        step = self.state.step
        counts = (
            moments["step"] for moments in self.state.adam.state.values()
        )  # number of finite updates
        is_untrained = step >= self.optim.iterations > 0 and not any(counts)
        if is_untrained or not checkpoint.is_finite(content):
            raise Diverged(
                f"{self.name}: weights or all updates are not finite after step {step}, so they "
                f"are not saved; try {suggest('train.precision', 'fp32')} or a lower "
                f"{self.name}.lr ({self.optim.lr:g}) in a new run; for fp16, train longer: "
                "its loss scale needs some updates to settle"
            )
        if self.session.world.is_main:
            content |= {
                "phase": self.name,
                "precision": self.state.precision,
                "config": nest(saved_values(self.session.config)),
                "window": [list(reading) for reading in self.window],
            }
            checkpoint.save(self.file, content)
        self.saved_step = step
        self.saved_at = time.monotonic()
