"""Velocity and divergence at the fixed point, in float64: what the solvers are measured by.

It shares no iteration with the package: potentials come from annealed Sinkhorn updates in the log
domain, then from damped Newton steps on the dual, which converge where Sinkhorn's own updates would
need thousands. One pair of clouds at a time, for up to a few hundred points.
"""

import math

import torch
from torch import Tensor

from nsgf.method import run_flow
from nsgf.sinkhorn import Flow


def velocity(x: Tensor, y: Tensor, blur: float) -> Tensor:
    """v_i = (sum_j P_ij y_j - sum_j Q_ij x_j) / row sums, x (N, D), y (M, D).  (N, D), float64"""
    x, y = x.double(), y.double()
    return plan(x, y, blur) @ y - plan(x, x, blur) @ x


def first_velocity(solver: Flow, x: Tensor, y: Tensor) -> Tensor:
    """Velocity of particles x (N, *shape) in the first step of a solver's flow.  float32"""
    return run_flow(solver, x[None], y[None], [1.0])[0, :, 1] - x.float()


def relative_error(v: Tensor, expected: Tensor) -> float:
    return float((v - expected).norm() / expected.norm())


def velocity_and_divergence(x: Tensor, y: Tensor, blur: float) -> tuple[Tensor, float]:
    """v and S_eps(x, y), each term of S as <P, C> + eps KL(P | uniform)."""
    x, y = x.double(), y.double()
    pairs = ((x, y), (x, x), (y, y))
    plans = [plan(*pair, blur) for pair in pairs]
    terms = [_primal(*pair, rows, blur) for pair, rows in zip(pairs, plans, strict=True)]
    return plans[0] @ y - plans[1] @ x, terms[0] - 0.5 * (terms[1] + terms[2])


def _primal(x: Tensor, y: Tensor, rows: Tensor, blur: float) -> float:
    coupling = rows / len(x)
    cost = 0.5 * torch.cdist(x, y).square()
    entropy = torch.xlogy(coupling, coupling * coupling.numel())
    return float((coupling * cost + blur**2 * entropy).sum())


def plan(x: Tensor, y: Tensor, blur: float, tolerance: float = 1e-8) -> Tensor:
    """Entropic plan for the cost 1/2 |x - y|^2 and eps = blur^2, rows scaled to sum to 1.  (N, M)

    Raises:
        RuntimeError: the marginals are not met to the tolerance.
    """
    x, y = x.double(), y.double()
    cost = 0.5 * torch.cdist(x, y).square()
    f, g = _annealed(cost, blur**2)
    for _ in range(200):
        if _error(cost, f, g, blur**2) < tolerance:
            return torch.softmax((g - cost) / blur**2, dim=1)
        f, g = _newton(cost, f, g, blur**2)
        f, g = _update(cost, f, g, blur**2)
    raise RuntimeError(f"no fixed point for blur {blur}: error {_error(cost, f, g, blur**2):.1e}")


def _coupling(cost: Tensor, f: Tensor, g: Tensor, eps: float) -> Tensor:
    """Entries of the coupling itself; at the fixed point rows sum to 1/N, columns to 1/M."""
    return torch.exp((f.unsqueeze(1) + g - cost) / eps) / cost.numel()


def _error(cost: Tensor, f: Tensor, g: Tensor, eps: float) -> float:
    coupling = _coupling(cost, f, g, eps)
    n, m = cost.shape
    return float((coupling.sum(1) - 1 / n).abs().sum() + (coupling.sum(0) - 1 / m).abs().sum())


def _update(cost: Tensor, f: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """One Sinkhorn update of both potentials."""
    n, m = cost.shape
    f = -eps * (torch.logsumexp((g - cost) / eps, 1) - math.log(m))
    g = -eps * (torch.logsumexp((f.unsqueeze(1) - cost) / eps, 0) - math.log(n))
    return f, g


def _annealed(cost: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    f, g = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
    level = max(float(cost.max()), eps)
    while True:
        for _ in range(8):
            f, g = _update(cost, f, g, level)
        if level == eps:
            return f, g
        level = max(0.6 * level, eps)


def _newton(cost: Tensor, f: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """A Newton step on the dual, shortened until it lowers the error."""
    n, m = cost.shape
    coupling = _coupling(cost, f, g, eps)
    rows, columns = coupling.sum(1), coupling.sum(0)
    schur = torch.diag(rows) - (coupling / columns) @ coupling.T
    schur += 1 / n**2  # f + c, g - c is the same plan: fixes c
    schur += torch.diag(torch.full_like(f, 1e-13 / n))
    gap = (1 / n - rows) - coupling @ ((1 / m - columns) / columns)
    df = eps * torch.linalg.solve(schur, gap)
    dg = (eps * (1 / m - columns) - coupling.T @ df) / columns
    before, length = _error(cost, f, g, eps), 1.0
    while length > 1e-3:
        if _error(cost, f + length * df, g + length * dg, eps) < before:
            return f + length * df, g + length * dg
        length /= 2
    return f, g
