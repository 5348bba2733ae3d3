"""Solvers of the ordinary differential equation of the straight flow.

Shapes: B batch, *shape one sample. A velocity is dx/dt = u(x, t) with x (B, *shape) and t (B,):
each sample starts at a time of its own, and all end at time 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsgf.config.schema import SamplingConfig
from nsgf.system.errors import UserError
from nsgf.system.hardware import wide_float

Velocity = Callable[[Tensor, Tensor], Tensor]
Observer = Callable[[Tensor], None]


@dataclass(frozen=True)
class Solver:
    """A value of ``sampling.solver``."""

    calls_per_step: int | None
    """Network calls of one step; None: the solver chooses its steps as it goes."""
    torchdiffeq: str | None = None
    """torchdiffeq's name of it; None: the steps are written here."""


SOLVERS: dict[str, Solver] = {
    "euler": Solver(1),
    "heun": Solver(2, "heun2"),
    "dopri5": Solver(None, "dopri5"),
}
MAX_STEPS = 1000
"""Largest number of dopri5 steps of a batch; a trained straight flow takes tens."""
CANNOT_GO_ON = {
    "underflow in dt": "needs steps that are too small",
    "non-finite values": "is not finite",
    "max_num_steps exceeded": f"needs more than {MAX_STEPS} steps",
}
"""Beginnings of torchdiffeq's assertion errors, and what they mean."""


def check_solver(config: SamplingConfig) -> None:
    """Raise UserError if the solver needs torchdiffeq and it is missing or too old."""
    if SOLVERS[config.solver].torchdiffeq:
        _load_odeint(config.solver)


def expected_calls(config: SamplingConfig, start: float | None) -> int | None:
    """Return the network calls for each sample that :func:`integrate` will make.

    Args:
        config: ``solver``, ``straight_steps`` and ``omega``.
        start: the time at which all samples start; None: each has its own, not known yet.

    Returns:
        The number; None where it depends on the samples.
    """
    per_step = SOLVERS[config.solver].calls_per_step
    if per_step is None:
        return None
    if config.omega is None:
        return per_step * config.straight_steps
    if start is None:
        return None
    return per_step * int(_steps_of_omega(torch.tensor(start), config.omega))


def steps_within(config: SamplingConfig, calls: int) -> int:
    """Return the largest ``straight_steps`` that take at most this many calls, at least 1."""
    return max(1, calls // (SOLVERS[config.solver].calls_per_step or 1))


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
    samples, of error / (tolerance (1 + |x|)) stays below 1 in each step, of which there are at most
    MAX_STEPS from one state shown to the next. It calls the velocity twice to find its first step,
    and 6 times for each step, also for one that it takes back.

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
        UserError: torchdiffeq is needed and missing, or dopri5 cannot reach its tolerances.
    """
    with torch.no_grad():
        if SOLVERS[config.solver].torchdiffeq is None:
            return _euler(velocity, x, start, config, observe)
        return _odeint(velocity, x, start, config, observe)


def _euler(
    velocity: Velocity, x: Tensor, start: Tensor, config: SamplingConfig, observe: Observer | None
) -> Tensor:
    """Take the paper's steps; the last step of ``omega`` is cut to end at 1."""
    if config.omega is None:
        steps, omega = config.straight_steps, (1 - start) / config.straight_steps
        for count in range(steps):
            x = _euler_step(velocity, x, start + count * omega, omega)
            if observe:
                observe(x)
        return x
    omega = torch.full_like(start, config.omega)
    rounds = _steps_of_omega(start, config.omega)
    for count in range(int(rounds.max())):
        active = (rounds > count).nonzero()[:, 0]  # for which a card is waited for, once
        own = omega[active]
        moved = _euler_step(velocity, x[active], start[active] + count * own, own)
        x = x.index_copy(0, active, moved)
        if observe:
            observe(x)
    return x


def _euler_step(velocity: Velocity, x: Tensor, t: Tensor, omega: Tensor) -> Tensor:
    """Return x + omega u(x, t), with a step that ends at 1 at the latest."""
    step = torch.minimum(omega, 1 - t)
    return x + step.view(-1, *[1] * (x.ndim - 1)) * velocity(x, t)


def _steps_of_omega(start: Tensor, omega: float) -> Tensor:
    """Return the number of steps of size ``omega`` from ``start`` to 1; a rounding remainder takes
    none."""
    return ((1 - start) / omega - 1e-6).ceil().long()


def _odeint(
    velocity: Velocity, x: Tensor, start: Tensor, config: SamplingConfig, observe: Observer | None
) -> Tensor:
    """Solve with torchdiffeq over s from 0 to 1 for all samples: t = start + s (1 - start)."""
    odeint = _load_odeint(config.solver)
    span = 1 - start
    factor = span.view(-1, *[1] * (x.ndim - 1))

    def slope(s: Tensor, state: Tensor) -> Tensor:
        # the search for a first step may look behind the end, where no network was trained
        return factor * velocity(state, start + s.clamp(max=1) * span)

    wide = wide_float(x.device)
    grid = torch.linspace(0, 1, config.straight_steps + 1, dtype=wide, device=x.device)
    options: dict[str, Any] = {"grid_constructor": lambda *_: grid}
    if SOLVERS[config.solver].calls_per_step is None:
        # without step_t the last step may end far behind 1
        options = {"step_t": grid[-1:], "max_num_steps": MAX_STEPS, "dtype": wide}
    wanted = grid if observe else grid[[0, -1]]  # all states of a batch may be too many
    settings = {"method": SOLVERS[config.solver].torchdiffeq, "options": options}
    try:
        states = odeint(slope, x, wanted, rtol=config.tolerance, atol=config.tolerance, **settings)
    except AssertionError as error:
        why = [words for said, words in CANNOT_GO_ON.items() if str(error).startswith(said)]
        if not why:
            raise
        raise UserError(
            f"sampling.solver = {config.solver}: the straight flow {why[0]} at "
            f"sampling.tolerance = {config.tolerance:g}; use a larger one, or euler"
        ) from error
    if observe:
        for state in states[1:]:
            observe(state)
    return states[-1]


def _load_odeint(solver: str) -> Callable[..., Tensor]:
    """Return torchdiffeq's function after one try, since versions have different methods."""
    method = SOLVERS[solver].torchdiffeq
    try:
        from torchdiffeq import odeint

        odeint(lambda s, x: x, torch.zeros(1), torch.tensor([0.0, 1.0]), method=method)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"sampling.solver = {solver}: needs torchdiffeq 0.2.5 or newer "
            "(pip install torchdiffeq --upgrade), or say --sampling.solver euler"
        ) from error
    return odeint
