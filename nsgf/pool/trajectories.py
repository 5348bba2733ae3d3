"""The pool in memory: allocated once and filled in place.

Only positions are kept. A pair (x, v) of the paper is X^t and (X^{t+1} - X^t) / h, so T + 1
positions stand for T pairs, in about half the memory; h is the length of a step on the clock of
the velocity network (:mod:`nsgf.sinkhorn.schedule`), eta where steps are constant.

Shapes: F trajectories (n of each flow), T flow steps, B pairs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.system.errors import UserError


class PoolBatch(NamedTuple):
    """Pairs for the regression of the velocity network."""

    x: Tensor
    """Positions X^t, (B, *shape)."""
    v: Tensor
    """Velocities v(X^t), (B, *shape)."""
    t: Tensor
    """Times t/T in [0, 1), (B,)."""


class TrajectoryPool:
    """Positions of ``trajectories`` particles at the T + 1 times of their flow."""

    def __init__(
        self,
        trajectories: int,
        steps: int,
        shape: tuple[int, ...],
        time_step: float,
        *,
        dtype: torch.dtype = torch.float32,
        storage: Tensor | None = None,
        filled: int = 0,
    ) -> None:
        """
        Args:
            trajectories: their number F over all flows.
            steps: T.
            shape: shape of one particle.
            time_step: h.
            dtype: type of the stored positions; pairs are float32 in any case.
            storage: mapped memory to fill, (F, T+1, *shape) of ``dtype``; None: main memory.
            filled: trajectories that ``storage`` holds already.
        """
        full = (trajectories, steps + 1, *shape)
        self.steps, self.time_step = steps, time_step
        self._positions = torch.empty(full, dtype=dtype) if storage is None else storage
        self.filled = filled
        """Number of trajectories so far."""

    def __len__(self) -> int:
        """Number of pairs (x, v)."""
        return len(self._positions) * self.steps

    def append(self, positions: Tensor) -> None:
        """Store the trajectories of finished flows, (n, T+1, *shape), from any device.

        Raises:
            UserError: they are not finite, or beyond the range of the pool's type.
        """
        end = self.filled + len(positions)
        place = self._positions[self.filled : end].copy_(positions)
        if not all(bound.isfinite() for bound in place.aminmax()):  # nan counts as both
            raise UserError(self._why_not_finite(positions))
        self.filled = end

    def _why_not_finite(self, positions: Tensor) -> str:
        if not positions.isfinite().all():
            return (
                f"a flow with steps of {self.time_step} left the finite numbers; "
                "try a smaller flow.eta"
            )
        return (
            f"pool.dtype = float16: a position of {float(positions.abs().max()):.3g} is beyond its "
            f"range of {torch.finfo(torch.float16).max:.0f}; use --pool.dtype float32"
        )

    def particles(self, indices: Tensor) -> Tensor:
        """Return the trajectory of the pair at each of these random indices (B,).  int64, (B,)"""
        return indices % len(self) // self.steps

    def pairs(self, indices: Tensor) -> PoolBatch:
        """Return the pairs at these random indices, float32 on the CPU.

        Args:
            indices: whole numbers, uniform and much larger than the pool; their remainder chooses.
                (B,), int64

        Raises:
            ValueError: the pool is not complete.
        """
        if self.filled != len(self._positions):
            raise ValueError(f"pool has {self.filled} of {len(self._positions)} trajectories")
        index = indices % len(self)
        particle, step = index // self.steps, index % self.steps
        rows = self._positions.flatten(0, 1)  # (F (T+1), *shape), a view
        row = index + particle  # particle (T + 1) + step
        # to float32 before the difference: v / h would magnify what float16 rounds away
        x, after = rows.index_select(0, row).float(), rows.index_select(0, row + 1).float()
        return PoolBatch(x=x, v=(after - x) / self.time_step, t=step / self.steps)
