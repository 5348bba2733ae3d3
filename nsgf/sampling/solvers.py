"""ODE solvers for the straight flow.

B: batch size; *shape: shape of one sample.

A velocity is dx/dt = u(x, t) with x (B, *shape) and t (B,). Each sample has its own time, because
samples start at different times. All samples end at time 1.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsgf.config.schema import SamplingConfig
from nsgf.method import (
    Observer,
    Step,
    Velocity,
    euler_step,
    pad_t_like_x,
    straight_steps,
)
from nsgf.system.errors import one_line, wrong_setting


class Solver(NamedTuple):
    """A value of ``sampling.solver``."""

    calls: int | None
    """Number of network calls per step; None: adaptive."""
    step: Step | None
    """Function for one step; None: torchdiffeq's dopri5."""


def heun_step(velocity: Velocity, x: Tensor, t: Tensor, h: Any) -> Tensor:
    """Return x + h (u(x, t) + u(x', t + h)) / 2 with Euler's step x' = x + h u(x, t)."""
    first = velocity(x, t)
    return x + h * (first + velocity(x + h * first, t + h.flatten())) / 2


def rk4_step(velocity: Velocity, x: Tensor, t: Tensor, h: Any) -> Tensor:
    """Return the classical Runge-Kutta step of fourth order, which calls the velocity 4 times."""
    half = h / 2
    middle = t + half.flatten()
    first = velocity(x, t)
    second = velocity(x + half * first, middle)
    third = velocity(x + half * second, middle)
    fourth = velocity(x + h * third, t + h.flatten())
    return x + h * (first + 2 * second + 2 * third + fourth) / 6


SOLVERS = {
    "euler": Solver(1, euler_step),
    "heun": Solver(2, heun_step),
    "dopri5": Solver(None, None),
}
MAX_STEPS = 1000
"""Largest number of dopri5 steps for a batch. A trained straight flow takes a few dozen."""


def load_odeint(solver: str) -> Any:
    """Return torchdiffeq's function for an adaptive solver; None for a solver with fixed steps.

    Raises:
        UserError: torchdiffeq is needed but not installed.
    """
    if SOLVERS[solver].step:
        return None
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise wrong_setting(
            "sampling.solver", solver, "needs torchdiffeq (pip install torchdiffeq), or use euler"
        ) from error
    return odeint


@torch.no_grad()
def integrate(
    velocity: Velocity,
    x: Tensor,
    start: Tensor,
    config: SamplingConfig,
    observe: Observer = None,
) -> Tensor:
    """Integrate dx/dt = velocity(x, t) from each sample's start time to 1, without gradients.

    euler and heun take ``straight_steps`` steps for each sample. ``spacing`` determines the lengths
    of the steps. With ``omega``, euler takes steps of this size until each sample reaches time 1,
    so the last step is shorter. dopri5 (Dormand and Prince 1980) chooses its steps for the whole
    batch. It computes error / (tolerance (1 + |x|)) for all values of all samples. In each step,
    the root mean square of these ratios stays below 1. dopri5 calls the velocity twice to find the
    first step, and 6 times for each accepted or rejected step.

    Args:
        x: states at the times ``start``, (B, *shape). The result has the dtype of x.
        start: start time of each sample, in [0, 1], (B,).
        observe: function that is called with the states after each step. For dopri5, it is called
            with states at ``straight_steps`` equally spaced times, which are interpolated.

    Raises:
        UserError: torchdiffeq is not installed, or dopri5 cannot reach the tolerance.
    """
    advance = SOLVERS[config.solver].step
    if advance is None:
        return _solve_adaptively(velocity, x, start, config, observe)
    if config.omega is not None:
        return _solve_in_fixed_steps(velocity, x, start, config.omega, observe)
    steps = config.straight_steps
    return straight_steps(velocity, x, start, steps, config.spacing, observe, advance)


def _solve_in_fixed_steps(
    velocity: Velocity, x: Tensor, start: Tensor, omega: float, observe: Observer
) -> Tensor:
    """Take Euler steps of size omega until each sample reaches time 1. The last step is shorter."""
    size = torch.full_like(start, omega)
    needed = ((1 - start) / omega - 1e-6).ceil()  # rounding must not add a step
    for count in range(int(needed.max())):
        t = start + count * size
        h = torch.minimum(size, 1 - t)
        active = (needed > count).nonzero()[:, 0]  # here the CPU waits for the card
        moved = euler_step(velocity, x[active], t[active], pad_t_like_x(h[active], x))
        x = x.index_copy(0, active, moved)
        if observe:
            observe(x)
    return x


def _solve_adaptively(
    velocity: Velocity, x: Tensor, start: Tensor, config: SamplingConfig, observe: Observer
) -> Tensor:
    """Solve with dopri5 over s from 0 to 1 for all samples, where t = start + s (1 - start)."""
    odeint = load_odeint(config.solver)
    span = 1 - start
    factor = pad_t_like_x(span, x)

    def slope(s: Tensor, state: Tensor) -> Tensor:
        # dopri5 may try a first step beyond time 1, where the network is not trained
        return factor * velocity(state, start + s.clamp(max=1) * span)

    grid = torch.linspace(0, 1, config.straight_steps + 1, dtype=torch.float64, device=x.device)
    # states between start and end need memory, so take them only if they are observed
    times = grid if observe else grid[[0, -1]]
    # with step_t, the last step ends at 1, and not beyond
    options = {"step_t": grid[-1:], "max_num_steps": MAX_STEPS, "dtype": torch.float64}
    try:
        limit = config.tolerance
        states = odeint(slope, x, times, rtol=limit, atol=limit, method="dopri5", options=options)
    except AssertionError as error:
        raise wrong_setting(
            "sampling.solver",
            config.solver,
            "the straight flow cannot be solved at "
            f"sampling.tolerance = {config.tolerance:g} ({one_line(error)}); use a larger one, or "
            "euler",
        ) from error
    if observe:
        for state in states[1:]:
            observe(state)
    return states[-1]
