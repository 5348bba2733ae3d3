"""Solve many independent flows at once to a tolerance, with the velocity in closed form.

    v_i = sum_j P_ij y_j - sum_j Q_ij x_j

P and Q are the transport plans from x to y and from x to itself, with rows scaled to sum to 1.
Three ideas make it fast, in addition to those of :mod:`nsgf.sinkhorn.plans`:

1. The updates are over-relaxed by the factor `omega` (Thibault et al. 2021).
2. Each step of a flow starts from the potentials of the steps before.
3. Flows that have converged leave the batch.

The stopping rule looks at each flow separately, so results do not depend on the other flows.

Shapes: B flows, N particles x, M targets y, D coordinates; potentials g, and h = g - 1/2 |y|^2
(B, M).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.base import SolverReport, as_clouds, full_precision
from nsgf.sinkhorn.blocks import clouds_of
from nsgf.sinkhorn.plans import Clouds, some_of, with_some
from nsgf.system.errors import name_setting

UPDATES = 6
"""Number of updates of v and u between two checks of the error."""
MAX_ITERATIONS = 2000
"""Number of updates after which an unconverged solve stops."""
OMEGA, OMEGA_MAX = 1.5, 1.95
"""Over-relaxation at the start of a solve, and its largest value when progress is slow."""
CARRIED = 0.95
"""Part of omega - 1 with which the next step of a flow starts. In a solve, omega never falls."""
ANNEALING_RATIO, ANNEALING_UPDATES = 10.0, 2
"""Ratio of successive eps while annealing, and number of updates at each eps."""
TINY = 1e-30
"""Lower bound of an error when it is a divisor."""
FINEST = 0.01
"""Lower bound of the factor by which slow particles reduce the tolerance."""
SLOWEST = 0.1
"""Lower bound of the guess of a step's speed, divided by the speed of the step before. Particles
rarely stop, and the tolerance for a guess that is too low costs many updates."""
FLOAT32_LIMIT = 0.1 * 2**24
"""Largest C / eps: above it, rounding changes the entries of a plan by more than 10 %."""


@dataclass
class Solution:
    """Solution of the transport problems (x, y) of B flows; potentials are in units of blur^2."""

    velocity: Tensor  # (B, N, D); in `flows` with more columns, and overwritten by the next step
    speed: list[float]  # root mean square of |v_i|, one for each flow
    g: Tensor  # (B, M) potential of the targets
    self_potential: Tensor  # (B, N) potential of the particles against themselves
    iterations: Tensor  # (B,) int64, updates of the pair (v, u), annealing included
    error: Tensor  # (B,) L1 error of the marginals, the larger of P's and Q's
    converged: Tensor  # (B,) whether the error is within the tolerance
    omega: list[float]  # over-relaxation at the end, one for each flow


class BatchedSolver:
    """A FlowSolver for many flows at once. Between two calls it keeps only its report.

    The tolerance bounds the L1 error of a plan's marginals. If rms |v| / blur is < 1, the tolerance
    is multiplied by it, because the effect of a plan's error on v does not shrink with v.
    """

    def __init__(self, config: SinkhornConfig, max_iterations: int = MAX_ITERATIONS) -> None:
        self._blur, self._tolerance, self._cap = config.blur, config.tolerance, max_iterations
        self.report = SolverReport()

    @torch.no_grad()
    def solve(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Solve one step of B flows, particles (B, N, *shape) and targets (B, M, *shape).

        The velocity is in units of the data. `g`, `speed` and `omega` of `start` are an initial
        guess. It saves updates, and changes the result only within the tolerance.

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
            clouds = clouds_of(x, y, len(etas))
            limit = clouds.last_potential()
            solution: Solution | None = None
            rest: Tensor | None = None
            for t, eta in enumerate(etas, start=1):
                solution = self._solution(clouds, solution)
                clouds.move(solution.velocity, eta)
                torch.add(origin, clouds.x, alpha=self._blur, out=positions[:, :, t])
                # the remaining way shrinks by 1 - eta, and so does the difference between g and its
                # value for x = y; the error of this guess changes little from step to step
                last, rest = rest, (solution.g - limit) * (1 - eta)
                solution.g = limit + (rest if last is None else 2 * rest - last * (1 - eta))
                remaining = max(abs(1 - eta), SLOWEST)
                solution.speed = [remaining * speed for speed in solution.speed]
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
        return self._solution(clouds_of(x, y), start)

    def _solution(self, clouds: Clouds, start: Solution | None) -> Solution:
        """Run `solve`. Each flow's numbers are in lists, so that a check waits for a card once."""
        self_potential, self_error = clouds.start_step()
        norm_x, norm_y = clouds.norm_x, clouds.norm_y
        self._check_precision(norm_x, norm_y)
        live = list(range(len(norm_y)))
        if start is None:
            spread = (2 * (norm_x.mean(1) + norm_y.mean(1))).tolist()  # the mean of y is 0
            h, iterations = self._annealed(clouds, spread)
            goal, omega = [self._tolerance for _ in live], [OMEGA for _ in live]
        else:
            h, iterations = start.g - norm_y, [0 for _ in live]
            goal = [self._goal(speed) for speed in start.speed]
            omega = [1 + CARRIED * (w - 1) for w in start.omega]
        error, speed, needed = list(goal), list(goal), list(goal)
        plan = clouds.plan(h, live)
        while live:  # each pass adds iterations, so that it ends even if an error is nan
            before = plan.error
            plan.update([omega[k] for k in live], UPDATES)
            for k, old, new in zip(live, before, plan.error, strict=True):
                error[k], omega[k] = new, _adapted_omega(omega[k], new / max(old, TINY))
                iterations[k] += UPDATES
            at = [k for k in live if error[k] <= goal[k] or iterations[k] >= self._cap]
            if at:
                ready = [live.index(k) for k in at]
                h = with_some(h, at, some_of(plan.absorbed(), ready))
                v, speeds = clouds.velocity(plan, ready, at)
                for k, value in zip(at, speeds, strict=True):
                    speed[k], needed[k] = value, self._goal(value)
                    is_done = error[k] <= needed[k] or iterations[k] >= self._cap
                    # v is slower than guessed and may become slower: aim below the new tolerance
                    goal[k] = math.inf if is_done else 0.8 * min(needed[k], goal[k])
                going = [i for i, k in enumerate(live) if goal[k] < math.inf]
                live = [live[i] for i in going]
                plan.keep(going)
        errors, goals = torch.tensor([error, needed], device=h.device)
        errors, counts = errors.maximum(self_error), torch.tensor(iterations, device=h.device)
        converged = errors <= goals
        self.report.record(counts, errors, converged)
        return Solution(v, speed, h + norm_y, self_potential, counts, errors, converged, omega)

    def _goal(self, speed: float) -> float:
        """Return the tolerance for particles of this speed."""
        return self._tolerance * min(max(speed, FINEST), 1.0)

    def _check_precision(self, norm_x: Tensor, norm_y: Tensor) -> None:
        """Raise ValueError if points of 1/2 |x|^2 (B, N), 1/2 |y|^2 (B, M) may overflow float32."""
        largest = float((norm_x.amax(1).sqrt() + norm_y.amax(1).sqrt()).amax()) ** 2
        if not largest <= FLOAT32_LIMIT:  # also true for nan, after an overflow of distances
            raise ValueError(
                f"{name_setting('sinkhorn.blur', self._blur)} is too small for float32: cost / "
                f"blur^2 reaches {largest:.1e}, the limit is {FLOAT32_LIMIT:.1e}"
            )

    def _annealed(self, clouds: Clouds, spread: list[float]) -> tuple[Tensor, list[int]]:
        """Return a first h (B, M) from updates with falling eps, and their number for each flow.
        The first eps is near the spread of C."""
        h = -clouds.norm_y
        stages = [int(math.log(max(s, 1.0), ANNEALING_RATIO)) for s in spread]
        for stage in range(max(stages), 0, -1):
            live = [k for k, most in enumerate(stages) if most >= stage]
            plan = clouds.plan(h, live, ANNEALING_RATIO**-stage)
            plan.update([OMEGA for _ in live], ANNEALING_UPDATES)
            h = with_some(h, live, plan.absorbed())
        return h, [most * ANNEALING_UPDATES for most in stages]


def _adapted_omega(omega: float, decrease: float) -> float:
    """Return a better omega by Young's formula for the best over-relaxation. ``decrease``: factor
    by which UPDATES updates reduced the error."""
    rate = min(max(decrease ** (1 / UPDATES), 0.01), 0.999)
    if not rate > omega - 0.98:  # omega itself limits the rate
        return omega
    plain_rate = min((rate + omega - 1) ** 2 / (rate * omega**2), 0.9999)
    return max(omega, min(2 / (1 + math.sqrt(1 - plain_rate)), OMEGA_MAX))
