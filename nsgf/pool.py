"""The trajectory pool of Algorithm 1: CPU-resident, allocated once, filled in place.

Only positions are kept. A pair (x, v) of the paper is X^t and (X^{t+1} - X^t) / eta, so T + 1
positions stand for T pairs, in about half the memory.

Shapes: F flows of single particles (batches x n), T flow steps.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from nsgf.config import Config
from nsgf.data import Sampler
from nsgf.errors import UserError
from nsgf.hardware import available_bytes, format_bytes
from nsgf.sinkhorn import Velocity, sinkhorn_flow

MEMORY_SHARE = 0.85
"""Share of the free memory that a pool may take; the rest is for networks and batches."""


class PoolBatch(NamedTuple):
    """Pairs for the regression of the velocity network."""

    x: Tensor
    """Positions X^t, (B, *shape)."""
    v: Tensor
    """Velocities v(X^t), (B, *shape)."""
    t: Tensor
    """Times t/T in [0, 1), (B,)."""


class TrajectoryPool:
    """Positions of ``flows`` particles at the T + 1 times of their flow."""

    def __init__(self, flows: int, steps: int, shape: tuple[int, ...], eta: float) -> None:
        """
        Args:
            flows: number of particles F over all mini-batches.
            steps: T.
            shape: shape of one particle.
            eta: step size of the flow.
        """
        self.steps, self.eta = steps, eta
        self._positions = torch.empty((flows, steps + 1, *shape), dtype=torch.float32)
        self._filled = 0
        self._complete = False

    def __len__(self) -> int:
        """Number of pairs (x, v)."""
        return len(self._positions) * self.steps

    @property
    def nbytes(self) -> int:
        """Bytes the pool holds."""
        return self._positions.numel() * self._positions.element_size()

    def append(self, positions: Tensor) -> None:
        """Store finished flows.

        Args:
            positions: (n, T+1, *shape), any device.

        Raises:
            ValueError: they do not fit, or are not finite.
        """
        end = self._filled + len(positions)
        if end > len(self._positions) or positions.shape[1:] != self._positions.shape[1:]:
            raise ValueError(
                f"flows of shape {tuple(positions.shape)} do not fit into "
                f"{tuple(self._positions.shape)} after {self._filled}"
            )
        if not positions.isfinite().all():
            raise ValueError("positions are not finite")
        self._positions[self._filled : end].copy_(positions)
        self._filled = end

    def finalize(self) -> None:
        """Declare the pool complete.

        Raises:
            ValueError: flows are missing.
        """
        if self._filled != len(self._positions):
            raise ValueError(f"pool has {self._filled} of {len(self._positions)} flows")
        self._complete = True

    def sample(self, batch_size: int, generator: torch.Generator) -> PoolBatch:
        """Pairs drawn uniformly with replacement; the cost depends on ``batch_size`` alone."""
        if not self._complete:
            raise ValueError("finalize() the pool before sampling from it")
        index = torch.randint(len(self), (batch_size,), generator=generator)
        flow, step = index // self.steps, index % self.steps
        x, after = self._positions[flow, step], self._positions[flow, step + 1]
        return PoolBatch(x=x, v=(after - x) / self.eta, t=step / self.steps)


def pool_bytes(config: Config, shape: tuple[int, ...]) -> int:
    """Bytes of the configured pool, known before it is built."""
    flows = config.pool.num_batches * config.sinkhorn.batch_size
    return flows * (config.flow.steps + 1) * math.prod(shape) * 4


def check_memory(config: Config, shape: tuple[int, ...], available: int | None = None) -> str:
    """What the pool will take, in one line.

    Args:
        config: the experiment.
        shape: shape of one sample.
        available: free main memory in bytes; measured when not given.

    Raises:
        UserError: it does not fit; names the number of batches that would.
    """
    needed = pool_bytes(config, shape)
    available = available_bytes() if available is None else available
    batches, n = config.pool.num_batches, config.sinkhorn.batch_size
    size = (
        f"{batches} x {n} flows of {config.flow.steps} steps, {needed:,} bytes"
        f" ({format_bytes(needed)})"
    )
    if needed > MEMORY_SHARE * available:
        fitting = int(MEMORY_SHARE * available * batches / needed)
        raise UserError(
            f"pool.num_batches = {batches}: the pool ({size}) does not fit into "
            f"{MEMORY_SHARE:.0%} of the {format_bytes(available)} of free memory; "
            + (f"--pool-batches {fitting} would" if fitting else "a smaller --sinkhorn-batch might")
        )
    return f"{size} of {format_bytes(available)} free"


def build_pool(
    config: Config,
    source: Sampler,
    target: Sampler,
    velocity: Velocity,
    device: torch.device,
) -> TrajectoryPool:
    """Algorithm 1, lines before the regression: many independent flows.

    Flow k of the pool starts from position k of both samplers, so any part can be built again.

    Args:
        config: the experiment.
        source: sampler of mu0.
        target: sampler of mu*.
        velocity: v on empirical measures.
        device: where the flows are computed; the pool stays on the CPU.

    Raises:
        UserError: a flow left the finite numbers.
    """
    n, flow = config.sinkhorn.batch_size, config.flow
    pool = TrajectoryPool(config.pool.num_batches * n, flow.steps, source.shape, flow.eta)
    for batch in tqdm(range(config.pool.num_batches), desc="pool", unit="batch"):
        source.position = target.position = batch * n
        x, y = source.sample(n).to(device), target.sample(n).to(device)
        try:
            pool.append(sinkhorn_flow(x, y, velocity, flow.steps, flow.eta))
        except (ValueError, ArithmeticError) as error:
            raise UserError(
                f"flow {batch * n} of the pool failed ({error}) with flow.eta = {flow.eta}, "
                f"sinkhorn.blur = {config.sinkhorn.blur}; try a smaller flow.eta or another blur"
            ) from error
    pool.finalize()
    return pool
