"""The base class of phases. Planning, resuming and sampling use this class, not phase names."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import nn

from nsgf.config.layers import Layer, find_contradictions
from nsgf.config.schema import Config, Names, OptimConfig, PhaseName
from nsgf.data import Data, Target
from nsgf.models import UserNetwork, VelocityMLP, make_network
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, one_line, wrong_setting
from nsgf.system.seeding import derive_seed, keep_random_numbers
from nsgf.training.task import Session, Task

FREE_IN_SAMPLING = {"seed", "sinkhorn", "pool"}
"""Settings that affect training samples but are not used in sampling."""
ESTIMATE_SAMPLES = 512
"""Number of samples that the estimate of a phase draws."""


class TrainedNetwork(NamedTuple):
    """A trained network, its progress and its precision."""

    network: nn.Module
    progress: str
    """Finished and configured updates at the time of saving, e.g. ``300 of 100000``."""
    precision: object
    """Precision of training, from the checkpoint. Later phases learn from paths that are computed
    in this precision. So a resumed run learns from the same paths."""


@dataclass(frozen=True)
class Phase(ABC):
    """One network of an experiment and its training, for one configuration. A phase has no
    state."""

    config: Config
    target: Target
    """The record of the data set."""

    name: ClassVar[PhaseName]
    """Name of the phase, and of its section in the configuration."""
    title: ClassVar[str]
    """Title of the network in pictures and pages."""

    reads: ClassVar[Names] = ()
    """Sections and dotted settings, besides the phase's own section, that affect its training."""
    follows: ClassVar[Names] = ("seed", "data", "model")
    """Sections and dotted settings that determine training samples and network. They must match
    when a checkpoint is reused. Optimizer settings are not included."""

    @abstractmethod
    def task(self, session: Session, data: Data) -> Task:
        """Return a task with network and batches, ready for the first update.

        Raises:
            Stopped: a stop was requested during preparation.
            UserError: an earlier phase is not trained, or memory is too small.
        """

    @property
    def optim(self) -> OptimConfig:
        """The section of the phase."""
        return self.config.of_phase(self.name)

    @property
    def seed(self) -> int:
        """Seed of the phase's batches."""
        return derive_seed(self.config.seed, self.name)

    def network(self, user_network: UserNetwork | None = None) -> nn.Module:
        """Return a new network with weights from torch's global generator, or a copy of the
        caller's network.

        Raises:
            UserError: the run needs the caller's network, and ``user_network`` is None.
        """
        model = self.config.model
        name = model.network
        if name is None:
            shape = self.target.shape
            if len(shape) == 1:
                return VelocityMLP(shape[0], shape[0], model.mlp, self.target.classes)
            from nsgf.models.unet import UNet

            return UNet(
                shape,
                model.unet,
                self.target.classes,
                checkpoint_activations=model.checkpoint_activations,
            )
        if user_network is None:
            raise wrong_setting(
                "model.network",
                name,
                "is your class and not saved; from Python, use "
                f"nsgf.train(resume=FOLDER, network={name}()), or nsgf.load(FOLDER, network=...)",
            )
        return make_network(user_network)

    def outline(self, user_network: UserNetwork | None = None) -> nn.Module:
        """Return a network for inspecting shapes. It has no weights, unless it is a caller's
        network."""
        device = "cpu" if self.config.model.network else "meta"  # a caller's code may read weights
        with keep_random_numbers(), torch.device(device):
            return self.network(user_network)

    @property
    def active_reads(self) -> Names:
        """Settings in :attr:`reads` that affect training with the current configuration."""
        return self.reads

    def with_kind(self, kind: type["Phase"]) -> "Phase":
        """Return a phase of another class with the same settings."""
        return kind(self.config, self.target)

    def needs(self) -> tuple[type["Phase"], ...]:
        """Return the phases that must be trained before this phase."""
        return ()

    def plan(self, device: torch.device, run: RunFolder | None, world: World) -> tuple[str, int]:
        """Return a line for the user about the work before the first update. The line may be empty.
        Also return the number of bytes that the phase writes into the run folder, without
        checkpoints.

        Raises:
            UserError: a package is missing, this machine is too small, or the run folder has files
                with different settings.
        """
        return "", 0

    def shortened(self, device: torch.device) -> tuple[Layer, float]:
        """Return settings for a shorter preparation, and the factor by which it is shorter."""
        return {}, 1.0

    def clean(self, session: Session) -> None:
        """Remove files that are not needed after training. Called when the phase is finished."""
        return


def starting_network(phase: Phase, session: Session, teacher: Phase | None = None) -> nn.Module:
    """Return a phase's network before the first update. It has the averaged weights of the phase
    ``teacher``. ``teacher`` None: it has random weights, which depend on seed and phase. Torch's
    global generator does not change. Raise UserError if the teacher is not trained."""
    with keep_random_numbers():
        torch.manual_seed(derive_seed(phase.config.seed, phase.name, "init"))
        model = phase.network(session.run.network).to(session.device)
    if teacher:
        trained = load_network(teacher, session.run, session.device)
        model.load_state_dict(trained.network.state_dict())
    return model


def load_network(phase: Phase, run: RunFolder, device: torch.device) -> TrainedNetwork:
    """Return a phase's trained network with its averaged weights, in eval mode and without
    gradients.

    Raises:
        UserError: there are no weights, or the weights have different settings or another
        architecture.
    """
    config = phase.config
    try:
        weights = run.weights(phase.name)
    except checkpoint.Unreadable as error:
        # the setting ``phases`` may no longer contain this phase
        number = [*config.phases, phase.name].index(phase.name) + 1
        raise UserError(
            f"{error} and train that phase anew: nsgf train --run {run.path} --resume-phase "
            f"{number}"
        ) from error
    if texts := find_contradictions(weights.config, config, {*phase.follows} - FREE_IN_SAMPLING):
        raise UserError(f"cannot use {weights.file}: {'; '.join(texts)}")
    model = phase.outline(run.network)
    types = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    try:
        # assigned weights need no second copy, but a caller's network may hold references
        model.load_state_dict(weights.state, assign=config.model.network is None)
        for name, tensor in weights.state.items():
            if tensor.dtype != types[name]:
                raise ValueError(f"{name} is {tensor.dtype}, not {types[name]}")
        if not checkpoint.is_finite({phase.name: weights.state}):
            raise ValueError("has values that are not finite")
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{weights.file} does not fit the network ({one_line(error)})") from error
    return TrainedNetwork(
        model.to(device).eval().requires_grad_(False), weights.progress, weights.precision
    )
