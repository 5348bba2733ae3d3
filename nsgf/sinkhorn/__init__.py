"""Flows of empirical measures, and their velocities.

``base`` states the conventions and the base class of flows. ``batched`` is the solver of every
shipped configuration, ``geomloss`` a reference that uses automatic differentiation, ``energy`` the
flow of another distance.
"""

from typing import Any

from nsgf.sinkhorn.base import Flow, SolverReport
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.sinkhorn.energy import EnergyFlow
from nsgf.sinkhorn.geomloss import GeomlossSolver

FLOWS: dict[str, type[Flow]] = {
    "sinkhorn": BatchedSolver,
    "energy": EnergyFlow,
    "geomloss": GeomlossSolver,
}
"""All flows, by ``flow.kind``."""
FLOW_SETTINGS = {name for flow in FLOWS.values() for name in flow.uses}
"""Settings of the section ``sinkhorn`` that some flows use, and others do not."""


def build_flow(config: Any) -> Flow:
    """Return the flow of a configuration, with the settings that it uses and an empty report."""
    flow = FLOWS[config.flow.kind]
    return flow(**{name: getattr(config.sinkhorn, name) for name in flow.uses})


__all__ = ["FLOWS", "FLOW_SETTINGS", "BatchedSolver", "Flow", "SolverReport", "build_flow"]
