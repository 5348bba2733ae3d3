"""Reference solver: differentiates geomloss's divergence automatically."""

from collections.abc import Sequence

import torch
from geomloss import SamplesLoss
from torch import Tensor

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import SolverReport, as_clouds, box_diameter, full_precision


class GeomlossSolver:
    """A FlowSolver that takes one pair of clouds at a time.

    v = -grad sum(F), where F = f_xy - f_xx is the debiased potential on x.
    """

    def __init__(self, config: SinkhornConfig) -> None:
        settings = {"blur": config.blur, "scaling": config.scaling}
        self._loss = SamplesLoss("sinkhorn", potentials=True, backend="tensorized", **settings)
        self.report = SolverReport()

    def flows(self, x: Tensor, y: Tensor, etas: Sequence[float]) -> Tensor:
        """Return the positions (B, N, T+1, *shape) of B flows; see FlowSolver."""
        flat_x, flat_y = as_clouds(x, y)
        self.report.flows += len(x)
        positions = flat_x.unsqueeze(2).repeat(1, 1, len(etas) + 1, 1)
        with full_precision(x.device):
            for path, targets in zip(positions, flat_y, strict=True):
                for t, eta in enumerate(etas):
                    path[:, t + 1] = path[:, t] + eta * self._velocity(path[:, t], targets)
        return positions.unflatten(3, x.shape[2:])

    def _velocity(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the velocity of particles (N, D) towards targets (M, D)."""
        self.report.solves += 1
        if float(box_diameter(x, y)) == 0.0:  # all points are equal
            return torch.zeros_like(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            potential, _ = self._loss(x, y.detach())
            (gradient,) = torch.autograd.grad(potential.sum(), x)
        return -gradient
