"""The step loop that all phases share."""

import math
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from nsgf import checkpoint
from nsgf.checkpoint import RunFolder
from nsgf.config import Config, OptimConfig, PhaseName
from nsgf.errors import UserError
from nsgf.seeding import derive_seed
from nsgf.tracking import Tracker
from nsgf.training.trainers import Trainer


class Optimization:
    """What changes while a phase trains: weights, their average, Adam, learning rate, step."""

    def __init__(self, trainer: Trainer, config: OptimConfig) -> None:
        self.trainer, self.config = trainer, config
        self.step = 0
        self.adam = torch.optim.Adam(trainer.model.parameters(), lr=config.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.adam, lambda step: lr_factor(step, config)
        )
        self.ema = AveragedModel(trainer.model, multi_avg_fn=self._average)

    def update(self) -> tuple[Tensor, Tensor]:
        """One optimizer update; returns loss and gradient norm, still on the device."""
        loss = self.trainer.loss(self.config.batch_size)
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(
            self.trainer.model.parameters(), self.config.clip_norm or math.inf
        )
        self.adam.step()
        self.schedule.step()
        self.ema.update_parameters(self.trainer.model)
        self.step += 1
        return loss.detach(), norm

    def _average(self, averaged: Any, current: Any, _: Any) -> None:
        get_ema_multi_avg_fn(ema_decay(self.step, self.config))(averaged, current, None)

    def state_dict(self) -> dict[str, Any]:
        """All of it, with the state of every random stream."""
        return {
            "step": self.step,
            "model": self.trainer.model.state_dict(),
            "ema": self.ema.module.state_dict(),
            "ema_updates": int(self.ema.n_averaged),
            "optimizer": self.adam.state_dict(),
            "scheduler": self.schedule.state_dict(),
            "random": self.trainer.random_state(),
            "torch_random": _global_random_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.step = int(state["step"])
        self.trainer.model.load_state_dict(state["model"])
        self.ema.module.load_state_dict(state["ema"])
        self.ema.n_averaged.fill_(state["ema_updates"])
        self.adam.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["scheduler"])
        self.trainer.set_random_state(state["random"])
        _set_global_random_state(state["torch_random"])


def ema_decay(step: int, config: OptimConfig) -> float:
    """Decay of the average at update ``step`` (0, 1, ...): min(decay, (1 + step) / (10 + step)).

    The warm-up lets a run that is short for its decay forget the initial weights.
    """
    return min(config.ema_decay, (1 + step) / (10 + step))


def lr_factor(step: int, config: OptimConfig) -> float:
    """Learning rate of update ``step`` (0, 1, ...) divided by ``config.lr``.

    Linear from 1/warmup_steps to 1, then constant, or half a cosine that would reach 0 one update
    after the last.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    length = max(1, config.iterations - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / length)
    return 0.5 * (1 + math.cos(math.pi * progress))


class LossWindow:
    """Loss and gradient norm since the last log line, summed on the device, read on request."""

    def __init__(self, step: int) -> None:
        self._sums: Tensor | None = None
        self._step, self._time = step, time.perf_counter()

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Take in one update; both stay on the device."""
        pair = torch.stack([loss.float(), norm.float()])
        self._sums = pair if self._sums is None else self._sums + pair

    def means(self, step: int) -> tuple[float, float]:
        """Mean loss and mean gradient norm so far; not finite if one of them was not."""
        if self._sums is None:
            return 0.0, 0.0
        loss, norm = (self._sums / (step - self._step)).tolist()
        return loss, norm

    def close(self, step: int) -> float:
        """Updates per second since the window opened; opens the next one."""
        speed = (step - self._step) / (time.perf_counter() - self._time)
        self._sums, self._step, self._time = None, step, time.perf_counter()
        return speed


def fit(
    phase: PhaseName, trainer: Trainer, config: Config, run: RunFolder, tracker: Tracker
) -> None:
    """Train one phase to its last update and leave its checkpoint in the run folder.

    Goes on from the phase's checkpoint if there is one. No step waits for the device: the loss is
    read only where it is logged.

    Args:
        phase: which phase; names its settings, checkpoint and records.
        trainer: network and loss.
        config: the resolved configuration, also stored in checkpoints.
        run: the run folder.
        tracker: where records go.

    Raises:
        UserError: loss or gradient are no longer finite.
    """
    optim: OptimConfig = getattr(config, phase)
    torch.manual_seed(derive_seed(config.seed, phase, "dropout"))
    state, file = Optimization(trainer, optim), run.checkpoint_file(phase)
    if file.exists():
        state.load_state_dict(checkpoint.load(file))
        tracker.say(f"{phase}: going on after step {state.step} of {optim.iterations}")

    tracker.rewind(phase, state.step)
    trainer.model.train()
    window = LossWindow(state.step)
    with tqdm(total=optim.iterations, initial=state.step, desc=phase, unit="step") as bar:
        while state.step < optim.iterations:
            # one update; loss and gradient norm stay on the device
            loss, norm = state.update()
            window.add(loss, norm)
            bar.update()

            # read and check, so that nothing that is not finite is ever saved
            last = state.step == optim.iterations
            logs = last or state.step % config.train.log_every == 0
            saves = last or state.step % config.train.checkpoint_every == 0
            if logs or saves:
                mean, norm_mean = window.means(state.step)
                _require_finite(phase, state, mean, norm_mean)

            # log
            if logs:
                bar.set_postfix(loss=f"{mean:.4g}")
                tracker.record(
                    phase=phase,
                    step=state.step,
                    loss=mean,
                    grad_norm=norm_mean,
                    lr=optim.lr * lr_factor(state.step - 1, optim),
                    steps_per_second=round(window.close(state.step), 3),
                )

            # save
            if saves:
                checkpoint.save(file, _payload(phase, state, config))
    if not file.exists():  # a phase of no updates hands over its initial weights
        checkpoint.save(file, _payload(phase, state, config))


def _require_finite(phase: PhaseName, state: Optimization, loss: float, norm: float) -> None:
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise UserError(
            f"{phase}: loss {loss} and gradient norm {norm} at step {state.step}; the last "
            f"checkpoint is kept; try a lower {phase}.lr ({state.config.lr}) in a new run"
        )


def _payload(phase: PhaseName, state: Optimization, config: Config) -> dict[str, Any]:
    return {"phase": phase, "config": asdict(config), **state.state_dict()}


def _global_random_state() -> dict[str, Any]:
    """State of torch's own generators, which dropout draws from."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_global_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
