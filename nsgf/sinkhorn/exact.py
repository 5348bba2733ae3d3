"""Exact optimal transport by POT's network simplex: plans, pairs of points, and W2.

Shapes: N points x, M points y, *shape one point.
"""

import math

import numpy as np
import torch
from torch import Tensor

from nsgf.sinkhorn.base import box_diameter
from nsgf.system.errors import UserError

SIMPLEX_ITERATIONS = 10_000_000
"""Iteration limit of POT's exact solver; the default is too small above about 2,500 points."""


def exact_plan(cost: np.ndarray) -> tuple[np.ndarray, float]:
    """Return an optimal plan (N, M) between uniform weights for costs (N, M) >= 0, and its cost.

    POT's errors grow with 1 + the largest cost. So costs that are too large for any optimal plan
    are reduced, and all costs are scaled by a power of two, which is exact.

    Raises:
        UserError: costs are not finite, or the simplex did not finish.
    """
    import ot  # takes a second to import

    if not np.isfinite(cost).all():
        raise UserError("exact optimal transport: a point is not finite")
    while True:
        largest = float(cost.max())
        shift = 10 - math.frexp(largest)[1]
        scaled = np.ldexp(cost, shift)
        plan, log = ot.emd([], [], scaled, numItermax=SIMPLEX_ITERATIONS, log=True)
        if log["warning"]:
            raise UserError(f"exact optimal transport did not finish: {log['warning']}")
        value = math.ldexp(log["cost"], -shift)
        limit = math.lcm(*cost.shape) * value  # an optimal plan moves multiples of 1 / lcm
        if not 0 < limit < largest / 128:
            return plan, value
        cost = np.minimum(cost, limit)


def squared_distances(x: Tensor, y: Tensor, *, by_product: bool) -> Tensor:
    """Return |x_i - y_j|^2 (N, M) of points x (N, *shape) and y (M, *shape), float64.

    ``by_product``: use a matrix product, which for images is 2 to 7 times as fast. Its errors are
    relative to the largest distance. Otherwise each distance is exact.
    """
    x = x.flatten(1).double()
    y = y.flatten(1).double()
    if not by_product:
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    # a product loses the digits of points far from the origin; others keep their rounding, which
    # decides between equal plans
    origin = y.mean(0)
    if origin.norm() > box_diameter(x, y):
        x = x - origin
        y = y - origin
    return torch.cdist(x, y).square()


def w2(x: Tensor, y: Tensor) -> float:
    """Return W2 = (min over couplings of mean |x - y|^2)^(1/2), uniform weights.  x (N, *shape),
    y (M, *shape). Raise the errors of :func:`exact_plan`."""
    cost = squared_distances(x, y, by_product=False)
    return max(exact_plan(cost.numpy())[1], 0.0) ** 0.5


def optimal_pairs(start: Tensor, end: Tensor) -> Tensor:
    """Return the exact optimal transport between two clouds (n, *shape) for the squared Euclidean
    cost, as a permutation (n,): ``start[i]`` is paired with ``end[index[i]]``.

    Runs on the CPU. n = 1024 takes 0.25 s with images and 0.15 s with points in the plane; n = 2048
    takes four times as long. Raise the errors of :func:`exact_plan`.
    """
    cost = squared_distances(start, end, by_product=True)
    plan, _ = exact_plan(cost.cpu().numpy())
    return torch.from_numpy(plan.argmax(1)).to(end.device)
