"""Phases 2 and 3 (Algorithm 3, parts 2 and 3). Phase 2 trains the straight flow u_delta from noise
to data. Phase 3 trains the time predictor t_phi, which estimates the time of a sample on its line.

B: batch size; *shape: shape of one sample.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nsgf.config.layers import Layer
from nsgf.config.schema import Names
from nsgf.data import STANDARD, TIMES, Data, LabelDropout, PointSampler, Sampler, class_labels
from nsgf.data.samplers import DRAW_BLOCK, pages
from nsgf.method import line_pairs, nsgf_steps, step_sizes, time_step
from nsgf.models import AffineStartNetwork, TimePredictorCNN, TimePredictorMLP, UserNetwork
from nsgf.phases.base import ESTIMATE_SAMPLES, Phase, load_network, starting_network
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import InferenceNetwork
from nsgf.sinkhorn import ends_at_targets
from nsgf.sinkhorn.exact import optimal_pairs
from nsgf.system.distributed import World
from nsgf.system.errors import wrong_setting
from nsgf.system.hardware import available_bytes, spare_cores
from nsgf.system.output import format_bytes
from nsgf.system.seeding import derive_seed
from nsgf.training.precision import supported_precision
from nsgf.training.task import Batch, Drawn, Session, Task

MOMENT_SAMPLES = 65_536
"""Largest number of samples from which the moments of the data are computed."""

PAIRING_BYTES = 40
"""Bytes of memory for each entry (start, end) of a group's matrices, while the group is paired."""
PAIRING_MEMORY = 0.25
"""Fraction of the free memory that groups paired in advance may use."""

Transport = Callable[..., Tensor]
"""Function without gradients that maps starts (n, *shape) to ends (n, *shape). With classes it also
takes labels (n,)."""


@dataclass
class LinePairs:
    """Pairs of starts X0 and ends X1. They are independent, or paired by optimal transport within
    groups of ``group`` successive samples. With classes, each class of a group is paired
    separately.

    Pair i depends only on i and on the streams ``source`` and ``target``. It does not depend on
    batches, processes or threads, because a group is always paired as a whole.
    """

    source: Sampler
    target: Sampler
    device: torch.device
    group: int | None = None
    classes: int = 0
    threads: int = 0
    """Number of threads, each of which pairs one of the next groups in advance. 0: a group is
    paired when its first sample is needed."""
    _groups: dict[int, Callable[[], tuple[Tensor, Tensor]]] = field(default_factory=dict)
    """Functions that return a paired group, by the number of the group. They are for the current
    group, which the next batch may need too, and for the groups that are paired in advance."""

    def __post_init__(self) -> None:
        self._executor = ThreadPoolExecutor(self.threads, "pairs") if self.threads else None

    def at(self, positions: range) -> tuple[Tensor, Tensor]:
        """Return X0 and X1 of the pairs at these positions, each (len(positions), *shape)."""
        if self.group is None:
            return self.source.at(positions), self.target.at(positions)
        parts = []
        for number, cut in pages(positions, self.group):
            wanted = range(number, number + 1 + self.threads)
            self._groups = {
                group: self._groups.get(group) or self._begin(group) for group in wanted
            }
            parts.append([samples[cut] for samples in self._groups[number]()])
        starts, ends = map(torch.cat, zip(*parts, strict=True))
        return starts, ends

    def _begin(self, number: int) -> Callable[[], tuple[Tensor, Tensor]]:
        """Draw a group and begin to pair it. Return a function that returns the paired group."""
        assert self.group is not None
        members = range(number * self.group, (number + 1) * self.group)
        # draw in this thread, not in the executor, because samplers store their last page
        start, end = (s.at(members).to(self.device) for s in (self.source, self.target))
        if self._executor:
            return self._executor.submit(pair_classes, start, end, self.classes).result
        paired = pair_classes(start, end, self.classes)
        return lambda: paired


def pairing_threads(session: Session, group: int | None) -> int:
    """Return the number of threads that pair the next groups. It is the number of spare cores, or
    fewer if the groups would need more than PAIRING_MEMORY of the free memory."""
    if group is None:
        return 0
    needed = PAIRING_BYTES * group**2 + 16 * group * math.prod(session.target.shape)
    fitting = int(PAIRING_MEMORY * available_bytes() / session.world.size // needed)
    return min(spare_cores(session.device, session.world.size), fitting)


def pair_classes(start: Tensor, end: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return starts and ends (n, *shape), with the ends in the order of an optimal transport. With
    K classes, sample i has class i mod K, and each class is paired separately."""
    end = end.clone()
    for label in range(min(classes or 1, len(end))):
        rows = slice(label, None, classes or 1)
        end[rows] = end[rows][optimal_pairs(start[rows], end[rows])]
    return start, end


class LineTask(Task):
    """Regression of u_delta(x, t) on X1 - X0, at random points of straight lines from X0 to X1.

    With K classes, the i-th line has class i mod K. This is the class of X1, and the label for NSGF
    steps.
    """

    def __init__(self, model: nn.Module, pairs: LinePairs, seed: int, classes: int = 0) -> None:
        self.model = model
        self._pairs = pairs
        self._times = PointSampler(TIMES, derive_seed(seed, "times"))
        self._labels = LabelDropout(classes, derive_seed(seed, "labels"))

    def draw(self, positions: range) -> Drawn:
        """Return X0 and X1 (B, *shape), t ~ U[0, 1) (B,), and labels (B,) if there are classes."""
        times = self._times.at(positions)
        return *self._pairs.at(positions), times, *self._labels.at(positions)

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *labels = drawn
        x, velocity = line_pairs(start, end, t)
        return Batch((x, t, *labels), velocity)


class TimePredictorTask(LineTask):
    """Regression of t_phi(x) on t."""

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *_ = drawn  # drawn may also contain labels
        x, _ = line_pairs(start, end, t)
        return Batch((x,), t)


class LinePhase(Phase):
    """A phase that learns from points on lines from X0 to X1.

    A line starts at a sample of mu0. If ``nsf.source`` is ``nsgf`` or ``affine``, the NSGF steps or
    the affine map move this sample first."""

    follows = (
        *NSGF.follows,
        "nsf.source",
        "nsf.coupling",
        "nsf.coupling_batch",
        "nsf.starts",
    )

    def needs(self) -> tuple[type[Phase], ...]:
        return (NSGF,) if self.config.nsf.source == "nsgf" else ()

    def plan(self, device: torch.device, run: RunFolder | None, world: World) -> tuple[str, int]:
        """Return a warning if NSGF steps leave nothing to learn. Raise UserError if cached starts
        do not fit into main memory."""
        config = self.config
        starts = (config.nsf.starts or 0) if config.nsf.source == "nsgf" else 0
        needed = 4 * starts * math.prod(self.target.shape) * world.size
        if needed > (free := available_bytes()):
            raise wrong_setting(
                "nsf.starts",
                config.nsf.starts,
                f"need {format_bytes(needed)} of main memory, "
                f"{format_bytes(free)} are free; use fewer, or null to compute new ones each time",
            )
        if ends_at_targets(config.flow) and config.nsf.source == "prior":
            return (
                f"{self.name}: nothing to learn, because NSGF steps of flow.schedule harmonic end "
                "in the data"
            ), 0
        return "", 0

    def shortened(self, device: torch.device) -> tuple[Layer, float]:
        starts = self.config.nsf.starts
        if starts is None:
            return {}, 1.0
        few = min(starts, ESTIMATE_SAMPLES)
        return {"nsf.starts": few}, starts / few

    def pairs(self, session: Session, data: Data, transport: Transport | None = None) -> LinePairs:
        """Return the starts and ends of the lines, from random streams of the phase. ``transport``
        maps samples of mu0 to starts. None: NSGF steps if ``nsf.source`` is ``nsgf``, otherwise no
        map. Raise UserError if NSGF is needed but not trained."""
        config = self.config
        flow = config.flow
        source = data.source_by_class(self.name)
        if transport is None and config.nsf.source == "nsgf":
            length = time_step(flow.steps, flow.step_size)
            transport = load_euler_steps(self.with_kind(NSGF), session, flow.steps, length)
        if transport:
            source = CachedStarts(
                source, transport, session.device, config.nsf.starts, data.classes
            )
        group = None
        if config.nsf.coupling == "ot":
            group = config.nsf.coupling_batch or self.optim.batch_size
        return LinePairs(
            source,
            data.target_by_class(self.name),
            session.device,
            group,
            threads=pairing_threads(session, group),
        )


class NSF(LinePhase):
    """Train u_delta on the velocity of the lines."""

    name = "nsf"
    title = "straight flow"
    reads = ("flow.schedule", "flow.steps", "flow.eta")  # the affine map depends on them
    follows = (*LinePhase.follows, "nsf.init")

    @property
    def active_reads(self) -> Names:
        if self.config.nsf.source != "affine":
            return ()
        # any number of harmonic steps reaches the end
        return self.reads if self.config.flow.schedule == "constant" else ("flow.schedule",)

    def task(self, session: Session, data: Data) -> Task:
        config = self.config
        transport = None
        teacher = self.with_kind(NSGF) if config.nsf.init == "nsgf" else None
        model: Any = starting_network(self, session, teacher)
        if config.nsf.source == "affine":
            etas = step_sizes(config.flow.steps, config.flow.step_size)
            # step t of a flow between Gaussians covers the fraction eta_t of the remaining distance
            part = 1 - math.prod(1 - eta for eta in etas)
            session.log.write(f"nsf: affine map, {part:g} of the way to the data's moments")
            source = None
            if config.data.source != STANDARD:
                count = data.source_data.count if data.source_data else None
                source = measure_moments(data.source("moments"), count)
            model.set_map(*measure_moments(data.target("moments"), data.count), part, source)
            transport = model.start
        return LineTask(
            model,
            self.pairs(session, data, transport),
            self.seed,
            data.classes,
        )

    def network(self, user_network: UserNetwork | None = None) -> nn.Module:
        network = super().network(user_network)
        if self.config.nsf.source == "affine":
            return AffineStartNetwork(network, self.target.shape)
        return network

    def needs(self) -> tuple[type[Phase], ...]:
        return (NSGF,) if self.config.nsf.init == "nsgf" else super().needs()


class Predictor(LinePhase):
    """Train t_phi to predict the times of points on the lines of phase 2."""

    name = "predictor"
    title = "time predictor"

    def task(self, session: Session, data: Data) -> Task:
        return TimePredictorTask(
            starting_network(self, session),
            self.pairs(session, data),
            self.seed,
            data.classes,
        )

    def network(self, user_network: UserNetwork | None = None) -> nn.Module:
        """Return the time predictor, which takes no labels. It is never a caller's network."""
        shape = self.target.shape
        if len(shape) == 1:
            return TimePredictorMLP(shape[0], 1, self.config.model.mlp)
        return TimePredictorCNN(shape)


def measure_moments(sampler: Sampler, count: int | None) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and covariance (D, D), float64, of the first ``count`` samples of a stream,
    but of at most 65,536 samples. ``count`` None: the stream is unlimited."""
    count = min(count or MOMENT_SAMPLES, MOMENT_SAMPLES)
    size = math.prod(sampler.shape)
    total = torch.zeros(size, dtype=torch.float64)
    products = torch.zeros(size, size, dtype=torch.float64)
    for first in range(0, count, DRAW_BLOCK):
        rows = sampler.at(range(first, min(first + DRAW_BLOCK, count))).flatten(1).double()
        total += rows.sum(0)
        products.addmm_(rows.T, rows)
    mean = total / count
    return mean, products / count - torch.outer(mean, mean)


def load_euler_steps(phase: Phase, session: Session, steps: int, h: float) -> Transport:
    """Return a function that runs Euler steps of size h with a phase's trained network. Raise
    UserError if the phase is not trained."""
    trained = load_network(phase, session.run, session.device)
    network = InferenceNetwork(
        trained.network,
        supported_precision(trained.precision, session.device),
        session.log.write,
    )

    @torch.no_grad()
    def transport(x: Tensor, *labels: Tensor) -> Tensor:
        return nsgf_steps(lambda x, t: network(x, t, *labels), x, steps, h, None)

    return transport


@dataclass
class CachedStarts(Sampler):
    """A stream of starts. NSGF steps or another transport made each start from noise.

    The first ``count`` starts are computed once, cached in main memory and repeated. ``count``
    None: all starts are new. With K classes, the i-th start has class i mod K, and ``count`` is a
    multiple of K."""

    source: Sampler
    transport: Transport
    device: torch.device
    count: int | None
    classes: int = 0

    def __post_init__(self) -> None:
        self.shape = self.source.shape
        self._pages: dict[int, Tensor] = {}

    def at(self, positions: range) -> Tensor:
        if self.count is None:
            inputs = [self.source.at(positions)]
            if self.classes:
                inputs.append(class_labels(positions, self.classes))
            return self.transport(*(part.to(self.device) for part in inputs))
        parts = []
        for _, epoch in pages(positions, self.count):
            for number, cut in pages(range(epoch.start, epoch.stop), DRAW_BLOCK):
                if number not in self._pages:
                    # compute a whole page, because rounding depends on the size of a network's
                    # batch
                    page = range(number * DRAW_BLOCK, (number + 1) * DRAW_BLOCK)
                    self._pages[number] = replace(self, count=None).at(page).cpu()
                parts.append(self._pages[number][cut].to(self.device))
        return torch.cat(parts)
