"""The velocity of the Sinkhorn gradient flow on empirical measures, and the flow itself.

Conventions, here and in the whole package: cost C(x, y) = 1/2 |x - y|^2, regularization
eps = blur^2, uniform weights, S_eps the debiased Sinkhorn divergence. The velocity that decreases
S_eps(mu, mu*) is

    v(x) = grad f_{mu,mu}(x) - grad f_{mu,mu*}(x)                 (f: entropic OT potentials)

so that x + eta v moves the particles of mu towards mu*.

Shapes: N particles x, M targets y, D coordinates; images are flattened to D = C*H*W.
"""

from collections.abc import Callable

import torch
from geomloss import SamplesLoss
from torch import Tensor

from nsgf.config import SinkhornConfig

Velocity = Callable[[Tensor, Tensor], Tensor]
"""v(x, y): particles (N, *shape), targets (M, *shape) -> velocity of the particles (N, *shape)."""


def build_velocity_field(config: SinkhornConfig) -> Velocity:
    """The velocity on empirical measures with the configured solver.

    The returned function computes in float32 outside autocast, whatever the input's type, and
    answers in the input's type. It raises ValueError for empty, non-finite or mismatched clouds.
    """
    solve = {"geomloss": _geomloss_velocity, "closed_form": _closed_form_velocity}[config.solver]

    def velocity(x: Tensor, y: Tensor) -> Tensor:
        flat_x, flat_y = _as_clouds(x, y)
        if _diameter(flat_x, flat_y) == 0.0:  # one single point: nothing to transport
            return torch.zeros_like(x)
        with torch.autocast(x.device.type, enabled=False), _full_precision():
            v = solve(flat_x, flat_y, config.blur, config.scaling)
        return v.view(x.shape).to(x.dtype)

    return velocity


def sinkhorn_flow(x: Tensor, y: Tensor, velocity: Velocity, steps: int, eta: float) -> Tensor:
    """Algorithm 1, one flow: X^{t+1} = X^t + eta v(X^t), t = 0 .. T-1.

    Args:
        x: particles X^0, (N, *shape).
        y: targets Y, (M, *shape).
        velocity: v on empirical measures.
        steps: T.
        eta: step size.

    Returns:
        Positions X^0 .. X^T of every particle, (N, T+1, *shape).
    """
    positions = [x]
    for _ in range(steps):
        x = x + eta * velocity(x, y)
        positions.append(x)
    return torch.stack(positions, dim=1)


def _geomloss_velocity(x: Tensor, y: Tensor, blur: float, scaling: float) -> Tensor:
    """v = -grad sum(F), F = f_xy - f_xx the debiased potential on x.  (N, D)"""
    divergence = SamplesLoss(
        "sinkhorn",
        p=2,
        blur=blur,
        scaling=scaling,
        debias=True,
        potentials=True,
        backend="tensorized",
    )
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        potential, _ = divergence(x, y.detach())
        (gradient,) = torch.autograd.grad(potential.sum(), x)
    return -gradient


@torch.no_grad()
def _closed_form_velocity(x: Tensor, y: Tensor, blur: float, scaling: float) -> Tensor:
    """v_i = sum_j P_ij y_j - sum_j Q_ij x_j, the barycentric projections.  (N, D)

    P and Q are the rows of the transport plans of (x, y) and of (x, x). The potentials come from
    the annealed, averaged iteration that geomloss runs (Feydy 2020, section 3.3), without autograd.
    """
    cost_xy, cost_xx = _half_squared_distances(x, y), _half_squared_distances(x, x)
    schedule = _annealing(_diameter(x, y), blur, scaling)
    f, g = _soft_min(schedule[0], cost_xy, 0.0), _soft_min(schedule[0], cost_xy.T, 0.0)
    p = _soft_min(schedule[0], cost_xx, 0.0)
    for eps in schedule:
        f, g = (
            0.5 * (f + _soft_min(eps, cost_xy, g)),
            0.5 * (g + _soft_min(eps, cost_xy.T, f)),
        )
        p = 0.5 * (p + _soft_min(eps, cost_xx, p))
    eps = schedule[-1]
    plan_xy = torch.softmax((g - cost_xy) / eps, dim=1)  # P, (N, M)
    plan_xx = torch.softmax((p - cost_xx) / eps, dim=1)  # Q, (N, N)
    return plan_xy @ y - plan_xx @ x


def _soft_min(eps: float, cost: Tensor, potential: Tensor | float) -> Tensor:
    """-eps log sum_j exp((potential_j - cost_ij) / eps).  (N,)

    The uniform weights are left out: they shift a potential by a constant, which no plan sees.
    """
    return -eps * torch.logsumexp((potential - cost) / eps, dim=1)


def _half_squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """C_ij = 1/2 |x_i - y_j|^2 by one matrix product, never an (N, M, D) tensor.  (N, M)

    Both clouds are first moved to the mean of y: at large D the expansion of the square cancels,
    the more the further the clouds are from the origin.
    """
    centre = y.mean(dim=0, keepdim=True)
    x, y = x - centre, y - centre
    squares = x.square().sum(1, keepdim=True) + y.square().sum(1).unsqueeze(0)
    return (0.5 * squares - x @ y.T).clamp_(min=0.0)


def _annealing(diameter: float, blur: float, scaling: float) -> list[float]:
    """Decreasing eps from diameter^2 down to blur^2, as geomloss takes them."""
    schedule, scale = [diameter**2], diameter
    while scale > blur:
        schedule.append(scale**2)
        scale *= scaling
    return [*schedule, blur**2]


def _diameter(x: Tensor, y: Tensor) -> float:
    """Diagonal of the box around both clouds, at least their diameter."""
    low = torch.minimum(x.amin(0), y.amin(0))
    high = torch.maximum(x.amax(0), y.amax(0))
    return float((high - low).norm())


def _as_clouds(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Particles and targets as float32 clouds (N, D) and (M, D)."""
    if x.ndim < 2 or y.ndim < 2 or x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"particles {tuple(x.shape)} and targets {tuple(y.shape)} must be (N, *shape) and "
            "(M, *shape) with the same shape"
        )
    if not len(x) or not len(y):
        raise ValueError(f"empty cloud: {len(x)} particles, {len(y)} targets")
    flat_x, flat_y = x.flatten(1).float(), y.flatten(1).float()
    if not (flat_x.isfinite().all() and flat_y.isfinite().all()):
        raise ValueError("particles or targets are not finite")
    return flat_x, flat_y


class _full_precision:
    """Matrix products in full float32: TF32 loses the small differences of a cost matrix."""

    def __enter__(self) -> None:
        self._before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self._before
