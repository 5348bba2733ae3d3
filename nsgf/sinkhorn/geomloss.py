"""The Sinkhorn flow by geomloss, whose divergence is differentiated automatically."""

import torch
from torch import Tensor

from nsgf.sinkhorn.base import Flow, box_diameter


class GeomlossSolver(Flow):
    """The Sinkhorn flow as in the paper: one pair of clouds at a time, annealed to the blur.

    v = -grad sum(F), where F = f_xy - f_xx is the debiased potential on x.
    """

    title = "Sinkhorn gradient flow by geomloss"
    uses = ("blur", "scaling")
    arrives = True

    def __init__(self, blur: float, scaling: float) -> None:
        """``scaling``: ratio of successive blurs while annealing."""
        super().__init__()
        from geomloss import SamplesLoss

        self._text = f"{self.title} with blur {blur:g} and scaling {scaling:g}"
        settings = {"blur": blur, "scaling": scaling}
        self._loss = SamplesLoss("sinkhorn", potentials=True, backend="tensorized", **settings)

    def __str__(self) -> str:
        return self._text

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self._single(*clouds) for clouds in zip(x, y, strict=True)])

    def _single(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the velocity of particles (N, D) towards targets (M, D)."""
        self.report.solves += 1
        if float(box_diameter(x, y)) == 0.0:  # all points are equal
            return torch.zeros_like(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            potential, _ = self._loss(x, y.detach())
            (gradient,) = torch.autograd.grad(potential.sum(), x)
        return -gradient
