"""How far the ends of a pool's flows are from their targets.

A flow cannot resolve details of the data that are smaller than its blur: there its particles end
too far apart. A network that is trained on the pool learns this error.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.data import Sampler
from nsgf.pool.settings import PoolSettings
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.sinkhorn import ends_at_targets
from nsgf.sinkhorn.energy import energy_distance
from nsgf.system.errors import suggest

MEASURED = 2048
"""Largest number of ends that are compared with targets, of as many flows as needed."""
WIDE = 64
"""Number of coordinates above which a quarter of MEASURED must do, to save time."""
LEAST_MEASURED = 200
"""Smallest number of ends that are compared: fewer show mostly noise."""
ENDS = "ends.txt"
"""Name of the file in the folder of the pool with the line about the ends."""
NEIGHBOUR = 10
"""The spread around a point is the squared distance to its neighbour of this rank."""
TOO_WIDE = 1.5
"""Smallest ratio of spreads for which a smaller blur is suggested."""


class Ends(NamedTuple):
    """Distances between the ends of flows and the data, and the spread around an end."""

    energy: float
    """Energy distance between the ends and targets of further flows."""
    floor: float
    """Energy distance between the flows' own targets and targets of further flows."""
    width: float
    """Spread around an end, divided by the spread around a target. The spread is the mean squared
    distance to the NEIGHBOUR-th neighbour. The ratio is about that of the variances of a detail of
    the data. NaN: most targets are equal."""

    def describe(self, blur: float) -> str:
        """Return one line. If the ends are too wide, the line suggests a smaller blur.

        ``blur``: the blur of the last step."""
        text = (
            f"ends of flows have 1000 x energy distance {1000 * self.energy:.1f} to the data "
            f"(targets: {1000 * self.floor:.1f})"
        )
        if math.isnan(self.width):
            return text
        text += f" and {self.width:.2g} times the spread around a point"
        if self.width < TOO_WIDE:
            return text
        # details at the end are about half as wide as the blur, and sqrt(width) times too wide
        smaller = suggest("sinkhorn.blur", f"{blur / (2 * math.sqrt(self.width)):.2g}")
        return f"{text}: the blur hides details; try {smaller}"


def pool_ends(
    settings: PoolSettings,
    pool: TrajectoryPool,
    target: Sampler,
    further: Sampler,
    count: int | None,
) -> Ends | None:
    """Measure the ends of the first flows in a pool. Return None if the settings do not let flows
    end at the data, or if there are too few ends or different targets.

    ``target``: the sampler of the pool; ``further``: a sampler of the same classes; ``count``:
    number of different targets, None: unlimited."""
    if not ends_at_targets(settings.flow):
        return None
    n = settings.sinkhorn.batch_size
    m = settings.sinkhorn.targets
    most = MEASURED if math.prod(settings.shape) <= WIDE else MEASURED // 4
    size = min(n, m, most)
    flows = min(pool.filled // n, most // size)
    if count is not None:
        flows = min(flows, count // m)  # repeated targets would lie at distance 0
    if flows * size < LEAST_MEASURED:
        return None

    def of_each_flow(sampler: Sampler) -> Tensor:
        return torch.cat([sampler.at(range(k * m, k * m + size)) for k in range(flows)])

    ends = pool.ends([range(k * n, k * n + size) for k in range(flows)])
    return measure_ends(ends, of_each_flow(target), of_each_flow(further))


def measure_ends(ends: Tensor, targets: Tensor, further: Tensor) -> Ends:
    """Measure ends of flows, their targets and targets of further flows, all (N, *shape)."""
    spreads = [_spread(ends), _spread(targets)]
    width = spreads[0] / spreads[1] if spreads[1] else math.nan
    return Ends(energy_distance(ends, further), energy_distance(targets, further), width)


def _spread(x: Tensor) -> float:
    """Return the mean squared distance of a point to its NEIGHBOUR-th neighbour.  x (N, *shape)"""
    points = x.flatten(1).double()
    points = points - points.mean(0)
    # a product would leave rounding errors between equal points
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return float(distances.kthvalue(NEIGHBOUR + 1).values.square().mean())  # rank 1: the point
