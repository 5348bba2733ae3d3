"""The trajectory pool of Algorithm 1.

``budget`` says what a pool takes and where it fits, before anything is computed; ``build`` fills it
with flows; ``trajectories`` keeps it and hands out pairs; ``files`` is its storage on disk.
"""

from nsgf.pool.build import build_pool
from nsgf.pool.plan import build_batch, check_pool, plan_pool, pool_bytes
from nsgf.pool.trajectories import PoolBatch, TrajectoryPool

__all__ = [
    "PoolBatch",
    "TrajectoryPool",
    "build_batch",
    "build_pool",
    "check_pool",
    "plan_pool",
    "pool_bytes",
]
