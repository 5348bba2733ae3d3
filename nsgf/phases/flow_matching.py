"""Phase ``peer``: flow matching, for comparison with NSGF.

    icfm    independent pairs, Gaussian noise of width sigma around the line (Lipman et al. 2023,
            Tong et al. 2024)
    otcfm   pairs from the exact transport plan of the mini-batch (Tong et al. 2024)
    sbcfm   pairs as in otcfm, with the width of a Brownian bridge, sigma (t (1 - t))^(1/2). As
            torchcfm advises, the plan is exact, not entropic
    rf      independent pairs, width 0: rectified flow (Liu et al. 2023)

The formulas are those of torchcfm, and tests compare the two. There is one difference: each pair of
a plan is drawn once, while torchcfm draws the same number of pairs with replacement.

Phase ``reflow``: 2-rectified flow (Liu et al. 2023). The trained flow maps each start to an end.
The network is then trained again on the straight lines from starts to ends.

B: batch size; *shape: shape of one sample.
"""

import torch
from torch import Tensor, nn

from nsgf.config.layers import Layer
from nsgf.config.schema import PeerConfig
from nsgf.data import INDICES, Data, PointSampler, class_labels, gaussian
from nsgf.method import line_pairs, pad_t_like_x
from nsgf.phases.base import Phase, starting_network
from nsgf.phases.lines import LinePairs, LineTask, load_euler_steps, pairing_threads
from nsgf.run.progress import count_progress
from nsgf.run.stop import Stopped
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Batch, Drawn, Session, Task


class PeerTask(LineTask):
    """Regression of u(x, t) on the velocity of a point that fluctuates around a line."""

    def __init__(
        self,
        model: nn.Module,
        pairs: LinePairs,
        config: PeerConfig,
        seed: int,
        classes: int = 0,
    ) -> None:
        super().__init__(model, pairs, seed, classes)
        self._config = config
        self._noise = PointSampler(gaussian(pairs.source.shape), derive_seed(seed, "noise"))

    def draw(self, positions: range) -> Drawn:
        """Return X0, X1 (B, *shape), t (B,), noise (B, *shape), and labels (B,) if there are
        classes."""
        start, end, t, *labels = super().draw(positions)
        return start, end, t, self._noise.at(positions), *labels

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, noise, *labels = drawn
        x, velocity = line_pairs(start, end, t)
        width = noise * (0.0 if self._config.method == "rf" else self._config.sigma)
        if self._config.method == "sbcfm":
            s = pad_t_like_x(t, start)
            width = width * (s * (1 - s)).sqrt()
            velocity = velocity + (1 - 2 * s) / (2 * s * (1 - s) + 1e-8) * width
        return Batch((x + width, t, *labels), velocity)


class Peer(Phase):
    """Train u with a flow-matching method, on lines or bridges from noise to data."""

    name = "peer"
    title = "flow matching"
    follows = (*Phase.follows, "peer.method", "peer.sigma", "peer.coupling_batch")

    def task(self, session: Session, data: Data) -> Task:
        config = self.config.peer
        group = None
        if config.method in ("otcfm", "sbcfm"):
            group = config.coupling_batch or config.batch_size
        pairs = LinePairs(
            data.source_by_class(self.name),
            data.target_by_class(self.name),
            session.device,
            group,
            data.classes,
            pairing_threads(session, group),
        )
        return PeerTask(starting_network(self, session), pairs, config, self.seed, data.classes)


STEPS = 100
"""Number of Euler steps from a start to its end."""
PATHS = 1024
"""Number of paths that are computed together. The number is fixed, because it affects rounding. If
a batch does not fit into memory, InferenceNetwork splits it."""
ESTIMATE_PATHS = 64
"""Number of paths in an estimate (``nsgf preflight``)."""


class StoredPairs(LinePairs):
    """Starts Z0 and ends Z1 of trained paths, in random order.

    With K classes, N is a multiple of K, and the i-th pair has class i mod K, like the i-th sample
    of a batch.
    """

    def __init__(self, starts: Tensor, ends: Tensor, seed: int, classes: int = 0) -> None:
        """``starts`` and ``ends``: each (N, *shape), on the CPU."""
        self._starts = starts
        self._ends = ends
        self._classes = classes or 1
        self._indices = PointSampler(INDICES, derive_seed(seed, "pairs"))

    def at(self, positions: range) -> tuple[Tensor, Tensor]:
        turns = self._indices.at(positions) % (len(self._ends) // self._classes)
        index = turns * self._classes + class_labels(positions, self._classes)
        return self._starts.index_select(0, index), self._ends.index_select(0, index)


class Reflow(Phase):
    """Train the peer's network again, on straight lines from the starts to the ends of its
    paths."""

    name = "reflow"
    title = "reflow"
    follows = (*Peer.follows, "reflow.pairs")

    def task(self, session: Session, data: Data) -> Task:
        """Return the task; the network starts with the peer's averaged weights. A resumed phase
        computes the same paths again."""
        peer = self.with_kind(Peer)
        student = starting_network(self, session, peer)
        carry = load_euler_steps(peer, session, STEPS, 1 / STEPS)
        classes = data.classes
        positions = range(self.config.reflow.pairs)
        starts = data.source_by_class(self.name).at(positions)
        ends = torch.empty_like(starts)
        inputs = [starts, class_labels(positions, classes)] if classes else [starts]
        session.log.write(f"reflow: {len(starts)} paths of {STEPS} steps")
        firsts = positions[::PATHS]
        for first in count_progress(firsts, "reflow paths", "batch", session.log.progress):
            if session.should_stop():
                raise Stopped("reflow: before its first step")
            batch = slice(first, first + PATHS)
            ends[batch] = carry(*(part[batch].to(session.device) for part in inputs))
        pairs = StoredPairs(starts, ends, self.seed, classes)
        return LineTask(student, pairs, self.seed, classes)

    def shortened(self, device: torch.device) -> tuple[Layer, float]:
        count = self.config.reflow.pairs
        pairs = min(count, max(ESTIMATE_PATHS, self.target.classes))
        return {"reflow.pairs": pairs}, count / pairs

    def needs(self) -> tuple[type[Phase], ...]:
        return (Peer,)
