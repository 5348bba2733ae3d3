"""Sampling with the trained networks: Algorithm 2 (NSGF) and Algorithm 4 (NSGF++).

Shapes: B batch, *shape one sample. Time runs from 0 to 1 on both legs; one NFE is one call of any
of the three networks for one sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nsgf.config.schema import PEER_PHASES, PHASES, Config, PhaseName, SamplingConfig
from nsgf.sampling.solvers import check_solver, integrate
from nsgf.sinkhorn.schedule import flow_time

VelocityNetwork = Callable[[Tensor, Tensor], Tensor]


class CountedNetwork:
    """A network that counts how many samples went through it."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.evaluations = 0

    def __call__(self, x: Tensor, *time: Tensor) -> Tensor:
        """x (B, *shape), and t (B,) for velocities -> the network's output."""
        self.evaluations += len(x)
        return self._network(x, *time)


@dataclass
class Samples:
    """What a sampler returns."""

    x: Tensor
    """Samples, (B, *shape)."""
    nfe: float
    """Network calls per sample, averaged over the batch."""
    tau: Tensor | None = None
    """Times at which they entered the straight flow, in [0, 1), (B,), predicted or
    ``sampling.tau``; None without a straight flow."""
    path: list[Tensor] = field(default_factory=list)
    """States along the way, each (B, *shape), on request: start, NSGF steps, straight steps."""
    pixels: Tensor | None = None
    """All samples of a gathering as uint8 images, (N, C, H, W), on request; x then holds the first
    of them only."""
    finite: bool = True
    """Whether every value of every sample is a finite number."""


def straight_flow_networks(config: SamplingConfig) -> tuple[PhaseName, ...]:
    """Phases whose networks Algorithm 4 uses: with a fixed ``tau`` it asks no predictor."""
    return PHASES if config.tau is None else ("nsgf", "nsf")


class NSGFSampler:
    """Algorithm 4, or Algorithm 2 when a network for the straight flow is not there."""

    def __init__(
        self,
        config: Config,
        velocity: nn.Module,
        straight: nn.Module | None = None,
        predictor: nn.Module | None = None,
    ) -> None:
        """
        Args:
            config: flow time T * eta and the sampling section.
            velocity: v_theta.
            straight: u_delta.
            predictor: t_phi; not used with ``sampling.tau``. Without either the straight flow
                cannot be entered and is left out.

        Raises:
            UserError: the straight flow needs torchdiffeq, which is missing.
        """
        self.flow, self.sampling = config.flow, config.sampling
        self.velocity, self.straight, self.predictor = velocity, straight, predictor
        if self.uses_straight_flow:
            check_solver(self.sampling)

    @property
    def uses_straight_flow(self) -> bool:
        """Whether all of Algorithm 4 runs."""
        enters = self.predictor is not None or self.sampling.tau is not None
        return self.straight is not None and enters

    @property
    def networks(self) -> tuple[PhaseName, ...]:
        """Phases whose networks are called."""
        return straight_flow_networks(self.sampling) if self.uses_straight_flow else ("nsgf",)

    @torch.no_grad()
    def __call__(self, x: Tensor, *, keep_path: bool = False) -> Samples:
        """Carry samples of mu0 to samples of mu*.

        Args:
            x: (B, *shape), on the networks' device.
            keep_path: also return the states along the way.
        """
        path = [x] if keep_path else []
        observe = path.append if keep_path else _ignore
        velocity = CountedNetwork(self.velocity)
        counted = [velocity]
        x = nsgf_steps(
            velocity,
            x,
            steps=self.sampling.nsgf_steps or self.flow.steps,
            flow_time=flow_time(self.flow),
            observe=observe,
        )
        tau = None
        if self.straight is not None and self.uses_straight_flow:
            tau = self._entry_times(x, counted)
            straight = CountedNetwork(self.straight)
            counted.append(straight)
            x = straight_flow(straight, x, tau, self.sampling, observe)
        nfe = sum(network.evaluations for network in counted) / len(x)
        return Samples(x=x, nfe=nfe, tau=tau, path=path)

    def _entry_times(self, x: Tensor, counted: list[CountedNetwork]) -> Tensor:
        """Times (B,) of samples after the NSGF steps, (B, *shape); adds what it calls."""
        if self.sampling.tau is not None:
            return x.new_full((len(x),), self.sampling.tau)
        assert self.predictor is not None
        predictor = CountedNetwork(self.predictor)
        counted.append(predictor)
        return predictor(x)


class PeerSampler:
    """A straight flow from time 0 to 1, all that the methods NSGF is compared with do."""

    uses_straight_flow = True

    def __init__(self, config: Config, straight: nn.Module, phase: PhaseName) -> None:
        """
        Args:
            config: the sampling section.
            straight: u.
            phase: which phase trained it, ``peer`` or ``reflow``.

        Raises:
            UserError: the solver needs torchdiffeq, which is missing.
        """
        self.networks: tuple[PhaseName, ...] = (phase,)
        self._sampling, self._straight = config.sampling, straight
        check_solver(self._sampling)

    @torch.no_grad()
    def __call__(self, x: Tensor, *, keep_path: bool = False) -> Samples:
        """Carry samples of mu0 to samples of mu*; as in :class:`NSGFSampler`."""
        path = [x] if keep_path else []
        observe = path.append if keep_path else _ignore
        straight = CountedNetwork(self._straight)
        start = torch.zeros(len(x), device=x.device)
        x = straight_flow(straight, x, start, self._sampling, observe)
        return Samples(x=x, nfe=straight.evaluations / len(x), path=path)


FlowSampler = NSGFSampler | PeerSampler


def nsgf_steps(
    velocity: VelocityNetwork,
    x: Tensor,
    *,
    steps: int,
    flow_time: float,
    observe: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Algorithm 2: x <- x + eta v_theta(x, s/S) for s = 0 .. S-1, eta = flow_time / S.

    Args:
        velocity: v_theta.
        x: samples of mu0, (B, *shape).
        steps: S; the flow's own T gives back its eta.
        flow_time: of the trained flow (:func:`nsgf.sinkhorn.schedule.flow_time`).
        observe: called with the state after each step.
    """
    eta = flow_time / steps
    for step in range(steps):
        t = torch.full((len(x),), step / steps, device=x.device)
        x = x + eta * velocity(x, t)
        if observe:
            observe(x)
    return x


def straight_flow(
    straight: VelocityNetwork,
    x: Tensor,
    tau: Tensor,
    config: SamplingConfig,
    observe: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Algorithm 4, second leg: along u_delta from each sample's tau to 1.

    Args:
        straight: u_delta.
        x: samples after the NSGF steps, (B, *shape).
        tau: their times in [0, 1], (B,).
        config: ``solver`` and what it reads: ``straight_steps``, ``omega``, ``rtol``, ``atol``.
        observe: called with the state after each round of steps (euler, heun), or with those at
            ``straight_steps`` equally spaced parts of the way (dopri5).

    Raises:
        UserError: the solver is not installed, or cannot reach its tolerances.
    """
    if config.solver == "euler":
        return _euler(straight, x, tau, config, observe)
    span = 1 - tau
    shape = (-1, *[1] * (x.ndim - 1))

    def slope(s: Tensor, state: Tensor) -> Tensor:
        """Samples start at times of their own, so all go over s in [0, 1], t = tau + s span."""
        # solvers may look behind the end, where no network was trained
        return span.view(shape) * straight(state, tau + s.clamp(max=1) * span)

    return integrate(slope, x, config, observe)


def _euler(
    straight: VelocityNetwork,
    x: Tensor,
    tau: Tensor,
    config: SamplingConfig,
    observe: Callable[[Tensor], None] | None,
) -> Tensor:
    """The paper's Euler steps.

    With ``straight_steps`` S every sample takes S steps of its own size (1 - tau) / S. With a fixed
    ``omega`` each takes as many as it needs, the last one cut to end at 1.
    """
    if config.omega is None:
        omega = (1 - tau) / config.straight_steps
        rounds = torch.full_like(tau, config.straight_steps, dtype=torch.long)
    else:
        omega = torch.full_like(tau, config.omega)
        rounds = ((1 - tau) / config.omega - 1e-6).ceil().long()
    for count in range(int(rounds.max())):
        active = rounds > count
        t = tau[active] + count * omega[active]
        step = torch.minimum(omega[active], 1 - t)
        velocity = straight(x[active], t)
        moved = x[active] + step.view(-1, *[1] * (x.ndim - 1)) * velocity
        x = x.clone()
        x[active] = moved
        if observe:
            observe(x)
    return x


def expected_nfe(config: Config, networks: tuple[PhaseName, ...]) -> str:
    """Network calls per sample that the settings imply, for people.

    Args:
        config: the flow and sampling sections.
        networks: phases whose networks are called.
    """
    sampling = config.sampling
    calls = (sampling.nsgf_steps or config.flow.steps) if "nsgf" in networks else 0
    if networks == ("nsgf",):
        return str(calls)
    if sampling.solver == "dopri5":
        return "adaptive"
    calls += "predictor" in networks
    if sampling.omega is None:
        per_step = 2 if sampling.solver == "heun" else 1
        return str(calls + per_step * sampling.straight_steps)
    start = 0.0 if networks[0] in PEER_PHASES else sampling.tau or 0.0
    return f"at most {calls + math.ceil((1 - start) / sampling.omega)}"


def _ignore(_: Tensor) -> None:
    pass
