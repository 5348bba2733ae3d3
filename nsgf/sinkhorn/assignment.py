"""The limit blur -> 0: exact optimal transport, one target per particle."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from nsgf.sinkhorn.base import half_squared_distances
from nsgf.sinkhorn.one_by_one import OneByOneSolver


class AssignmentSolver(OneByOneSolver):
    """v_i = y_sigma(i) - x_i, sigma the permutation of least total cost; blur plays no part."""

    @torch.no_grad()
    def _solve(self, x: Tensor, y: Tensor) -> Tensor:
        if len(x) != len(y):
            raise ValueError(
                "sinkhorn.solver = assignment needs as many targets as particles, "
                f"not {len(y)} and {len(x)}"
            )
        centre = y.mean(0)
        cost = half_squared_distances((x - centre).unsqueeze(0), (y - centre).unsqueeze(0))
        _, sigma = linear_sum_assignment(cost.squeeze(0).cpu().numpy())  # rows come in order
        return y[torch.as_tensor(sigma, device=y.device)] - x
