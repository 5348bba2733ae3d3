"""The Sinkhorn divergence and its velocity as functions of tensors, for use outside of training.

    S_eps(x, y) = OT(x, y) - 1/2 OT(x, x) - 1/2 OT(y, y),      OT(x, y) = mean_i f_i + mean_j g_j

with the conventions of :mod:`nsgf.sinkhorn.base` and converged potentials f, g. By the envelope
theorem they count as constants in the gradient, which therefore is that of the limit and needs no
graph through the iterations:

    N grad_{x_i} S = x_i - sum_j P_ij y_j - (x_i - sum_j Q_ij x_j) = -v_i

Shapes: B problems, N particles x, M targets y, D coordinates.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from nsgf.config.leaves import leaves, range_of
from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import full_precision, half_squared_distances
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.errors import UserError
from nsgf.system.hardware import wide_float

SHAPES = "(N, D), (B, N, D), (N, C, H, W) or (B, N, C, H, W)"
BATCHED = {2: False, 3: True, 4: False, 5: True}
"""Whether clouds of so many dimensions are several problems."""


def sinkhorn_velocity(
    x: Tensor,
    y: Tensor,
    blur: float = SinkhornConfig.blur,
    *,
    tolerance: float = SinkhornConfig.tolerance,
    max_iterations: int = SinkhornConfig.max_iterations,
) -> Tensor:
    """Velocity v = grad f_xx - grad f_xy of the particles x in the flow that decreases S_eps(x, y).

    x + v moves each particle to where the plan to y sends it, corrected by that of x to itself. No
    gradient passes through; differentiate :func:`sinkhorn_divergence` instead.

    Args:
        x: particles, (N, D) or images (N, C, H, W); several problems at once as (B, N, D) or
            (B, N, C, H, W).
        y: targets with M in place of N.
        blur: square root of eps, in units of the data, for the cost 1/2 |x - y|^2.
        tolerance: largest L1 error of a plan's marginals; where particles move by less than the
            blur it is smaller in proportion.
        max_iterations: updates after which a problem is cut off, with a RuntimeWarning.

    Returns:
        v in the shape, type and place of x, computed in float32.

    Raises:
        UserError: shapes, types or places do not go together, values are not finite, a setting is
            out of its range, or the blur is too small for float32.
    """
    clouds = _as_problems(x, y)
    solver = _solver(blur, tolerance, max_iterations)
    try:
        solution = solver.solve(*clouds)
    except ValueError as error:
        raise UserError(str(error)) from error
    _warn(solver)
    return solution.velocity.view(x.shape).to(x.dtype)


def sinkhorn_divergence(
    x: Tensor,
    y: Tensor,
    blur: float = SinkhornConfig.blur,
    *,
    tolerance: float = SinkhornConfig.tolerance,
    max_iterations: int = SinkhornConfig.max_iterations,
) -> Tensor:
    """The debiased Sinkhorn divergence S_eps(x, y) of uniform weights, cost 1/2 |x - y|^2.

    Its gradient, in x and in y where they ask for one, is exact for converged potentials: -N times
    it is :func:`sinkhorn_velocity`. A second derivative is refused.

    Args, raises: as for :func:`sinkhorn_velocity`.

    Returns:
        A scalar, or (B,) for several problems; computed in float32, in the type of x, or float32
        for 16 bit.
    """
    clouds = _as_problems(x, y)
    solver = _solver(blur, tolerance, max_iterations)
    try:
        value: Tensor = _Divergence.apply(*clouds, solver, blur**2)
    except ValueError as error:
        raise UserError(str(error)) from error
    _warn(solver)
    return value if BATCHED[x.ndim] else value.squeeze(0)


class _Divergence(torch.autograd.Function):
    """S_eps of problems (B, N, *shape), (B, M, *shape).  (B,)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, solver: BatchedSolver, eps: float) -> Tensor:
        solution = solver.solve(x, y)
        flat_x, flat_y = x.flatten(2).float(), y.flatten(2).float()
        origin = flat_y.mean(1, keepdim=True)
        flat_x, flat_y = flat_x - origin, flat_y - origin
        n, m = flat_x.shape[1], flat_y.shape[1]
        with full_precision(x.device):
            log_plan = half_squared_distances(flat_x, flat_y).mul_(-1 / eps)
            log_plan += (solution.g / eps).unsqueeze(1)
            log_rows = torch.logsumexp(log_plan, 2)
            f = -eps * (log_rows - math.log(m))  # with which the rows of the plan are exact
            projected_y, own_y, _ = solver.self_projection(flat_y)
            v_y = projected_y
            if ctx.needs_input_grad[1]:  # the same plan, but with exact columns
                plan = torch.softmax(log_plan - log_rows.unsqueeze(2), 1)
                v_y = plan.mT @ flat_x - projected_y
        potentials = (f, solution.g, -solution.own, -own_y)
        wide = wide_float(x.device)
        value = torch.stack([part.to(wide).mean(1) for part in potentials]).sum(0)
        ctx.save_for_backward(solution.velocity / -n, v_y / -m)
        ctx.like = [(z.shape, z.dtype) for z in (x, y)]
        return value.to(torch.promote_types(x.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's once_differentiable would count it as a constant
            raise UserError("sinkhorn_divergence: has no second derivative (create_graph=True)")
        gradients = [
            (grad.float().view(-1, 1, 1) * part).view(shape).to(dtype) if is_needed else None
            for part, (shape, dtype), is_needed in zip(
                ctx.saved_tensors, ctx.like, ctx.needs_input_grad, strict=False
            )
        ]
        return (*gradients, None, None)


def _as_problems(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Clouds as several problems, (B, N, *shape) and (B, M, *shape).

    Raises:
        UserError: they are no tensors of numbers, or do not go together.
    """
    for name, cloud in (("x", x), ("y", y)):
        if not (isinstance(cloud, Tensor) and cloud.is_floating_point()):
            kind = cloud.dtype if isinstance(cloud, Tensor) else type(cloud).__name__
            raise UserError(f"{name}: must be a tensor of floating-point numbers, not {kind}")
        if cloud.ndim not in BATCHED:
            raise UserError(f"{name} of shape {tuple(cloud.shape)}: must be {SHAPES}")
    if x.ndim != y.ndim:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise UserError(f"x and y of shapes {shapes}: must both be one of {SHAPES}")
    if x.device != y.device:
        raise UserError(f"x is on {x.device}, y on {y.device}: move one of them")
    return (x, y) if BATCHED[x.ndim] else (x.unsqueeze(0), y.unsqueeze(0))


def _solver(blur: float, tolerance: float, max_iterations: int) -> BatchedSolver:
    """
    Raises:
        UserError: a setting is no number or out of its range.
    """
    given = {"blur": blur, "tolerance": tolerance, "max_iterations": max_iterations}
    for key, value, item in leaves(config := SinkhornConfig(**given)):  # type: ignore[arg-type]
        allowed = range_of(item)
        if key not in given or allowed is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        refusal = allowed.refusal(value) if is_number else f"a number {allowed}"
        if refusal:
            raise UserError(f"{key} = {value!r}: must be {refusal}")
    return BatchedSolver(config)


def _warn(solver: BatchedSolver) -> None:
    report = solver.report
    if report.unconverged:
        warnings.warn(
            f"{report.unconverged} of {report.solves} Sinkhorn problems did not converge: an error "
            f"of {report.worst_error:.1e} is left; raise max_iterations, tolerance or blur",
            RuntimeWarning,
            stacklevel=3,
        )
