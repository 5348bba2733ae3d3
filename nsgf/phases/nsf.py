"""Phase 2: the straight flow u_delta from noise to data (Algorithm 3, part 2)."""

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.phases.base import Phase, Preparation
from nsgf.phases.lines import LineTask, line_preparations
from nsgf.phases.nsgf import NSGF
from nsgf.run.session import Session
from nsgf.training.task import Batch, Task


class NSFTask(LineTask):
    """u_delta(x, t) regresses X1 - X0."""

    def batch(self, *drawn: Tensor) -> Batch:
        noise, end, t = drawn
        start, end, x = self.points(noise, end, t)
        return Batch((x, t), end - start)


class NSF(Phase):
    """u_delta learns the velocity of straight lines."""

    name = "nsf"
    follows = (*NSGF.follows, "nsf.source", "nsf.coupling")

    def task(self, session: Session, data: Data) -> Task:
        return NSFTask.of(self, session, data)

    def preparations(self, config: Config, device: torch.device) -> tuple[Preparation, ...]:
        return line_preparations(self, config, device)

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (NSGF(),) if config.nsf.source == "nsgf" else ()

    def pictured(self, config: Config) -> tuple[Phase, ...]:
        """The whole straight flow, from time 0 and from where its lines start."""
        return (*self.needs(config), self)
