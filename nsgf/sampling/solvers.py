"""Solvers of torchdiffeq for an ordinary differential equation over the unit interval.

A slope is dx/ds, called with the time s as a tensor without dimensions and the state (B, *shape).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsgf.config.schema import SamplingConfig
from nsgf.system.errors import UserError

Slope = Callable[[Tensor, Tensor], Tensor]
METHODS = {"heun": "heun2", "dopri5": "dopri5"}
"""``sampling.solver`` and torchdiffeq's name of it."""
CANNOT_GO_ON = ("underflow in dt", "non-finite values")
"""How the assertions begin by which torchdiffeq gives up."""


def check_solver(config: SamplingConfig) -> None:
    """
    Raises:
        UserError: the solver needs torchdiffeq, which is not installed or too old.
    """
    if config.solver in METHODS:
        _load_odeint(config.solver)


def integrate(
    slope: Slope,
    x: Tensor,
    config: SamplingConfig,
    observe: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Carry x from s = 0 to s = 1 along dx/ds = slope(s, x), without gradients.

    heun takes ``straight_steps`` equal steps of two calls each. dopri5 (Dormand and Prince 1980)
    chooses its steps for the whole batch together: the root mean square, over all values of all
    samples, of error / (atol + rtol |x|) stays below 1 in each step. It calls the slope twice to
    find its first step, and 6 times for each step, also for one that it takes back. No step ends
    behind s = 1, but the search for the first one may look there.

    Args:
        slope: dx/ds.
        x: state at s = 0, (B, *shape); the result has its type.
        config: ``solver`` (heun or dopri5), ``straight_steps``, ``rtol`` and ``atol``.
        observe: called with the states at ``straight_steps`` equally spaced s, the last one 1;
            those of dopri5 are interpolated, which takes no calls of the slope.

    Raises:
        UserError: torchdiffeq is missing, or dopri5 cannot reach its tolerances.
    """
    odeint = _load_odeint(config.solver)
    grid = torch.linspace(0, 1, config.straight_steps + 1, dtype=torch.float64, device=x.device)
    options: dict[str, Any] = {"grid_constructor": lambda *_: grid}
    if config.solver == "dopri5":
        options = {"step_t": grid[-1:]}  # else the last step may end far behind 1
    wanted = grid if observe else grid[[0, -1]]  # all states of a batch may be too many
    method, tolerances = METHODS[config.solver], {"rtol": config.rtol, "atol": config.atol}
    try:
        with torch.no_grad():
            states = odeint(slope, x, wanted, method=method, options=options, **tolerances)
    except AssertionError as error:
        if not str(error).startswith(CANNOT_GO_ON):
            raise
        raise UserError(
            f"sampling.solver = {config.solver}: the straight flow is not finite, or needs steps "
            "that are too small; use larger sampling.rtol and sampling.atol, or euler"
        ) from error
    for state in states[1:]:
        if observe:
            observe(state)
    return states[-1]


def _load_odeint(solver: str) -> Callable[..., Tensor]:
    """torchdiffeq's function, tried once: versions differ in the methods that they have."""
    try:
        from torchdiffeq import odeint

        odeint(lambda s, x: x, torch.zeros(1), torch.tensor([0.0, 1.0]), method=METHODS[solver])
    except (ImportError, ValueError) as error:
        raise UserError(
            f"sampling.solver = {solver}: needs torchdiffeq 0.2.5 or newer "
            "(pip install torchdiffeq --upgrade), or say --sampling.solver euler"
        ) from error
    return odeint
