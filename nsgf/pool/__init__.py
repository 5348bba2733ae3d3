"""The trajectory pool of Algorithm 1.

``plan`` computes the size and checks that it fits; ``build`` fills the pool with flows;
``trajectories`` keeps them, in memory or on disk, and returns pairs.
"""

from nsgf.pool.build import build_pool
from nsgf.pool.plan import build_batch, flow_groups, plan_pool, pool_folder
from nsgf.pool.trajectories import PoolBatch, TrajectoryPool

__all__ = ["PoolBatch", "TrajectoryPool", "build_batch", "build_pool", "flow_groups", "plan_pool"]
__all__ += ["pool_folder"]
