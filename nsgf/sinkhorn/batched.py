"""Solve many independent flows at once to a tolerance, with the velocity in closed form.

    v_i = sum_j P_ij y_j - sum_j Q_ij x_j

P and Q are the transport plans from x to y and from x to itself, rows scaled to sum to 1. In units
of the blur, P is the softmax over j of x_i . y_j + h_j, with h_j = g_j - 1/2 |y_j|^2. Five things
make it fast:

1. Sinkhorn updates scale the rows and columns of the current plan, by two products of a matrix and
   a vector. When the factors become large, or when a flow has converged, h absorbs them, and the
   plan is computed again for the other flows.
2. The updates are over-relaxed by the factor `omega` (Thibault et al. 2021).
3. Each step of a flow starts from the potentials of the steps before.
4. With many coordinates, inner products move with the particles; nothing computes them again.
5. A plan with few entries above rounding is applied as a sparse matrix.

The stopping rule looks at each flow separately, so results do not depend on the other flows.

Shapes: B flows, N particles x, M targets y, D coordinates; potentials h and g (B, M).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import SolverReport, as_clouds, full_precision
from nsgf.system.errors import name_setting

UPDATES = 6
"""Number of updates of v and u between two checks of the error."""
MAX_ITERATIONS = 2000
"""Number of updates after which an unconverged solve stops."""
OMEGA, OMEGA_MAX = 1.5, 1.95
"""Over-relaxation at the start of a solve, and its largest value when progress is slow."""
CARRIED = 0.95
"""Part of omega - 1 that the next step of a flow begins with: in a solve, omega never falls."""
ANNEALING_RATIO, ANNEALING_UPDATES = 10.0, 2
"""Ratio of successive eps while annealing, and number of updates at each eps."""
SELF_UPDATES = 10
"""Number of updates for Q. Each divides the error by 5; 10 reach the rounding of float32."""
SELF_POWERS = [
    1 / (1.5 + 0.5 * math.cos(math.pi * (k + 0.5) / SELF_UPDATES)) for k in range(SELF_UPDATES)
]
"""Powers of the updates for Q: 1 / the roots of the Chebyshev polynomial on [1, 2]."""
LOWEST = 1e-26
"""Smallest entry of a plan. Denormal numbers would make each product several times slower."""
SMALL = 1e6
"""Factors below this do not need a new plan, which would take longer to compute."""
HIDDEN = 1e-13
"""Columns of a plan whose sum is below this part of the mean are updated in the log domain."""
NEGLIGIBLE = 1e-8
"""Entries of a plan below this do not change v: float32 rounds at 6e-8."""
FEW = 1 / 16
"""Part of larger entries below which a sparse product is faster."""
ALONE = 1 - 1e-7
"""Q is the identity if all its diagonal entries are above this: float32 rounds the others away."""
TINY = 1e-30
"""Errors are not divided by less."""
FINEST = 0.01
"""Smallest factor by which slow particles reduce the tolerance."""
FLOAT32_LIMIT = 0.1 * 2**24
"""Largest C / eps: above it, rounding changes the entries of a plan by more than 10 %."""


@dataclass
class Solution:
    """Solution of the transport problems (x, y) of B flows; potentials are in units of blur^2."""

    velocity: Tensor  # (B, N, D)
    speed: list[float]  # root mean square of |v_i|, one for each flow
    g: Tensor  # (B, M) potential of the targets
    self_potential: Tensor  # (B, N) potential of the particles against themselves
    iterations: Tensor  # (B,) int64, updates of the pair (v, u), annealing included
    error: Tensor  # (B,) L1 error of the marginals, the larger of P's and Q's
    converged: Tensor  # (B,) whether the error is within the tolerance
    omega: list[float]  # over-relaxation at the end, one for each flow


class BatchedSolver:
    """A FlowSolver for many flows at once. Between two calls it keeps only its report.

    The tolerance bounds the L1 error of a plan's marginals. It is multiplied by rms |v| / blur
    where that is < 1, because the effect of a plan's error on v does not shrink with v.
    """

    def __init__(self, config: SinkhornConfig, max_iterations: int = MAX_ITERATIONS) -> None:
        self._blur, self._tolerance, self._cap = config.blur, config.tolerance, max_iterations
        self.report = SolverReport()

    @torch.no_grad()
    def solve(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Solve one step of B flows, particles (B, N, *shape) and targets (B, M, *shape).

        The velocity is in units of the data. `g`, `speed` and `omega` of `start` are an initial
        guess, which saves updates and changes the result only within the tolerance.

        Raises:
            ValueError: see :func:`as_clouds`; or the blur is too small for float32.
        """
        x, y, _ = self._centred(x, y)
        with full_precision(x.device):
            solution = self.solve_centred(x, y, start)
        solution.velocity.mul_(self._blur)
        return solution

    @torch.no_grad()
    def flows(self, x: Tensor, y: Tensor, etas: Sequence[float]) -> Tensor:
        """Return the positions (B, N, T+1, *shape) of B flows; see FlowSolver."""
        shape, first = x.shape[2:], x.flatten(2)
        x, y, origin = self._centred(x, y)
        self.report.flows += len(x)
        positions = x.new_empty(*x.shape[:2], len(etas) + 1, x.shape[2])
        positions[:, :, 0] = first
        with full_precision(x.device):
            clouds = Clouds(x, y, len(etas))
            limit = clouds.last_potential()
            solution: Solution | None = None
            rest: Tensor | None = None
            for t, eta in enumerate(etas, start=1):
                solution = self._solution(clouds, solution)
                clouds.move(solution.velocity, eta)
                torch.add(origin, clouds.x, alpha=self._blur, out=positions[:, :, t])
                # the way that is left shrinks by 1 - eta, and so does the difference between g and
                # its value for x = y; what this leaves out changes little from step to step
                last, rest = rest, (solution.g - limit) * (1 - eta)
                solution.g = limit + (rest if last is None else 2 * rest - last * (1 - eta))
                solution.speed = [abs(1 - eta) * speed for speed in solution.speed]
        return positions.unflatten(3, shape)

    def _centred(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clouds as (B, N, D) and (B, M, D) around the mean of y, in units of the blur,
        and this mean (B, 1, D)."""
        x, y = as_clouds(x, y)
        origin = y.mean(1, keepdim=True)
        return (x - origin).div_(self._blur), (y - origin).div_(self._blur), origin

    def solve_centred(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Run `solve` without checks on float32 clouds (B, N, D), (B, M, D) in units of the blur,
        mean of y at 0."""
        return self._solution(Clouds(x, y), start)

    def _solution(self, clouds: "Clouds", start: Solution | None) -> Solution:
        """Run `solve`. Numbers of each flow are in lists: a card waits once for each check."""
        own, self_potential, self_error = clouds.own_projection()
        norm_x, norm_y, inner = clouds.norm_x, clouds.norm_y, clouds.inner()
        self._check_precision(norm_x, norm_y)
        live = list(range(len(inner)))
        if start is None:
            spread = (2 * (norm_x.mean(1) + norm_y.mean(1))).tolist()  # the mean of y is 0
            h, iterations = self._annealed(clouds, inner, spread)
            goal, omega = [self._tolerance for _ in live], [OMEGA for _ in live]
        else:
            h, iterations = start.g - norm_y, [0 for _ in live]
            goal = [self._goal(speed) for speed in start.speed]
            omega = [1 + CARRIED * (w - 1) for w in start.omega]
        error, speed, needed = list(goal), list(goal), list(goal)
        plan = _Plan(inner, h, live, clouds.memory)
        while live:  # each pass adds iterations, so that it ends even if an error is nan
            before = plan.error
            plan.update([omega[k] for k in live], UPDATES)
            for k, old, new in zip(live, before, plan.error, strict=True):
                error[k], omega[k] = new, _adapted_omega(omega[k], new / max(old, TINY))
                iterations[k] += UPDATES
            at = [k for k in live if error[k] <= goal[k] or iterations[k] >= self._cap]
            if at:
                ready = [live.index(k) for k in at]
                h[at] = plan.absorbed()[ready]
                v, speeds = clouds.velocity(plan.normalized(ready), own, at)
                for k, value in zip(at, speeds, strict=True):
                    speed[k], needed[k] = value, self._goal(value)
                    is_done = error[k] <= needed[k] or iterations[k] >= self._cap
                    # v is slower than guessed, and may become slower still: aim a little lower
                    goal[k] = math.inf if is_done else 0.8 * min(needed[k], goal[k])
                going = [i for i, k in enumerate(live) if goal[k] < math.inf]
                live = [live[i] for i in going]
                plan.keep(going)
        errors = torch.maximum(h.new_tensor(error), self_error)
        counts = torch.tensor(iterations, device=h.device)
        converged = errors <= h.new_tensor(needed)
        self.report.record(counts, errors, converged)
        return Solution(
            v, speed, h + norm_y, self_potential, counts, errors, converged, omega
        )

    def _goal(self, speed: float) -> float:
        """Return the marginal error that is small enough for particles of this speed."""
        return self._tolerance * min(max(speed, FINEST), 1.0)

    def _check_precision(self, norm_x: Tensor, norm_y: Tensor) -> None:
        """Raise ValueError if costs of points with 1/2 |x|^2 (B, N) and 1/2 |y|^2 (B, M) may be too
        large for plans in float32."""
        largest = float((norm_x.amax(1).sqrt() + norm_y.amax(1).sqrt()).amax()) ** 2
        if not largest <= FLOAT32_LIMIT:  # nan, where distances overflow, is refused too
            raise ValueError(
                f"{name_setting('sinkhorn.blur', self._blur)} is too small for float32: cost / "
                f"blur^2 reaches {largest:.1e}, the limit is {FLOAT32_LIMIT:.1e}"
            )

    def _annealed(
        self, clouds: "Clouds", inner: Tensor, spread: list[float]
    ) -> tuple[Tensor, list[int]]:
        """Return a first h (B, M), by eps that falls from the spread of C, and its updates."""
        h = -clouds.norm_y
        stages = [math.ceil(math.log(max(s, 1.0), ANNEALING_RATIO)) for s in spread]
        for stage in range(max(stages), 0, -1):
            live = [k for k, most in enumerate(stages) if most >= stage]
            plan = _Plan(inner, h, live, clouds.memory, ANNEALING_RATIO**-stage)
            plan.update([OMEGA for _ in live], ANNEALING_UPDATES)
            h[live] = plan.absorbed()
        return h, [most * ANNEALING_UPDATES for most in stages]


class _Memory:
    """Matrices that are used again, because new ones cost as much as filling them."""

    def __init__(self, like: Tensor) -> None:
        self._like, self._matrices = like, dict[str, Tensor]()

    def get(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of this shape, with values left from the last use of the name."""
        size = math.prod(shape)
        if name not in self._matrices or self._matrices[name].numel() < size:
            self._matrices[name] = self._like.new_empty(size)
        return self._matrices[name][:size].view(shape)


class Clouds:
    """Clouds x (B, N, D) and y (B, M, D) near the origin, in units of the blur.

    Where D > N + M, the clouds of a flow have their inner products as further columns, and the
    velocity too: [x | x . y | x . x] and [y | y . y | y . x].
    """

    def __init__(self, x: Tensor, y: Tensor, steps: int = 1) -> None:
        self.memory, (self._n, self._dim), m = _Memory(x), x.shape[1:], y.shape[1]
        self._left, self._right, self._products = x, y, slice(self._dim, self._dim + m)
        self._is_wide = steps > 1 and self._dim > self._n + m
        self.norm_y = 0.5 * torch.linalg.vector_norm(y, dim=2).square()
        if self._is_wide:
            inner = x @ y.mT
            self._left = torch.cat([x, inner, x @ x.mT], 2)
            self._right = torch.cat([y, y @ y.mT, inner.mT], 2)

    @property
    def x(self) -> Tensor:
        """The particles (B, N, D)."""
        return self._left[:, :, : self._dim]

    def last_potential(self) -> Tensor:
        """Return the potential of y against itself, which that of x and y tends to.  (B, M)"""
        y = self._right
        inner = y[:, :, self._products] if self._is_wide else y @ y.mT
        return self.self_plan(inner)[1]

    def inner(self) -> Tensor:
        """Return x . y (B, N, M)."""
        if self._is_wide:
            return self._left[:, :, self._products]
        x, y = self._left, self._right
        return torch.bmm(x, y.mT, out=self.memory.get("inner", len(x), self._n, y.shape[1]))

    def own_projection(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q x with its further columns, the potential (B, N) of Q, and its error (B,)."""
        x, n, end = self._left, self._n, self._products.stop
        inner = x[:, :, end:]
        if not self._is_wide:
            inner = torch.bmm(x, x.mT, out=self.memory.get("self", len(x), n, n))
        self.norm_x = 0.5 * inner.diagonal(dim1=1, dim2=2)
        self._own_plan, potential, error = self.self_plan(inner)
        if self._own_plan is None:
            return x, potential, error
        own = torch.bmm(self._own_plan, x, out=self.memory.get("own", *x.shape))
        return own, potential, error

    def self_plan(self, inner: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return Q (B, N, N), or None if it is the identity, its potential (B, N) and its error
        (B,), for the inner products (B, N, N) of a cloud.

        The kernel exp(-1/2 |x_i - x_j|^2) is positive definite, so that averaged updates converge
        from any start. Its diagonal is 1; that of the softmax is 1 / its row sums.
        """
        n = inner.shape[1]
        norm = 0.5 * inner.diagonal(dim1=1, dim2=2).unsqueeze(1)
        kernel = torch.sub(inner, norm, out=self.memory.get("self", *inner.shape))
        torch.softmax(kernel, 2, out=kernel)
        share = kernel.diagonal(dim1=1, dim2=2).unsqueeze(1).clone()
        if share.amin() > ALONE:
            potential = torch.full_like(share[:, 0], 0.5 * math.log(n))
            return None, potential, torch.zeros_like(share[:, 0, 0])
        rows, w = kernel.clamp_min_(LOWEST).mT, share.sqrt()
        for power in SELF_POWERS:
            w *= torch.bmm(w, rows).mul_(w).div_(share).pow_(-power)
        row = torch.bmm(w, rows)
        error = (row * w / share - 1).abs().mean((1, 2))
        return kernel.mul_(w).div_(row.mT), w.log().squeeze(1) + 0.5 * math.log(n), error

    def velocity(self, plan: Tensor, own: Tensor, at: list[int]) -> tuple[Tensor, list[float]]:
        """Write P y - Q x of the flows `at`, of which these are the plans. Return v of all flows,
        with the columns of the clouds, and the root mean squares of |v_i| of the flows `at`."""
        v = self.memory.get("velocity", *own.shape)
        _subtract(plan, self._right, own, at, v)
        if not self._is_wide:
            squares = torch.linalg.vector_norm(_some(v, at), dim=(1, 2)).square() / self._n
            return v, squares.sqrt().tolist()
        x = v[:, :, self._products.stop :].mT
        x = x if self._own_plan is None else self._own_plan @ x
        squares = self.memory.get("squares", len(v), self._n, self._n)
        _subtract(plan, v[:, :, self._products].mT, x, at, squares)
        total = _some(squares.diagonal(dim1=1, dim2=2).mean(1), at)
        return v, total.clamp_min(0.0).sqrt().tolist()

    def move(self, v: Tensor, eta: float) -> None:
        """Move the particles by eta v."""
        self._left.add_(v, alpha=eta)
        if self._is_wide:
            y, own = self._products, slice(self._products.stop, None)
            squares = self.memory.get("squares", len(v), self._n, self._n)
            self._left[:, :, own].add_(v[:, :, own].mT, alpha=eta).add_(squares, alpha=eta**2)
            self._right[:, :, own] = self._left[:, :, y].mT


def _some(values: Tensor, at: list[int]) -> Tensor:
    """Return values[at], without a copy if these are all."""
    return values if len(at) == len(values) else values[at]


def _subtract(plan: Tensor, y: Tensor, own: Tensor, at: list[int], out: Tensor) -> None:
    """Write plan @ y - own of the flows `at` to `out`; the plans are of these flows alone."""
    if plan.device.type == "cpu" and y.shape[2] > y.shape[1]:
        for matrix, k in zip(plan, at, strict=True):
            kept = matrix > NEGLIGIBLE
            if int(kept.sum()) < FEW * kept.numel():
                matrix = (matrix * kept).to_sparse()
            torch.addmm(own[k], matrix, y[k], beta=-1, out=out[k])
    elif len(at) == len(y):
        torch.baddbmm(own, plan, y, beta=-1, out=out)
    else:
        out[at] = torch.baddbmm(own[at], plan, y[at], beta=-1)


class _Plan:
    """Plans of the flows `live` whose rows sum to 1, the softmax of scale (x . y + h), with factors
    u for the rows and v for the columns. At the optimum all columns have the same sum too."""

    def __init__(
        self, inner: Tensor, h: Tensor, live: list[int], memory: _Memory, scale: float = 1.0
    ) -> None:
        n, m = inner.shape[1:]
        self._inner, self._h, self._live = inner, _some(h, live).unsqueeze(1).clone(), live
        self._scale, self._ratio, self._memory = scale, n / m, memory
        self._kernel = memory.get("plan", len(live), n, m)
        self._u, self._v = inner.new_full((len(live), 1, n), m / n), torch.ones_like(self._h)
        self._row = torch.ones_like(self._u)
        column = self._filled()
        hidden = column < HIDDEN
        if bool(hidden.any()):
            log_rows = torch.log_softmax(self._logits(), 2)
            column = torch.logsumexp(log_rows, 1, keepdim=True) - math.log(self._ratio)
            self._h = torch.where(hidden, self._h - column / scale, self._h)
            column = self._filled()
        self.error: list[float] = (column - 1).abs().mean((1, 2)).tolist()
        """L1 distances between uniform and the column sums of the plans with exact rows."""

    def _logits(self) -> Tensor:
        inner = _some(self._inner, self._live)
        return torch.add(self._scale * self._h, inner, alpha=self._scale, out=self._kernel)

    def _filled(self) -> Tensor:
        """Compute the plans, and return the sums of their columns, 1 at the optimum.  (B, 1, M)"""
        torch.softmax(self._logits(), 2, out=self._kernel)
        column = torch.bmm(self._u, self._kernel)
        self._kernel.clamp_min_(LOWEST)
        return column

    def update(self, omega: list[float], updates: int) -> None:
        """Run Sinkhorn updates of v and u, over-relaxed by these omega, and set the error."""
        low, high = torch.aminmax(self._v)
        if not (low * SMALL > 1) & (high < SMALL):
            self._h, self._u = self.absorbed().unsqueeze(1), self._u * self._row
            self._v = torch.ones_like(self._v)
            self._filled()
        kernel, rows, u, v = self._kernel, self._kernel.mT, self._u, self._v
        power, least, most = -u.new_tensor(omega).view(-1, 1, 1), 0.1, 10.0
        for _ in range(updates):
            v *= torch.bmm(u, kernel).mul_(v).clamp_(least, most).pow_(power)
            row = torch.baddbmm(u, v, rows, beta=0, alpha=self._ratio)
            u *= row.mul_(u).clamp_(least, most).pow_(power)
        self._row = torch.bmm(v, rows)
        column = torch.bmm(1 / self._row, kernel).mul_(v)
        self.error = (column - self._ratio).abs().mean((1, 2)).div_(self._ratio).tolist()

    def normalized(self, at: list[int]) -> Tensor:
        """Return P (b, N, M) of some flows, for the rows of the last error."""
        kernel = self._kernel
        out = self._memory.get("normalized", len(at), *kernel.shape[1:])
        if len(at) < len(kernel):
            kernel = torch.index_select(kernel, 0, torch.tensor(at, device=kernel.device), out=out)
        return torch.mul(kernel, _some(self._v, at), out=out).div_(_some(self._row, at).mT)

    def keep(self, at: list[int]) -> None:
        """Drop the other flows."""
        if 0 < len(at) < len(self._live):
            self._live, self.error = [self._live[k] for k in at], [self.error[k] for k in at]
            self._kernel, self._row, self._h = self._kernel[at], self._row[at], self._h[at]
            self._u, self._v = self._u[at], self._v[at]

    def absorbed(self) -> Tensor:
        """Return h with the factors of the columns.  (B, M)"""
        return (self._h + self._v.log() / self._scale).squeeze(1)


def _adapted_omega(omega: float, decrease: float) -> float:
    """Return a better omega, given the factor by which UPDATES updates reduced the error. Uses
    Young's formula for the best over-relaxation."""
    rate = min(max(decrease ** (1 / UPDATES), 0.01), 0.999)
    if not rate > omega - 0.98:  # omega itself sets the rate
        return omega
    plain_rate = min((rate + omega - 1) ** 2 / (rate * omega**2), 0.9999)
    return max(omega, min(2 / (1 + math.sqrt(1 - plain_rate)), OMEGA_MAX))
