"""Flows of empirical measures, and their velocities.

``base`` has the conventions and the base class of flows. ``batched`` is the solver of every shipped
configuration. This file has the table of all flows, and the Sinkhorn flow by geomloss. This flow
uses automatic differentiation, and serves as a reference.

B: number of flows; N: number of particles x; M: number of targets y; D: number of coordinates.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nsgf.sinkhorn.base import BlurredFlow, Flow, around_mean, box_diameter
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.sinkhorn.energy import EnergyFlow

if TYPE_CHECKING:  # the solver itself does not need the settings
    from nsgf.config.schema import FlowConfig, SinkhornConfig


@dataclass(eq=False)
class GeomlossSolver(BlurredFlow):
    """The Sinkhorn flow as in the paper. geomloss solves one pair of clouds at a time.

    v = -grad sum(F), where F = f_xy - f_xx is the debiased potential on x.
    """

    title = "Sinkhorn gradient flow by geomloss"
    uses = ("blur", "first_blur", "scaling")
    shows = ("blur", "scaling")
    arrives = True

    scaling: float
    """Ratio of successive blurs while annealing."""

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        from geomloss import SamplesLoss

        loss = SamplesLoss(
            "sinkhorn",
            blur=self.blur,
            scaling=self.scaling,
            potentials=True,
            backend="tensorized",
        )
        velocity = torch.zeros_like(x)
        x, y, _ = around_mean(x.detach(), y.detach())  # geomloss does not subtract the mean
        for particles, targets, out in zip(x, y, velocity, strict=True):
            self.report.solves += 1
            if box_diameter(particles, targets) > 0:  # the velocity of equal points is 0
                with torch.enable_grad():
                    potential, _ = loss(particles.requires_grad_(), targets)
                    (gradient,) = torch.autograd.grad(potential.sum(), particles)
                out.copy_(-gradient)
        return velocity


FLOWS: dict[str, type[Flow]] = {
    "sinkhorn": BatchedSolver,
    "energy": EnergyFlow,
    "geomloss": GeomlossSolver,
}
"""All flows, by ``flow.kind``."""
FLOW_SETTINGS = {name for flow in FLOWS.values() for name in flow.uses}
"""Settings of the section ``sinkhorn`` that only some flows use."""


def ends_at_targets(settings: "FlowConfig") -> bool:
    """Whether the last step of a flow brings the particles to the targets. ``settings``: the
    section ``flow``."""
    return settings.step_size is None and FLOWS[settings.kind].arrives


def build_flow(kind: str, settings: "SinkhornConfig") -> Flow:
    """Return the flow of this ``flow.kind`` with an empty report. ``settings``: the section
    ``sinkhorn``. The flow takes the settings that it uses."""
    flow = FLOWS[kind]
    return flow(**{name: getattr(settings, name) for name in flow.uses})
