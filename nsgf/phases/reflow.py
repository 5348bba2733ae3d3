"""Phase ``reflow``: 2-rectified flow (Liu et al. 2023). The trained flow maps each start to an end,
and the network is trained again on the straight lines between them.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import INDICES, Data, PointSampler
from nsgf.phases.base import Phase, starting_network
from nsgf.phases.flow_matching import Peer
from nsgf.phases.lines import NSFTask, Pairs, load_euler_steps
from nsgf.run.progress import count_progress
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Task

STEPS = 100
"""Number of Euler steps from a start to its end."""
PATHS = 1024
"""Number of paths that are computed together. It is fixed because it affects rounding;
InferenceNetwork splits batches that do not fit into memory."""
TRIAL_PATHS = 64
"""Number of paths in a trial (``nsgf preflight``)."""


class StoredPairs(Pairs):
    """Starts Z0 and ends Z1 of trained paths, in random order."""

    def __init__(self, starts: Tensor, ends: Tensor, seed: int) -> None:
        """``starts`` and ``ends``: each (N, *shape), on the CPU."""
        self._ends = starts, ends
        self._indices = PointSampler(INDICES, derive_seed(seed, "pairs"))

    def at(self, positions: range) -> tuple[Tensor, Tensor]:
        index = self._indices.at(positions) % len(self._ends[0])
        start, end = (part.index_select(0, index) for part in self._ends)
        return start, end


class Reflow(Phase):
    """Train the peer's network again, on straight lines between the ends of its paths."""

    name, title = "reflow", "reflow"
    follows = (*Peer.follows, "reflow.pairs")

    def task(self, session: Session, data: Data) -> Task:
        """Return the task; the network starts with the peer's averaged weights. A resumed phase
        computes the same paths again."""
        student = starting_network(self, session, Peer())
        starts = data.source(self.name).at(range(session.config.reflow.pairs))
        ends = path_ends(starts, load_euler_steps(Peer(), session, STEPS, 1.0), session)
        seed = derive_seed(session.config.seed, self.name)
        return NSFTask(student, StoredPairs(starts, ends, seed), seed)

    def trial(self, config: Config, device: torch.device) -> tuple[Config, float]:
        pairs = min(config.reflow.pairs, TRIAL_PATHS)
        short = replace(config, reflow=replace(config.reflow, pairs=pairs))
        return short, config.reflow.pairs / pairs

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (Peer(),)


def path_ends(starts: Tensor, carry: Callable[[Tensor], Tensor], session: Session) -> Tensor:
    """Return the ends Z1 = ``carry``(Z0) for starts Z0 (N, *shape), both on the CPU.

    Raises:
        Stopped: a stop was requested; no path is kept.
    """
    session.log.write(f"reflow: {len(starts)} paths of {STEPS} steps")
    ends = torch.empty_like(starts)
    batches = list(zip(starts.split(PATHS), ends.split(PATHS), strict=True))
    for start, end in count_progress(batches, "reflow paths", "batch", session.log.progress):
        if session.should_stop():
            raise Stopped("reflow: before its first step")
        end.copy_(carry(start.to(session.device)))
    return ends
