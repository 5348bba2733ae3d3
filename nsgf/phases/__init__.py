"""The methods. The record of a method says which phases are trained and how to sample.

The rest of the package reads :data:`WAYS`: allowed phases and their order, networks of samples and
previews, possible numbers of network calls, shares of updates, and the text of model cards.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch

from nsgf.config.schema import MOST_STEPS, Config, PhaseName, Range
from nsgf.config.values import format_value
from nsgf.phases.base import Phase, load_network
from nsgf.phases.flow_matching import Peer, Reflow
from nsgf.phases.generator import Generator
from nsgf.phases.lines import NSF, Predictor
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import (
    AffineStart,
    EntryTimes,
    FlowSampler,
    InferenceNetwork,
    Leg,
    Network,
    NSGFSteps,
    OneCall,
    ResidualCall,
    StraightFlow,
    calls_per_velocity,
)
from nsgf.system.errors import wrong_setting
from nsgf.system.files import Plain
from nsgf.training.precision import sampling_precision

Legs = tuple[tuple[type[Leg], Phase], ...]
"""The stages of sampling in order, each with the phase whose network it uses."""

When = dict[str, tuple[Any, ...] | Range]
"""Allowed values of settings, by dotted key."""
_FREE: When = {"sampling.tau": (None,)}
PAPER = "Neural Sinkhorn Gradient Flow ([arXiv 2401.14069](https://arxiv.org/abs/2401.14069))"


@dataclass(frozen=True)
class Way:
    """A method: the phases that are trained, and the legs (stages) of sampling."""

    trains: tuple[Phase, ...]
    """Phases in the order of training; the setting ``phases`` has their names."""
    legs: Legs
    when: When = field(default_factory=_FREE.copy)
    """Settings that select this method."""
    title: str = "by a neural {flow.title}"
    """End of a model card's title. It may contain ``{config.KEY}`` and ``{flow.KEY}``, and so may
    ``text``."""
    text: str = f"{{flow.method}}{PAPER}"
    """Description of the method for a sentence of a model card."""
    adds_updates: bool = False
    """Whether the last phase is added to a complete method. A comparison then adds its updates to
    those of the method."""

    @cached_property
    def names(self) -> list[PhaseName]:
        """Names of the trained phases."""
        return [phase.name for phase in self.trains]

    @property
    def networks(self) -> list[Phase]:
        """Phases whose networks sampling uses, in the order of training."""
        used = [phase for _, phase in self.legs]
        return [phase for phase in self.trains if phase in used]

    def misfits(self, config: Config) -> dict[str, str]:
        """Return the allowed values of those settings in ``when`` whose value is not allowed."""
        return {
            key: str(own) if isinstance(own, Range) else " or ".join(map(format_value, own))
            for key, own in self.when.items()
            if attrgetter(key)(config) not in own
        }

    def possible_calls(self, config: Config) -> tuple[int, float]:
        """Return the smallest and the largest possible number of network calls per sample. The
        smallest has one step on each leg; an adaptive step counts as one call."""
        calls = [leg.calls_per_step(config) for leg, _ in self.legs]
        least = sum(1 if each is None else each for each in calls)
        return least, math.inf if any(leg.steps for leg, _ in self.legs) else least

    def find_fixed_calls(self, config: Config) -> str | None:
        """Return why the number of network calls cannot be chosen; None if it can."""
        if None in [leg.calls_per_step(config) for leg, _ in self.legs]:
            return f"sampling.solver = {config.sampling.solver} chooses its calls"
        return "sampling.guidance doubles the calls" if calls_per_velocity(config) > 1 else None

    def choose_calls(self, config: Config, nfe: int) -> Config:
        """Check the number of network calls that a user gives, and return :meth:`limit_calls`.

        Raises:
            UserError: the number is too small, or the settings of sampling determine it already.
        """
        least, _ = self.possible_calls(config)
        if not least <= nfe <= MOST_STEPS:
            raise wrong_setting(
                "nfe", nfe, f"must be a whole number >= {least} and <= {MOST_STEPS} for this run"
            )
        if reason := self.find_fixed_calls(config):
            raise wrong_setting("nfe", nfe, f"{reason}; omit nfe")
        return self.limit_calls(config, nfe)

    def limit_calls(self, config: Config, calls: int) -> Config:
        """Return the configuration for sampling with this number of network calls, or slightly
        fewer. ``calls`` is at least the smallest number from :meth:`possible_calls`.

        If the steps of a leg cannot be set, its calls do not change. The last leg takes all
        remaining calls; each earlier leg takes at most T steps, and at most half of the remaining
        calls. An adaptive solver ignores the limit.
        """
        legs = [leg for leg, _ in self.legs if leg.steps]
        if not legs:
            return config
        calls -= sum(leg.calls_per_step(config) or 0 for leg, _ in self.legs if not leg.steps)
        settings: Plain = {"omega": None}
        for leg in legs[:-1]:
            steps = max(1, min(config.flow.steps, calls // 2))
            settings[leg.steps] = steps
            calls = calls - steps
        settings[legs[-1].steps] = max(1, calls // (legs[-1].calls_per_step(config) or 1))
        return replace(config, sampling=replace(config.sampling, **settings))


_LINES: When = {"nsf.source": ("prior", "nsgf")}
_FIXED: When = {"nsf.source": ("prior",), "sampling.tau": Range(0, below=1)}
_STEPS = (NSGFSteps, NSGF())
_STRAIGHT = (StraightFlow, NSF())
_PEER: Plain = {
    "title": "by `{config.peer.method}`",
    "text": f"`{{config.peer.method}}`, compared with {PAPER}",
}
_ONE_CALL: Plain = {
    "title": "with one network call",
    "text": f"a generator that is called once, trained by the velocity of {PAPER} after the idea "
    "of W-Flow ([arXiv 2605.11755](https://arxiv.org/abs/2605.11755))",
}

WAYS = (
    # NSGF++: Algorithm 4
    Way(
        (NSGF(), NSF(), Predictor()),
        (_STEPS, (EntryTimes, Predictor()), _STRAIGHT),
        {**_LINES, **_FREE},
    ),
    # the hand-over: straight lines start where NSGF steps end, at time 0
    Way((NSGF(), NSF()), (_STEPS, _STRAIGHT), {"nsf.source": ("nsgf",), "sampling.tau": (None, 0)}),
    # NSGF++ with one entry time, sampling.tau
    Way((NSGF(), NSF(), Predictor()), (_STEPS, _STRAIGHT), _FIXED),
    Way((NSGF(), NSF()), (_STEPS, _STRAIGHT), _FIXED),
    # NSGF: Algorithm 2
    Way((NSGF(),), (_STEPS,), {**_LINES, **_FREE}),
    Way(
        (NSF(),),
        ((AffineStart, NSF()), _STRAIGHT),
        {"nsf.source": ("affine",), **_FREE},
        "by a straight flow",
        f"a straight flow after an affine map of the noise, compared with {PAPER}",
    ),
    # flow matching, and a second training on its paths
    Way((Peer(), Reflow()), ((StraightFlow, Reflow()),), **_PEER, adds_updates=True),
    Way((Peer(),), ((StraightFlow, Peer()),), **_PEER),
    # one call: the generator starts from the velocity network, or from random weights
    Way((NSGF(), Generator()), ((ResidualCall, Generator()),), **_ONE_CALL),
    Way((Generator(),), ((OneCall, Generator()),), **_ONE_CALL),
)
"""All methods. If several apply and train the same phases, the first one is used."""

PHASES: dict[str, Phase] = {phase.name: phase for way in WAYS for phase in way.trains}
"""All phases, by name."""


def get_phases(names: Sequence[PhaseName]) -> list[Phase]:
    """Return the phases of these names, in their order."""
    return [PHASES[name] for name in names]


def find_ways(config: Config) -> list[Way]:
    """Return the methods that apply to a configuration: first those that train all its phases, then
    those that train only its first ones."""
    fitting = [
        way
        for way in WAYS
        if way.names == config.phases[: len(way.names)] and not way.misfits(config)
    ]
    return sorted(fitting, key=lambda way: -len(way.trains))


def find_way(config: Config, is_trained: Callable[[PhaseName], bool] | None = None) -> Way:
    """Return the method of a valid configuration. With ``is_trained``, return the first applicable
    method whose networks are all trained, so that an unfinished run can be sampled."""
    ways = find_ways(config)
    for way in ways:
        if is_trained is None or all(is_trained(phase.name) for phase in way.networks):
            return way
    return ways[0]  # its first missing checkpoint will be named


def find_unused(config: Config, way: Way) -> dict[str, str]:
    """Return ``not used`` by phase for the networks that the method of a configuration has and
    ``way`` does without, because one of them is not trained yet."""
    names = [phase.name for phase in find_way(config).networks if phase not in way.networks]
    return dict.fromkeys(names, "not used")


def find_preview(config: Config, phase: Phase) -> Way:
    """Return the method for a phase's preview: one that ends with it, else one of only its legs."""
    names = config.phases[: config.phases.index(phase.name) + 1]
    for way in find_ways(replace(config, phases=names)):
        if way.names == names:
            return way
    way = next(way for way in WAYS if phase in way.networks)
    return replace(way, legs=tuple(leg for leg in way.legs if leg[1] == phase))


def load_sampler(
    config: Config, run: RunFolder, device: torch.device, way: Way | None = None
) -> tuple[FlowSampler, dict[str, str]]:
    """Return a sampler with the averaged weights of a run, and the training progress of its
    networks by phase, with :func:`find_unused`. ``way``: the method to sample with; None:
    :func:`find_way`.

    Raises:
        UserError: a checkpoint is missing or does not fit.
    """
    way = way or find_way(config, run.has_checkpoint)
    networks = dict[Phase, Network]()
    progress = dict[str, str]()
    for phase in way.networks:
        trained = load_network(phase, config, run, device)
        networks[phase] = InferenceNetwork(
            trained.network, sampling_precision(config, device, trained.precision)
        )
        progress[phase.name] = trained.progress
    progress |= find_unused(config, way)
    return FlowSampler([leg(config, networks[phase]) for leg, phase in way.legs]), progress
