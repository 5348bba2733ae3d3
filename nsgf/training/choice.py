"""What ``train.precision: auto`` means on a CPU: a phase that begins measures, and its checkpoint
says what it goes on in.

Some CPUs compute in bf16 a third faster than in float32, some not, and nothing but a clock tells
which. Networks of points and time predictors gain nothing and measure nothing.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import nn

from nsgf.config.schema import Config, OptimConfig, TrainConfig
from nsgf.models import count_parameters
from nsgf.models.unet import UNet
from nsgf.run.session import Session
from nsgf.training.precision import Precision, pick_precision
from nsgf.training.state import TrainState
from nsgf.training.task import Batch

FEWEST = 200
"""Updates of a phase below which measuring costs more than it may save."""
GAIN = 1.1
"""Times that float32 must take longer."""
ROUNDS = 3
SAMPLES, OF_LARGE, LARGE = 32, 8, 10**7
"""Of a batch that is timed, and of a network with more weights than that."""


def measures(config: Config, optim: OptimConfig, network: nn.Module, device: torch.device) -> bool:
    """Whether a phase with these settings and this network measures when it begins."""
    is_open = config.train.precision == "auto" and device.type == "cpu"
    is_worth_it = optim.iterations >= FEWEST and not (config.train.compile or config.smoke)
    return is_open and is_worth_it and isinstance(network, UNet)


def saved_precision(header: Mapping[str, Any]) -> str:
    """What a checkpoint says; those of earlier versions say nothing, and on a CPU are float32's."""
    return str(header.get("precision", "fp32"))


def precision_after(saved: str | None, config: TrainConfig, device: torch.device) -> Precision:
    """What a phase computes in whose checkpoint says ``saved``; None: it has none, nor measures.

    Raises:
        UserError: the precision does not exist on this device.
    """
    if saved == "bf16" and config.precision == "auto" and device.type == "cpu":
        return "bf16"
    return pick_precision(config.precision, device)


def settle_precision(
    session: Session,
    state: TrainState,
    saved: str | None,
    batch: Callable[[], Batch],
    now: Callable[[], float],
) -> str | None:
    """Let a phase go on in the precision of its checkpoint, or choose one where it begins.

    Args:
        session: the run and its processes, which take the same.
        state: the phase, before its first or next update.
        saved: what its checkpoint says; None: it has none.
        batch: makes a batch of this process to measure with.
        now: seconds that never go backwards.

    Returns:
        A remark for people, where a CPU does not simply use float32.
    """
    config, device = session.config, session.device
    usual = state.forward.precision
    state.forward.precision = precision_after(saved, config.train, device)
    if state.forward.precision != usual:
        return f"train.precision = auto: {saved}, as in the checkpoint"
    if saved is None and measures(config, state.config, state.forward.model, device):
        chosen, gain = session.world.agree(faster_precision(state, batch(), now))
        state.forward.precision = chosen
        return f"train.precision = auto: {chosen}, {described(gain)}"
    return None


def described(gain: float) -> str:
    """The result of a measurement, for people."""
    return f"measured: on this CPU fp32 takes {gain:.2f} times as long as bf16"


def faster_precision(
    state: TrainState, batch: Batch, now: Callable[[], float]
) -> tuple[Precision, float]:
    """Time gradients of the first samples, at most as many as an update of the run computes at
    once (all, where a loss is one of the whole batch), in both precisions, in turn; nothing
    changes.

    Returns:
        bf16 if float32 takes GAIN times as long or more, else fp32; and that ratio.
    """
    size = OF_LARGE if count_parameters(state.forward.model) > LARGE else SAMPLES
    part = batch
    if state.divisible:
        whole = batch.split(state.accumulate)[0]
        part = whole.split(-(-whole.size // size))[0]
    before = state.forward.precision, state.accumulate
    seconds: dict[Precision, list[float]] = {"fp32": [], "bf16": []}
    state.accumulate = 1
    for _ in range(1 + ROUNDS):
        for precision, times in seconds.items():
            state.forward.precision = precision
            start = now()
            state.rehearse(part)
            times.append(now() - start)
    state.forward.precision, state.accumulate = before
    fp32, bf16 = (median(times[1:]) for times in seconds.values())  # the first one warms up
    gain = fp32 / max(bf16, 1e-9)
    return ("bf16" if gain >= GAIN else "fp32"), gain
