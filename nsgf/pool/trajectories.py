"""The pool in memory: allocated once and filled in place.

The pool stores positions only. The paper's pair (x, v) is X^t and (X^{t+1} - X^t) / h, so T + 1
positions give T pairs, in about half the memory. h is the length of a step on the velocity
network's clock (:mod:`nsgf.sinkhorn.base`): eta for constant steps.

Shapes: F trajectories (n of each flow), T flow steps, B pairs.
"""

import math
from typing import NamedTuple

from torch import Tensor

from nsgf.system.errors import UserError, suggest


class PoolBatch(NamedTuple):
    """Pairs for the regression of the velocity network."""

    x: Tensor
    """Positions X^t, (B, *shape)."""
    v: Tensor
    """Velocities v(X^t), (B, *shape)."""
    t: Tensor
    """Times t/T in [0, 1), (B,)."""


class TrajectoryPool:
    """The trajectories of F particles on the CPU, in memory or in a mapped file."""

    def __init__(self, positions: Tensor, time_step: float, filled: int = 0) -> None:
        """Use the tensor ``positions``, (F, T+1, *shape); its first ``filled`` trajectories are
        already computed."""
        self._positions, self.time_step = positions, time_step
        self.steps, self.filled = positions.shape[1] - 1, filled

    def __len__(self) -> int:
        """Number of pairs (x, v)."""
        return len(self._positions) * self.steps

    def append(self, positions: Tensor) -> None:
        """Store the trajectories of finished flows, (n, T+1, *shape), from any device.

        Raises:
            UserError: they are not finite, or out of range for the pool's dtype.
        """
        end = self.filled + len(positions)
        place = self._positions[self.filled : end].copy_(positions)
        if not all(bound.isfinite() for bound in place.aminmax()):  # aminmax returns nan if any is
            most = float(positions.abs().max())
            if math.isfinite(most):
                raise UserError(
                    f"pool.dtype = float16: a position of {most:.3g} is beyond its range of 65504; "
                    "use float32"
                )
            raise UserError(
                f"a flow with steps of {self.time_step} left the finite numbers; try a smaller "
                f"{suggest('flow.eta')}"
            )
        self.filled = end

    def particles(self, indices: Tensor) -> Tensor:
        """Return the trajectory numbers of :meth:`pairs` for the same indices, int64, (B,)."""
        return indices % len(self) // self.steps

    def pairs(self, indices: Tensor) -> PoolBatch:
        """Return the pairs at these random indices (B,), float32 on the CPU. Indices are uniform
        int64 in a range much larger than the pool, and are taken modulo the number of pairs.

        Raises:
            ValueError: the pool is not complete.
        """
        if self.filled != len(self._positions):
            raise ValueError(f"pool has {self.filled} of {len(self._positions)} trajectories")
        index = indices % len(self)
        particle, step = index // self.steps, index % self.steps
        rows = self._positions.flatten(0, 1)  # (F (T+1), *shape), a view
        row = index + particle  # particle (T + 1) + step
        # convert before the difference: the division by h would magnify the rounding of float16
        x, after = rows.index_select(0, row).float(), rows.index_select(0, row + 1).float()
        return PoolBatch(x=x, v=(after - x) / self.time_step, t=step / self.steps)
