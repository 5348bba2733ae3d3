"""The potentials of semidiscrete transport as a part of a run: learned once, kept, gone on with.

Both the lines of NSGF++ and those of a peer may be paired by them. They follow from the law of the
starts, not from the phase, so all phases of a run share one file, ``checkpoints/semidiscrete.pt``.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf.config.leaves import fixed_values
from nsgf.config.schema import Config, PhaseName
from nsgf.data import Data, data_shape, data_size
from nsgf.phases.base import Preparation
from nsgf.phases.transport import TrainedSteps
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, earlier
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.sinkhorn.semidiscrete import BATCH, Semidiscrete
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes

NAME = "semidiscrete"
SECTIONS = ("seed", "data", NAME)
"""Settings that the potentials follow from."""
CHECK_PASSES = 4
"""Draws for each point with which the learned potentials are checked."""


def potential_file(run: RunFolder) -> Path:
    """Where a run keeps its potentials."""
    return run.path / "checkpoints" / f"{NAME}.pt"


def steps_of(config: Config, points: int) -> int:
    """Steps of the ascent for so many points."""
    return -(-config.semidiscrete.passes * points // BATCH)


def check_steps(points: int) -> int:
    """As many draws as BATCH times this check them."""
    return -(-CHECK_PASSES * points // BATCH)


def draws_of(config: Config) -> int:
    """Starts that learning and checking take, known without loading the data."""
    points = data_size(config.data)
    return BATCH * (steps_of(config, points) + check_steps(points))


def potential_plan(key: str, config: Config, device: torch.device) -> str:
    """A line about what is learned and the memory that it takes; ``key`` asks for it.

    Raises:
        UserError: it does not fit.
    """
    points, values = data_size(config.data), math.prod(data_shape(config.data))
    needed = 4 * points * (values + 2 * BATCH)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if needed > free:
        raise UserError(
            f"{key} = semidiscrete: {points} samples and their costs need {format_bytes(needed)} "
            f"of the device, {format_bytes(free)} are free; pair within groups instead"
        )
    return (
        f"{NAME}: potentials of {points} samples in {steps_of(config, points)} steps of {BATCH}, "
        f"{format_bytes(needed)} on the device"
    )


def potential_preparation(
    phase: PhaseName, config: Config, device: torch.device, starts: int
) -> Preparation:
    """Finding the partners of so many starts, in learning and in training."""
    shape = data_shape(config.data)
    points = torch.randn(data_size(config.data), *shape, device=device)
    dual, x = Semidiscrete(points, 1), torch.randn(BATCH, *shape, device=device)
    return Preparation(f"{phase}, partners", lambda: dual.partners(x), starts / BATCH)


def learned_potential(
    session: Session, data: Data, transport: TrainedSteps | None = None
) -> Semidiscrete:
    """Potentials that carry the starts to all training samples, from the run folder as far as they
    are there.

    Args:
        session: the run; its processes share the draws of each step.
        data: source and target.
        transport: the trained NSGF steps from the source's samples to the starts X0; None: they
            are X0.

    Raises:
        Stopped: asked to; what is learned is kept.
        UserError: the file cannot be read or written, or the target has no finite set of samples.
    """
    return _Learner(session, data, transport).finished()


class _Learner:
    """The ascent of one run, and its file."""

    def __init__(self, session: Session, data: Data, transport: TrainedSteps | None) -> None:
        self._session, self._transport = session, transport
        self._source = data.source(NAME)
        points = data.everything(session.device)
        self._dual = Semidiscrete(points, steps_of(session.config, len(points)))
        self._file = potential_file(session.run)
        self._settings = _settings(session, transport)
        self._saved_at = time.monotonic()

    def finished(self) -> Semidiscrete:
        dual, session = self._dual, self._session
        checked = self._read()
        session.world.wait()  # before the first process writes
        if not dual.is_learned:
            self._learn()
        if not checked:
            session.tracker.log(f"{NAME}: {self._checked()}")
            self._save(checked=True)
        return dual

    def _learn(self) -> None:
        dual, session = self._dual, self._session
        # rounded by each card in its own way
        gap = session.world.agree(dual.gap(self._starts(range(BATCH))))
        if not math.isfinite(gap):
            raise UserError(f"{NAME}: starts or images are not finite, so none is the nearest")
        session.tracker.log(f"{NAME}: {len(dual.points)} points, {dual.steps} steps of {BATCH}")
        with session.tracker.progress(NAME, dual.steps, "step", dual.step) as progress:
            while not dual.is_learned:
                self._stop_if_asked()
                dual.climb(self._summed(dual.wins(self._part(dual.step))), gap)
                progress.update()
                self._save_now_and_then()
        self._save()

    def _checked(self) -> str:
        """How even the points win draws that were not learned from."""
        dual, wins = self._dual, torch.zeros_like(self._dual.average)
        for part in range(dual.steps, dual.steps + check_steps(len(dual.points))):
            self._stop_if_asked()
            wins += dual.average_wins(self._part(part))
        return dual.shares(self._summed(wins)).text()

    def _stop_if_asked(self) -> None:
        if self._session.is_asked():
            self._save()
            raise Stopped(f"{NAME}: {self._dual.step} of {self._dual.steps} steps kept")

    def _part(self, number: int) -> Tensor:
        """This process's starts of a step."""
        whole = range(number * BATCH, (number + 1) * BATCH)
        return self._starts(self._session.world.share(whole))

    def _starts(self, positions: range) -> Tensor:
        x = self._source.at(positions).to(self._session.device)
        return self._transport(x) if self._transport else x

    def _summed(self, wins: Tensor) -> Tensor:
        return (self._session.world.mean(wins) * self._session.world.size).round()

    def _read(self) -> bool:
        """Go on from the file, if it is of the same settings; whether it was checked."""
        if not (self._file.exists() or earlier(self._file).exists()):
            return False
        payload, remark = checkpoint.load_good(self._file)
        checkpoint.check_phase(self._file, payload, NAME)
        dual, log = self._dual, self._session.tracker.log
        usual = fixed_values(Config(), SECTIONS)  # what versions before a setting had
        if {**usual, **payload["config"]} != {**usual, **self._settings}:
            log(f"{NAME}: learned anew; {self._file} is of other settings or other NSGF steps")
            return False
        try:
            dual.potential.copy_(payload["model"]["g"])
            dual.average.copy_(payload["ema"]["g"])
            dual.step, checked = int(payload["step"]), bool(payload["checked"])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self._file} does not fit the data; remove it") from error
        log(f"{NAME}: {dual.step} of {dual.steps} steps are in {self._file}{remark}")
        return checked

    def _save_now_and_then(self) -> None:
        minutes = self._session.config.train.checkpoint_minutes
        if time.monotonic() - self._saved_at > 60 * minutes:
            self._save()

    def _save(self, *, checked: bool = False) -> None:
        self._saved_at = time.monotonic()
        if not self._session.world.is_main:
            return
        dual = self._dual
        payload: dict[str, Any] = {
            "phase": NAME,
            "step": dual.step,
            "config": self._settings,
            "checked": checked,
            "model": {"g": dual.potential.cpu()},
            "ema": {"g": dual.average.cpu()},
        }
        checkpoint.save(self._file, payload)


def _settings(session: Session, transport: TrainedSteps | None) -> dict[str, Any]:
    """All that the potentials follow from, by dotted key."""
    settings = fixed_values(session.config, SECTIONS)
    if transport:
        settings |= {"steps": transport.steps, "weights": transport.checksum}
    return settings
