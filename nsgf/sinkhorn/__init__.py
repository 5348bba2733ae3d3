"""The Sinkhorn gradient flow on empirical measures, and its velocity.

``base`` states the conventions and the step sizes. ``batched`` is the solver of every shipped
configuration, ``geomloss`` a reference that uses automatic differentiation.
"""

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import FlowSolver, SolverReport
from nsgf.sinkhorn.batched import BatchedSolver


def build_solver(config: SinkhornConfig) -> FlowSolver:
    """Return the configured solver with an empty report."""
    if config.solver == "batched":
        return BatchedSolver(config)
    from nsgf.sinkhorn.geomloss import GeomlossSolver  # loaded only where it is used

    return GeomlossSolver(config)


__all__ = ["FlowSolver", "SolverReport", "build_solver"]
