"""Phases 2 and 3: the straight flow u_delta from noise to data, and the time predictor t_phi, which
says where on its line a sample is (Algorithm 3, parts 2 and 3).

Shapes: B batch, *shape one sample.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config, ModelConfig
from nsgf.data import Data, LabelDropout, PointSampler, Sampler, Times, class_labels, data_shape
from nsgf.data.samplers import BLOCK, pages
from nsgf.models import time_network
from nsgf.phases.base import Phase, PhasePlan, load_network, new_network, starting_network
from nsgf.phases.coupling import Pairs
from nsgf.phases.nsgf import NSGF
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import EntryTimes, nsgf_steps
from nsgf.sinkhorn.base import flow_time
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Batch, Task

Transport = Callable[..., Tensor]
"""Starts (n, *shape), with classes and labels (n,), -> (n, *shape), without gradients."""


class LineTask(Task):
    """Random points of straight lines from X0 to X1, the input of phases 2 and 3.

    X0 is a sample of mu0, or with ``nsf.source: nsgf`` what the NSGF steps make of it; X1 is a
    sample of mu*; with ``nsf.coupling: ot`` both are re-paired within groups.

    With K classes line i has class i mod K, and so have X1 and the NSGF steps to X0.
    """

    def __init__(self, model: nn.Module, pairs: Pairs, seed: int, classes: int = 0) -> None:
        self.model, self._pairs, self._classes = model, pairs, classes
        self._times = PointSampler(Times(), derive_seed(seed, "times"))
        self._dropout = LabelDropout(classes, derive_seed(seed, "labels"))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Return paired X0 and X1 (B, *shape), t ~ U[0, 1) (B,), with classes labels (B,)."""
        drawn = *self._pairs.at(positions), self._times.at(positions)
        if not self._classes:
            return drawn
        labels = class_labels(positions, self._classes)
        return *drawn, self._dropout(labels, positions)


class LinePhase(Phase):
    """A phase that learns from straight lines. The lines of phases 2 and 3 must be the same."""

    takes_classes = True
    follows: ClassVar[tuple[str, ...]] = (
        *NSGF.follows,
        "nsf.source",
        "nsf.coupling",
        "nsf.coupling_batch",
        "nsf.starts",
    )

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (NSGF(),) if config.nsf.source == "nsgf" else ()

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        """Raise UserError if cached starts do not fit into main memory."""
        starts = (config.nsf.starts or 0) if config.nsf.source == "nsgf" else 0
        needed = 4 * starts * math.prod(data_shape(config.data)) * world.size
        if needed > (free := available_bytes()):
            raise UserError(
                f"nsf.starts = {config.nsf.starts}: need {format_bytes(needed)} of main memory, "
                f"{format_bytes(free)} are free; use fewer, or null for new ones each time"
            )
        return PhasePlan()


class NSFTask(LineTask):
    """u_delta(x, t) regresses X1 - X0."""

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *labels = drawn
        return Batch((interpolate(start, end, t), t, *labels), end - start)


class NSF(LinePhase):
    """u_delta learns the velocity of straight lines."""

    name, title = "nsf", "straight flow"
    follows = (*LinePhase.follows, "nsf.init")

    def task(self, session: Session, data: Data) -> Task:
        model = starting_network(
            self, session, NSGF() if session.config.nsf.init == "nsgf" else None
        )
        return NSFTask(model, *make_pairs(self, session, data), data.classes)

    def needs(self, config: Config) -> tuple[Phase, ...]:
        return (NSGF(),) if config.nsf.init == "nsgf" else super().needs(config)


class TimePredictorTask(LineTask):
    """t_phi(x) regresses t."""

    def batch(self, *drawn: Tensor) -> Batch:
        start, end, t, *_ = drawn  # labels, if there are any
        return Batch((interpolate(start, end, t),), t)


class Predictor(LinePhase):
    """t_phi learns the time on the lines of phase 2."""

    name, title = "predictor", "time predictor"
    leg = EntryTimes

    def task(self, session: Session, data: Data) -> Task:
        model = new_network(self, session.config, session.device)
        return TimePredictorTask(model, *make_pairs(self, session, data), data.classes)

    def network(self, config: ModelConfig, shape: tuple[int, ...], classes: int = 0) -> nn.Module:
        """Return the time predictor, which is given no class."""
        return time_network(config, shape)


def make_pairs(phase: Phase, session: Session, data: Data) -> tuple[Pairs, int]:
    """Return the starts and ends of a phase's lines, and a seed, all from streams of its own.

    Raises:
        UserError: the lines start from the NSGF steps, and NSGF is not trained.
    """
    config, device = session.config, session.device
    source = data.source(phase.name)
    if config.nsf.source == "nsgf":
        steps = load_nsgf_steps(session)
        source = CachedStarts(source, steps, device, config.nsf.starts, data.classes)
    target = data.target_by_class(phase.name) if data.classes else data.target(phase.name)
    group = None
    if config.nsf.coupling == "ot":
        group = config.nsf.coupling_batch or getattr(config, phase.name).batch_size
    return Pairs(source, target, device, group), derive_seed(config.seed, phase.name)


def interpolate(start: Tensor, end: Tensor, t: Tensor) -> Tensor:
    """Return (1 - t) X0 + t X1 for X0 and X1 (B, *shape) and t (B,).  (B, *shape)"""
    weight = t.view(-1, *[1] * (start.ndim - 1))
    return (1 - weight) * start + weight * end


def load_nsgf_steps(session: Session) -> Transport:
    """Return the trained NSGF steps (Algorithm 2). Raise UserError if NSGF is not trained."""
    flow = session.config.flow
    return load_euler_steps(NSGF(), session, flow.steps, flow_time(flow))


def load_euler_steps(phase: Phase, session: Session, steps: int, time: float) -> Transport:
    """Return Euler steps of a phase's trained velocity network, from 0 to ``time``.

    Raises:
        UserError: the phase is not trained.
    """
    trained = load_network(phase, session.config, session.run, session.device)
    network = InferenceNetwork(
        trained.network, trained.precision, session.device, session.log.write
    )

    @torch.no_grad()
    def transport(x: Tensor, *labels: Tensor) -> Tensor:
        def velocity(x: Tensor, t: Tensor) -> Tensor:
            return network(x, t, *labels)

        return nsgf_steps(velocity, x, steps=steps, flow_time=time)

    return transport


class CachedStarts(Sampler):
    """The end points of the NSGF steps from a stream of noise, on their device.

    The first ``kept`` of them are computed once, cached in main memory and cycled through; None:
    always new ones. With K classes the steps of sample i get class i mod K, and ``kept`` is a
    multiple of K.
    """

    def __init__(
        self,
        source: Sampler,
        transport: Transport,
        device: torch.device,
        kept: int | None,
        classes: int = 0,
    ) -> None:
        self.shape = source.shape
        self._source, self._transport = source, transport
        self._device, self._kept, self._classes = device, kept, classes
        self._pages: dict[int, Tensor] = {}

    def at(self, positions: range) -> Tensor:
        if self._kept is None:
            return self._moved(positions)
        parts = []
        for _, epoch in pages(positions, self._kept):
            for number, cut in pages(range(epoch.start, epoch.stop), BLOCK):
                parts.append(self._page(number)[cut].to(self._device))
        return torch.cat(parts)

    def _page(self, number: int) -> Tensor:
        """Return a whole page, since samples that are computed together are rounded together."""
        if number not in self._pages:
            whole = range(number * BLOCK, (number + 1) * BLOCK)
            self._pages[number] = self._moved(whole).cpu()
        return self._pages[number]

    def _moved(self, positions: range) -> Tensor:
        x = self._source.at(positions).to(self._device)
        if not self._classes:
            return self._transport(x)
        return self._transport(x, class_labels(positions, self._classes).to(self._device))
