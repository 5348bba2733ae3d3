"""How far the ends of a pool's flows are from their targets.

A flow cannot resolve details of the data that are smaller than the flow's blur. In such a detail,
particles end too far apart. A network that is trained on the pool learns this error.
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
"""Largest number of ends that are compared with targets. They come from as many flows as needed."""
WIDE = 64
"""If a sample has more coordinates than this number, a quarter of MEASURED is used, to save
time."""
LEAST_MEASURED = 200
"""Smallest number of ends that are compared. The result of fewer ends is mostly noise."""
ENDS = "ends.txt"
"""Name of the file with the line about the ends. The file lies in the pool's folder."""
NEIGHBOUR = 10
"""The spread around a point is the squared distance to its neighbour of this rank."""
TOO_WIDE = 1.5
"""Smallest ratio of spreads for which a smaller blur is suggested."""


class Ends(NamedTuple):
    """Distances between the ends of flows and the data, and the spread around an end."""

    energy: float
    """Energy distance between the ends of the flows and independent samples of the data."""
    floor: float
    """Energy distance between the targets of the flows and independent samples of the data."""
    width: float
    """Spread around an end, divided by the spread around a target. The spread is the mean squared
    distance to the NEIGHBOUR-th neighbour. The ratio is about the variance of a detail among the
    ends, divided by the variance of this detail among the targets. NaN: most targets are equal."""

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
        # details at the end are about half as wide as the blur, which is sqrt(width) times their
        # true width
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
    end at the data, if the pool has too few ends, or if there are too few different targets.

    ``target`` is the sampler of the pool. ``further`` draws independent samples of the same
    classes. ``count`` is the number of different targets, or None if it is unlimited."""
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
    """Compare ends of flows with their targets and with independent samples, all (N, *shape)."""
    spreads = [_spread(ends), _spread(targets)]
    width = spreads[0] / spreads[1] if spreads[1] else math.nan
    return Ends(energy_distance(ends, further), energy_distance(targets, further), width)


def _spread(x: Tensor) -> float:
    """Return the mean squared distance of a point to its NEIGHBOUR-th neighbour.  x (N, *shape)"""
    points = x.flatten(1).double()
    points = points - points.mean(0)
    # with a matrix product, equal points would have a distance above 0, by rounding
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return float(distances.kthvalue(NEIGHBOUR + 1).values.square().mean())  # rank 1 is the point
