"""Solve many independent flows at once to a tolerance, with the velocity in closed form.

    v_i = sum_j P_ij y_j - sum_j Q_ij x_j

P and Q are the transport plans from x to y and from x to itself, rows scaled to sum to 1. Three
things make it fast:

1. Sinkhorn updates act on the current plan, K_ij = exp((f_i + g_j - C_ij) / eps): a small
   correction of f and g is a matrix-vector product with K. When the correction becomes large, or
   when a flow has converged, f and g absorb it, and K is computed again for the other flows.
2. The updates are over-relaxed by the factor `omega` (Thibault et al. 2021).
3. Each step of a flow starts from the potentials of the step before.

The stopping rule looks at each flow separately, so results do not depend on the other flows.

Shapes: B flows, N particles x, M targets y, D coordinates; potentials f (B, N) and g (B, M).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import SolverReport, as_clouds, full_precision, half_squared_distances
from nsgf.system.errors import name_setting

UPDATES = 10
"""Number of updates of g and f between two checks of the error."""
MAX_ITERATIONS = 2000
"""Number of updates after which an unconverged solve stops."""
OMEGA, OMEGA_MAX = 1.8, 1.95
"""Over-relaxation at the start of a solve, and its largest value when progress is slow."""
LARGEST_CORRECTION = 2.3
"""Largest change of a log factor in one update (a factor of 10); keeps over-relaxation stable."""
ANNEALING_RATIO, ANNEALING_UPDATES = 6.25, 3
"""Ratio of successive eps while annealing, and number of updates at each eps."""
SELF_UPDATES = 14
"""Number of updates for Q. Each divides the error by 3; 14 reach the rounding of float32."""
LOWEST, HIGHEST = -60.0, 20.0
"""Range of log K. Denormal numbers, below -87, would make each product several times slower."""
SMALL = 10.0
"""Corrections (logarithms) below this do not need a new K, which would take longer to compute."""
ISOLATED = -16.0
"""If the other kernel entries of all particles sum to less than exp(ISOLATED), Q is the identity:
next to the 1 on the diagonal, float32 would round the sum away."""
HIDDEN = -30.0
"""Columns of K with all entries below exp(HIDDEN) are updated in the log domain."""
FINEST = 0.01
"""Smallest factor by which slow particles reduce the tolerance."""
FLOAT32_LIMIT = 0.1 * 2**24
"""Largest C / eps: above it, rounding changes the entries of a plan by more than 10 %."""


@dataclass
class Solution:
    """Solution of the transport problems (x, y) of B flows."""

    velocity: Tensor  # (B, N, D)
    speed: Tensor  # (B,) root mean square of |v_i|
    g: Tensor  # (B, M) potential of the targets
    self_potential: Tensor  # (B, N) potential of the particles against themselves
    iterations: Tensor  # (B,) int64, updates of the pair (f, g), annealing included
    error: Tensor  # (B,) L1 error of the marginals, the larger of P's and Q's
    converged: Tensor  # (B,) whether the error is within the tolerance


class BatchedSolver:
    """A FlowSolver for many flows at once. Between two calls it keeps only its report.

    The tolerance bounds the L1 error of a plan's marginals. It is multiplied by rms |v| / blur
    where that is < 1, because the effect of a plan's error on v does not shrink with v.
    """

    def __init__(self, config: SinkhornConfig, max_iterations: int = MAX_ITERATIONS) -> None:
        self._blur, self._eps = config.blur, config.blur**2
        self._tolerance, self._cap = config.tolerance, max_iterations
        self.report = SolverReport()

    @torch.no_grad()
    def solve(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Solve one step of B flows, particles (B, N, *shape) and targets (B, M, *shape).

        `g` and `speed` of `start` are an initial guess, which saves updates and changes the result
        only within the tolerance.

        Raises:
            ValueError: see :func:`as_clouds`; or the blur is too small for float32.
        """
        x, y = as_clouds(x, y)
        origin = y.mean(1, keepdim=True)
        with full_precision(x.device):
            return self.solve_centred(x - origin, y - origin, start)

    @torch.no_grad()
    def flows(self, x: Tensor, y: Tensor, etas: Sequence[float]) -> Tensor:
        """Return the positions (B, N, T+1, *shape) of B flows; see FlowSolver."""
        shape = x.shape[2:]
        x, y = as_clouds(x, y)
        self.report.flows += len(x)
        positions = x.unsqueeze(2).repeat(1, 1, len(etas) + 1, 1)
        origin = y.mean(1, keepdim=True)
        x, y = x - origin, y - origin
        solution = None
        with full_precision(x.device):
            for t, eta in enumerate(etas, start=1):
                solution = self.solve_centred(x, y, solution)
                x.add_(solution.velocity, alpha=eta)
                torch.add(x, origin, out=positions[:, :, t])
                # the remaining distance shrinks by 1 - eta, and so do the potentials
                solution.g.mul_(1 - eta)
                solution.speed.mul_(abs(1 - eta))
        return positions.unflatten(3, shape)

    def solve_centred(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Run `solve` without checks on float32 clouds (B, N, D), (B, M, D), mean of y at 0."""
        cost = half_squared_distances(x, y)
        self._check_precision(cost)
        if start is None:
            g, iterations = self._annealed(cost)
            goal = torch.full_like(cost[:, 0, 0], self._tolerance)
        else:
            g, iterations = start.g, torch.zeros_like(start.iterations)
            goal = self._goal(start.speed)
        projected, self_potential, self_error = self.self_projection(x)
        error = torch.full_like(goal, math.inf)
        while True:  # at most cap / UPDATES times: each pass updates the unfinished flows
            before = iterations
            g, error, iterations = self._updated(cost, g, error, goal, iterations)
            plan = torch.softmax(_exponent(cost, g, self._eps), dim=2)
            v = torch.baddbmm(projected, plan, y, beta=-1)  # P y - Q x
            speed = torch.linalg.vector_norm(v, dim=(1, 2)) / math.sqrt(v.shape[1])
            needed = self._goal(speed)
            converged = torch.maximum(error, self_error) <= needed
            # without any update, the error that is too large is Q's, and updates of P do not help
            finished = converged | (iterations >= self._cap) | (iterations == before)
            # v is slower than guessed; aim a little lower, since it may become slower still
            goal = torch.where(finished, math.inf, torch.minimum(needed, goal) * 0.8)
            if finished.all():
                break
        error = torch.maximum(error, self_error)
        self.report.record(iterations, error, converged)
        return Solution(v, speed, g, self_potential, iterations, error, converged)

    def _goal(self, speed: Tensor) -> Tensor:
        """Return the marginal error that is small enough for particles of this speed.  (B,)"""
        return self._tolerance * (speed / self._blur).clamp(FINEST, 1.0)

    def _check_precision(self, cost: Tensor) -> None:
        """Raise ValueError if costs (B, N, M) are too large for plans in float32."""
        largest = float(cost.amax()) / self._eps
        if not largest <= FLOAT32_LIMIT:  # nan, where distances overflow, is refused too
            raise ValueError(
                f"{name_setting('sinkhorn.blur', self._blur)} is too small for float32: cost / "
                f"blur^2 reaches {largest:.1e}, the limit is {FLOAT32_LIMIT:.1e}"
            )

    def _annealed(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Return a first g (B, M), by eps that falls from the spread of C, and its updates (B,)."""
        g = torch.zeros_like(cost[:, 0])
        spread = (2 * cost.mean((1, 2)) / self._eps).clamp_min(1.0)
        stages = (spread.log() / math.log(ANNEALING_RATIO)).ceil().long()
        for k in range(int(stages.max()), 0, -1):
            live = (stages >= k).nonzero()[:, 0]
            eps, live_cost = self._eps * ANNEALING_RATIO**k, _rows_of(cost, live)
            f, h = _balance_rows(live_cost, g[live], eps)
            omega = torch.full_like(f[:, :1], OMEGA)
            correction = _Correction(live_cost, f, h, eps)
            correction.update(omega, ANNEALING_UPDATES)
            _, g[live] = correction.absorbed()
        return g, stages * ANNEALING_UPDATES

    def _updated(
        self, cost: Tensor, g: Tensor, error: Tensor, goal: Tensor, iterations: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Update the flows whose error exceeds their goal (B,), and return g, error, iterations.

        Each pass of either loop adds iterations, so both end even if the error is nan.
        """
        f, g = _balance_rows(cost, g, self._eps)
        omega = torch.full_like(f[:, :1], OMEGA)
        error, iterations = error.clone(), iterations.clone()
        live = (~(error <= goal)).nonzero()[:, 0]
        while len(live):
            correction = _Correction(_rows_of(cost, live), f[live], g[live], self._eps)
            while True:
                before = error[live]
                error[live] = correction.update(omega[live], UPDATES)
                omega[live] = _adapted_omega(omega[live], (error[live] / before).unsqueeze(1))
                iterations[live] += UPDATES
                going = ~(error[live] <= goal[live]) & (iterations[live] < self._cap)
                if not (going.all() & correction.is_small()):
                    break
            f[live], g[live] = correction.absorbed()
            live = live[going]
        return g, error, iterations

    def self_projection(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q x (B, N, D), the potential of Q (B, N), and its marginal error (B,), for clouds
        x (B, N, D) near the origin.

        With f = g the averaged update converges from any start, since K is positive definite. The
        diagonal of K is 1, so no row underflows.
        """
        kernel = half_squared_distances(x, x).mul_(-1 / self._eps)
        kernel.diagonal(dim1=1, dim2=2).fill_(LOWEST)
        if float(kernel.amax()) < ISOLATED - math.log(x.shape[1]):
            alone = torch.full_like(x[:, :, 0], self._eps * 0.5 * math.log(x.shape[1]))
            return x, alone, torch.zeros_like(x[:, 0, 0])
        kernel.clamp_min_(LOWEST).exp_().diagonal(dim1=1, dim2=2).fill_(1.0)
        log_w = -0.5 * kernel.sum(2).log()
        for _ in range(SELF_UPDATES):
            log_row = log_w + _times(kernel, log_w.exp()).log()
            log_w = log_w - 2 / 3 * log_row
        row = log_w.exp() * _times(kernel, log_w.exp())
        plan = kernel.mul_(log_w.exp().unsqueeze(1)).mul_((log_w.exp() / row).unsqueeze(2))
        potential = self._eps * (log_w + 0.5 * math.log(x.shape[1]))
        return plan @ x, potential, (row - 1).abs().mean(1)


def _rows_of(cost: Tensor, live: Tensor) -> Tensor:
    """Return the costs of the flows `live`, without a copy if these are all flows."""
    return cost if len(live) == len(cost) else cost[live]


def _exponent(cost: Tensor, g: Tensor, eps: float) -> Tensor:
    """Return (g_j - C_ij) / eps (B, N, M) without temporary matrices, which would be slow."""
    return torch.add((g / eps).unsqueeze(1), cost, alpha=-1 / eps)


def _times(kernel: Tensor, b: Tensor) -> Tensor:
    """Return K b for K (B, N, M) and b (B, M). b^T K^T is ten times as fast as K b on a CPU."""
    return torch.bmm(b.unsqueeze(1), kernel.mT).squeeze(1)


def _balance_rows(cost: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the f (B, N) for which the rows of K have mean 1, and g (B, M). Entries of g whose
    columns of K would underflow are updated first."""
    z = _exponent(cost, g, eps)
    log_sum = torch.logsumexp(z, 2)
    z -= log_sum.unsqueeze(2)
    hidden = z.amax(1) < HIDDEN
    if bool(hidden.any()):
        g = torch.where(hidden, g - eps * torch.logsumexp(z, 1), g)
        log_sum = torch.logsumexp(_exponent(cost, g, eps), 2)
    return -eps * (log_sum - math.log(cost.shape[2])), g


class _Correction:
    """Factors exp(a) for the rows and exp(b) for the columns of K, with fixed f and g."""

    def __init__(self, cost: Tensor, f: Tensor, g: Tensor, eps: float) -> None:
        self._f, self._g, self._eps = f, g, eps
        self._a, self._b = torch.zeros_like(f), torch.zeros_like(g)
        exponent = _exponent(cost, g, eps).add_((f / eps).unsqueeze(2))
        self._kernel = exponent.clamp_(LOWEST, HIGHEST).exp_()

    def update(self, omega: Tensor, updates: int) -> Tensor:
        """Run Sinkhorn updates of b and a, over-relaxed by omega (B, 1), and return the error (B,).

        At the optimum every row and every column of K has mean 1. The error is the L1 distance
        between uniform and the column sums of the plan with exact rows, which gives v.
        """
        kernel, a, b, limit = self._kernel, self._a, self._b, LARGEST_CORRECTION
        n, m = kernel.shape[1:]
        for _ in range(updates):
            log_mean = _times(kernel.mT, a.exp()).log_().add_(b).sub_(math.log(n))
            b -= omega * log_mean.clamp_(-limit, limit)
            log_mean = _times(kernel, b.exp()).log_().add_(a).sub_(math.log(m))
            a -= omega * log_mean.clamp_(-limit, limit)
        row = _times(kernel, b.exp()) / m
        column = _times(kernel.mT, 1 / row) * b.exp() / n
        return (column - 1).abs().mean(1)

    def is_small(self) -> Tensor:
        """Whether `UPDATES` more updates stay in the range of K; a scalar tensor."""
        return torch.maximum(self._a.abs().amax(), self._b.abs().amax()) < SMALL

    def absorbed(self) -> tuple[Tensor, Tensor]:
        """Return f and g with the correction added."""
        return self._f + self._eps * self._a, self._g + self._eps * self._b


def _adapted_omega(omega: Tensor, decrease: Tensor) -> Tensor:
    """Return a better omega (B, 1), given the factor `decrease` (B, 1) by which UPDATES updates
    reduced the error. Uses Young's formula for the best over-relaxation."""
    rate = decrease.pow(1 / UPDATES).clamp(0.01, 0.999)
    plain_rate = ((rate + omega - 1).square() / (rate * omega.square())).clamp(max=0.9999)
    best = (2 / (1 + (1 - plain_rate).sqrt())).clamp(max=OMEGA_MAX)
    slow = rate > omega - 1 + 0.05  # otherwise omega itself sets the rate
    return torch.where(slow, torch.maximum(omega, best), omega)
