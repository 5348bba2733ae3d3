"""Phase ``peer``: flow matching through torchcfm, which NSGF is compared with.

    icfm    independent pairs, a Gaussian of width sigma around the line (Lipman et al. 2023,
            Tong et al. 2024)
    otcfm   pairs of the mini-batch's exact transport plan (Tong et al. 2024)
    sbcfm   the same pairs with the width of a Brownian bridge, sigma (t (1 - t))^(1/2); torchcfm
            takes the exact plan for the Schroedinger bridge's entropic one, as it advises
    rf      independent pairs, width 0: rectified flow (Liu et al. 2023)

Shapes: B batch, *shape one sample.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, PeerConfig
from nsgf.data import Data, LabelDropout, PointSampler, Times, class_labels
from nsgf.phases.base import Phase, PhasePlan, new_network
from nsgf.phases.coupling import Pairs
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.seeding import derive_seed, seed_torch
from nsgf.training.task import Batch, Task

SIMPLEX_ITERATIONS = 10_000_000
"""Iteration limit of POT's exact solver; its default is too small from about 2,500 points on."""


def check_installed() -> None:
    """Raise UserError if torchcfm is missing."""
    try:
        import torchcfm.conditional_flow_matching  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"phases = [peer]: needs torchcfm ({error}): pip install torchcfm --no-deps"
        ) from error


def build_matcher(config: PeerConfig) -> Any:
    """Return torchcfm's flow matcher of the configured method, with enough steps for exact
    plans."""
    from torchcfm import conditional_flow_matching as cfm

    if config.coupling_batch:  # they come in optimal pairs
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


class PeerTask(Task):
    """u(x, t) regresses the conditional velocity of a torchcfm matcher.

    The matcher draws for the batch of each process as a whole, so with several processes its noise
    and pairs are other ones. Its seed comes with the batch. With K classes pair i has class i mod
    K, and the matcher pairs each class of a batch by itself.
    """

    def __init__(
        self, model: nn.Module, pairs: Pairs, config: PeerConfig, seed: int, classes: int = 0
    ) -> None:
        self.model, self._pairs, self._seed, self._classes = model, pairs, seed, classes
        self._matcher = build_matcher(config)
        self._times = PointSampler(Times(), derive_seed(seed, "times"))
        self._dropout = LabelDropout(classes, derive_seed(seed, "labels"))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Return X0, X1 (B, *shape), t (B,), and the first position, which seeds the matcher; with
        classes labels (B,)."""
        times, first = self._times.at(positions), torch.tensor([positions.start])
        drawn = *self._pairs.at(positions), times, first
        if not self._classes:
            return drawn
        return *drawn, self._dropout(class_labels(positions, self._classes), positions)

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
    """u learns the straight lines or bridges of another method, from noise to data."""

<<<<<<< HEAD
    name, title = "peer", "flow matching"
=======
    name = "peer"
    takes_classes = True
>>>>>>> main
    follows = (*Phase.follows, "peer.method", "peer.sigma", "peer.coupling_batch")

    def task(self, session: Session, data: Data) -> Task:
        config, device = session.config, session.device
        source, classes = data.source(self.name), data.classes
        target = data.target_by_class(self.name) if classes else data.target(self.name)
        pairs = Pairs(source, target, device, config.peer.coupling_batch)
        seed = derive_seed(config.seed, self.name)
        return PeerTask(new_network(self, config, device), pairs, config.peer, seed, classes)

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        check_installed()
        return PhasePlan()
