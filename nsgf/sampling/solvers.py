"""ODE solvers for the straight flow.

Shapes: B batch, *shape one sample. A velocity is dx/dt = u(x, t) with x (B, *shape) and t (B,):
samples start at different times, and all end at time 1.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from nsgf.config.schema import SamplingConfig
from nsgf.system.errors import UserError, one_line

Velocity = Callable[[Tensor, Tensor], Tensor]
Observer = Callable[[Tensor], None]


SOLVERS: dict[str, int | None] = {"euler": 1, "heun": 2, "dopri5": None}
"""Number of network calls per step for each ``sampling.solver``; None: adaptive. torchdiffeq
provides all solvers except euler."""
MAX_STEPS = 1000
"""Largest number of dopri5 steps of a batch; a trained straight flow takes tens."""


def load_odeint(solver: str) -> Callable[..., Tensor] | None:
    """Return torchdiffeq's function, or None for euler, which this module implements.

    Raises:
        UserError: torchdiffeq is needed but not installed.
    """
    if solver == "euler":
        return None
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise UserError(
            f"sampling.solver = {solver}: needs torchdiffeq 0.2.5 or newer (pip install "
            "torchdiffeq), or use euler"
        ) from error
    return odeint


def integrate(
    velocity: Velocity,
    x: Tensor,
    start: Tensor,
    config: SamplingConfig,
    observe: Observer | None = None,
) -> Tensor:
    """Integrate dx/dt = velocity(x, t) from each sample's start time to 1, without gradients.

    euler and heun take ``straight_steps`` equal steps for each sample; euler with ``omega`` takes
    steps of this size, as many as each sample needs. dopri5 (Dormand and Prince 1980) chooses steps
    for the whole batch: the root mean square of error / (tolerance (1 + |x|)), over all values of
    all samples, stays below 1 in each step. dopri5 calls the velocity twice to find the first step,
    and 6 times for each step, accepted or rejected.

    Args:
        x: states at the times ``start``, (B, *shape); the result has the same dtype.
        start: start time of each sample, in [0, 1], (B,).
        observe: called with the states after each step; for dopri5, with states interpolated at
            ``straight_steps`` equally spaced times.

    Raises:
        UserError: torchdiffeq is not installed, or dopri5 cannot reach the tolerance.
    """
    odeint = load_odeint(config.solver)
    with torch.no_grad():
        if odeint is None:
            return _euler(velocity, x, start, config, observe)
        return _solve(odeint, velocity, x, start, config, observe)


def _euler(
    velocity: Velocity, x: Tensor, start: Tensor, config: SamplingConfig, observe: Observer | None
) -> Tensor:
    """Take the paper's steps x + h u(x, t), h = min(omega, 1 - t)."""
    rounds, steps, active = config.straight_steps, None, cast(Any, slice(None))
    omega = (1 - start) / rounds
    if config.omega is not None:
        omega = torch.full_like(start, config.omega)
        steps = ((1 - start) / config.omega - 1e-6).ceil()  # no extra step for a rounding error
        rounds = int(steps.max())
    for count in range(rounds):
        if steps is not None:
            active = (steps > count).nonzero()[:, 0]  # waits for the card once
        t = start[active] + count * omega[active]
        step = torch.minimum(omega[active], 1 - t).view(-1, *[1] * (x.ndim - 1))
        moved = x[active] + step * velocity(x[active], t)
        x = moved if steps is None else x.index_copy(0, active, moved)
        if observe:
            observe(x)
    return x


def _solve(
    odeint: Callable[..., Any],
    velocity: Velocity,
    x: Tensor,
    start: Tensor,
    config: SamplingConfig,
    observe: Observer | None,
) -> Tensor:
    """Solve with torchdiffeq over s from 0 to 1 for all samples: t = start + s (1 - start)."""
    span = 1 - start
    factor = span.view(-1, *[1] * (x.ndim - 1))

    def slope(s: Tensor, state: Tensor) -> Tensor:
        # the search for the first step may look beyond the end, where the network is not trained
        return factor * velocity(state, start + s.clamp(max=1) * span)

    grid = torch.linspace(0, 1, config.straight_steps + 1, dtype=torch.float64, device=x.device)
    options: dict[str, Any] = {"grid_constructor": lambda *_: grid}
    if SOLVERS[config.solver] is None:
        # without step_t the last step may end far beyond 1
        options = {"step_t": grid[-1:], "max_num_steps": MAX_STEPS, "dtype": torch.float64}
    wanted = grid if observe else grid[[0, -1]]  # all states may need too much memory

    tolerances = {"rtol": config.tolerance, "atol": config.tolerance}
    method = {"heun": "heun2"}.get(config.solver, config.solver)
    try:
        states = odeint(slope, x, wanted, **tolerances, method=method, options=options)
    except AssertionError as error:
        raise UserError(
            f"sampling.solver = {config.solver}: the straight flow cannot be solved at "
            f"sampling.tolerance = {config.tolerance:g} ({one_line(error)}); use a larger one, or "
            "euler"
        ) from error
    if observe:
        for state in states[1:]:
            observe(state)
    return states[-1]
