"""Exact optimal transport: pairs of points, plans, and W2.

For two clouds of equal size, the pairs solve an assignment problem (:func:`least_cost_pairs`).
Clouds of different sizes need POT's network simplex.

N: number of points x; M: number of points y; *shape: shape of one point. If two clouds have the
same number of points, n is this number.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nsgf.sinkhorn.base import box_diameter
from nsgf.system.errors import UserError

SIMPLEX_ITERATIONS = 10_000_000
"""Iteration limit of POT's exact solver. POT's default limit is too small above about 2,500
points."""
STAGES = ((0.1, 8, 1.5), (0.01, 10, 1.85), (0.0018, 6, 1.7))
"""Regularization in units of the spread of the costs, number of Sinkhorn updates, and
over-relaxation of each stage. These values change the time to compute pairs, and not the result."""
FEW_STAGES = ((0.12, 6, 1.6), (0.006, 10, 1.85))
"""The stages for at most FEW points. For few points, the assignment takes less time than more
updates."""
FEW = 512
LOWEST_ENTRY = 1e-26
"""Smallest entry of a plan. Denormal numbers would make each product several times slower."""
BLOCK_ENTRIES = 2**19
"""Number of entries in the rows that a CPU computes together, so that the rows stay in its
cache."""
NARROW = 1 / 128
"""Large costs are reduced if no optimal plan uses a cost above this fraction of the largest
cost."""
COARSE = 1e-4
"""W2 computes each distance exactly if W2^2 is below this fraction of the largest cost. For a
larger W2^2, a matrix product is exact enough to find pairs. Its errors are about 1e-15 of the
largest cost."""


def exact_plan(cost: np.ndarray) -> tuple[np.ndarray, float]:
    """Return an optimal plan (N, M) between uniform weights for costs (N, M) >= 0, and its cost.

    Raises:
        UserError: costs are not finite, or the simplex did not finish.
    """
    if cost.shape[0] != cost.shape[1]:
        return _simplex_plan(cost)
    columns = least_cost_pairs(torch.from_numpy(cost)).numpy()
    rows = np.arange(len(cost))
    plan = np.zeros_like(cost)
    plan[rows, columns] = 1 / len(cost)
    return plan, float(cost[rows, columns].mean())


def _simplex_plan(cost: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the same as :func:`exact_plan`, by POT's network simplex.

    POT's errors grow with 1 + the largest cost. So costs that are too large for any optimal plan
    are reduced. All costs are also scaled by a power of two, which causes no rounding."""
    import ot  # takes a second to import

    _check_costs(bool(np.isfinite(cost).all()))
    while True:
        largest = float(cost.max())
        shift = 10 - math.frexp(largest)[1]
        scaled = np.ldexp(cost, shift)
        plan, log = ot.emd([], [], scaled, numItermax=SIMPLEX_ITERATIONS, log=True)
        if log["warning"]:
            raise UserError(f"exact optimal transport did not finish: {log['warning']}")
        value = math.ldexp(log["cost"], -shift)
        limit = math.lcm(*cost.shape) * value  # an optimal plan moves multiples of 1 / lcm
        if not 0 < limit < largest * NARROW:
            return plan, value
        cost = np.minimum(cost, limit)


def _check_costs(are_finite: bool) -> None:
    if not are_finite:
        raise UserError("exact optimal transport: a point is not finite")


def least_cost_pairs(cost: Tensor) -> Tensor:
    """Return a permutation ``index`` (n,) with the smallest sum of cost[i, index[i]], int64 on the
    CPU. The costs (n, n) are float64 and >= 0. Raise UserError if costs are not finite.

    scipy finds the permutation by shortest augmenting paths. These paths are short if the reduced
    costs C_ij - f_i - g_j are >= 0, and near 0 for the pairs of the solution. A constant that is
    subtracted from a row or a column changes the cost of all permutations by the same amount, so
    any f and g are allowed. Here g starts as the potential of a rough Sinkhorn solve. Then f_i =
    min_j (C_ij - g_j), and finally g_j = min_i (C_ij - f_i) (c-transforms).

    The rounding errors of f and g are proportional to the largest cost. So costs that are too large
    for any optimal pair are reduced. All costs are also scaled by a power of two, which causes no
    rounding.
    """
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    while True:
        largest = float(cost.max())
        _check_costs(math.isfinite(largest))
        exponent = min(max(math.frexp(largest)[1], -1000), 1000)
        reduced = cost * 2.0**-exponent
        g = _rough_potential(reduced)
        for rows in _blocks(reduced):
            part = reduced[rows]
            part -= g
            part -= part.amin(1, keepdim=True)
        reduced -= reduced.amin(0)
        columns = linear_sum_assignment(reduced.cpu().numpy())[1]
        index = torch.from_numpy(columns).to(cost.device, torch.int64)
        limit = float(cost.gather(1, index.unsqueeze(1)).sum())
        if not 0 < limit < largest * NARROW:
            return index.cpu()
        cost = cost.clamp_max(limit)


def _blocks(matrix: Tensor) -> Iterator[slice]:
    """Yield slices of rows. On a card, one slice has all rows. On a CPU, each slice fits into the
    cache."""
    size = max(1, BLOCK_ENTRIES // matrix.shape[1]) if matrix.device.type == "cpu" else len(matrix)
    for first in range(0, len(matrix), size):
        yield slice(first, first + size)


def _rough_potential(cost: Tensor) -> Tensor:
    """Return the column potential g (n,), float64, after a few Sinkhorn updates in float32. The
    costs (n, n) are float64. The plan has the entries u_i exp((g_j - C_ij) / eps)."""
    row_mean = cost.mean(1, keepdim=True)
    column_mean = cost.mean(0) - row_mean.mean()
    blocks = [*_blocks(cost)]
    centred = torch.empty_like(cost, dtype=torch.float32)
    for rows in blocks:
        centred[rows] = (cost[rows] - row_mean[rows]).sub_(column_mean)
    spread = float(torch.linalg.vector_norm(centred)) / len(cost)
    g = torch.zeros_like(centred[0])
    plan = torch.empty_like(centred)
    for share, updates, omega in FEW_STAGES if len(cost) <= FEW else STAGES:
        eps = share * spread or 1.0  # the spread is 0 if all costs are equal
        for rows in blocks:
            torch.sub(g, centred[rows], out=plan[rows]).mul_(1 / eps)
            torch.softmax(plan[rows], 1, out=plan[rows])
            plan[rows].clamp_min_(LOWEST_ENTRY)
        u = torch.ones_like(g)
        v = torch.ones_like(g)
        for _ in range(updates):
            column = torch.zeros_like(g)
            for rows in blocks:  # read each block once
                part = u[rows]
                part *= torch.mv(plan[rows], v).mul_(part).clamp_(0.1, 10.0).pow_(-omega)
                column.addmv_(plan[rows].T, part)
            v *= column.mul_(v).clamp_(0.1, 10.0).pow_(-omega)
        g = (g + eps * v.log()).nan_to_num_(0.0, 0.0, 0.0)
    return g.double() + column_mean


def squared_distances(x: Tensor, y: Tensor, *, by_product: bool) -> Tensor:
    """Return |x_i - y_j|^2 (N, M) of points x (N, *shape) and y (M, *shape), float64.

    ``by_product``: whether to use a matrix product. For images, the product is 2 to 7 times as
    fast. Its errors are proportional to the largest distance. Without the product, each distance is
    exact.
    """
    x = x.flatten(1).double()
    y = y.flatten(1).double()
    if not by_product:
        return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    # a product loses the digits of points far from the origin
    origin = y.mean(0)
    if origin.norm() > box_diameter(x, y):
        x = x - origin
        y = y - origin
    squares = torch.addmm(y.square().sum(1), x, y.T, alpha=-2)
    return squares.add_(x.square().sum(1, keepdim=True)).clamp_min_(0.0)


def w2(x: Tensor, y: Tensor) -> float:
    """Return W2 = (min over couplings of mean |x - y|^2)^(1/2) for uniform weights.  x (N, *shape),
    y (M, *shape). Raise the errors of :func:`exact_plan`."""
    if len(x) == len(y):
        cost = squared_distances(x, y, by_product=True)
        value = _mean_square(x, y, least_cost_pairs(cost))
        if value > COARSE * float(cost.max()):
            return value**0.5
    cost = squared_distances(x, y, by_product=False)
    return max(exact_plan(cost.cpu().numpy())[1], 0.0) ** 0.5


def _mean_square(x: Tensor, y: Tensor, index: Tensor) -> float:
    """Return the mean of |x_i - y_index[i]|^2."""
    difference = x.flatten(1).double() - y[index.to(y.device)].flatten(1).double()
    return float(difference.square().sum(1).mean())


def optimal_pairs(start: Tensor, end: Tensor) -> Tensor:
    """Return the exact optimal transport between two clouds (n, *shape) for the squared Euclidean
    cost, as a permutation (n,): ``start[i]`` is paired with ``end[index[i]]``.

    For clouds on a card, the card computes costs and potentials. The CPU computes the assignment.
    Raise the errors of :func:`least_cost_pairs`.
    """
    cost = squared_distances(start, end, by_product=True)
    return least_cost_pairs(cost).to(end.device)
