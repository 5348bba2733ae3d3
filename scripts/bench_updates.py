"""Updates of one phase, in settings of one's own choice, to be timed."""

import copy
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from bench_common import quiet_session
from torch import nn
from torch.nn import functional

from nsgf.config.schema import Config, PhaseName
from nsgf.data import data_shape
from nsgf.phases import get_phase
from nsgf.phases.nsgf import NSGFTask
from nsgf.pool import TrajectoryPool, build_pool
from nsgf.run.opening import load_data
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.training.precision import Forward
from nsgf.training.prefetch import Batches, draws_ahead
from nsgf.training.state import TrainState
from nsgf.training.step_stats import PendingStats
from nsgf.training.task import Task

NO_RESOLUTION = 1 << 20
"""What torchcfm's network is told instead of no resolution with attention."""


class Phase:
    """Data and pools of one phase, from which any number of its tasks can be made."""

    def __init__(self, name: PhaseName, config: Config, device: torch.device) -> None:
        """
        Args:
            name: which phase.
            config: its data.
            device: where it trains.

        Raises:
            UserError: the data's files are missing or damaged.
        """
        self.name, self.device = name, device
        self.data = load_data(config, device)
        self._pools: dict[str, TrajectoryPool] = {}

    def prepare(self, config: Config) -> None:
        """Build the pool that the phase's tasks share, so that none of them pays for it."""
        if self.name != "nsgf" or config.pool.dtype in self._pools:
            return
        source, target = self.data.source("pool"), self.data.target("pool")
        with TemporaryDirectory() as folder:
            session = quiet_session(config, self.device, Path(folder))
            self._pools[config.pool.dtype] = build_pool(session, source, target)

    def task(self, config: Config) -> Task:
        """A fresh network and its batches.

        Raises:
            UserError: with ``nsf.source: nsgf``, whose network is not trained here.
        """
        phase = get_phase(self.name)
        if self.name != "nsgf":
            return phase.task(quiet_session(config, self.device, Path("nowhere")), self.data)
        self.prepare(config)
        model = phase.start(config, self.device)
        return NSGFTask(model, self._pools[config.pool.dtype], config.seed)


class Steps(Protocol):
    """Anything that trains step by step."""

    batch_size: int

    def step(self) -> None:
        """One update."""
        ...

    def close(self) -> None:
        """End what runs beside it."""
        ...


class Updates:
    """Updates as the step loop does them: draw, update, read the outcome one update later."""

    def __init__(self, phase: Phase, config: Config, *, fixed: bool = False) -> None:
        """
        Args:
            phase: what is trained, and where.
            config: how; the phase's settings, ``train`` and ``pool`` count.
            fixed: every update sees the first batch again.
        """
        optim, task = getattr(config, phase.name), phase.task(config)
        ahead = draws_ahead(config, task, phase.device)
        self.batch_size: int = optim.batch_size
        self._batches = Batches(
            task, optim.batch_size, phase.device, World(), prefetch=ahead and not fixed
        )
        self.forward = Forward(task.model.train(), config.train, phase.device, World())
        self.state = TrainState(
            self.forward, optim, loss=task.loss, accumulate=config.train.accumulate
        )
        self._fixed = self._batches.at(0) if fixed else None
        self._pending: PendingStats | None = None
        self.drawing: list[float] = []
        """Seconds that each update waited for its batch; on CUDA the CPU's part of it."""

    @property
    def parts(self) -> int:
        """Parts that a batch is split into, more than configured where it did not fit."""
        return self.state.accumulate

    def step(self) -> None:
        """One update."""
        begin = time.perf_counter()
        batch = self._fixed or self._batches.at(self.state.step)
        self.drawing.append(time.perf_counter() - begin)
        outcome = self.state.update(batch)
        if self._pending is not None:
            self._pending.read()
        self._pending = outcome

    def close(self) -> None:
        """End the thread that draws ahead."""
        self._batches.close()


class TorchCFM:
    """Updates of torchcfm's independent flow matching with its UNet, in float32.

    The regression of X1 - X0 on straight lines, as in phase 2, in the order of that library's
    CIFAR-10 example: draw, Adam behind a clipped gradient, warm-up, moving average.
    """

    def __init__(self, phase: Phase, config: Config) -> None:
        """
        Args:
            phase: names the data and the device.
            config: architecture and optimization (``nsf``).

        Raises:
            UserError: the library is not installed.
        """
        try:
            from torchcfm.conditional_flow_matching import ConditionalFlowMatcher
            from torchcfm.models.unet.unet import UNetModelWrapper
        except ImportError as error:
            raise UserError("--against-torchcfm needs `pip install torchcfm`") from error
        unet, self._optim = config.model.unet, config.nsf
        self.batch_size = self._optim.batch_size
        self._device, self._targets = phase.device, phase.data.target("targets")
        self._matcher: Any = ConditionalFlowMatcher(sigma=0.0)
        self._model: nn.Module = UNetModelWrapper(
            dim=data_shape(config.data),
            num_channels=unet.channels,
            num_res_blocks=unet.res_blocks,
            channel_mult=unet.mult,
            num_heads=unet.heads,
            num_head_channels=unet.head_channels or -1,
            attention_resolutions=",".join(map(str, unet.attention or [NO_RESOLUTION])),
            use_scale_shift_norm=unet.scale_shift,
            dropout=unet.dropout,
        ).to(phase.device)
        self._average = copy.deepcopy(self._model)
        self._adam = torch.optim.Adam(self._model.parameters(), lr=self._optim.lr)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._adam, lambda step: min(1.0, (step + 1) / max(1, self._optim.warmup_steps))
        )

    def step(self) -> None:
        """One update."""
        end = self._targets.sample(self.batch_size).to(self._device)
        start = torch.randn_like(end)
        t, x, velocity = self._matcher.sample_location_and_conditional_flow(start, end)
        self._adam.zero_grad()
        functional.mse_loss(self._model(t, x), velocity).backward()
        if self._optim.clip_norm:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._optim.clip_norm)
        self._adam.step()
        self._schedule.step()
        with torch.no_grad():
            pairs = zip(self._average.parameters(), self._model.parameters(), strict=True)
            for average, weight in pairs:
                average.lerp_(weight, 1 - self._optim.ema_decay)

    def close(self) -> None:
        """Nothing runs beside it."""
