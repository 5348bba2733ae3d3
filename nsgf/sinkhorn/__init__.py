"""The velocity of the Sinkhorn gradient flow on empirical measures, and the flow itself.

Conventions, here and in the whole package: cost C(x, y) = 1/2 |x - y|^2, regularization
eps = blur^2, uniform weights, S_eps the debiased Sinkhorn divergence. The velocity that decreases
S_eps(mu, mu*) is

    v(x) = grad f_{mu,mu}(x) - grad f_{mu,mu*}(x)                 (f: entropic OT potentials)

so that x + eta v moves the particles of mu towards mu*.

Shapes: B flows, N particles x, M targets y, D coordinates; images are flattened to D = C*H*W.
"""

from collections.abc import Callable

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.assignment import AssignmentSolver
from nsgf.sinkhorn.base import FlowSolver, SolverReport
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.sinkhorn.closed_form import ClosedFormSolver
from nsgf.sinkhorn.geomloss import GeomlossSolver


def build_solver(config: SinkhornConfig) -> FlowSolver:
    """The configured solver, with an empty report."""
    solvers: dict[str, Callable[[SinkhornConfig], FlowSolver]] = {
        "batched": BatchedSolver,
        "geomloss": GeomlossSolver,
        "closed_form": ClosedFormSolver,
        "assignment": AssignmentSolver,
    }
    return solvers[config.solver](config)


__all__ = ["FlowSolver", "SolverReport", "build_solver"]
