"""Phase 1: the velocity network v_theta of the Sinkhorn gradient flow (Algorithm 1)."""

import torch
from torch import Tensor, nn

from nsgf.config.layers import Layer, fixed_values
from nsgf.data import INDICES, Data, LabelDropout, PointSampler, class_labels
from nsgf.phases.base import Phase, starting_network
from nsgf.pool import build_pool, plan_pool
from nsgf.pool.ends import ENDS, pool_ends
from nsgf.pool.settings import PoolSettings
from nsgf.pool.trajectories import POOL_SECTIONS, TrajectoryPool, drop_positions
from nsgf.run.folder import RunFolder
from nsgf.system.distributed import World, check_shares
from nsgf.system.files import write_text
from nsgf.system.hardware import release_memory
from nsgf.system.output import format_bytes
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Batch, Drawn, Session, Task


class NSGFTask(Task):
    """Regression of v_theta(X^t, t/T) on the pool's velocities. Pairs are drawn uniformly with
    replacement. ``labels``: classes of the pool's trajectories, int32, (F,), or None."""

    def __init__(
        self,
        model: nn.Module,
        pool: TrajectoryPool,
        seed: int,
        labels: Tensor | None = None,
        classes: int = 0,
    ) -> None:
        self.model = model
        self.pool = pool
        self._indices = PointSampler(INDICES, derive_seed(seed, "nsgf", "batches"))
        self._labels = labels
        self._dropout = LabelDropout(classes, derive_seed(seed, "nsgf", "labels"))

    def draw(self, positions: range) -> Drawn:
        indices = self._indices.at(positions)
        pairs = self.pool.pairs(indices)
        if self._labels is None:
            return pairs
        labels = self._labels.index_select(0, self.pool.particles(indices))
        return *pairs, *self._dropout.at(positions, labels)

    def batch(self, *drawn: Tensor) -> Batch:
        x, v, t, *labels = drawn
        return Batch((x, t, *labels), v)


class NSGF(Phase):
    """Fill the trajectory pool with flows, and train v_theta on their velocities."""

    name = "nsgf"
    title = "gradient flow"
    reads = ("sinkhorn", "flow", "pool")
    follows = (*Phase.follows, *reads)

    @property
    def pool_settings(self) -> PoolSettings:
        """The settings of the pool."""
        config = self.config
        content = fixed_values(config, POOL_SECTIONS)
        return PoolSettings(config.sinkhorn, config.flow, config.pool, self.target.shape, content)

    def task(self, session: Session, data: Data) -> Task:
        config = self.config
        target = data.target_by_class("pool", run=config.sinkhorn.targets)
        source = data.source_by_class("pool", run=config.sinkhorn.batch_size)
        pool = build_pool(session, self.pool_settings, source, target)
        release_memory(session.device)
        further = data.target_by_class("pool", "ends", run=config.sinkhorn.targets)
        ends = None
        if session.world.is_main and not session.stop.reason:
            ends = pool_ends(self.pool_settings, pool, target, further, data.count)
        if ends:
            text = ends.describe(config.sinkhorn.blur)
            session.log.write(f"pool: {text}")
            write_text(session.run.pool / ENDS, text)
        labels = None
        if data.classes:
            n = config.sinkhorn.batch_size
            share = session.world.share(range(config.pool.num_batches))
            labels = class_labels(range(share.start * n, share.stop * n), data.classes, n)
        task = NSGFTask(starting_network(self, session), pool, config.seed, labels, data.classes)
        task.reads_disk = config.pool.storage == "disk"
        return task

    def plan(self, device: torch.device, run: RunFolder | None, world: World) -> tuple[str, int]:
        check_shares("pool.num_batches", self.config.pool.num_batches, world.size)
        pool = plan_pool(self.pool_settings, device, self.config.out_path, run, world)
        return f"pool: {pool.text}", pool.disk_bytes

    def clean(self, session: Session) -> None:
        """Remove the pool from the disk, because later phases do not need it."""
        session.world.wait()
        if session.world.is_main and (freed := drop_positions(session.run.pool)):
            session.log.write(f"pool: removed from the disk ({format_bytes(freed)})")

    def shortened(self, device: torch.device) -> tuple[Layer, float]:
        flows = self.pool_settings.group_size(device)
        layer = {
            "pool.num_batches": flows,
            "pool.storage": "memory",
            "pool.build_batch": flows,
        }
        return layer, self.config.pool.num_batches / flows
