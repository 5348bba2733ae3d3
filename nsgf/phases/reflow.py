"""Phase ``reflow``: a rectified flow once more, on the pairs that its own straight lines join
(2-rectified flow, Liu et al. 2023): the start of each line and where the trained flow carries it.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config
from nsgf.data import Data, PointSampler, RandomIndices, Sampler, Times
from nsgf.phases.base import Phase
from nsgf.phases.flow_matching import Peer
from nsgf.phases.lines import interpolate
from nsgf.run.progress import Progress, track
from nsgf.run.session import Session
from nsgf.run.stop import Stopped
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import nsgf_steps
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Batch, Task

STEPS = 100
"""Number of Euler steps from a start to its end."""
PATHS = 1024
"""Number of paths that are walked together. Fixed, since sums are rounded by what is computed
together; the network itself splits what does not fit a card."""
TRIAL_PATHS = 64
"""Number of paths in a trial."""
Carry = Callable[[Tensor], Tensor]
"""A trained flow as a function of its start, (B, *shape) -> (B, *shape)."""


class ReflowTask(Task):
    """u(x, t) regresses Z1 - Z0 on the line between the two ends of a trained flow's paths."""

    def __init__(self, model: nn.Module, ends: tuple[Tensor, Tensor], seed: int) -> None:
        """``ends``: Z0 and Z1, each (N, *shape), on the CPU."""
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
    source: Sampler,
    carry: Carry,
    pairs: int,
    device: torch.device,
    is_asked: Callable[[], bool],
    counter: Callable[[str, int, str], Progress] = Progress,
) -> tuple[Tensor, Tensor]:
    """Starts Z0 ~ mu0 and the ends Z1 where ``carry`` takes them, each (pairs, *shape), CPU.

    Raises:
        Stopped: asked to; nothing of the paths is kept.
    """
    starts = source.at(range(pairs))
    ends = torch.empty_like(starts)
    batches = zip(starts.split(PATHS), ends.split(PATHS), strict=True)
    for start, end in track(list(batches), "reflow paths", "batch", counter):
        if is_asked():
            raise Stopped("reflow: before its first step")
        end.copy_(carry(start.to(device)))
    return starts, ends


class Reflow(Phase):
    """The peer's network learns the straight lines between the ends of its own paths."""

    name = "reflow"
    follows = (*Peer.follows, "reflow.pairs")

    def task(self, session: Session, data: Data) -> Task:
        """Starts from the peer's averaged weights, as published. The paths are walked again when
        an interrupted reflow goes on, to the same ends.

        Raises:
            Stopped: asked to, while the paths are walked.
            UserError: the peer is not trained.
        """
        config, reflow = session.config, session.config.reflow
        teacher, _, precision = Peer().load(config, session.run, session.device)
        student = self.start(config, session.device)
        student.load_state_dict(teacher.state_dict())

        velocity = InferenceNetwork(teacher, precision, session.device, session.tracker.log)

        @torch.no_grad()
        def carry(x: Tensor) -> Tensor:
            return nsgf_steps(velocity, x, steps=STEPS, flow_time=1.0)

        session.tracker.log(f"reflow: {reflow.pairs} paths of {STEPS} steps")
        source = data.source(self.name)
        counter = session.tracker.progress
        ends = reflow_ends(
            source,
            carry,
            reflow.pairs,
            session.device,
            session.is_asked,
            counter,
        )
        return ReflowTask(student, ends, derive_seed(config.seed, self.name))

    def trial(self, config: Config, device: torch.device) -> tuple[Config, float]:
        pairs = min(config.reflow.pairs, TRIAL_PATHS)
        short = replace(config, reflow=replace(config.reflow, pairs=pairs))
        return short, config.reflow.pairs / pairs

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (Peer(),)
