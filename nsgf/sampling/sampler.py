"""Sampling with the trained networks: Algorithm 2 (NSGF) and Algorithm 4 (NSGF++).

A sample passes one leg after another, each of them one network's part of the way. Which legs there
are, and in which order, is said by the phases that train the networks (:mod:`nsgf.phases`).

Shapes: B batch, *shape one sample. Time runs from 0 to 1 on every leg; one NFE is one call of any
of the networks for one sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.sampling.guidance import asked_labels, calls_per_answer, checked_labels, told
from nsgf.sampling.solvers import Observer, Velocity, check_solver, expected_calls, integrate
from nsgf.sinkhorn.schedule import flow_time

Network = Callable[..., Tensor]


class CountedNetwork:
    """A network that counts how many samples went through it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.evaluations = 0

    def __call__(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return the network's output for x (B, *shape), velocities also take t (B,), and with
        classes labels (B,)."""
        self.evaluations += len(x)
        return self.network(x, *others)


@dataclass
class Samples:
    """What a sampler returns."""

    x: Tensor
    """Samples, (B, *shape)."""
    nfe: float
    """Network calls per sample, averaged over the batch."""
    tau: Tensor | None = None
    """Times at which they entered the straight flow of Algorithm 4, in [0, 1), (B,), predicted or
    ``sampling.tau``; None without such times."""
    path: list[Tensor] = field(default_factory=list)
    """States along the way, each (B, *shape), on request: start, NSGF steps, straight steps."""
    marks: list[str] = field(default_factory=list)
    """What each state of the path is: ``start``, ``v 1/2`` after the first of two NSGF steps, ``u
    3/10`` after three of ten parts of the straight flow."""
    pixels: Tensor | None = None
    """All samples of a gathering as uint8 images, (N, C, H, W), on request; x then holds the first
    of them only."""
    labels: Tensor | None = None
    """Their classes, int64, (B,); None where networks are told none."""
    finite: bool = True
    """Whether every value of every sample is a finite number."""

    def in_units(self, data: Data) -> "Samples":
        """Return them in the units of own points (:meth:`nsgf.data.Data.in_units`)."""
        path = [data.in_units(state) for state in self.path]
        return replace(self, x=data.in_units(self.x), path=path)


class Leg(ABC):
    """The part of one network in the way of a sample."""

    symbol: ClassVar[str] = ""
    """The network's in pictures."""

    def __init__(self, config: Config, network: Network) -> None:
        self.config, self.network = config, CountedNetwork(network)

    @abstractmethod
    def carry(
        self, x: Tensor, tau: Tensor | None, observe: Observer, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Take states x (B, *shape) over this leg, ``observe`` being called with them at each step.

        ``tau`` (B,) are the times at which the straight flow is entered; None: at 0. ``labels``
        (B,) are the classes that networks are told; None: none. Returns the states and the times
        that the next leg gets.
        """

    @abstractmethod
    def expect(self, tau: float | None) -> tuple[int | None, float | None]:
        """Return the network calls for each sample that the settings imply, and the time at which
        all samples enter the straight flow; None: each has its own."""

    def velocity(self, labels: Tensor | None) -> Velocity:
        """Return the network as a function of x and t, for samples with these labels (B,)."""
        return self.network if labels is None else told(self.network, labels, self.config)

    @property
    def _calls(self) -> int:
        """Return the network calls of one velocity."""
        return calls_per_answer(self.config)


class NSGFSteps(Leg):
    """Algorithm 2 with v_theta."""

    symbol = "v"

    def carry(
        self, x: Tensor, tau: Tensor | None, observe: Observer, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        length, velocity = flow_time(self.config.flow), self.velocity(labels)
        x = nsgf_steps(velocity, x, steps=self._steps, flow_time=length, observe=observe)
        return x, tau

    def expect(self, tau: float | None) -> tuple[int | None, float | None]:
        return self._calls * self._steps, tau

    @property
    def _steps(self) -> int:
        return self.config.sampling.nsgf_steps or self.config.flow.steps


class EntryTimes(Leg):
    """Algorithm 4: tau = t_phi(x), or ``sampling.tau``, for which no network is called."""

    def carry(
        self, x: Tensor, tau: Tensor | None, observe: Observer, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        fixed = self.config.sampling.tau
        return x, self.network(x) if fixed is None else x.new_full((len(x),), fixed)

    def expect(self, tau: float | None) -> tuple[int | None, float | None]:
        fixed = self.config.sampling.tau
        return (1, None) if fixed is None else (0, fixed)


class StraightFlow(Leg):
    """Along u_delta from each sample's tau to 1: the end of Algorithm 4, and all that the methods
    NSGF is compared with do."""

    symbol = "u"

    def __init__(self, config: Config, network: Network) -> None:
        """
        Raises:
            UserError: the solver needs torchdiffeq, which is missing.
        """
        super().__init__(config, network)
        check_solver(config.sampling)

    def carry(
        self, x: Tensor, tau: Tensor | None, observe: Observer, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        start = torch.zeros(len(x), device=x.device) if tau is None else tau
        velocity = self.velocity(labels)
        return integrate(velocity, x, start, self.config.sampling, observe), tau

    def expect(self, tau: float | None) -> tuple[int | None, float | None]:
        calls = expected_calls(self.config.sampling, tau)
        return None if calls is None else self._calls * calls, tau


class OneCall(Leg):
    """G: from noise to data at once."""

    symbol = "G"

    def carry(
        self, x: Tensor, tau: Tensor | None, observe: Observer, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        is_residual = self.config.generator.residual
        x = one_call(self.velocity(labels), x, is_residual=is_residual)
        observe(x)
        return x, tau

    def expect(self, tau: float | None) -> tuple[int | None, float | None]:
        return self._calls, tau


class FlowSampler:
    """Carries samples of mu0 to samples of mu*, leg by leg."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self.legs = list(legs)

    @torch.no_grad()
    def __call__(
        self, x: Tensor, labels: Tensor | None = None, *, keep_path: bool = False
    ) -> Samples:
        """
        Args:
            x: samples of mu0, (B, *shape), on the networks' device.
            labels: their classes, whole numbers in [0, K - 1], (B,); None: those that the settings
                ask for, as if x were the first samples of all.
            keep_path: whether the states on the way are kept.

        Raises:
            UserError: labels that are given are not such ones, or networks are told no classes.
        """
        if labels is not None:
            labels = checked_labels(self.legs[0].config, labels, len(x))
        elif asked := asked_labels(self.legs[0].config):
            labels = asked(range(len(x)))
        labels = None if labels is None else labels.to(x.device)
        path, marks = ([x], ["start"]) if keep_path else ([], [])
        observe: Observer = path.append if keep_path else lambda _: None
        tau, before = None, self._evaluations()
        for leg in self.legs:
            x, tau = leg.carry(x, tau, observe, labels)
            new = len(path) - len(marks)
            marks += [f"{leg.symbol} {step}/{new}" for step in range(1, new + 1)]
        nfe = (self._evaluations() - before) / len(x)
        return Samples(x=x, nfe=nfe, tau=tau, path=path, marks=marks, labels=labels)

    def with_settings(self, config: Config) -> "FlowSampler":
        """Return a sampler of the same networks under other settings of sampling.

        Raises:
            UserError: a solver needs torchdiffeq, which is missing.
        """
        return FlowSampler([type(leg)(config, leg.network.network) for leg in self.legs])

    @property
    def has_straight_flow(self) -> bool:
        """Whether ``sampling.solver`` and its settings are used."""
        return any(isinstance(leg, StraightFlow) for leg in self.legs)

    @property
    def has_entry_times(self) -> bool:
        """Whether samples come with ``tau``."""
        return any(isinstance(leg, EntryTimes) for leg in self.legs)

    @property
    def expected_nfe(self) -> int | None:
        """Number of network calls for each sample that the settings imply; None if it depends on
        the samples (dopri5, or ``omega`` with predicted times)."""
        total = 0
        tau: float | None = 0.0
        for leg in self.legs:
            calls, tau = leg.expect(tau)
            if calls is None:
                return None
            total += calls
        return total

    def _evaluations(self) -> int:
        return sum(leg.network.evaluations for leg in self.legs)


def one_call(network: Network, x: Tensor, *labels: Tensor, is_residual: bool) -> Tensor:
    """Return G(x) of samples x of mu0, (B, *shape): x + g(x, 0), one step of a velocity network
    over the whole flow time; or g(x, 0)."""
    answer = network(x, torch.zeros(len(x), device=x.device), *labels)
    return x + answer if is_residual else answer


def nsgf_steps(
    velocity: Velocity,
    x: Tensor,
    *,
    steps: int,
    flow_time: float,
    observe: Observer | None = None,
) -> Tensor:
    """Run Algorithm 2: x <- x + eta v_theta(x, s/S) for s = 0 .. S-1, eta = flow_time / S, from
    samples x of mu0, (B, *shape). With S = T the steps are those of the flow."""
    eta = flow_time / steps
    for step in range(steps):
        t = torch.full((len(x),), step / steps, device=x.device)
        x = x + eta * velocity(x, t)
        if observe:
            observe(x)
    return x
