"""The flow of the energy distance, which has no transport problem to solve.

    E(x, y) = mean |x_i - y_j| - 1/2 mean |x_i - x_k| - 1/2 mean |y_j - y_l|
    v_i = -N grad_{x_i} E = mean_j (y_j - x_i) / |y_j - x_i| - mean_k (x_k - x_i) / |x_k - x_i|

Each mean of unit vectors is at most 1 long, however far the targets are: choose the step sizes in
units of the data. Pairs of equal points add 0.

Shapes: B flows, N particles x, M targets y, D coordinates.
"""

import torch
from torch import Tensor

from nsgf.sinkhorn.base import Flow


class EnergyFlow(Flow):
    """The flow of the energy distance."""

    title = "energy-distance gradient flow"
    method = "the gradient flow of the energy distance, in place of the Sinkhorn divergence of "

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        return _mean_direction(x, y) - _mean_direction(x, x)


def _mean_direction(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean unit vector from each point of x (B, N, D) to the points of y (B, M, D)."""
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    weights = torch.where(distances > 0, 1 / distances, 0.0) / y.shape[1]
    return weights @ y - weights.sum(2, keepdim=True) * x
