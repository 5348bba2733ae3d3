"""Solvers of the ordinary differential equation of the straight flow.

Shapes: B batch, *shape one sample. A velocity is dx/dt = u(x, t) with x (B, *shape) and t (B,):
each sample starts at a time of its own, and all end at time 1.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from nsgf.config.schema import SamplingConfig
from nsgf.system.errors import UserError, one_line
from nsgf.system.hardware import wide_float

Velocity = Callable[[Tensor, Tensor], Tensor]
Observer = Callable[[Tensor], None]


SOLVERS: dict[str, int | None] = {"euler": 1, "heun": 2, "dopri5": None}
"""Network calls of a step for each ``sampling.solver``; None: it chooses its steps as it goes. All
but euler are torchdiffeq's."""
MAX_STEPS = 1000
"""Largest number of dopri5 steps of a batch; a trained straight flow takes tens."""


def load_odeint(solver: str) -> Callable[..., Tensor] | None:
    """Return torchdiffeq's function, or None for euler, whose steps are written here.

    Raises:
        UserError: torchdiffeq is needed and missing.
    """
    if solver == "euler":
        return None
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise UserError(
            f"sampling.solver = {solver}: needs torchdiffeq 0.2.5 or newer (pip install "
            "torchdiffeq), or say --sampling.solver euler"
        ) from error
    return odeint


def integrate(
    velocity: Velocity,
    x: Tensor,
    start: Tensor,
    config: SamplingConfig,
    observe: Observer | None = None,
) -> Tensor:
    """Integrate dx/dt = velocity(x, t) from each sample's own time to 1, without gradients.

    euler and heun take ``straight_steps`` equal steps of each sample's way; euler with ``omega``
    takes steps of that size instead, as many as each sample needs. dopri5 (Dormand and Prince 1980)
    chooses its steps for the whole batch together: the root mean square, over all values of all
    samples, of error / (tolerance (1 + |x|)) stays below 1 in each step. It calls the velocity
    twice to find its first step, and 6 times for each step, also for one that it rejects.

    Args:
        velocity: u.
        x: states at their own times, (B, *shape); the result has their type.
        start: those times, in [0, 1], (B,).
        config: ``solver`` and what it reads: ``straight_steps``, ``omega``, ``tolerance``.
        observe: called with the states after each round of steps; with dopri5 with those at
            ``straight_steps`` equally spaced parts of the way, interpolated without calls.

    Returns:
        The states at time 1, (B, *shape).

    Raises:
        UserError: torchdiffeq is missing, or dopri5 cannot reach its tolerance.
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
        steps = ((1 - start) / config.omega - 1e-6).ceil()  # a rounding remainder takes none
        rounds = int(steps.max())
    for count in range(rounds):
        if steps is not None:
            active = (steps > count).nonzero()[:, 0]  # for which a card is waited for, once
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
        # the search for a first step may look behind the end, where no network was trained
        return factor * velocity(state, start + s.clamp(max=1) * span)

    wide = wide_float(x.device)
    grid = torch.linspace(0, 1, config.straight_steps + 1, dtype=wide, device=x.device)
    options: dict[str, Any] = {"grid_constructor": lambda *_: grid}
    if SOLVERS[config.solver] is None:
        # without step_t the last step may end far behind 1
        options = {"step_t": grid[-1:], "max_num_steps": MAX_STEPS, "dtype": wide}
    wanted = grid if observe else grid[[0, -1]]  # all states of a batch may be too many
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
