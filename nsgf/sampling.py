"""Sampling with the trained networks: Algorithm 2 (NSGF) and Algorithm 4 (NSGF++).

Shapes: B batch, *shape one sample. Time runs from 0 to 1 on both legs; one NFE is one call of any
of the three networks for one sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nsgf.config import Config, SamplingConfig

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
    """Predicted times in (0, 1), (B,); None without a straight flow."""
    path: list[Tensor] = field(default_factory=list)
    """States along the way, each (B, *shape), on request: start, NSGF steps, straight steps."""
    pixels: Tensor | None = None
    """All samples of a gathering as uint8 images, (N, C, H, W), on request; x then holds the first
    of them only."""
    finite: bool = True
    """Whether every value of every sample is a finite number."""


class NSGFSampler:
    """Algorithm 4, or Algorithm 2 when only the velocity network is there."""

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
            predictor: t_phi; without it the straight flow cannot be entered and is left out.
        """
        self.flow, self.sampling = config.flow, config.sampling
        self.velocity, self.straight, self.predictor = velocity, straight, predictor

    @property
    def uses_straight_flow(self) -> bool:
        """Whether all of Algorithm 4 runs."""
        return self.straight is not None and self.predictor is not None

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
            flow_time=self.flow.steps * self.flow.eta,
            observe=observe,
        )
        tau = None
        if self.straight is not None and self.predictor is not None:
            predictor, straight = CountedNetwork(self.predictor), CountedNetwork(self.straight)
            counted += [predictor, straight]
            tau = predictor(x)
            x = straight_flow(straight, x, tau, self.sampling, observe)
        nfe = sum(network.evaluations for network in counted) / len(x)
        return Samples(x=x, nfe=nfe, tau=tau, path=path)


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
        flow_time: T * eta of the trained flow.
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
    """Algorithm 4, second leg: Euler steps of u_delta from each sample's tau to 1.

    With ``straight_steps`` S every sample takes S steps of its own size (1 - tau) / S. With a fixed
    ``omega`` each takes as many as it needs, the last one cut to end at 1.

    Args:
        straight: u_delta.
        x: samples after the NSGF steps, (B, *shape).
        tau: their times in [0, 1], (B,).
        config: ``straight_steps`` and ``omega``.
        observe: called with the state after each round of steps.
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


def expected_nfe(config: Config, straight: bool) -> str:
    """Network calls per sample that the settings imply, for people."""
    steps = config.sampling.nsgf_steps or config.flow.steps
    if not straight:
        return str(steps)
    if config.sampling.omega is None:
        return str(steps + 1 + config.sampling.straight_steps)
    most = steps + 1 + math.ceil(1 / config.sampling.omega)
    return f"at most {most}"


def _ignore(_: Tensor) -> None:
    pass
