"""Flows of empirical measures, and their velocities.

``base`` states the conventions and the base class of flows. ``batched`` is the solver of every
shipped configuration, ``geomloss`` a reference that uses automatic differentiation.
"""

from typing import Any

from nsgf.sinkhorn.base import Flow, SolverReport
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.sinkhorn.geomloss import GeomlossSolver

FLOWS: dict[str, type[Flow]] = {
    "sinkhorn": BatchedSolver,
    "geomloss": GeomlossSolver,
}
"""All flows, by ``flow.kind``."""


def build_flow(kind: str, settings: Any) -> Flow:
    """Return the flow of this kind with the settings that it uses, attributes of ``settings``, and
    an empty report."""
    flow = FLOWS[kind]
    return flow(**{name: getattr(settings, name) for name in flow.uses})


__all__ = ["FLOWS", "BatchedSolver", "Flow", "SolverReport", "build_flow"]
