"""Plans that do not fit into memory: each pass computes them again, by blocks of rows.

The updates are those of :class:`nsgf.sinkhorn.plans.Plan`, in the log domain: each needs a pass for
the columns and one for the rows.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nsgf.sinkhorn.plans import SELF_POWERS, Clouds, Plan

LARGEST_PLAN = 2**28
"""Number of entries of a plan (N, M) or (N, N) above which it is computed in blocks: 1 GB."""
BLOCK = 2**22
"""Number of entries of a block: 16 MB."""
STEEPEST, HIGHEST = 2.3, 80.0
"""Largest change of a logarithm before over-relaxation, and largest exponent in float32."""


def clouds_of(x: Tensor, y: Tensor, steps: int = 1) -> Clouds:
    """Return the clouds x (B, N, D) and y (B, M, D) for this many steps of a flow."""
    if x.shape[1] * max(x.shape[1], y.shape[1]) > LARGEST_PLAN:
        return BlockClouds(x, y)
    return Clouds(x, y, steps)


class BlockClouds(Clouds):
    """Clouds with too many points for a matrix of their products."""

    def blocks(self, x: Tensor, y: Tensor, h: Tensor, scale: float = 1.0) -> Iterator[Tensor]:
        """Yield scale (x . y + h) for some rows of x (N, D), y (M, D) and h (M,) at a time."""
        size = max(1, BLOCK // len(y))
        memory = self.memory.get("block", size, len(y))
        for part in x.split(size):
            yield torch.addmm(h, part, y.T, beta=scale, alpha=scale, out=memory[: len(part)])

    def projected(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """Return softmax(x . y + h) @ y for one problem.  (N, D)"""
        return torch.cat([torch.softmax(z, 1, out=z) @ y for z in self.blocks(x, y, h)])

    def last_potential(self) -> Tensor:
        return torch.zeros_like(self.norm_y)

    def start_step(self) -> tuple[Tensor, Tensor]:
        x = self._left
        self.norm_x = 0.5 * torch.linalg.vector_norm(x, dim=2).square()
        potential, error = self._self_potential(x, self.norm_x)
        h = potential - self.norm_x
        self.own = torch.stack([self.projected(x[k], x[k], h[k]) for k in range(len(x))])
        return potential, error

    def _self_potential(self, x: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Return the potential (B, N) of x against itself and its error (B,)."""
        log_w = torch.zeros_like(norm)
        for power in [0.5, *SELF_POWERS, 0.0]:
            h = log_w - norm
            sums = [
                torch.cat([torch.logsumexp(z, 1) for z in self.blocks(x[k], x[k], h[k])])
                for k in range(len(x))
            ]
            log_row = torch.stack(sums) + h
            log_w = log_w - power * log_row
        return log_w + 0.5 * math.log(x.shape[1]), (log_row.exp() - 1).abs().mean(1)

    def plan(self, h: Tensor, live: list[int], scale: float = 1.0) -> Plan:
        return BlockPlan(self, self._left, self._right, h, live, scale)

    def velocity(self, plan: Plan, ready: list[int], at: list[int]) -> tuple[Tensor, list[float]]:
        v, h = self.memory.get("velocity", *self.own.shape), plan.absorbed()
        for i, k in zip(ready, at, strict=True):
            torch.sub(self.projected(self._left[k], self._right[k], h[i]), self.own[k], out=v[k])
        return v, (torch.linalg.vector_norm(v[at], dim=(1, 2)) / math.sqrt(self._n)).tolist()


class BlockPlan(Plan):
    """The plans of some flows, of which only h and the logarithms of the row factors are stored."""

    def __init__(
        self, clouds: BlockClouds, x: Tensor, y: Tensor, h: Tensor, live: list[int], scale: float
    ) -> None:
        self._clouds, self._x, self._y, self._scale = clouds, x, y, scale
        self._h, self._live, self._log_ratio = h[live], live, math.log(y.shape[1] / x.shape[1])
        self._log_u = -self._log_rows()
        self.error = self._errors()

    def _log_rows(self) -> Tensor:
        """Return the logarithms of the sums of the rows without their factors.  (B, N)"""
        blocks = zip(self._h, self._live, strict=True)
        return torch.stack(
            [torch.cat([torch.logsumexp(z, 1) for z in self._blocks(h, k)]) for h, k in blocks]
        )

    def _log_columns(self, log_u: Tensor) -> Tensor:
        """Return the logarithms of the sums of the columns, 0 at the optimum.  (B, M)"""
        columns = torch.zeros_like(self._h)
        for i, k in enumerate(self._live):
            done = 0
            for z in self._blocks(self._h[i], k):
                factors = log_u[i, done : done + len(z), None]
                columns[i] += z.add_(factors).clamp_(max=HIGHEST).exp_().sum(0)
                done += len(z)
        return columns.log() + self._log_ratio

    def _errors(self) -> list[float]:
        columns = self._log_columns(-self._log_rows()).exp()
        return (columns - 1).abs().mean(1).tolist()

    def _blocks(self, h: Tensor, k: int) -> Iterator[Tensor]:
        return self._clouds.blocks(self._x[k], self._y[k], h, self._scale)

    def update(self, omega: list[float], updates: int) -> None:
        w = torch.tensor(omega, device=self._h.device).unsqueeze(1)
        for _ in range(updates):
            change = self._log_columns(self._log_u).clamp_(-STEEPEST, STEEPEST)
            self._h = self._h - w / self._scale * change
            change = (self._log_rows() + self._log_u).clamp_(-STEEPEST, STEEPEST)
            self._log_u = self._log_u - w * change
        self.error = self._errors()

    def keep(self, at: list[int]) -> None:
        self._live, self.error = [self._live[k] for k in at], [self.error[k] for k in at]
        self._h, self._log_u = self._h[at], self._log_u[at]

    def absorbed(self) -> Tensor:
        return self._h
