"""The method: NSGF and NSGF++ (arXiv 2401.14069) as functions of tensors, and a matcher for
training loops.

    positions = run_flow(flow, x, y, step_sizes(steps, eta))     Algorithm 1: the flow
    x, v, t   = flow_pairs(positions, particle, step, h)         v_theta(x, t) learns v
    x, u      = line_pairs(x0, x1, t)                            u_delta learns u, t_phi learns t
    x         = nsgf_steps(v_theta, x, steps, h)                 Algorithm 2: samples of NSGF
    x         = straight_steps(u_delta, x, t_phi(x), steps)      Algorithm 4: then samples of NSGF++

Phases, pool and sampler call these functions; nsgf.sinkhorn.base states the conventions of flows.
B: batch size; N: number of particles; M: number of targets; T: number of steps of a flow;
*shape: shape of one sample.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nsgf.sinkhorn import BatchedSolver, Flow
from nsgf.sinkhorn.base import (
    Array,
    around_mean,
    as_clouds,
    full_precision,
    positive_number,
    to_tensor,
)
from nsgf.system.errors import UserError, wrong_setting

LARGEST_T = 100_000  # more steps change no flow
Velocity = Callable[[Tensor, Tensor], Tensor]  # states (B, *shape), times (B,) -> (B, *shape)
Observer = Callable[[Tensor], None] | None  # called with the states after each step
Step = Callable[[Velocity, Tensor, Tensor, Any], Tensor]  # as euler_step


def step_sizes(steps: int, eta: float | None) -> list[float]:
    """Algorithm 1: return the T step sizes. Each size is ``eta`` > 0. If ``eta`` is None, the steps
    are harmonic.

    The exact flow reaches its end after infinite time. Constant steps stop at time T eta. Harmonic
    steps 1/T, 1/(T-1), ..., 1 follow the same curve up to its end. Their clock is s = 1 -
    exp(-time), which ends at s = 1. On this clock, exact transport moves the particles straight at
    constant speed (McCann 1997), and they arrive in the last step. The network learns dX/ds.
    """
    return [1 / (steps - step) if eta is None else eta for step in range(steps)]


def time_step(steps: int, eta: float | None) -> float:
    """Return the length h of each step on the network's clock. For constant steps, h is eta. For
    harmonic steps (``eta`` None), h is 1/T. ``steps``: T."""
    return 1 / steps if eta is None else eta


@torch.no_grad()
def run_flow(flow: Flow, x: Tensor, y: Tensor, etas: Sequence[float]) -> Tensor:
    """Algorithm 1: Compute X^{t+1} = X^t + eta_t v(X^t) for B problems. Each solve starts from the
    last solution.

    Particles X^0 (B, N, *shape) and targets (B, M, *shape) -> X^0 .. X^T (B, N, T+1, *shape),
    float32. Raise UserError if shapes do not match, clouds are not finite, or the solver fails.
    """
    start, targets = as_clouds(x, y)
    shape = (*start.shape[:2], len(etas) + 1, start.shape[2])
    positions = start.new_empty(shape, dtype=torch.float32)
    positions[:, :, 0] = start
    with full_precision(x.device):
        particles = flow.start(start, targets, len(etas))
        for t, eta in enumerate(etas):
            positions[:, :, t + 1] = particles.move(eta)
    return positions.unflatten(3, x.shape[2:])


def flow_pairs(
    positions: Tensor, particle: Tensor, step: Tensor, h: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1: return pairs x = X^t and v = (X^{t+1} - X^t) / h, and the times t/T in [0, 1).

    ``positions`` (F, T+1, *shape) of F particles; ``particle`` and ``step`` of each pair, int64
    (B,); ``h``: :func:`time_step`. Return x and v (B, *shape) and times (B,), float32.
    """
    steps = positions.shape[1] - 1
    rows = positions.flatten(0, 1)  # (F (T+1), *shape), a view
    row = particle * (steps + 1) + step
    # convert before subtracting: the division by h would magnify the rounding of float16
    x = rows.index_select(0, row).float()
    after = rows.index_select(0, row + 1).float()
    return x, (after - x) / h, step.float() / steps


def line_pairs(start: Tensor, end: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3: return points x = (1 - t) X0 + t X1 of straight lines, and the velocities X1 -
    X0.

    X0 and X1 (B, *shape), t (B,) in [0, 1] -> x and velocity, each (B, *shape).
    """
    weight = pad_t_like_x(t, start)
    return (1 - weight) * start + weight * end, end - start


def pad_t_like_x(t: Tensor, x: Tensor) -> Tensor:
    """Return t (B,) as (B, 1, ..., 1) with as many dimensions as x (B, *shape)."""
    return t.view(-1, *[1] * (x.ndim - 1))


def euler_step(velocity: Velocity, x: Tensor, t: Tensor, h: Any) -> Tensor:
    """Return x + h u(x, t) for states x (B, *shape) and times t (B,). The step size h is a number,
    or a tensor (B, 1, ..., 1) with as many dimensions as x."""
    return x + h * velocity(x, t)


def nsgf_steps(velocity: Velocity, x: Tensor, steps: int, h: float, observe: Observer) -> Tensor:
    """Algorithm 2: repeat x <- x + h v_theta(x, s/S) for s = 0 .. S-1. It begins with samples x of
    mu0 (B, *shape). If S = T, h is :func:`time_step`. ``observe`` is called with the states after
    each step."""
    for step in range(steps):
        t = torch.full((len(x),), step / steps, dtype=torch.float32, device=x.device)
        x = euler_step(velocity, x, t, h)
        if observe:
            observe(x)
    return x


def straight_times(tau: Tensor, steps: int, power: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Algorithm 4: yield the time t and the size h of each step. The steps lead from the entry
    times tau in [0, 1] to 1. Times and sizes are (B,). Step k begins at t_k = tau + (1 - tau) (1 -
    (1 - k/n)^p). p = 1 gives equal steps, as in the paper. p > 1 gives smaller steps towards the
    data."""
    size = (1 - tau) / steps
    # use units of an equal step, so that p = 1 has no rounding
    marks = (steps - steps ** (1 - power) * (steps - k) ** power for k in range(steps + 1))
    for begin, end in pairwise(marks):
        t = tau + begin * size
        yield t, torch.minimum((end - begin) * size, 1 - t)


def straight_steps(
    velocity: Velocity,
    x: Tensor,
    tau: Tensor,
    steps: int,
    power: float,
    observe: Observer,
    advance: Step = euler_step,
) -> Tensor:
    """Algorithm 4: repeat x <- x + h u_delta(x, t) from the entry times tau (B,) in [0, 1] to 1. x
    (B, *shape) are the ends of NSGF steps. Times and sizes of the steps come from
    :func:`straight_times`."""
    for t, size in straight_times(tau, steps, power):
        x = advance(velocity, x, t, pad_t_like_x(size, x))
        if observe:
            observe(x)
    return x


class SinkhornFlowMatcher:
    """Returns training pairs of Sinkhorn flows, in the form of torchcfm's matchers. ``blur`` is the
    root of eps, in units of the data. ``eta`` is the step size; None: harmonic steps, which end at
    the data. ``first_blur`` is the blur of the first step. From step to step the blur falls, and in
    the last step it is ``blur``. If ``first_blur`` is None, all steps use ``blur``."""

    def __init__(
        self,
        blur: float = 0.5,
        steps: int = 5,
        eta: float | None = None,
        *,
        first_blur: float | None = None,
    ) -> None:
        eta = None if eta is None else positive_number("eta", eta)
        blur = positive_number("blur", blur)
        if first_blur is not None:
            first_blur = positive_number("first_blur", first_blur)
            if first_blur < blur:
                raise wrong_setting("first_blur", first_blur, f"must be >= blur, {blur:g}")
        self._flow = BatchedSolver(blur, first_blur=first_blur)
        self._etas = step_sizes(positive_number("steps", steps, is_whole=True, most=LARGEST_T), eta)

    def sample_location_and_conditional_flow(
        self, x0: Array, x1: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run a flow from x0 (N, *shape) to x1 (M, *shape) and draw one step of each particle.
        Return times t (N,) from 0 to 1 - 1/T, points xt and velocities ut, each (N, *shape).
        Integrating ut from 0 to 1 gives the flow. Raise UserError unless x0 and x1 are finite, have
        samples of the same shape, and have a floating-point type."""
        start = to_tensor("x0", x0)
        end = to_tensor("x1", x1)
        for name, points in (("x0", start), ("x1", end)):
            if not points.is_floating_point():
                raise UserError(f"{name} is {points.dtype}: must be of a floating-point type")
        report = self._flow.report
        before = report.unconverged
        # subtract the mean first, because differences of positions far from the origin lose digits
        x, y, origin = around_mean(*as_clouds(start.unsqueeze(0), end.unsqueeze(0)))
        positions = run_flow(self._flow, x, y, self._etas)[0]  # (N, T + 1, D)
        if report.unconverged > before:
            warnings.warn(f"{report}; use a larger blur", RuntimeWarning, stacklevel=2)
        particles = torch.arange(len(start), device=start.device)
        step = torch.randint(len(self._etas), (len(start),), device=start.device)
        xt, ut, t = flow_pairs(positions, particles, step, 1 / len(self._etas))
        xt = xt + origin[0]
        return t.to(start), xt.view(start.shape).to(start), ut.view(start.shape).to(start)
