"""The Sinkhorn divergence and its velocity as functions of tensors, for use in other programs.

    S_eps(x, y) = OT(x, y) - 1/2 OT(x, x) - 1/2 OT(y, y),      OT(x, y) = mean_i f_i + mean_j g_j

with the conventions of :mod:`nsgf.sinkhorn.base` and converged potentials f, g. By the envelope
theorem, the gradient treats f and g as constants. So it needs no automatic differentiation of the
iterations:

    N grad_{x_i} S = x_i - sum_j P_ij y_j - (x_i - sum_j Q_ij x_j) = -v_i

B: number of problems; N: number of particles x; M: number of targets y; D: number of coordinates.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from nsgf.sinkhorn.base import (
    Array,
    SolverReport,
    as_clouds,
    box_diameter,
    half_squared_distances,
    positive_number,
    to_tensor,
)
from nsgf.sinkhorn.batched import FLOAT32_LIMIT, MAX_ITERATIONS, TOLERANCE, BatchedSolver
from nsgf.sinkhorn.blocks import clouds_of
from nsgf.sinkhorn.plans import LOWEST_ENTRY, Clouds
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.seeding import torch_defaults

SHAPES = "(N, D), (B, N, D), (N, C, H, W) or (B, N, C, H, W)"
BATCHED = {2: False, 3: True, 4: False, 5: True}
"""Whether a tensor has a batch axis, by number of dimensions."""
LARGEST_BLUR = 10.0
"""Largest blur, relative to the diagonal of the bounding box of x and y. Far above this limit,
rounding errors are larger than S and v."""


@torch_defaults()
def sinkhorn_velocity(
    x: Array,
    y: Array,
    blur: float = 0.5,
    *,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Tensor:
    """Return the velocity v of the particles x in the flow that decreases S_eps(x, y).

    A full step moves x to x + v. v has no gradient. To differentiate, use ``sinkhorn_divergence``.

    Args:
        x: particles, a tensor or array (N, D), or images (N, C, H, W). Several problems at once are
            (B, N, D) or (B, N, C, H, W).
        y: targets, with M points in place of N.
        blur: square root of eps, in units of the data, for the cost 1/2 |x - y|^2.
        tolerance: largest L1 error of a plan's marginals. If particles move by less than the blur,
            the bound shrinks in proportion.
        max_iterations: number of updates after which an unconverged problem ends with a
            RuntimeWarning.

    Returns:
        v with the shape, dtype and device of x, computed in float32.

    Raises:
        UserError: shapes, dtypes or devices do not match, values are not finite, an argument is out
            of range, or the blur is too small or too large for these points in float32.
    """
    with torch.no_grad():
        x, clouds, blur, solver = _checked(x, y, blur, tolerance, max_iterations)
        velocity = solver.solve_clouds(clouds_of(*clouds)).velocity * blur
    _warn(solver.report)
    return velocity.view(x.shape).to(x.dtype)


@torch_defaults()
def sinkhorn_divergence(
    x: Array,
    y: Array,
    blur: float = 0.5,
    *,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Tensor:
    """Return the debiased Sinkhorn divergence S_eps(x, y) of two sets of points of equal weight.

    The result has first derivatives in x and y. The gradient is exact for converged potentials. The
    gradient in x is -1/N times ``sinkhorn_velocity``. The documentation of ``sinkhorn_velocity``
    explains the arguments and errors.

    Returns:
        A scalar, or (B,) for several problems. The result has the dtype of x, or float32 if x has
        16 bits. Potentials are computed in float32.
    """
    x, clouds, blur, solver = _checked(x, y, blur, tolerance, max_iterations)
    value = _Divergence.apply(*clouds, solver) * blur**2
    _warn(solver.report)
    value = value.to(torch.promote_types(x.dtype, torch.float32))
    return value if BATCHED[x.ndim] else value.squeeze(0)


class _Divergence(torch.autograd.Function):
    """S_eps of B problems x (B, N, D), y (B, M, D) for eps = 1.  (B,), float64"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, solver: BatchedSolver) -> Tensor:
        solution = solver.solve_clouds(clouds_of(x, y))
        targets = Clouds(y, y)
        own_y, _ = targets.start_step()
        value, f = _dual(x, y, solution.g)
        value -= 0.5 * (_dual(x, x, solution.self_potential)[0] + _dual(y, y, own_y)[0])
        v_y = targets.own  # Q y
        if ctx.needs_input_grad[1]:  # use a plan with exact column sums
            logits = f.float().unsqueeze(1) - half_squared_distances(y, x)
            plan = torch.softmax(logits, 2).clamp_min_(LOWEST_ENTRY)
            v_y = plan @ x - targets.own
        ctx.save_for_backward(solution.velocity, v_y)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable would silently return zero
            raise UserError("sinkhorn_divergence: has no second derivative (create_graph=True)")
        gradients = [
            (grad / -v.shape[1]).float().view(-1, 1, 1) * v if is_needed else None
            for v, is_needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return (*gradients, None)


def _dual(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return OT(x, y) (B,) for eps = 1, and the potential f (B, N) with which the plan's row sums
    are exact.

    The error of OT is quadratic in the error of g. The sums are float64, because with a large blur
    float32 would lose all digits."""
    log_plan = half_squared_distances(x, y).double().neg_().add_(g.unsqueeze(1))
    f = math.log(y.shape[1]) - torch.logsumexp(log_plan, 2)
    return f.mean(1) + g.to(f.dtype).mean(1), f


def _checked(
    x: Array, y: Array, blur: float, tolerance: float, max_iterations: int
) -> tuple[Tensor, tuple[Tensor, Tensor], float, BatchedSolver]:
    """Return x as a tensor, the clouds (B, N, D) and (B, M, D), the blur, and a solver for them.
    Raise UserError if an argument is wrong, or if two arguments contradict each other.

    The clouds are float32, in units of the blur. The mean of y is subtracted first, because float32
    has too few digits for clouds far from the origin."""
    points = to_tensor("x", x)
    y = to_tensor("y", y)
    blur = positive_number("blur", blur)
    most = positive_number("max_iterations", max_iterations, is_whole=True)
    solver = BatchedSolver(1.0, positive_number("tolerance", tolerance), most)
    is_float = points.is_floating_point() and y.is_floating_point()
    fits = points.ndim in BATCHED and points.ndim == y.ndim and points.device == y.device
    if not (is_float and fits):
        kinds = [f"{tuple(cloud.shape)}, {cloud.dtype}, {cloud.device}" for cloud in (points, y)]
        raise UserError(
            f"x is {kinds[0]}, y is {kinds[1]}: must both be {SHAPES}, of a floating-point type "
            "and on one device"
        )
    both = (points, y) if BATCHED[y.ndim] else (points.unsqueeze(0), y.unsqueeze(0))
    x, y = as_clouds(*both)
    origin = y.detach().mean(1, keepdim=True)
    x = x - origin
    y = y - origin
    extent = box_diameter(x.detach(), y.detach())
    lowest = float(extent.amax()) / math.sqrt(2 * FLOAT32_LIMIT)
    highest = LARGEST_BLUR * float(extent.where(extent > 0, math.inf).amin())
    if not lowest <= blur <= highest:  # also true for nan, after an overflow of distances
        raise wrong_setting(
            "blur", blur, f"must be between {lowest:.3g} and {highest:.3g} for clouds of this size"
        )
    return points, (x.div_(blur).float(), y.div_(blur).float()), blur, solver


def _warn(report: SolverReport) -> None:
    if report.unconverged:
        warnings.warn(
            f"{report.unconverged} of {report.solves} Sinkhorn problems did not converge: the "
            f"error is {report.worst_error:.1e}; use a larger max_iterations, tolerance or blur",
            RuntimeWarning,
            stacklevel=4,  # the warning names the line of the caller
        )
