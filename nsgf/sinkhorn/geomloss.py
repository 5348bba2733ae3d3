"""The velocity by automatic differentiation of geomloss's divergence: the reference."""

import torch
from geomloss import SamplesLoss
from torch import Tensor

from nsgf.sinkhorn.base import OneByOneSolver


class GeomlossSolver(OneByOneSolver):
    """v = -grad sum(F), F = f_xy - f_xx the debiased potential on x."""

    def _solve(self, x: Tensor, y: Tensor) -> Tensor:
        divergence = SamplesLoss(
            "sinkhorn",
            p=2,
            blur=self._blur,
            scaling=self._scaling,
            debias=True,
            potentials=True,
            backend="tensorized",
        )
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            potential, _ = divergence(x, y.detach())
            (gradient,) = torch.autograd.grad(potential.sum(), x)
        return -gradient
