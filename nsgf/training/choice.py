"""What ``train.precision: auto`` means on a CPU: measured once in a new run, kept in its folder.

Some CPUs compute in bf16 a third faster than in float32, some not, and nothing but a clock tells
which. Networks of points and time predictors gain nothing and are always float32.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import torch

from nsgf.config.schema import Config, OptimConfig
from nsgf.models import count_parameters
from nsgf.models.unet import UNet
from nsgf.run.folder import RunFolder, write_text
from nsgf.run.session import Session
from nsgf.training.precision import Precision
from nsgf.training.state import TrainState
from nsgf.training.task import Batch

FEWEST = 200
"""Updates of a phase below which measuring costs more than it may save."""
GAIN = 1.1
"""Times that float32 must take longer."""
ROUNDS = 3
SAMPLES, OF_LARGE, LARGE = 32, 8, 10**7
"""Of a batch that is timed, and of a network with more weights than that."""
OPEN, KEY = "open", "cpu"


def leave_open(config: Config, run: RunFolder, device: torch.device) -> None:
    """Let a new run measure. One that was not asked here, by a comparison, an earlier version or
    for another device, stays with float32 on a CPU: cells of a table must not mix precisions."""
    phases = [getattr(config, name) for name in config.phases]
    if any(would_measure(config, optim, device) for optim in phases):
        write_text(run.precision_file, json.dumps({KEY: OPEN}) + "\n")


def would_measure(config: Config, optim: OptimConfig, device: torch.device) -> bool:
    """Whether a new run measures before a phase of these settings, if that trains a UNet."""
    train, is_wanted = config.train, config.model.kind == "unet" and not config.smoke
    is_wanted &= device.type == "cpu" and train.precision == "auto" and not train.compile
    return is_wanted and optim.iterations >= FEWEST


def measures(config: Config, state: TrainState, device: torch.device) -> bool:
    """Whether a new run measures before this phase, unless one before it has."""
    is_unet = isinstance(state.forward.model, UNet)
    return is_unet and would_measure(config, state.config, device)


def settle_precision(
    session: Session, state: TrainState, batch: Callable[[], Batch], now: Callable[[], float]
) -> None:
    """Let a phase on a CPU go on in the precision that was chosen for the run, or choose it now.

    Args:
        session: the run and its processes, which take the same.
        state: the phase, before its first or next update.
        batch: makes a batch of this process to measure with.
        now: seconds that never go backwards.
    """
    if session.config.train.precision != "auto" or session.device.type != "cpu":
        return
    if not isinstance(state.forward.model, UNet):
        return
    kept = session.world.agree(_read(session.run))
    if kept == OPEN and state.step == 0 and measures(session.config, state, session.device):
        kept, gain = faster_precision(state, batch(), now)
        kept, gain = session.world.agree((kept, gain))
        if session.world.is_main:
            write_text(session.run.precision_file, json.dumps({KEY: kept}) + "\n")
        session.tracker.log(f"train.precision = auto: {kept}, {described(gain)}")
    elif kept == "bf16":
        session.tracker.log("train.precision = auto: bf16, as the run has chosen")
    if kept == "bf16":
        state.forward.precision = "bf16"


def described(gain: float) -> str:
    """The result of a measurement, for people."""
    return f"measured: on this CPU fp32 takes {gain:.2f} times as long as bf16"


def faster_precision(
    state: TrainState, batch: Batch, now: Callable[[], float]
) -> tuple[Precision, float]:
    """Time gradients of the first samples, at most as many as an update of the run computes at
    once, in both precisions, in turn; nothing changes.

    Returns:
        bf16 if float32 takes GAIN times as long or more, else fp32; and that ratio.
    """
    size = OF_LARGE if count_parameters(state.forward.model) > LARGE else SAMPLES
    whole = batch.split(state.accumulate)[0]
    part = whole.split(-(-len(whole.target) // size))[0]
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


def _read(run: RunFolder) -> str | None:
    """What the run folder says; None: nothing that is understood."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        kept = json.loads(run.precision_file.read_text())[KEY]
        if kept in (OPEN, "fp32", "bf16"):
            return str(kept)
    return None
