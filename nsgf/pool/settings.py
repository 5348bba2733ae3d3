"""The settings and the size of a pool, and the groups of flows that are simulated together."""

import math
from dataclasses import dataclass, field

import torch

from nsgf.config.layers import Layer
from nsgf.config.schema import FlowConfig, PoolConfig, Shape, SinkhornConfig
from nsgf.sinkhorn import FLOWS
from nsgf.system.distributed import World

BUILD_BYTES = 80_000_000
"""Memory in bytes for flows simulated together on a CPU, about the size of the CPU's caches."""
BUILD_BYTES_CUDA = 4_000_000_000
"""Memory in bytes for flows simulated together on a graphics card."""
BUILD_SHARE_CUDA = 0.25
"""Largest fraction of a graphics card's memory for flows simulated together."""
SHARED_BY = 12
"""On a CPU, the number of groups of flows is a multiple of this number. So 2, 3, 4, 6 or 12
processes get whole groups."""
ALLOCATED = 10
"""Assumed number of point clouds that a flow allocates, and assumed number of matrices. The
resulting estimate is 1.4 to 2 times the measured peak."""


@dataclass(frozen=True)
class PoolSettings:
    """The sections of the configuration that determine a pool, and values that follow from them."""

    sinkhorn: SinkhornConfig
    flow: FlowConfig
    pool: PoolConfig
    shape: Shape
    """Shape of one sample."""
    content: Layer = field(default_factory=dict)
    """Plain values of all settings that determine the pool's values, by dotted key, without the
    section ``pool``. The header in a run folder stores them."""

    def pool_bytes(self, dtype: str) -> int:
        """Return the bytes of all positions in ``dtype``."""
        trajectories = self.pool.num_batches * self.sinkhorn.batch_size
        values = trajectories * (self.flow.steps + 1) * math.prod(self.shape)
        return values * getattr(torch, dtype).itemsize

    def flow_bytes(self) -> int:
        """Return about twice the peak memory of simulating one flow, in bytes."""
        n = self.sinkhorn.batch_size
        m = self.sinkhorn.targets
        matrix = FLOWS[self.flow.kind].matrix_entries(n, m)
        positions = 2 * (self.flow.steps + 1)  # the computed positions and a converted copy
        clouds = (positions * n + ALLOCATED * max(n, m)) * math.prod(self.shape)
        return 4 * (clouds + ALLOCATED * matrix)

    def groups(self, device: torch.device) -> list[range]:
        """Return the numbers of the flows in each group. The flows of a group are simulated
        together."""
        flows = range(self.pool.num_batches)
        most = self.group_size(device)
        if self.pool.build_batch != "auto":
            return [flows[first : first + most] for first in range(0, len(flows), most)]
        shared = SHARED_BY if device.type == "cpu" else 1  # a card is fastest with large groups
        count = min(len(flows), shared * -(-len(flows) // (shared * most)))
        return [World(number, count).share(flows) for number in range(count)]

    def group_size(self, device: torch.device) -> int:
        """Return the largest number of flows in a group. The number affects rounding, so it must
        not depend on the free memory or the number of processes. It depends on settings and device
        only."""
        if self.pool.build_batch != "auto":
            return min(self.pool.build_batch, self.pool.num_batches)
        budget: float = BUILD_BYTES
        if device.type == "cuda":
            memory = torch.cuda.get_device_properties(device).total_memory
            budget = min(BUILD_BYTES_CUDA, BUILD_SHARE_CUDA * memory)
        return max(1, min(self.pool.num_batches, int(budget // self.flow_bytes())))

    def header_values(self, dtype: str) -> Layer:
        """Return all settings that determine the values of a pool of type ``dtype``."""
        return {
            **self.content,
            "pool.num_batches": self.pool.num_batches,
            "pool.dtype": dtype if self.pool.dtype == "auto" else self.pool.dtype,
            "shape": list(self.shape),
        }
