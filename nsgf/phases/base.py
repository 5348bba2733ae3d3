"""The base class of phases. Plans, resuming and sampling know this class and no phase by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from nsgf.config.leaves import find_contradictions
from nsgf.config.schema import (
    Config,
    PhaseName,
    family,
)
from nsgf.data import Data, shape_and_classes
from nsgf.models import count_parameters, make_own, velocity_network
from nsgf.run import checkpoint
from nsgf.run.folder import OwnNetwork, RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import Leg, StraightFlow
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, one_line
from nsgf.system.seeding import derive_seed
from nsgf.training.precision import Precision, supported_precision
from nsgf.training.task import Task

FREE_IN_SAMPLING = {"seed", "sinkhorn", "pool"}
"""Settings that training samples follow from and sampling does not read."""


class TrainedNetwork(NamedTuple):
    """A network and how far its training got."""

    network: nn.Module
    progress: str
    """Updates done of those configured when it was saved, e.g. ``300 of 100000``."""
    precision: Precision
    """Precision in which paths that later phases learn from are computed: as it was trained, if the
    device can. It follows from no setting of sampling, so that a resumed run learns from the same
    paths."""


class PhasePlan(NamedTuple):
    """What a phase does before its first update."""

    lines: tuple[str, ...] = ()
    """Lines for the user."""
    disk_bytes: int = 0
    """Bytes that it is still going to write into the run folder, besides checkpoints."""


@dataclass(frozen=True)
class Phase(ABC):
    """One network of an experiment. It holds no state, so all phases of a class are equal."""

    name: ClassVar[PhaseName]
    """Its name in the configuration, where its section has the same name."""
    title: ClassVar[str]
    """What its network is, in words for pictures and pages."""
    leg: ClassVar[type[Leg]] = StraightFlow
    """Part of its network in sampling."""
    takes_classes: ClassVar[bool] = False
    """Whether its batches can tell the network classes, with ``data.conditional``."""
    follows: ClassVar[tuple[str, ...]] = ("seed", "data", "model")
    """Sections and dotted leaves that its training samples or its network follow from. They must
    match for a checkpoint to be reused. The phase's own optimization is not among them."""

    @abstractmethod
    def task(self, session: Session, data: Data) -> Task:
        """Return network and batches, ready for the first update.

        Raises:
            Stopped: a stop was requested while something is prepared.
            UserError: an earlier phase is missing, or something does not fit.
        """

    def network(self, config: Config, own: OwnNetwork | None = None) -> nn.Module:
        """Return the network with weights of torch's global generator, or a copy of the caller's.

        Raises:
            UserError: the caller's is missing.
        """
        name = config.model.network
        if name is None:
            return velocity_network(config.model, *shape_and_classes(config.data))
        if own is None:
            raise UserError(
                f"model.network = {name}: is yours and not saved; resume the run from Python with "
                f"nsgf.train(resume=FOLDER, network={name}()), or nsgf.load(FOLDER, network=...)"
            )
        return make_own(own)

    def needs(self, config: Config) -> tuple["Phase", ...]:
        """Return earlier phases whose networks its training samples come from."""
        return ()

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        """Return what the phase does before its first update.

        Raises:
            UserError: a package that only this phase needs is missing, or it does not fit this
                machine, or contradicts what the run has already.
        """
        return PhasePlan()

    def trial(self, config: Config, device: torch.device) -> tuple[Config, float]:
        """Return settings with which the phase is prepared in a short time, and how many times
        longer its preparation takes with ``config``."""
        return config, 1.0

    def clean(self, session: Session) -> None:
        """Free what only the training of the phase needs; called when it is finished."""
        return


def count_weights(phase: Phase, config: Config, own: OwnNetwork | None = None) -> int:
    """Return the number of weights of a phase's network; nothing is computed."""
    with torch.device("meta"):
        return count_parameters(phase.network(config, own))


def new_network(
    phase: Phase, config: Config, device: torch.device, own: OwnNetwork | None = None
) -> nn.Module:
    """Return a phase's network before its first update, from a random stream of the phase's own.
    torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, phase.name, "init"))
        return phase.network(config, own).to(device)


def starting_network(phase: Phase, session: Session, other: Phase | None = None) -> nn.Module:
    """Return a phase's network before its first update, with the averaged weights of ``other`` if
    it is given.

    Raises:
        UserError: the other phase is not trained.
    """
    model = new_network(phase, session.config, session.device, session.run.network)
    if other:
        trained = load_network(other, session.config, session.run, session.device)
        model.load_state_dict(trained.network.state_dict())
    return model


def restored_network(
    phase: Phase, config: Config, state: Any, device: torch.device, own: OwnNetwork | None = None
) -> nn.Module:
    """Return a phase's network with the weights ``state``, in eval mode and without gradients.

    Raises:
        RuntimeError, TypeError, AttributeError: they do not fit it.
    """
    model = new_network(phase, config, torch.device("cpu"), own)
    model.load_state_dict(state)
    return model.to(device).eval().requires_grad_(False)


class SharedRun(RunFolder, ABC):
    """A folder of networks without checkpoints, which is only read."""

    @abstractmethod
    def load(self, phase: Phase, config: Config, device: torch.device) -> TrainedNetwork:
        """Return what :func:`load_network` returns."""


def load_network(
    phase: Phase, config: Config, run: RunFolder, device: torch.device
) -> TrainedNetwork:
    """Return a phase's trained network with its averaged weights, in eval mode and without
    gradients.

    Raises:
        UserError: there is no checkpoint, or one of other settings or another architecture.
    """
    if isinstance(run, SharedRun):
        return run.load(phase, config, device)
    file = run.checkpoint_file(phase.name)
    try:
        payload, remark = checkpoint.load_good(file)
    except checkpoint.Unreadable as error:
        # a later run of the same family may leave the phase out
        names = config.phases if phase.name in config.phases else family(phase.name)
        number = names.index(phase.name) + 1
        raise UserError(
            f"{error} and train that phase anew: train --run {run.path} --resume-phase {number}"
        ) from error
    checkpoint.check_phase(file, payload, phase.name)
    texts = find_contradictions(payload["config"], config, set(phase.follows) - FREE_IN_SAMPLING)
    if texts:
        raise UserError(f"cannot use {file}: " + "; ".join(texts))
    try:
        model = restored_network(phase, config, payload["ema"], device, run.network)
        progress = f"{payload['step']} of {payload['config'][phase.name]['iterations']}{remark}"
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        why = one_line(error)
        raise UserError(f"checkpoint {file} does not fit the network ({why})") from error
    return TrainedNetwork(model, progress, supported_precision(payload.get("precision"), device))
