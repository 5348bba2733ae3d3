"""Solve many independent flows at once, until each flow is within a tolerance. The velocity has a
closed form.

    v_i = sum_j P_ij y_j - sum_j Q_ij x_j

P and Q are the transport plans from x to y and from x to itself, with rows scaled to sum to 1.
Three ideas make the solver fast, in addition to the ideas of :mod:`nsgf.sinkhorn.plans`:

1. The updates are over-relaxed by the factor `omega` (Thibault et al. 2021).
2. Each step of a flow starts from the potentials of earlier steps.
3. Flows that have converged leave the batch.

The stopping rule tests each flow separately, so the result of a flow does not depend on the
remaining flows.

B: number of flows; N: number of particles x; M: number of targets y; D: number of coordinates.
The potentials g, and h = g - 1/2 |y|^2, have the shape (B, M).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from nsgf.sinkhorn.base import BlurredFlow, Particles, around_mean, as_clouds, full_precision
from nsgf.sinkhorn.blocks import LARGEST_PLAN, PLAN_BLOCK, clouds_of
from nsgf.sinkhorn.plans import Clouds, some_of, with_some
from nsgf.system.errors import UserError, name_setting

UPDATES = 6
"""Number of updates of v and u between two checks of the error."""
TOLERANCE = 5e-4
"""Largest L1 error of a plan's marginals."""
MAX_ITERATIONS = 2000
"""Number of updates after which an unconverged solve stops."""
OMEGA = 1.5
"""Over-relaxation at the start of the first solve of a flow."""
OMEGA_MAX = 1.95
"""Largest over-relaxation. A solve reaches it when its progress is slow."""
CARRIED = 0.95
"""The next step starts with this fraction of omega - 1. Within a solve, omega never decreases."""
ANNEALING_RATIO = 10.0
"""Ratio of successive eps while annealing."""
ANNEALING_UPDATES = 2
"""Number of updates at each eps while annealing."""
TINY = 1e-30
"""Lower bound of an error when it is a divisor."""
FINEST = 0.01
"""Smallest factor by which slow particles reduce the tolerance."""
SLOWEST_SHARE = 0.1
"""Smallest guess of the particles' speed in a step, relative to their speed in the last step.
Particles rarely stop. A guess that is too low makes the tolerance too small and costs many
updates."""
FLOAT32_LIMIT = 0.1 * 2**24
"""Largest C / eps. Above this limit, rounding changes the entries of a plan by more than 10 %."""


@dataclass
class Solution:
    """Solution of the transport problems (x, y) of B flows; potentials are in units of blur^2."""

    velocity: Tensor  # (B, N, D), or with more columns (see Clouds); the next step overwrites it
    speed: list[float]  # root mean square of |v_i|, one for each flow
    g: Tensor  # (B, M) potential of the targets
    self_potential: Tensor  # (B, N) potential of the particles against themselves
    iterations: Tensor  # (B,) int64, updates of the pair (v, u), annealing included
    error: Tensor  # (B,) L1 error of the marginals, the larger of P's and Q's
    converged: Tensor  # (B,) whether the error is within the tolerance
    omega: list[float]  # over-relaxation at the end, one for each flow


@dataclass(eq=False)
class BatchedSolver(BlurredFlow):
    """Solver of many Sinkhorn flows at once. Calls change no attribute except ``report``.

    The tolerance bounds the L1 error of a plan's marginals. If rms |v| / blur is below 1, the
    tolerance is multiplied by this ratio, because an error of the plan changes a small v as much as
    a large v.
    """

    title = "Sinkhorn gradient flow"
    uses = ("blur", "first_blur", "tolerance")
    shows = ("blur",)
    arrives = True

    tolerance: float = TOLERANCE
    max_iterations: int = MAX_ITERATIONS

    @staticmethod
    def matrix_entries(n: int, m: int) -> int:
        entries = n * max(n, m)
        return entries if entries <= LARGEST_PLAN else PLAN_BLOCK

    def velocity(self, x: Tensor, y: Tensor) -> Tensor:
        return self.solve(x, y).velocity

    @torch.no_grad()
    def solve(self, x: Tensor, y: Tensor, start: Solution | None = None) -> Solution:
        """Solve one step of B flows, particles (B, N, *shape) and targets (B, M, *shape).

        The velocity is in units of the data. `g`, `speed` and `omega` of `start` are an initial
        guess, which saves updates. The guess changes the result only within the tolerance.

        Raises:
            UserError: :func:`as_clouds` refuses the clouds, or the blur is too small for float32.
        """
        x, y, _ = self.centred(*as_clouds(x, y))
        with full_precision(x.device):
            solution = self.solve_clouds(clouds_of(x, y), start)
        solution.velocity.mul_(self.blur)
        return solution

    def start(self, x: Tensor, y: Tensor, steps: int) -> Particles:
        flows = cast(list[BatchedSolver], self.at_steps(steps))
        flow = flows[0]
        near_x, near_y, origin = flow.centred(x, y)
        clouds = clouds_of(near_x, near_y, steps)
        limit = clouds.last_potential()
        return WarmParticles(iter(flows), near_x, near_y, origin, clouds, flow.blur, limit)

    def centred(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clouds (B, N, D) and (B, M, D) around the mean of y, in units of the blur and
        float32, and this mean (B, 1, D)."""
        near_x, near_y, origin = around_mean(x, y)
        return near_x.div_(self.blur).float(), near_y.div_(self.blur).float(), origin

    def solve_clouds(self, clouds: Clouds, start: Solution | None = None) -> Solution:
        """Run `solve` without checks of shapes and types. The clouds lie around the mean of y, in
        units of the blur. The velocity has the same unit. Errors and speeds are Python lists with
        one value per flow, so a check waits for the card only once."""
        self_potential, self_error = clouds.start_step()
        norm_y = clouds.norm_y
        self._check_costs(clouds)
        live = list(range(len(norm_y)))
        if start is None:
            h, iterations = _anneal(clouds)
            goal = [self.tolerance for _ in live]
            omega = [OMEGA for _ in live]
        else:
            # start from the potentials that the last step predicted
            h = start.g - norm_y
            iterations = [0 for _ in live]
            goal = [self._goal(speed) for speed in start.speed]
            omega = [1 + CARRIED * (w - 1) for w in start.omega]
        error = list(goal)
        speed = list(goal)
        needed = list(goal)
        # update until each flow is within its tolerance
        plan = clouds.plan(h, live)
        while live:  # ends after max_iterations even if an error is nan
            before = plan.error
            plan.update([omega[k] for k in live], UPDATES)
            for k, old, new in zip(live, before, plan.error, strict=True):
                error[k] = new
                iterations[k] += UPDATES
                rate = (new / max(old, TINY)) ** (1 / UPDATES)
                omega[k] = _better_omega(omega[k], rate)
            at = [k for k in live if error[k] <= goal[k] or iterations[k] >= self.max_iterations]
            if at:
                ready = [live.index(k) for k in at]
                h = with_some(h, at, some_of(plan.absorbed(), ready))
                v, speeds = clouds.velocity(plan, ready, at)
                for k, value in zip(at, speeds, strict=True):
                    speed[k] = value
                    needed[k] = self._goal(value)
                    is_done = error[k] <= needed[k] or iterations[k] >= self.max_iterations
                    # v is smaller than the guess, and may become still smaller, so aim below the
                    # new tolerance
                    goal[k] = math.inf if is_done else 0.8 * min(needed[k], goal[k])
                going = [i for i, k in enumerate(live) if goal[k] < math.inf]
                live = [live[i] for i in going]
                plan.keep(going)
        errors, goals = torch.tensor([error, needed], dtype=torch.float32, device=h.device)
        errors = errors.maximum(self_error)
        counts = torch.tensor(iterations, device=h.device)
        converged = errors <= goals
        self.report.record(counts, errors, converged)
        return Solution(v, speed, h + norm_y, self_potential, counts, errors, converged, omega)

    def _check_costs(self, clouds: Clouds) -> None:
        """Raise UserError if 1/2 |x - y|^2, in units of blur^2, is too large for float32."""
        norm_x = clouds.norm_x
        norm_y = clouds.norm_y
        largest = float((norm_x.amax(1).sqrt() + norm_y.amax(1).sqrt()).amax()) ** 2
        if not largest <= FLOAT32_LIMIT:  # also true for nan, after an overflow of distances
            raise UserError(
                f"{name_setting('sinkhorn.blur', f'{self.blur:g}')} is too small for float32: "
                f"cost / blur^2 reaches {largest:.1e}, the limit is {FLOAT32_LIMIT:.1e}"
            )

    def _goal(self, speed: float) -> float:
        """Return the tolerance for particles of this speed."""
        return self.tolerance * min(max(speed, FINEST), 1.0)


def _anneal(clouds: Clouds) -> tuple[Tensor, list[int]]:
    """Return h (B, M) after a few updates with falling eps, and the number of updates of each flow.
    The first eps is near the spread of C."""
    norm_y = clouds.norm_y
    spread = (2 * (clouds.norm_x.mean(1) + norm_y.mean(1))).tolist()  # the mean of y is 0
    stages = [int(math.log(max(cost, 1.0), ANNEALING_RATIO)) for cost in spread]
    h = -norm_y
    for stage in range(max(stages), 0, -1):
        at = [k for k, most in enumerate(stages) if most >= stage]
        plan = clouds.plan(h, at, ANNEALING_RATIO**-stage)
        plan.update([OMEGA for _ in at], ANNEALING_UPDATES)
        h = with_some(h, at, plan.absorbed())
    return h, [most * ANNEALING_UPDATES for most in stages]


def _better_omega(omega: float, rate: float) -> float:
    """Return the best over-relaxation by Young's formula, but at least ``omega``. ``rate`` is the
    factor by which an update with ``omega`` changed the error."""
    rate = min(max(rate, 0.01), 0.999)
    if not rate > omega - 0.98:  # omega itself limits the rate; nan also returns here
        return omega
    plain_rate = min((rate + omega - 1) ** 2 / (rate * omega**2), 0.9999)
    return max(omega, min(2 / (1 + math.sqrt(1 - plain_rate)), OMEGA_MAX))


@dataclass
class WarmParticles(Particles):
    """Particles whose solves start from the potentials of earlier steps."""

    flows: Iterator[BatchedSolver]
    clouds: Clouds
    """The particles, which move, and the targets, in units of the blur."""
    blur: float
    """Blur of the last solve."""
    limit: Tensor
    """Potential of the targets when the particles are at the targets.  (B, M)"""
    guess: Solution | None = None
    offset: Tensor | None = None
    """Expected potential of the next step, minus `limit`.  (B, M)"""

    def move(self, eta: float) -> Tensor:
        flow = next(self.flows)
        if flow.blur != self.blur:
            self._change_unit(flow.blur)
        solution = flow.solve_clouds(self.clouds, self.guess)
        self.clouds.move(solution.velocity, eta)
        # after the move, the remaining distance is 1 - eta times as large. So guess that the
        # difference between g and the potential for x = y is also 1 - eta times as large. The error
        # of this guess changes little from step to step, so add the error of the last guess
        last = self.offset
        offset = (solution.g - self.limit) * (1 - eta)
        solution.g = self.limit + (offset if last is None else 2 * offset - last * (1 - eta))
        remaining = max(abs(1 - eta), SLOWEST_SHARE)
        solution.speed = [remaining * speed for speed in solution.speed]
        self.guess = solution
        self.offset = offset
        return torch.add(self.origin, self.clouds.x, alpha=self.blur)

    def _change_unit(self, blur: float) -> None:
        """Express clouds and guess in units of another blur.

        The potential has the unit blur^2. Its limit is the potential of the targets against
        themselves. The limit depends on the blur, so it is computed again. The offset describes the
        remaining way of the particles. This way hardly depends on the blur, so the offset is
        converted to the new unit.
        """
        ratio = self.blur / blur
        self.blur = blur
        self.clouds.scale(ratio)
        limit = self.limit
        self.limit = self.clouds.last_potential()
        if self.guess is not None and self.offset is not None:
            self.guess.g = self.limit + (self.guess.g - limit) * ratio**2
            self.guess.speed = [ratio * speed for speed in self.guess.speed]
            self.offset = self.offset * ratio**2
