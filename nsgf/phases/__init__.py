"""The phases, and samplers built from them.

To add a phase, add it to the list here, and its name, family and settings to
:mod:`nsgf.config.schema`. All other code calls :func:`get_phase`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from nsgf.config.schema import Config, PhaseName
from nsgf.models.affine import AffineStartNetwork
from nsgf.phases.base import Phase, load_network
from nsgf.phases.flow_matching import Peer
from nsgf.phases.generator import Generator
from nsgf.phases.lines import NSF, Predictor
from nsgf.phases.nsgf import NSGF
from nsgf.phases.reflow import Reflow
from nsgf.run.folder import RunFolder
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import AffineStart, FlowSampler, Leg, Network
from nsgf.system.errors import UserError
from nsgf.training.precision import sampling_precision

_ALL: tuple[Phase, ...] = (NSGF(), NSF(), Predictor(), Peer(), Reflow(), Generator())
_BY_NAME: dict[str, Phase] = {phase.name: phase for phase in _ALL}
_ALGORITHM_4 = (NSGF(), Predictor(), NSF())
"""Phases of Algorithm 4, in sampling order."""
_HAND_OVER = (NSGF(), NSF())
"""Phases of the hand-over, in sampling order: straight lines start where NSGF steps end."""


def get_phase(name: PhaseName) -> Phase:
    """Return the phase of this name."""
    return _BY_NAME[name]


def get_phases(names: list[PhaseName] | tuple[PhaseName, ...]) -> list[Phase]:
    """Return the phases of these names, in their order."""
    return [get_phase(name) for name in names]


def sampled_phases(config: Config, is_trained: Callable[[PhaseName], bool]) -> tuple[Phase, ...]:
    """Return the phases that sampling uses, in order.

    For NSGF++ these are the phases of Algorithm 4, or only NSGF (Algorithm 2) while a network is
    not trained. The hand-over needs no time predictor. Other methods, and a straight flow with an
    affine start, use their last phase.

    Raises:
        UserError: ``sampling.tau`` needs the straight flow, which is not trained.
    """
    last = get_phase(config.phases[-1])
    if last not in _ALGORITHM_4 or config.starts_affine:
        return (last,)
    hands_over = config.nsf.source == "nsgf" and Predictor.name not in config.phases
    way = _HAND_OVER if hands_over and config.sampling.tau is None else _ALGORITHM_4
    if all(is_trained(phase.name) for phase in _called(way, config)):
        return way
    if config.sampling.tau is not None and not is_trained(NSF.name):
        raise UserError(
            f"sampling.tau = {config.sampling.tau}: needs phase {NSF.name}, which has no "
            "checkpoint; train that phase first, or use null"
        )
    return _ALGORITHM_4[:1]


def called_legs(config: Config, is_trained: Callable[[PhaseName], bool]) -> list[type[Leg]]:
    """Return the legs with network calls, in order; see :func:`sampled_phases`."""
    return [phase.leg for phase in _called(sampled_phases(config, is_trained), config)]


def _called(way: tuple[Phase, ...], config: Config) -> list[Phase]:
    """Return the phases whose networks are called: ``sampling.tau`` replaces the predictor."""
    return [phase for phase in way if phase.name != "predictor" or config.sampling.tau is None]


def previewed_phases(config: Config, phase: Phase) -> tuple[Phase, ...]:
    """Return the phases that draw the preview picture of a phase, in order."""
    if phase.name == "predictor":
        return _ALGORITHM_4
    if phase.name == "nsf" and config.nsf.source == "nsgf":
        return _HAND_OVER
    return (phase,)


def load_sampler(
    config: Config, run: RunFolder, device: torch.device, phases: Sequence[Phase] | None = None
) -> tuple[FlowSampler, dict[str, str]]:
    """Return a sampler with the averaged weights of a run, and the training progress of its
    networks by phase. ``phases``: those to sample with, default :func:`sampled_phases`.

    Raises:
        UserError: a checkpoint is missing or does not fit, or torchdiffeq is needed but not
            installed.
    """
    way = tuple(phases or sampled_phases(config, run.has_checkpoint))
    legs: list[Leg] = []
    progress, called = dict[str, str](), _called(way, config)
    precision = sampling_precision(config, device)
    for phase in way:
        network: Network = nn.Identity()  # never called
        if phase in called:
            trained = load_network(phase, config, run, device)
            model, progress[phase.name] = trained.network, trained.progress
            network = InferenceNetwork(model, precision, device)
            if isinstance(model, AffineStartNetwork):
                legs.append(AffineStart(config, model.start))
        legs.append(phase.leg(config, network))
    return FlowSampler(legs), {name: progress[name] for name in _BY_NAME if name in progress}
