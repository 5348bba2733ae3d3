"""Phase 1: the velocity network v_theta of the Sinkhorn gradient flow (Algorithm 1)."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config
from nsgf.data import Data, PointSampler, RandomIndices, data_shape
from nsgf.phases.base import Phase, PhasePlan, Preparation
from nsgf.pool import TrajectoryPool, build_batch, build_pool, plan_pool, pool_folder
from nsgf.pool.build import Simulation
from nsgf.pool.storage import drop_positions, taken_bytes
from nsgf.run.folder import RunFolder
from nsgf.run.session import Session
from nsgf.sampling.sampler import NSGFSteps
from nsgf.sinkhorn import build_solver, check_solver
from nsgf.system.distributed import World
from nsgf.system.hardware import format_bytes, release_memory
from nsgf.system.output import show
from nsgf.system.seeding import derive_seed
from nsgf.training.task import Batch, Task


class NSGFTask(Task):
    """v_theta(X^t, t/T) regresses the pool's velocities."""

    def __init__(
        self, model: nn.Module, pool: TrajectoryPool, seed: int, *, reads_disk: bool = False
    ) -> None:
        """Pairs come from ``pool``, uniformly with replacement; ``seed`` is the run's."""
        self.model, self.pool, self.reads_disk = model, pool, reads_disk
        self._indices = PointSampler(RandomIndices(), derive_seed(seed, "nsgf", "batches"))

    def draw(self, positions: range) -> tuple[Tensor, ...]:
        return self.pool.pairs(self._indices.at(positions))

    def batch(self, *drawn: Tensor) -> Batch:
        x, v, t = drawn
        return Batch((x, t), v)


class NSGF(Phase):
    """Sinkhorn flows fill the trajectory pool, v_theta learns their velocities."""

    name = "nsgf"
    leg = NSGFSteps
    follows = ("seed", "data", "sinkhorn", "flow", "pool", "model")

    def task(self, session: Session, data: Data) -> Task:
        config = session.config
        pool = build_pool(session, data.source("pool"), data.target("pool"))
        release_memory(session.device)
        on_disk = config.pool.storage == "disk"
        return NSGFTask(self.start(config, session.device), pool, config.seed, reads_disk=on_disk)

    def plan(
        self, config: Config, device: torch.device, run: RunFolder | None, world: World
    ) -> PhasePlan:
        check_solver(config.sinkhorn, device)
        folder = pool_folder(run, world) if run else None
        pool = plan_pool(config, data_shape(config.data), device, folder)
        disk_bytes = 0
        if config.pool.storage == "disk":
            disk_bytes = max(0, pool.nbytes - (taken_bytes(folder) if folder else 0))
        return PhasePlan((f"pool: {pool.text}",), disk_bytes)

    def clean(self, session: Session) -> None:
        """Free the disk of the pool; nothing else needs it."""
        session.world.wait()
        if session.world.is_main and (freed := drop_positions(session.run.pool)):
            session.tracker.log(
                f"pool: removed from the disk ({format_bytes(freed)}); a longer phase 1 builds it "
                "again"
            )

    def shared_counts(self, config: Config) -> dict[str, int]:
        return {**super().shared_counts(config), "pool.num_batches": config.pool.num_batches}

    def preparations(self, config: Config, device: torch.device) -> tuple[Preparation, ...]:
        data = Data(replace(config.data, fake=True), config.seed, device)
        together = most = build_batch(config, data.shape, device)
        source, target = data.source("preflight"), data.target("preflight")
        again = "" if config.pool.storage == "disk" else "--pool.storage disk"

        def build() -> list[Tensor]:
            """All of them, in parts that fit."""
            nonlocal most
            solver = build_solver(config.sinkhorn)  # a plan for elsewhere needs no package for it
            simulation = Simulation(config, source, target, solver, device)
            parts: list[Tensor] = []
            start = 0
            while start < together:
                numbers = range(start, min(start + most, together))
                if simulation.passed(numbers, lambda flows: parts.append(flows.cpu())):
                    start = numbers.stop
                else:
                    most = simulation.fewer(len(numbers), show)
            return parts

        return (Preparation("pool", build, config.pool.num_batches / together, again),)
