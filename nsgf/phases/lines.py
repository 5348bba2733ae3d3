"""Straight lines from noise to data, which both the straight flow and the time predictor learn.

Shapes: B batch, *shape one sample.
"""

import math
import sys

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config
from nsgf.data import (
    Data,
    LabelDropout,
    PointSampler,
    Times,
    class_labels,
    data_shape,
)
from nsgf.phases.base import Phase
from nsgf.phases.coupling import Pairs
from nsgf.phases.nsgf import NSGF
from nsgf.phases.transport import WalkedStarts, trained_steps
from nsgf.run.session import Session
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Task

LINES_FOLLOW = (
    *NSGF.follows,
    "nsf.source",
    "nsf.coupling",
    "nsf.coupling_batch",
    "nsf.starts",
)
"""What all lines follow from: those of phase 2 and those of phase 3 must agree."""


class LineTask(Task):
    """Random points of straight lines from X0 to X1, the input of phases 2 and 3.

    X0 is a sample of mu0, or with ``nsf.source: nsgf`` what the NSGF steps make of it; X1 is a
    sample of mu*; with ``nsf.coupling: ot`` both are re-paired within groups.

    With K classes line i has class i mod K: so has X1, and the NSGF steps to X0 are told it.
    """

    def __init__(self, model: nn.Module, pairs: Pairs, seed: int, classes: int = 0) -> None:
        self.model, self._pairs, self._classes = model, pairs, classes
        self._times = PointSampler(Times(), derive_seed(seed, "times"))
        self._dropout = LabelDropout(classes, derive_seed(seed, "labels"))

    @classmethod
    def of(cls, phase: Phase, session: Session, data: Data) -> "LineTask":
        """The task of a run's phase, with random streams of the phase's own.

        Raises:
            UserError: the lines start from the NSGF steps, and NSGF is not trained.
        """
        config, device = session.config, session.device
        source = data.source(phase.name)
        if config.nsf.source == "nsgf":
            steps = trained_steps(session)
            source = WalkedStarts(source, steps, device, config.nsf.starts, data.classes)
        target = data.target_by_class(phase.name) if data.classes else data.target(phase.name)
        pairs = Pairs(source, target, device, pair_group(phase, config))
        seed = derive_seed(config.seed, phase.name)
        return cls(phase.start(config, device), pairs, seed, data.classes)

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """X0 and X1 (B, *shape) as they are paired, t ~ U[0, 1) (B,), with classes labels (B,)."""
        drawn = *self._pairs.at(positions), self._times.at(positions)
        if not self._classes:
            return drawn
        labels = class_labels(positions, self._classes)
        return *drawn, self._dropout(labels, positions)


def pair_group(phase: Phase, config: Config) -> int | None:
    """Samples among which a phase's pairs are optimal; None: they are paired as drawn."""
    if config.nsf.coupling != "ot":
        return None
    return config.nsf.coupling_batch or phase.optim(config).batch_size


def line_needs(config: Config) -> tuple[Phase, ...]:
    """Phases whose networks the lines start from."""
    return (NSGF(),) if config.nsf.source == "nsgf" else ()


def walked_starts(phase: Phase, config: Config) -> int:
    """From how many samples the lines of a phase let the NSGF steps walk."""
    if config.nsf.source != "nsgf":
        return 0
    optim = phase.optim(config)
    return min(config.nsf.starts or sys.maxsize, optim.iterations * optim.batch_size)


def line_plan(phase: Phase, config: Config, device: torch.device, world: World) -> tuple[str, ...]:
    """Lines about walked starts that wait in memory.

    Raises:
        UserError: they do not fit.
    """
    lines = []
    if config.nsf.source == "nsgf" and config.nsf.starts:
        kept = walked_starts(phase, config)
        needed = 4 * kept * math.prod(data_shape(config.data)) * world.size
        if needed > (free := available_bytes()):
            raise UserError(
                f"nsf.starts = {config.nsf.starts}: {kept} samples need {format_bytes(needed)} of "
                f"main memory, {format_bytes(free)} are free; use fewer, or null for new ones each "
                "time"
            )
        each = f", each of {world.size} processes its own" if world.size > 1 else ""
        text = f"{kept} starts, walked by NSGF and kept, {format_bytes(needed)}"
        lines.append(f"{phase.name}: {text}{each}")
    return tuple(lines)


def interpolate(start: Tensor, end: Tensor, t: Tensor) -> Tensor:
    """(1 - t) X0 + t X1 for X0 and X1 (B, *shape) and t (B,).  (B, *shape)"""
    weight = t.view(-1, *[1] * (start.ndim - 1))
    return (1 - weight) * start + weight * end
