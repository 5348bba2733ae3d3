"""Plans that do not fit into memory. They are not stored. Each pass over a plan computes the plan
again, in blocks of rows.

The updates are the same as in :class:`nsgf.sinkhorn.plans.Plan`, but the row factors are stored as
logarithms. An update needs one pass for the columns and one for the rows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nsgf.sinkhorn.plans import SELF_POWERS, Clouds, Plan

LARGEST_PLAN = 2**28
"""A plan (N, M) or (N, N) with more entries than this number is computed in blocks. This many
entries need 1 GB."""
PLAN_BLOCK = 2**20
"""Number of entries of a block. They need 4 MB, so a block stays in the cache."""
STEEPEST = 2.3
"""Largest change of a factor's logarithm in one update, before over-relaxation."""
LOWEST_EXPONENT = -60.0
HIGHEST_EXPONENT = 80.0
"""Exponents are clipped to this range, so that exp stays within float32."""


def clouds_of(x: Tensor, y: Tensor, steps: int = 1) -> Clouds:
    """Return x (B, N, D) and y (B, M, D) as clouds for ``steps`` steps of a flow."""
    if x.shape[1] * max(x.shape[1], y.shape[1]) > LARGEST_PLAN:
        return BlockClouds(x, y)
    return Clouds(x, y, steps)


class BlockClouds(Clouds):
    """Clouds with so many points that their plans do not fit into memory."""

    def blocks(self, x: Tensor, y: Tensor, h: Tensor, scale: float = 1.0) -> Iterator[Tensor]:
        """Yield scale (x . y + h) for some rows of x (N, D), y (M, D) and h (M,) at a time."""
        size = max(1, PLAN_BLOCK // y.shape[0])
        memory = self.memory.get("block", size, y.shape[0])
        for part in x.split(size):
            yield torch.addmm(h, part, y.T, beta=scale, alpha=scale, out=memory[: len(part)])

    def sums(
        self, x: Tensor, y: Tensor, log_u: Tensor, h: Tensor, dim: int, scale: float = 1.0
    ) -> Tensor:
        """Return the logarithms of the sums of exp(scale (x . y + h) + log_u) over rows (dim 0) or
        columns (dim 1), for log_u (N,) and one problem."""
        # add a coordinate for log_u, so that the product includes it
        x = torch.cat([x, log_u.unsqueeze(1) / scale], 1)
        y = torch.cat([y, torch.ones_like(y[:, :1])], 1)
        blocks = self.blocks(x, y, h, scale)
        parts = (z.clamp_(LOWEST_EXPONENT, HIGHEST_EXPONENT).exp_().sum(dim) for z in blocks)
        return (torch.cat(list(parts)) if dim else sum(parts, torch.zeros_like(h))).log()

    def last_potential(self) -> Tensor:
        return torch.zeros_like(self.norm_y)

    def start_step(self) -> tuple[Tensor, Tensor]:
        x = self._left
        self.norm_x = 0.5 * torch.linalg.vector_norm(x, dim=2).square()
        self.own = torch.empty_like(x)
        potential = torch.empty_like(self.norm_x)
        error = torch.empty_like(self.norm_x[:, 0])
        for k, (points, norm) in enumerate(zip(x, self.norm_x, strict=True)):
            h = -norm
            for power in [0.5, *SELF_POWERS]:
                h = h - power * self.sums(points, points, h, h, dim=1)
            error[k] = (self.sums(points, points, h, h, dim=1).exp() - 1).abs().mean()
            potential[k] = h + norm + 0.5 * math.log(self._n)
            self.own[k] = self.projected(points, points, h)
        return potential, error

    def projected(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """Return softmax(x . y + h) @ y for one problem.  (N, D)"""
        return torch.cat([torch.softmax(z, 1, out=z) @ y for z in self.blocks(x, y, h)])

    def plan(self, h: Tensor, live: list[int], scale: float = 1.0) -> Plan:
        return BlockPlan(self, self._left, self._right, h, live, scale)

    def velocity(self, plan: Plan, ready: list[int], at: list[int]) -> tuple[Tensor, list[float]]:
        v = self.memory.get("velocity", *self.own.shape)
        h = plan.absorbed()
        for i, k in zip(ready, at, strict=True):
            torch.sub(self.projected(self._left[k], self._right[k], h[i]), self.own[k], out=v[k])
        return v, (torch.linalg.vector_norm(v[at], dim=(1, 2)) / math.sqrt(self._n)).tolist()


class BlockPlan(Plan):
    """The plans of some flows. Only h and the logarithms of the row factors are stored."""

    per_flow = ("_h", "_log_u")

    def __init__(
        self, clouds: BlockClouds, x: Tensor, y: Tensor, h: Tensor, live: list[int], scale: float
    ) -> None:
        self._clouds = clouds
        self._x = x
        self._y = y
        self._scale = scale
        self._h = h[live]
        self._live = live
        self._log_ratio = math.log(y.shape[1] / x.shape[1])
        rows = [
            torch.cat([z.logsumexp(1) for z in clouds.blocks(x[k], y[k], h[k], scale)])
            for k in live
        ]
        self._log_u = -torch.stack(rows)
        self._set_errors(self._log_u)

    def _log_sums(self, log_u: Tensor, dim: int) -> Tensor:
        """Return the logarithms of the sums of the columns (B, M), or of the rows (B, N)."""
        sums = [
            self._clouds.sums(self._x[k], self._y[k], u, h, dim, self._scale)
            for u, h, k in zip(log_u, self._h, self._live, strict=True)
        ]
        return torch.stack(sums)

    def _set_errors(self, exact: Tensor) -> None:
        """Compute the errors of the plans. ``exact``: logarithms of row factors for which each row
        sums to 1."""
        columns = (self._log_sums(exact, dim=0) + self._log_ratio).exp()
        self.error = (columns - 1).abs().mean(1).tolist()

    def update(self, omega: list[float], updates: int) -> None:
        w = torch.tensor(omega, dtype=torch.float32, device=self._h.device).unsqueeze(1)
        for _ in range(updates):
            change = self._log_sums(self._log_u, dim=0) + self._log_ratio
            self._h = self._h - w / self._scale * change.clamp_(-STEEPEST, STEEPEST)
            change = self._log_sums(self._log_u, dim=1)
            self._log_u = self._log_u - w * change.clamp_(-STEEPEST, STEEPEST)
        self._set_errors(self._log_u - self._log_sums(self._log_u, dim=1))

    def absorbed(self) -> Tensor:
        return self._h
