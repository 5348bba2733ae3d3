"""The velocity of the Sinkhorn gradient flow on empirical measures, and the flow itself.

``base`` states the conventions, ``batched`` is the solver of every shipped configuration,
``geomloss`` the reference by automatic differentiation, ``flash`` the same for clouds too large for
matrices, ``schedule`` the step sizes.
"""

import torch

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import FlowSolver, SolverReport
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.errors import UserError


def build_solver(config: SinkhornConfig) -> FlowSolver:
    """The configured solver, with an empty report.

    Raises:
        UserError: its package is not installed.
    """
    if config.solver == "batched":
        return BatchedSolver(config)
    if config.solver == "flash":  # libraries are loaded only where they are used
        from nsgf.sinkhorn.flash import FlashSolver

        return FlashSolver(config)
    from nsgf.sinkhorn.geomloss import GeomlossSolver

    return GeomlossSolver(config)


def check_solver(config: SinkhornConfig, device: torch.device) -> None:
    """
    Raises:
        UserError: the solver does not run on this device, or its package is not installed.
    """
    if config.solver == "flash" and device.type != "cuda":
        raise UserError(
            f"sinkhorn.solver = flash: needs a CUDA card, and the device is {device}; use "
            "--sinkhorn.solver batched"
        )
    build_solver(config)


__all__ = ["FlowSolver", "SolverReport", "build_solver", "check_solver"]
