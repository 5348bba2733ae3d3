"""The energy distance, and the flow that decreases it.

B: number of flows; N: number of particles x; M: number of targets y; D: number of coordinates.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nsgf.sinkhorn.base import Flow, around_mean

ROWS = 2048
"""Number of rows of distances that are computed at a time."""


class EnergyFlow(Flow):
    """The flow of the energy distance, which has no transport problem to solve.

        E(x, y) = mean |x_i - y_j| - 1/2 mean |x_i - x_k| - 1/2 mean |y_j - y_l|
        v_i = -N grad_{x_i} E
            = mean_j (y_j - x_i) / |y_j - x_i| - mean_k (x_k - x_i) / |x_k - x_i|

    Each mean of unit vectors has length <= 1, even if the targets are far away. So choose the step
    sizes in units of the data. Pairs of equal points contribute 0.
    """

    title = "energy-distance gradient flow"
    card_prefix = (
        "the gradient flow of the energy distance, in place of the Sinkhorn divergence of "
    )

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        x, y, _ = around_mean(x, y)
        return _mean_direction(x, y) - _mean_direction(x, x)


def _mean_direction(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean unit vector from each point of x (B, N, D) to the points of y (B, M, D). The
    clouds must lie near the origin."""
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    weights = torch.where(distances > 0, 1 / distances, 0.0) / y.shape[1]
    return weights @ y - weights.sum(2, keepdim=True) * x


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return an estimate without bias of 2 E|X - Y| - E|X - X'| - E|Y - Y'|. For equal
    distributions, the result is around 0.

    For few samples, W2 mostly shows random differences in mass. So the energy distance shows
    differences in shape better than W2 (Szekely and Rizzo 2013).  x (N, *shape), y (M, *shape), N,
    M > 1
    """
    middle = y.flatten(1).double().mean(0)  # cdist loses digits far from the origin
    return cross_minus_within(
        x.flatten(1).double() - middle,
        y.flatten(1).double() - middle,
        torch.cdist,
        lambda rows: torch.zeros(len(rows), dtype=torch.float32),
    )


def cross_minus_within(
    a: Tensor,
    b: Tensor,
    pairwise: Callable[[Tensor, Tensor], Tensor],
    with_itself: Callable[[Tensor], Tensor],
) -> float:
    """Return 2 E f(X, Y) - E f(X, X') - E f(Y, Y'). X and X' are different samples of ``a``. Y and
    Y' are different samples of ``b``."""

    def total(rows: Tensor, columns: Tensor) -> float:
        return sum(float(pairwise(part, columns).sum()) for part in rows.split(ROWS))

    difference = 2 * total(a, b) / (len(a) * len(b))
    for rows in (a, b):
        within = total(rows, rows) - float(with_itself(rows).sum())
        difference -= within / (len(rows) * (len(rows) - 1))
    return difference
