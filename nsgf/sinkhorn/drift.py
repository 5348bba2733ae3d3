"""The Sinkhorn velocity of generated samples, which trains a generator.

    V(x) = T(x -> y) - T(x -> x')

T are barycentric maps of entropic plans: from generated samples x to real samples y, and to
generated samples x' from other noise. The plan from x to itself would mostly pair each particle
with itself. Then T(x -> x) would be x, and V would pull particles to local means of the data. y and
x' are both independent of x, so the errors of the two maps are alike and cancel.

Shapes: B problems, N generated samples, M real samples, *shape one sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsgf.sinkhorn.batched import BatchedSolver


class Drift:
    """Compute V for B independent problems; each half of the samples is the x' of the other half.

    The unit of the blurs is the square root of the mean cost between x and y, which changes while a
    network learns. V is averaged over the blurs.
    """

    def __init__(self, blurs: Sequence[float], tolerance: float) -> None:
        self._solvers = [BatchedSolver(blur, tolerance) for blur in blurs]
        self.reports = [solver.report for solver in self._solvers]
        """Solver reports, one for each blur."""

    @torch.no_grad()
    def velocity(self, made: Tensor, real: Tensor) -> Tensor:
        """Return V (B, N, *shape), float32, for generated samples (B, N, *shape) and real samples
        (B, M, *shape); 0 for the last sample if N is odd. Raise ValueError if samples are not
        finite, or a blur is too small for float32."""
        unit = mean_cost(made, real).sqrt()
        x = _halves(made.float() / unit)
        y = _halves(real.float() / unit)
        other = x.roll(len(x) // 2, dims=0)
        total = torch.zeros_like(x)
        for solver in self._solvers:
            # each velocity is T minus the projection of x on itself; the projections cancel
            if y.shape == x.shape:  # all problems at once
                both = solver.velocity(torch.cat([x, x]), torch.cat([y, other]))
                to_y, to_x = both.chunk(2)
            else:
                to_y = solver.velocity(x, y)
                to_x = solver.velocity(x, other)
            total += (to_y - to_x).view(x.shape)
        halves = (total * (unit / len(self._solvers))).chunk(2)
        velocity = torch.zeros_like(made, dtype=torch.float32)
        velocity[:, : 2 * x.shape[1]] = torch.cat(halves, dim=1)
        return velocity


def _halves(samples: Tensor) -> Tensor:
    """Reshape (B, N, *shape) to (2B, N/2, *shape): all first halves, then all second halves."""
    return torch.cat(samples[:, : samples.shape[1] // 2 * 2].chunk(2, dim=1))


def mean_cost(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of 1/2 |x - y|^2 over all pairs of x (B, N, *shape) and y (B, M, *shape), a
    scalar; 1 if that is 0."""
    origin = y.mean((0, 1))
    flat = [(cloud - origin).flatten(2).float() for cloud in (x, y)]
    squares = flat[0].square().sum(2).mean() + flat[1].square().sum(2).mean()
    products = (flat[0].mean(1) * flat[1].mean(1)).sum(1).mean()
    cost = (squares / 2 - products).clamp_min(0)
    return torch.where(cost > 0, cost, torch.ones_like(cost))
