"""The training loop that all phases share."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import torch

from nsgf.config.schema import OptimConfig, PhaseName
from nsgf.run import checkpoint
from nsgf.run.progress import Progress
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.system.errors import UserError, one_line, suggest
from nsgf.system.hardware import peak_memory, reset_peak_memory
from nsgf.system.seeding import derive_seed
from nsgf.system.units import format_bytes
from nsgf.training.precision import Forward, device_settings
from nsgf.training.prefetch import Batches, should_prefetch
from nsgf.training.state import PendingStats, StepStats, TrainState, lr_factor
from nsgf.training.task import Task

CHECKPOINT_SECONDS = 600.0
"""Longest time between two checkpoints."""
LOSS_POINTS = 50
"""Smallest number of lines of metrics.jsonl for each phase, which loss curves show."""
MAX_SKIPPED = 20
"""Training stops after this many successive updates with a non-finite loss or gradient. The fp16
loss scale needs fewer to settle."""


def fit(
    phase: PhaseName,
    task: Task,
    session: Session,
    *,
    now: Callable[[], float] = time.monotonic,
    prepare_seconds: float = 0.0,
) -> None:
    """Train one phase, from its checkpoint if there is one, to its last update, and save it.

    ``now`` is a monotonic clock, and ``prepare_seconds`` the time spent before the first update,
    for ``costs.jsonl``, both in seconds.

    Raises:
        Stopped: ``session.stop`` ended training before the last update; a checkpoint is saved.
        UserError: loss or gradient were not finite ``MAX_SKIPPED`` times in a row, or the card's
            memory is too small for a single sample.
    """
    config, device, world = session.config.train, session.device, session.world
    optim: OptimConfig = getattr(session.config, phase)
    prefetch = should_prefetch(session.config, task, device)
    reset_peak_memory(device)
    with (
        device_settings(),
        closing(Batches(task, optim.batch_size, device, world, prefetch=prefetch)) as batches,
    ):
        state = TrainState(
            Forward(task.model.train(), config, device, world),
            optim,
            loss=task.loss,
            divisible=task.divisible,
            seed=derive_seed(session.config.seed, phase),
            accumulate=config.accumulate,
            world=world,
        )
        try:
            PhaseLoop(phase, state, batches, session, now, prepare_seconds).run()
        finally:
            for line in task.remarks():
                session.log.write(f"{phase}: {line}")
    session.log.write(f"{phase}: peak memory {format_bytes(peak_memory(device))}")


class PhaseLoop:
    """Run the updates of one phase, with logs and checkpoints."""

    def __init__(
        self,
        name: PhaseName,
        state: TrainState,
        batches: Batches,
        session: Session,
        now: Callable[[], float],
        prepare_seconds: float = 0.0,
    ) -> None:
        self.name, self.state, self.batches, self.session = name, state, batches, session
        self.config, self.optim = session.config.train, state.config
        self.log = session.log
        self.file = session.run.checkpoint_file(name)
        self.log_every = min(self.config.log_every, max(1, self.optim.iterations // LOSS_POINTS))
        self.window: list[StepStats] = []
        """Loss and gradient norm of the finite updates since the last log line."""
        self.skipped_in_a_row = 0
        self.mean_loss: float | None = None
        self.now, self.saved_at = now, now()
        self.prepare_seconds = prepare_seconds
        self.saved_step: int | None = None

    def run(self) -> None:
        self._resume()
        self.log.rewind(self.name, self.state.step)
        if self.state.forward.compiled and self.state.step < self.optim.iterations:
            self._compile()
        pending, self.logged = None, (self.state.step, time.perf_counter())
        total, done = self.optim.iterations, self.state.step
        with self.log.progress(self.name, total, "step", done, self.now) as progress:
            while not (stopping := self.session.should_stop()) and self.state.step < total:
                # queue an update, then read the result of the previous one, which has finished
                outcome = self._update()
                self._settle(pending, progress)
                pending = outcome

                logs, saves = self._is_due(self.log_every), self._is_save_due()
                if logs or saves:
                    self._settle(pending, progress)
                    pending = None
                if logs:
                    self._log()
                    progress.update(0, loss=self.mean_loss)
                if saves:
                    self._save()
            self._settle(pending, progress)
        if self.saved_step != self.state.step:
            self._save()
        if stopping and self.state.step < self.optim.iterations:  # else the next phase raises it
            raise Stopped(f"{self.name}: step {self.state.step} of {self.optim.iterations}")

    def _compile(self) -> None:
        """Compile before the first update, and log how long it takes."""
        from torch._dynamo.exc import TorchDynamoException

        self.log.write(f"{self.name}: compiling")
        started = time.perf_counter()
        try:
            with self._logging_splits():
                self.state.rehearse(self.batches.at(self.state.step))
        except TorchDynamoException as error:
            cause = " ".join(str(error).partition("\n\n")[0].split())
            raise UserError(
                f"train.compile = true: cannot compile here ({cause}); use false"
            ) from error
        seconds = time.perf_counter() - started
        self.log.write(f"{self.name}: compiled in {seconds:.1f} s")

    def _update(self) -> PendingStats:
        """Queue the next update."""
        step = self.state.step
        try:
            with torch.profiler.record_function("sample"):
                batch = self.batches.at(step)
            with self._logging_splits():
                return self.state.update(batch)
        except torch.cuda.OutOfMemoryError as error:
            raise UserError(
                f"{self.name}: out of memory on the card at step {step + 1}, where splitting the "
                f"batch does not help; try a smaller {suggest('optim.batch_size')}"
            ) from error

    @contextmanager
    def _logging_splits(self) -> Iterator[None]:
        """Log a line if a batch had to be split."""
        before = self.state.accumulate
        yield
        if self.state.accumulate != before:
            self.log.write(
                f"{self.name}: step {self.state.step} did not fit into the card's memory; training "
                f"continues with {suggest('train.accumulate', self.state.accumulate)}, the same "
                f"batch of {self.optim.batch_size} in parts"
            )

    def _settle(self, outcome: PendingStats | None, progress: Progress) -> None:
        """Read the result of a queued update; raise UserError after too many skipped updates."""
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
        self.log.write(f"{self.name}: step {outcome.step} skipped, {self._skip_reason(reading)}")
        if self.skipped_in_a_row >= MAX_SKIPPED:
            self._save()
            raise UserError(
                f"{self.name}: no finite update in {self.skipped_in_a_row} steps up to "
                f"{outcome.step}; a checkpoint with the last good weights is saved; resume with "
                f"{suggest('train.precision', 'fp32')}, or try a lower {self.name}.lr "
                f"({self.optim.lr:g}) in a new run"
            )

    def _skip_reason(self, reading: StepStats) -> str:
        scaler = self.state.scaler
        if scaler.is_enabled() and scaler.get_scale() >= 1 and math.isfinite(reading.loss):
            return f"fp16 gradients overflowed; their scale is now {scaler.get_scale():g}"
        return f"loss {reading.loss:g}, gradient norm {reading.norm:g}"

    def _is_due(self, every: int) -> bool:
        return self.state.step == self.optim.iterations or self.state.step % every == 0

    def _is_save_due(self) -> bool:
        late = self.now() - self.saved_at >= CHECKPOINT_SECONDS
        writes = self.session.world.is_main  # only the first process saves
        return (late and writes) or self._is_due(self.config.checkpoint_every)

    def _log(self) -> None:
        """Write one line of metrics."""
        step, now = self.state.step, time.perf_counter()
        (last_step, last), self.logged = self.logged, (step, now)
        if not self.window:
            return
        means, self.window = StepStats.mean(self.window), []
        self.mean_loss = means.loss
        self.log.record(
            phase=self.name,
            step=step,
            loss=means.loss,
            grad_norm=means.norm,
            lr=self.optim.lr * lr_factor(step - 1, self.optim),
        )
        self.log.record_cost(
            phase=self.name,
            step=step,
            steps_per_second=round((step - last_step) / (now - last), 3),
            peak_memory=peak_memory(self.session.device),
            prepare_seconds=round(self.prepare_seconds, 3),
        )
        self.prepare_seconds = 0.0

    def _resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.file.exists():
            return
        payload = checkpoint.load(self.file)
        checkpoint.check_phase(self.file, payload, self.name)
        try:
            self.state.load_state_dict(payload)
            self.window = [StepStats(*pair) for pair in payload["window"]]
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            own = self.session.config.model.network
            remedy = "remove it" if own is None else "pass the network that it was saved with"
            raise UserError(
                f"checkpoint {self.file} does not fit ({one_line(error)}); {remedy}"
            ) from error
        self.saved_step = self.state.step
        self.log.write(
            f"{self.name}: continues after step {self.state.step} of {self.optim.iterations}"
        )

    def _save(self) -> None:
        """Save a checkpoint; raise UserError if the weights are not finite, or if no update of the
        finished phase was."""
        payload, step = self._payload(), self.state.step
        if step >= self.optim.iterations > 0 and not self.state.has_learned:
            raise UserError(
                f"{self.name}: none of its {step} updates was finite, so it is not finished; try "
                f"{suggest('train.precision', 'fp32')} or a lower {self.name}.lr "
                f"({self.optim.lr:g}) in a new run, or train longer: the scale of fp16 takes "
                "some updates to settle"
            )
        if not all(checkpoint.is_finite(payload[part]) for part in ("model", "ema")):
            kept = "nothing" if self.saved_step is None else f"the checkpoint of {self.saved_step}"
            raise UserError(
                f"{self.name}: the weights are not finite after step {step}; {kept} is kept; try a "
                f"lower {self.name}.lr ({self.optim.lr:g}) in a new run"
            )
        if self.session.world.is_main:
            checkpoint.save(self.file, payload)
        self.saved_step, self.saved_at = step, self.now()

    def _payload(self) -> dict[str, Any]:
        return {
            "phase": self.name,
            "precision": self.state.forward.precision,
            "config": asdict(self.session.config),
            "window": [[reading.loss, reading.norm] for reading in self.window],
            **self.state.state_dict(),
        }
