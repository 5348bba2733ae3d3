"""What a phase states: its network, task and leg, what its samples follow from, what it needs.

Plans, previews, resuming and sampling know this class and no phase by its name.

Shapes: B batch, *shape one sample.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from nsgf.config.resume_rules import contradictions
from nsgf.config.schema import (
    Config,
    ModelConfig,
    OptimConfig,
    PhaseName,
    SamplingConfig,
    family,
)
from nsgf.data import Data, shape_and_classes
from nsgf.models import count_parameters, velocity_network
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import Leg, StraightFlow
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, one_line
from nsgf.system.seeding import derive_seed
from nsgf.training.precision import Precision, kept_precision
from nsgf.training.task import Task

FREE_IN_SAMPLING = {"seed", "sinkhorn", "sinkhorn.tolerance", "pool"}
"""Sections that training samples follow from and no sampling reads."""


class Trained(NamedTuple):
    """A network and how far its training got."""

    network: nn.Module
    progress: str
    """Updates done of those configured when it was saved, e.g. ``300 of 100000``."""
    precision: Precision
    """What paths that later phases learn from are walked in: as it was trained, if the device can.
    No setting of sampling is asked, or a resume with another one would go on with other paths."""


def count_weights(phase: "Phase", config: Config) -> int:
    """Return the number of weights of a phase's network; nothing is computed."""
    with torch.device("meta"):
        return count_parameters(phase.network(config.model, *shape_and_classes(config.data)))


class PhasePlan(NamedTuple):
    """What a phase does before its first update."""

    lines: tuple[str, ...] = ()
    """For people."""
    disk_bytes: int = 0
    """What it is still going to write into the run folder, beside checkpoints."""


@dataclass(frozen=True)
class Phase(ABC):
    """One network of an experiment. It holds no state, so all phases of a class are equal."""

    name: ClassVar[PhaseName]
    """Its name in the configuration, where it has a section of its settings."""
    leg: ClassVar[type[Leg]] = StraightFlow
    """What its network does with a sample."""
    takes_classes: ClassVar[bool] = False
    """Whether its batches can tell the network classes, with ``data.conditional``."""
    follows: ClassVar[tuple[str, ...]] = ("seed", "data", "model")
    """Sections and dotted leaves that its training samples or its network follow from: a
    checkpoint of others is not taken over. The phase's own optimization is not among them."""

    @abstractmethod
    def task(self, session: Session, data: Data) -> Task:
        """Network and batches, ready for the first update.

        Raises:
            Stopped: asked to, while something is prepared.
            UserError: an earlier phase is missing, or something does not fit.
        """

    def network(self, config: ModelConfig, shape: tuple[int, ...], classes: int = 0) -> nn.Module:
        """The architecture, with weights of torch's global generator; it is told of ``classes``."""
        return velocity_network(config, shape, classes)

    def needs(self, config: Config) -> tuple["Phase", ...]:
        """Earlier phases whose networks its training samples come from."""
        return ()

    def pictured(self, config: Config) -> tuple["Phase", ...]:
        """Phases whose legs make its preview, in the order of the way."""
        return (self,)

    def is_called(self, sampling: SamplingConfig) -> bool:
        """Whether its leg calls the network."""
        return True

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        """What the phase does before its first update.

        Raises:
            UserError: a package that only this phase needs is missing, or it does not fit this
                machine, or contradicts what the run has already.
        """
        return PhasePlan()

    def clean(self, session: Session) -> None:
        """Free what only the training of the phase needs; called once it is done."""
        return

    def trial(self, config: Config, device: torch.device) -> tuple[Config, float]:
        """Return settings with which the phase is prepared in a short time, and how many times
        longer its preparation takes with ``config``."""
        return config, 1.0

    def optim(self, config: Config) -> OptimConfig:
        """The phase's section."""
        section: OptimConfig = getattr(config, self.name)
        return section

    def build(
        self, config: ModelConfig, shape: tuple[int, ...], seed: int, classes: int = 0
    ) -> nn.Module:
        """The network, initialised from ``seed``; torch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network(config, shape, classes)

    def start(self, config: Config, device: torch.device) -> nn.Module:
        """The network as it begins, from a random stream of the phase's own."""
        seed = derive_seed(config.seed, self.name, "init")
        shape, classes = shape_and_classes(config.data)
        return self.build(config.model, shape, seed, classes).to(device)

    def load(self, config: Config, run: RunFolder, device: torch.device) -> Trained:
        """Return the trained network with its averaged weights, in eval mode and without gradients.

        Raises:
            UserError: no checkpoint, or one of other settings or another architecture.
        """
        file = run.checkpoint_file(self.name)
        try:
            payload, remark = checkpoint.load_good(file)
        except checkpoint.Unreadable as error:
            # one may be left out here
            names = config.phases if self.name in config.phases else family(self.name)
            number = names.index(self.name) + 1
            raise UserError(
                f"{error} and train that phase anew: train --run {run.path} --resume-phase {number}"
            ) from error
        checkpoint.check_phase(file, payload, self.name)
        fixed = set(self.follows) - FREE_IN_SAMPLING
        texts = contradictions(payload["config"], config, fixed)
        if texts:
            raise UserError(f"cannot use {file}: " + "; ".join(texts))
        try:
            model = self.filled(config, payload["ema"], device)
            progress = f"{payload['step']} of {payload['config'][self.name]['iterations']}{remark}"
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            why = one_line(error)
            raise UserError(f"checkpoint {file} does not fit the network ({why})") from error
        precision = kept_precision(payload.get("precision"), device)
        return Trained(model, progress, precision)

    def filled(self, config: Config, state: Any, device: torch.device) -> nn.Module:
        """The network with these weights, in eval mode and without gradients.

        Raises:
            RuntimeError, TypeError, AttributeError: they do not fit it.
        """
        shape, classes = shape_and_classes(config.data)
        model = self.build(config.model, shape, 0, classes)
        model.load_state_dict(state)
        return model.to(device).eval().requires_grad_(False)
