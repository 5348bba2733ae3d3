"""Semidiscrete optimal transport: from a law that can be drawn from to all points of a data set.

The dual problem without regularization (Genevay et al. 2016, arXiv 1605.08527, eq. 7 at eps = 0)

    max_g  E_x min_j (C(x, y_j) - g_j) + 1/N sum_j g_j,        C(x, y) = 1/2 |x - y|^2

has one potential g_j for each point. Its gradient is 1/N minus the share of draws that y_j wins: a
draw x is won by argmax_j (g_j - C(x, y_j)), and at the optimum each point wins as many. It is
climbed by averaged stochastic ascent; a generator that learns from such pairs: arXiv 2509.25519.

Shapes: B draws x, N points y, *shape one sample.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.sinkhorn.base import full_precision

BATCH = 256
"""Draws whose costs to all points are held at once, and those of one step."""
WIN = 2.0
"""By how much a win lowers a potential at first, in gaps between a draw's two nearest points."""
FULL, DECAY = 0.05, 0.75
"""Part of all steps in which it does, and the power of k by which it falls after them."""
AVERAGED = 0.5
"""Last part of all steps whose potentials are averaged."""


class Shares(NamedTuple):
    """How evenly points win, each being entitled to the same part of all draws."""

    draws: int
    """Draws that were counted."""
    points: int
    """N."""
    winless: float
    """Share of points that won none."""
    largest: float
    """Wins of the one that won most, in parts."""
    error: float
    """Root mean square error of a point's mass, in parts, without what the draws' chance adds."""

    def text(self) -> str:
        """For people."""
        chance = math.exp(-self.draws / self.points)
        return (
            f"error of a point's mass {100 * self.error:.0f} %; of {self.draws} draws "
            f"{100 * self.winless:.1f} % of the points win none ({100 * chance:.1f} % by chance "
            f"alone), one wins {self.largest:.1f} times its part"
        )


class Semidiscrete:
    """Potentials g of N points, and which of them wins a draw."""

    def __init__(self, points: Tensor, steps: int) -> None:
        """
        Args:
            points: y, (N, *shape), where the costs are to be computed.
            steps: of the ascent, all in all.
        """
        self.points, self.steps, self.step = points, steps, 0
        self._flat = points.flatten(1).float()
        self._half = 0.5 * torch.linalg.vector_norm(self._flat, dim=1).square()
        self.potential = torch.zeros_like(self._half)
        """Where the ascent stands.  (N,)"""
        self.average = torch.zeros_like(self._half)
        """Mean over the last part of the steps, what pairs are made with.  (N,)"""

    @property
    def is_learned(self) -> bool:
        """Whether all steps are taken."""
        return self.step >= self.steps

    def partners(self, x: Tensor) -> Tensor:
        """The points that win the draws x (B, *shape), in ``points``' type.  (B, *shape)"""
        return self.points[self._winners(x, self.average)]

    def wins(self, x: Tensor) -> Tensor:
        """How many of the draws x (B, *shape) each point wins as the ascent stands.  (N,)"""
        return self._count(x, self.potential)

    def average_wins(self, x: Tensor) -> Tensor:
        """The same with the averaged potentials.  (N,)"""
        return self._count(x, self.average)

    def climb(self, wins: Tensor, gap: float) -> None:
        """One step.

        Args:
            wins: how many of its draws each point has won, (N,).
            gap: what decides among points at first (:meth:`gap`).
        """
        decay = max(1.0, self.step / (FULL * self.steps)) ** DECAY
        part = wins.mean()
        # of few points each wins several draws a step, which count as one
        self.potential -= WIN * gap / decay * (wins - part) / part.clamp_min(1.0)
        self.step += 1
        first = self.steps - max(1, int(AVERAGED * self.steps))
        if self.step > first:
            self.average += (self.potential - self.average) / (self.step - first)

    def gap(self, x: Tensor) -> float:
        """By how much the second nearest point is further, in C, for draws x (B, *shape), B <=
        BATCH: the mean."""
        nearest = self._scores(x, torch.zeros_like(self._half)).topk(2, 1).values
        return float((nearest[:, 0] - nearest[:, 1]).mean())

    def shares(self, wins: Tensor) -> Shares:
        """How even such wins are, (N,)."""
        draws, part = int(wins.sum()), float(wins.mean())
        excess = float((wins / part - 1).square().mean()) - 1 / part
        return Shares(
            draws,
            len(wins),
            float((wins == 0).float().mean()),
            float(wins.max()) / part,
            max(0.0, excess) ** 0.5,
        )

    def _count(self, x: Tensor, potential: Tensor) -> Tensor:
        return torch.bincount(self._winners(x, potential), minlength=len(self._half)).float()

    def _winners(self, x: Tensor, potential: Tensor) -> Tensor:
        return torch.cat([self._scores(part, potential).argmax(1) for part in x.split(BATCH)])

    def _scores(self, x: Tensor, potential: Tensor) -> Tensor:
        """g_j - C(x, y_j) without |x|^2 / 2, which is the same for all points.  (B, N)"""
        with full_precision(x.device):
            return torch.addmm(potential - self._half, x.flatten(1).float(), self._flat.T)
