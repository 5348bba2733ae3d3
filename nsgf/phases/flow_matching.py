"""Phase ``peer``: flow matching with torchcfm, for comparison with NSGF.

    icfm    independent pairs, Gaussian noise of width sigma around the line (Lipman et al. 2023,
            Tong et al. 2024)
    otcfm   pairs from the exact transport plan of the mini-batch (Tong et al. 2024)
    sbcfm   the same pairs, with the width of a Brownian bridge, sigma (t (1 - t))^(1/2); uses the
            exact plan instead of the entropic one, as torchcfm advises
    rf      independent pairs, width 0: rectified flow (Liu et al. 2023)

Shapes: B batch, *shape one sample.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, PeerConfig
from nsgf.data import Data
from nsgf.phases.base import Phase, starting_network
from nsgf.phases.lines import LineTask, Pairs
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.seeding import derive_seed, seed_torch
from nsgf.training.task import Batch, Task


def build_matcher(config: PeerConfig) -> Any:
    """Return torchcfm's flow matcher for the configured method."""
    from torchcfm import conditional_flow_matching as cfm

    if config.coupling_batch:  # the samples are already paired
        return cfm.ConditionalFlowMatcher(sigma=config.sigma)
    if config.method not in ("otcfm", "sbcfm"):
        return cfm.ConditionalFlowMatcher(sigma=config.sigma if config.method == "icfm" else 0.0)
    if config.method == "otcfm":
        matcher = cfm.ExactOptimalTransportConditionalFlowMatcher(sigma=config.sigma)
    else:
        matcher = cfm.SchrodingerBridgeConditionalFlowMatcher(config.sigma, ot_method="exact")
    pairs = matcher.ot_sampler
    pairs.ot_fn = partial(pairs.ot_fn, numItermax=SIMPLEX_ITERATIONS)
    return matcher


class PeerTask(LineTask):
    """Regression of u(x, t) on the conditional velocity of a torchcfm matcher.

    The matcher draws noise and pairs for the batch of a process, so results depend on the number of
    processes. Its seed depends on the batch. With K classes, the matcher is called separately for
    each class.
    """

    def __init__(
        self, model: nn.Module, pairs: Pairs, config: PeerConfig, seed: int, classes: int = 0
    ) -> None:
        super().__init__(model, pairs, seed, classes)
        self._seed, self._classes, self._matcher = seed, classes, build_matcher(config)

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Return X0, X1 (B, *shape), t (B,), the first position (the matcher's seed), and labels
        (B,) if there are classes."""
        start, end, t, *labels = super().draw(positions)
        return start, end, t, torch.tensor([positions.start]), *labels

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, first, *labels = drawn
        # torchcfm draws pairs and noise with the global generators of NumPy and torch
        seed = derive_seed(self._seed, "matcher", int(first))
        np.random.seed(seed % 2**32)  # noqa: NPY002
        seed_torch(seed, start.device)
        match = self._matcher.sample_location_and_conditional_flow
        if not labels:
            t, x, velocity = match(start, end, t=t)
            return Batch((x, t), velocity)
        rows = [slice(first, None, self._classes) for first in range(self._classes)]
        parts = [match(start[own], end[own], t=t[own]) for own in rows if len(t[own])]
        t, x, velocity = map(torch.cat, zip(*parts, strict=True))
        return Batch((x, t, torch.cat([labels[0][own] for own in rows])), velocity)


class Peer(Phase):
    """Train u with a flow-matching method, on lines or bridges from noise to data."""

    name, title = "peer", "flow matching"
    takes_classes = True
    follows = (*Phase.follows, "peer.method", "peer.sigma", "peer.coupling_batch")

    def task(self, session: Session, data: Data) -> Task:
        config, device = session.config, session.device
        source, target = data.source(self.name), data.target_by_class(self.name)
        pairs = Pairs(source, target, device, config.peer.coupling_batch)
        seed = derive_seed(config.seed, self.name)
        return PeerTask(starting_network(self, session), pairs, config.peer, seed, data.classes)

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> tuple[str, int]:
        try:
            import torchcfm.conditional_flow_matching  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"phases = [peer]: needs torchcfm ({error}): pip install torchcfm --no-deps"
            ) from error
        return "", 0
