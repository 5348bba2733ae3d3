"""Two solvers that no run needs; tests compare with them: a closed form, and the limit blur -> 0.

ClosedFormSolver is geomloss's iteration with the velocity written out, without autograd.
AssignmentSolver is exact optimal transport, one target per particle.
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from nsgf.sinkhorn.base import box_diameter, half_squared_distances
from nsgf.sinkhorn.geomloss import OneByOneSolver


class AssignmentSolver(OneByOneSolver):
    """v_i = y_sigma(i) - x_i, sigma the permutation of least total cost; blur plays no part."""

    def _solve(self, x: Tensor, y: Tensor) -> Tensor:
        _, sigma = linear_sum_assignment(_costs(x, y).numpy())  # rows come in order
        return y[torch.as_tensor(sigma)] - x


class ClosedFormSolver(OneByOneSolver):
    """v_i = sum_j P_ij y_j - sum_j Q_ij x_j, the barycentric projections.

    P and Q are the rows of the transport plans of (x, y) and of (x, x). The potentials come from
    the annealed, averaged iteration that geomloss runs (Feydy 2020, section 3.3).
    """

    @torch.no_grad()
    def _solve(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x - y.mean(0), y - y.mean(0)
        cost_xy, cost_xx = _costs(x, y), _costs(x, x)
        schedule = _annealing(float(box_diameter(x, y)), self._blur, self._scaling)
        f, g = _soft_min(schedule[0], cost_xy, 0.0), _soft_min(schedule[0], cost_xy.T, 0.0)
        p = _soft_min(schedule[0], cost_xx, 0.0)
        for eps in schedule:
            f, g = (
                0.5 * (f + _soft_min(eps, cost_xy, g)),
                0.5 * (g + _soft_min(eps, cost_xy.T, f)),
            )
            p = 0.5 * (p + _soft_min(eps, cost_xx, p))
        eps = schedule[-1]
        plan_xy = torch.softmax((g - cost_xy) / eps, dim=1)  # P, (N, M)
        plan_xx = torch.softmax((p - cost_xx) / eps, dim=1)  # Q, (N, N)
        return plan_xy @ y - plan_xx @ x


def _costs(x: Tensor, y: Tensor) -> Tensor:
    return half_squared_distances(x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)


def _soft_min(eps: float, cost: Tensor, potential: Tensor | float) -> Tensor:
    """-eps log sum_j exp((potential_j - cost_ij) / eps).  (N,)

    The uniform weights are left out: they shift a potential by a constant, which no plan sees.
    """
    return -eps * torch.logsumexp((potential - cost) / eps, dim=1)


def _annealing(diameter: float, blur: float, scaling: float) -> list[float]:
    """Decreasing eps from diameter^2 down to blur^2, as geomloss takes them."""
    schedule, scale = [diameter**2], diameter
    while scale > blur:
        schedule.append(scale**2)
        scale *= scaling
    return [*schedule, blur**2]
