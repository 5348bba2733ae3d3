"""The methods. The record of a method says which phases are trained and how to sample.

The rest of the package reads :data:`METHODS`. The records determine the allowed phases and their
order, the networks for samples and previews, and the possible numbers of network calls. They also
determine the shares of updates, and the text of model cards.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from nsgf.config.schema import MOST_STEPS, Config, FlowConfig, PhaseName, Range, SamplingConfig
from nsgf.config.values import format_value
from nsgf.phases.base import Phase
from nsgf.phases.flow_matching import Peer, Reflow
from nsgf.phases.generator import Generator
from nsgf.phases.lines import NSF, Predictor
from nsgf.phases.nsgf import NSGF
from nsgf.sampling.sampler import (
    AffineStart,
    EntryTimes,
    Leg,
    NSGFSteps,
    OneCall,
    ResidualCall,
    StraightFlow,
    calls_per_velocity,
)
from nsgf.system.errors import wrong_setting
from nsgf.system.files import Plain

Legs = tuple[tuple[type[Leg], type[Phase]], ...]
"""The stages of sampling in order, each with the phase whose network it uses."""

When = dict[str, tuple[Any, ...] | Range]
"""Allowed values of settings, by dotted key."""
_FREE: When = {"sampling.tau": (None,)}
PAPER = "Neural Sinkhorn Gradient Flow ([arXiv 2401.14069](https://arxiv.org/abs/2401.14069))"


@dataclass(frozen=True)
class Method:
    """A method: the phases to train, and the legs (stages) of sampling."""

    trains: tuple[type[Phase], ...]
    """Phases in the order of training; the setting ``phases`` has their names."""
    legs: Legs
    when: When = field(default_factory=_FREE.copy)
    """Settings that select this method."""
    title: str = "by a neural {flow.title}"
    """End of a model card's title. This title and ``text`` may contain ``{config.KEY}`` and
    ``{flow.KEY}``."""
    text: str = f"{{flow.card_prefix}}{PAPER}"
    """Description of the method for a sentence of a model card."""
    adds_updates: bool = False
    """Whether the last phase is added to a complete method. A comparison then adds the updates of
    the last phase to the updates of the method."""

    @cached_property
    def names(self) -> list[PhaseName]:
        """Names of the trained phases."""
        return [phase.name for phase in self.trains]

    @property
    def networks(self) -> list[type[Phase]]:
        """Phases whose networks sampling uses, in the order of training."""
        used = [phase for _, phase in self.legs]
        return [phase for phase in self.trains if phase in used]

    def misfits(self, config: Config) -> dict[str, str]:
        """Return the allowed values of each setting in ``when`` that has a forbidden value."""
        return {
            key: str(allowed)
            if isinstance(allowed, Range)
            else " or ".join(map(format_value, allowed))
            for key, allowed in self.when.items()
            if attrgetter(key)(config) not in allowed
        }

    def possible_calls(self, sampling: SamplingConfig) -> tuple[int, float]:
        """Return the smallest and the largest possible number of network calls per sample. The
        smallest number has one step on each leg. An adaptive step counts as one call."""
        calls = [leg.calls_per_step(sampling.solver) for leg, _ in self.legs]
        least = sum(1 if number is None else number for number in calls)
        return least, math.inf if any(leg.steps for leg, _ in self.legs) else least

    def find_fixed_calls(self, sampling: SamplingConfig, classes: int) -> str | None:
        """Return the reason why the number of network calls cannot be chosen; None if it can be
        chosen. ``classes``: number of classes K; 0: networks take no labels."""
        if None in [leg.calls_per_step(sampling.solver) for leg, _ in self.legs]:
            return f"sampling.solver = {sampling.solver} chooses its calls"
        if calls_per_velocity(sampling, classes) > 1:
            return "sampling.guidance doubles the calls"
        return None

    def choose_calls(
        self, sampling: SamplingConfig, flow: FlowConfig, classes: int, nfe: int
    ) -> SamplingConfig:
        """Check the number of network calls that a user gives, and return :meth:`limit_calls`.

        Raises:
            UserError: the number is too small, or the settings of sampling already determine it.
        """
        least, _ = self.possible_calls(sampling)
        if not least <= nfe <= MOST_STEPS:
            raise wrong_setting(
                "nfe", nfe, f"must be a whole number >= {least} and <= {MOST_STEPS} for this run"
            )
        if reason := self.find_fixed_calls(sampling, classes):
            raise wrong_setting("nfe", nfe, f"{reason}; omit nfe")
        return self.limit_calls(sampling, flow, nfe)

    def limit_calls(self, sampling: SamplingConfig, flow: FlowConfig, calls: int) -> SamplingConfig:
        """Return the settings for sampling with this number of network calls, or slightly fewer.
        ``calls`` is at least the smallest number from :meth:`possible_calls`.

        If the steps of a leg cannot be set, its calls do not change. Each leg before the last takes
        at most T steps, and at most half of the remaining calls. The last leg takes all calls that
        then remain. An adaptive solver ignores the limit.
        """
        legs = [leg for leg, _ in self.legs if leg.steps]
        if not legs:
            return sampling
        solver = sampling.solver
        calls -= sum(leg.calls_per_step(solver) or 0 for leg, _ in self.legs if not leg.steps)
        settings: Plain = {"omega": None}
        for leg in legs[:-1]:
            steps = max(1, min(flow.steps, calls // 2))
            settings[leg.steps] = steps
            calls = calls - steps
        settings[legs[-1].steps] = max(1, calls // (legs[-1].calls_per_step(solver) or 1))
        return replace(sampling, **settings)


_LINES: When = {"nsf.source": ("prior", "nsgf")}
_FIXED: When = {"nsf.source": ("prior",), "sampling.tau": Range(0, below=1)}
_STEPS = (NSGFSteps, NSGF)
_STRAIGHT = (StraightFlow, NSF)
_PEER: Plain = {
    "title": "by `{config.peer.method}`",
    "text": f"`{{config.peer.method}}`, compared with {PAPER}",
}
_ONE_CALL: Plain = {
    "title": "with one network call",
    "text": f"a generator that is called once, trained by the velocity of {PAPER} after the idea "
    "of W-Flow ([arXiv 2605.11755](https://arxiv.org/abs/2605.11755))",
}

METHODS = (
    # NSGF++: Algorithm 4
    Method(
        (NSGF, NSF, Predictor),
        (_STEPS, (EntryTimes, Predictor), _STRAIGHT),
        {**_LINES, **_FREE},
    ),
    # the hand-over: straight lines start where NSGF steps end, at time 0
    Method((NSGF, NSF), (_STEPS, _STRAIGHT), {"nsf.source": ("nsgf",), "sampling.tau": (None, 0)}),
    # NSGF++ with one entry time, sampling.tau
    Method((NSGF, NSF, Predictor), (_STEPS, _STRAIGHT), _FIXED),
    Method((NSGF, NSF), (_STEPS, _STRAIGHT), _FIXED),
    # NSGF: Algorithm 2
    Method((NSGF,), (_STEPS,), {**_LINES, **_FREE}),
    Method(
        (NSF,),
        ((AffineStart, NSF), _STRAIGHT),
        {"nsf.source": ("affine",), **_FREE},
        "by a straight flow",
        f"a straight flow after an affine map of the noise, compared with {PAPER}",
    ),
    # flow matching, and a second training on its paths
    Method((Peer, Reflow), ((StraightFlow, Reflow),), **_PEER, adds_updates=True),
    Method((Peer,), ((StraightFlow, Peer),), **_PEER),
    # one call: the generator starts from the velocity network, or from random weights
    Method((NSGF, Generator), ((ResidualCall, Generator),), **_ONE_CALL),
    Method((Generator,), ((OneCall, Generator),), **_ONE_CALL),
)
"""All methods. If several methods apply and train the same phases, the first method is used."""

PHASES: dict[str, type[Phase]] = {
    phase.name: phase for method in METHODS for phase in method.trains
}
"""All phases, by name."""


def find_methods(config: Config) -> list[Method]:
    """Return the methods that apply to a configuration: first the methods that train all phases,
    then the methods that train only the first phases."""
    fitting = [
        method
        for method in METHODS
        if method.names == config.phases[: len(method.names)] and not method.misfits(config)
    ]
    return sorted(fitting, key=lambda method: -len(method.trains))


def preview_method(config: Config, name: PhaseName) -> Method:
    """Return the method for a phase's preview. The preferred method ends with this phase. If no
    such method exists, the method has only the legs of this phase."""
    names = config.phases[: config.phases.index(name) + 1]
    for method in find_methods(replace(config, phases=names)):
        if method.names == names:
            return method
    phase = PHASES[name]
    method = next(method for method in METHODS if phase in method.networks)
    return replace(method, legs=tuple(leg for leg in method.legs if leg[1] == phase))
