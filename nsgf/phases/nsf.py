"""Phase 2: the straight flow u_delta from noise to data (Algorithm 3, part 2)."""

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.phases.base import Phase, PhasePlan
from nsgf.phases.lines import (
    LINES_FOLLOW,
    LineTask,
    interpolate,
    line_needs,
    line_plan,
)
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.system.distributed import World
from nsgf.training.task import Batch, Task


class NSFTask(LineTask):
    """u_delta(x, t) regresses X1 - X0."""

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *labels = drawn
        return Batch((interpolate(start, end, t), t, *labels), end - start)


class NSF(Phase):
    """u_delta learns the velocity of straight lines."""

    name = "nsf"
    takes_classes = True
    follows = (*LINES_FOLLOW, "nsf.init")

    def task(self, session: Session, data: Data) -> Task:
        """
        Raises:
            UserError: it starts from NSGF's steps or weights, and NSGF is not trained.
        """
        task = NSFTask.of(self, session, data)
        if session.config.nsf.init == "nsgf":
            velocity = NSGF().load(session.config, session.run, session.device).network
            task.model.load_state_dict(velocity.state_dict())
        return task

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        return PhasePlan(line_plan(self, config, device, world))

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (NSGF(),) if "nsgf" in (config.nsf.source, config.nsf.init) else ()

    def pictured(self, config: Config) -> tuple[Phase, ...]:
        """The whole straight flow, from time 0 and from where its lines start."""
        return (*line_needs(config), self)
