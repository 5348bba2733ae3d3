"""Phase 3: the time predictor t_phi says where on its line a sample is (Algorithm 3, part 3)."""

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, ModelConfig, SamplingConfig
from nsgf.data import Data
from nsgf.models import time_network
from nsgf.phases.base import Phase, PhasePlan
from nsgf.phases.lines import (
    LINES_FOLLOW,
    LineTask,
    interpolate,
    line_needs,
    line_plan,
)
from nsgf.phases.nsf import NSF
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import EntryTimes
from nsgf.system.distributed import World
from nsgf.training.task import Batch, Task


class TimePredictorTask(LineTask):
    """t_phi(x) regresses t."""

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *_ = drawn  # labels, if there are any
        return Batch((interpolate(start, end, t),), t)


class Predictor(Phase):
    """t_phi learns the time on the lines of phase 2."""

    name = "predictor"
    leg = EntryTimes
    takes_classes = True
    follows = LINES_FOLLOW

    def task(self, session: Session, data: Data) -> Task:
        return TimePredictorTask.of(self, session, data)

    def network(self, config: ModelConfig, shape: tuple[int, ...], classes: int = 0) -> nn.Module:
        """Of x alone: where a sample is on its line shows without its class."""
        return time_network(config, shape)

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        return PhasePlan(line_plan(self, config, device, world))

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return line_needs(config)

    def pictured(self, config: Config) -> tuple[Phase, ...]:
        """Algorithm 4."""
        return (NSGF(), self, NSF())

    def is_called(self, sampling: SamplingConfig) -> bool:
        return sampling.tau is None
