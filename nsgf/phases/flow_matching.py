"""The methods that NSGF is compared with: flow matching through torchcfm, and reflow.

    icfm    independent pairs, a Gaussian of width sigma around the line (Lipman et al. 2023,
            Tong et al. 2024)
    otcfm   pairs of the mini-batch's exact transport plan (Tong et al. 2024)
    sbcfm   the same pairs with the width of a Brownian bridge, sigma (t (1 - t))^(1/2); torchcfm
            takes the exact plan for the Schroedinger bridge's entropic one, as it advises
    rf      independent pairs, width 0: rectified flow (Liu et al. 2023)

Reflow trains a rectified flow once more, on the pairs that its own straight lines join: the
start of each line and where the trained flow carries it (2-rectified flow).

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nsgf.config.schema import PeerConfig
from nsgf.data import PointSampler, RandomIndices, Sampler, Times
from nsgf.run.progress import track
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError
from nsgf.system.seeding import derive_seed, seed_torch
from nsgf.training.task import Batch, interpolate

PATHS = 1024
"""Walked together; a constant, since sums are rounded by what is computed together."""
Carry = Callable[[Tensor], Tensor]
"""A trained flow as a function of its start, (B, *shape) -> (B, *shape)."""


def check_installed() -> None:
    """
    Raises:
        UserError: torchcfm is not there.
    """
    try:
        import torchcfm.conditional_flow_matching  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"phases = [peer]: needs torchcfm ({error}): pip install torchcfm --no-deps"
        ) from error


def build_matcher(config: PeerConfig) -> Any:
    """torchcfm's flow matcher of the configured method."""
    from torchcfm import conditional_flow_matching as cfm

    if config.method == "otcfm":
        return cfm.ExactOptimalTransportConditionalFlowMatcher(sigma=config.sigma)
    if config.method == "sbcfm":
        return cfm.SchrodingerBridgeConditionalFlowMatcher(sigma=config.sigma, ot_method="exact")
    sigma = config.sigma if config.method == "icfm" else 0.0
    return cfm.ConditionalFlowMatcher(sigma=sigma)


class PeerTrainer:
    """u(x, t) regresses the conditional velocity of a torchcfm matcher.

    The matcher draws for the batch of each process as a whole, so with several processes its noise
    and pairs are other ones. Its seed comes with the batch, which a card has to wait for.
    """

    def __init__(
        self, model: nn.Module, source: Sampler, target: Sampler, config: PeerConfig, seed: int
    ) -> None:
        """
        Args:
            model: u.
            source: sampler of mu0.
            target: sampler of mu*.
            config: method and width.
            seed: seed of the times and of what the matcher draws.
        """
        self.model, self._matcher, self._seed = model, build_matcher(config), seed
        self._streams = (source, target, PointSampler(Times(), derive_seed(seed, "times")))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """X0, X1 (B, *shape), t (B,), and the first position, which seeds the matcher."""
        drawn = [stream.at(positions) for stream in self._streams]
        return (*drawn, torch.tensor([positions.start]))

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, first = drawn
        self._seed_matcher(int(first), start.device)
        t, x, velocity = self._matcher.sample_location_and_conditional_flow(start, end, t=t)
        return Batch((x, t), velocity)

    def _seed_matcher(self, position: int, device: torch.device) -> None:
        """torchcfm draws pairs with NumPy's global generator and noise with torch's."""
        import numpy as np

        seed = derive_seed(self._seed, "matcher", position)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        seed_torch(seed, device)


class ReflowTrainer:
    """u(x, t) regresses Z1 - Z0 on the line between the two ends of a trained flow's paths."""

    def __init__(self, model: nn.Module, ends: tuple[Tensor, Tensor], seed: int) -> None:
        """
        Args:
            model: u.
            ends: Z0 and Z1, each (N, *shape), on the CPU.
            seed: seed of the choice of pairs and of the times.
        """
        self.model, self._ends = model, ends
        self._indices = PointSampler(RandomIndices(), derive_seed(seed, "pairs"))
        self._times = PointSampler(Times(), derive_seed(seed, "times"))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Z0, Z1 (B, *shape) and t (B,)."""
        index = self._indices.at(positions) % len(self._ends[0])
        start, end = (part.index_select(0, index) for part in self._ends)
        return start, end, self._times.at(positions)

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t = drawn
        return Batch((interpolate(start, end, t), t), end - start)


def reflow_ends(
    source: Sampler, carry: Carry, pairs: int, device: torch.device, stop: StopRequest
) -> tuple[Tensor, Tensor]:
    """Starts Z0 ~ mu0 and the ends Z1 where ``carry`` takes them, each (pairs, *shape), CPU.

    Raises:
        Stopped: asked to; nothing of the paths is kept.
    """
    starts = source.at(range(pairs))
    ends = torch.empty_like(starts)
    batches = zip(starts.split(PATHS), ends.split(PATHS), strict=True)
    for start, end in track(list(batches), "reflow paths", "batch"):
        if stop.reason is not None:
            raise Stopped("reflow: before its first step")
        end.copy_(carry(start.to(device)))
    return starts, ends
