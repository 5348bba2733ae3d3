"""Velocity and divergence at the fixed point, in float64: what the solvers are measured by.

It shares no iteration with the package: potentials come from annealed Sinkhorn updates in the log
domain, then from damped Newton steps on the semi-dual, which converge where Sinkhorn's own updates
would need thousands. One pair of clouds at a time, for up to a few hundred points.
"""

import torch

from nsgf.method import run_flow


def velocity(x, y, blur):
    """v_i = (sum_j P_ij y_j - sum_j Q_ij x_j) / row sums, x (N, D), y (M, D).  (N, D), float64"""
    x, y = x.double(), y.double()
    return plan(x, y, blur) @ y - plan(x, x, blur) @ x


def first_velocity(solver, x, y):
    """Velocity of particles x (N, *shape) in the first step of a solver's flow.  float32"""
    return run_flow(solver, x[None], y[None], [1.0])[0, :, 1] - x.float()


def relative_error(v, expected):
    return float((v - expected).norm() / expected.norm())


def velocity_and_divergence(x, y, blur):
    """v and S_eps(x, y), each term of S as <P, C> + eps KL(P | uniform)."""
    x, y = x.double(), y.double()
    pairs = ((x, y), (x, x), (y, y))
    plans = [plan(*pair, blur) for pair in pairs]
    terms = [_primal(*pair, rows, blur) for pair, rows in zip(pairs, plans, strict=True)]
    return plans[0] @ y - plans[1] @ x, terms[0] - 0.5 * (terms[1] + terms[2])


def _primal(x, y, rows, blur):
    coupling = rows / len(x)
    cost = 0.5 * torch.cdist(x, y).square()
    entropy = torch.xlogy(coupling, coupling * coupling.numel())
    return float((coupling * cost + blur**2 * entropy).sum())


def plan(x, y, blur):
    """Entropic plan for the cost 1/2 |x - y|^2 and eps = blur^2, rows scaled to sum to 1.  (N, M)

    A plan of this form whose columns are met is the only one, however it was found.

    Raises:
        RuntimeError: the columns are not met to 1e-8.
    """
    x, y = x.double(), y.double()
    cost, eps, m = 0.5 * torch.cdist(x, y).square(), blur**2, len(y)
    g = _annealed(cost, eps)
    for _ in range(200):
        rows = torch.softmax((g - cost) / eps, dim=1)
        share = rows.mean(0)
        error = _error(cost, g, eps)
        if error < 1e-8:
            return rows
        # Newton's step on the semi-dual; 1 / m^2 fixes the constant by which g may be shifted
        hessian = torch.diag(share + 1e-13 / m) - rows.T @ rows / len(x) + 1 / m**2
        step = eps * torch.linalg.solve(hessian, 1 / m - share)
        lengths = (0.5**halvings for halvings in range(10))
        better = (length for length in lengths if _error(cost, g + length * step, eps) < error)
        g = _update(cost, g + next(better, 0.0) * step, eps)
    raise RuntimeError(f"no fixed point for blur {blur}: error {error:.1e}")


def _error(cost, g, eps):
    share = torch.softmax((g - cost) / eps, dim=1).mean(0)
    return float((share - 1 / len(g)).abs().sum())


def _update(cost, g, eps):
    """One Sinkhorn update of both potentials, of which the first is not kept."""
    f = -eps * torch.logsumexp((g - cost) / eps, 1, keepdim=True)
    return -eps * torch.logsumexp((f - cost) / eps, 0)


def _annealed(cost, eps):
    g = torch.zeros_like(cost[0])
    level = max(float(cost.max()), eps)
    while level > eps:
        level = max(0.6 * level, eps)
        for _ in range(8):
            g = _update(cost, g, level)
    return g
