"""Plan the trajectory pool, and fill it with independent flows (Algorithm 1).

The module ``trajectories`` stores the flows in memory or on disk, and returns pairs for training.
"""

import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.data import Sampler
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.pool.settings import PoolSettings
from nsgf.pool.trajectories import (
    POSITIONS,
    Header,
    PoolFile,
    TrajectoryPool,
    matching_header,
    write_header,
)
from nsgf.run.folder import RunFolder
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import Flow, build_flow
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, cause, name_setting, one_line, suggest, wrong_setting
from nsgf.system.hardware import available_bytes, free_disk_bytes, release_memory
from nsgf.system.output import format_bytes
from nsgf.training.loop import Diverged
from nsgf.training.task import Session

MEMORY_SHARE = 0.85
"""Largest fraction of the free memory that pool and solver may take. Networks and batches need the
rest."""
DISK_SHARE = 0.95
"""Largest fraction of the free disk space that a pool may take. Checkpoints need the rest."""


class PoolPlan(NamedTuple):
    """Type (float32 or float16) and size of the pool."""

    dtype: str
    disk_bytes: int
    """Number of bytes that the pool will add to the run folder."""
    text: str
    """Description for the user in one line."""


def pool_folder(run: RunFolder, world: World) -> Path:
    """Return the folder of this process's part of the pool."""
    return run.pool if world.size == 1 else run.pool / f"part{world.rank + 1}of{world.size}"


def plan_pool(
    settings: PoolSettings,
    device: torch.device,
    out_dir: Path,
    run: RunFolder | None = None,
    world: World = ALONE,
) -> PoolPlan:
    """Choose the pool's type, and check that pool and solver fit into memory or on the disk. For a
    graphics card, this function does not check the solver. If the card's memory is full, the
    program simulates half as many flows at a time.

    Without ``run``, plan for a new run in ``out_dir``.

    Raises:
        UserError: the pool or the solver does not fit, or the run has a pool with different
            settings.
    """
    memory = available_bytes()
    solver = 0
    if device.type == "cpu":
        solver = settings.group_size(device) * settings.flow_bytes() // 2
    if solver > MEMORY_SHARE * memory:
        raise wrong_setting(
            "sinkhorn.batch_size",
            settings.sinkhorn.batch_size,
            "flows need about "
            f"{format_bytes(solver)} of memory, {format_bytes(memory)} are free; use a smaller "
            f"one, or a smaller {suggest('sinkhorn.target_batch')}",
        )
    taken = 0
    if on_disk := settings.pool.storage == "disk":
        taken = sum(file.stat().st_size for file in run.pool.rglob(POSITIONS)) if run else 0
        free = free_disk_bytes(run.path if run else out_dir)
        budget = generous = int(DISK_SHARE * free) + taken
        free += taken
    else:
        free = memory
        budget = int(MEMORY_SHARE * memory) - solver
        # for images, the networks need half of the memory
        generous = min(budget, memory // 2) if len(settings.shape) > 1 else budget
    dtype: str = settings.pool.dtype
    header = matching_header(pool_folder(run, world), settings) if run else None
    if header:
        dtype = header.dtype  # a resumed run must use the same type, even if less memory is free
    elif dtype == "auto":
        dtype = "float32" if settings.pool_bytes("float32") <= generous else "float16"
    needed = settings.pool_bytes(dtype)
    storage = "disk space" if on_disk else "memory"
    if needed > budget:
        fitting = max(0, settings.pool.num_batches * budget // needed)
        raise wrong_setting(
            "pool.num_batches",
            settings.pool.num_batches,
            "the pool needs "
            f"{format_bytes(needed)} in {dtype}, it may take {format_bytes(max(0, budget))} of the "
            f"free {storage}; use {fitting}, a smaller {suggest('sinkhorn.batch_size')}, or in a "
            f"run {suggest('pool.storage', 'disk')}",
        )
    return PoolPlan(
        dtype,
        max(0, needed - taken) if on_disk else 0,
        f"{settings.pool.num_batches} flows of {settings.sinkhorn.batch_size} particles against "
        f"{settings.sinkhorn.targets} targets, {settings.flow.steps} steps each, {needed:,} bytes "
        f"({format_bytes(needed)}) of {format_bytes(free)} of {storage} free, {dtype}",
    )


def build_pool(
    session: Session, settings: PoolSettings, source: Sampler, target: Sampler
) -> TrajectoryPool:
    """Build the pool. If an interrupted run has left an incomplete pool on the disk, complete it.

    The session's device computes the flows from mu0 to mu*. The pool is in main memory or on the
    disk. With several processes, each process builds a part. With ``pool.storage: memory``, the run
    folder stores only the header.

    Raises:
        Stopped: a stop was requested. A pool on disk keeps the finished flows.
        UserError: the pool or the solver does not fit, the folder cannot be used, or a flow
            diverges.
    """
    build = PoolBuild(session, settings, source, target)
    world = session.world
    if not world.any(build.finished < build.flows, has_worked=True):
        session.log.write(f"pool: {build.header.dtype} from {build.folder}; complete")
        return build.pool
    build.run()
    if session.should_stop():
        saved = f"{build.finished} of {build.flows} flows" if build.file else "nothing"
        raise Stopped(f"pool: {saved} kept")
    return build.pool


@dataclass
class PoolBuild:
    """Builds a pool, or this process's part of a pool."""

    session: Session
    settings: PoolSettings
    source: Sampler
    target: Sampler

    def __post_init__(self) -> None:
        """Open the flows that an earlier session has saved, and make room for all positions. Raise
        UserError if the pool does not fit, or the folder cannot be used."""
        session = self.session
        settings = self.settings
        world = session.world
        self.folder = pool_folder(session.run, world)
        out_dir = session.config.out_path
        plan = plan_pool(settings, session.device, out_dir, session.run, world)
        dtype = world.agree(plan.dtype)
        header = matching_header(self.folder, settings, dtype)
        self.header = header or Header(dtype, settings.header_values(dtype))
        self.share = world.share(range(settings.pool.num_batches))
        self.flows = len(self.share)
        """Number of flows of this process."""
        self.finished = 0
        """Number of finished flows of this process."""
        self.file: PoolFile | None = None
        n = settings.sinkhorn.batch_size
        flow_shape = n, settings.flow.steps + 1, *settings.shape
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_header(self.folder, self.header)
            if settings.pool.storage == "disk":
                counter = session.log.progress
                self.file = PoolFile(self.folder, self.header, self.flows, flow_shape, counter)
                positions = self.file.positions
                self.finished = len(self.header.checksums)
            else:
                shape = self.flows * n, *flow_shape[1:]
                positions = torch.empty(shape, dtype=getattr(torch, dtype))
        except OSError as error:
            raise wrong_setting(
                "pool.storage",
                settings.pool.storage,
                f"{self.folder} cannot be written ({cause(error)}); "
                f"name another folder with {suggest('out_dir', 'DIR')}",
            ) from error
        length = time_step(settings.flow.steps, settings.flow.step_size)
        self.pool = TrajectoryPool(positions, length, self.finished * n)
        self.solver = build_flow(settings.flow.kind, settings.sinkhorn)

    def run(self) -> None:
        """Simulate the flows, many at a time, until all flows are finished or a stop is requested.
        If the card's memory is full, simulate half as many flows at a time. Log the result."""
        session = self.session
        log = session.log
        first = self.finished
        if first:
            log.write(f"pool: continuing after {first} of {self.flows} flows")
        started = time.perf_counter()
        stops = [group.stop for group in self.settings.groups(session.device)]
        together = stops[0]
        try:
            with log.progress("pool", self.flows, "flow", first) as progress:
                while self._has_work() and not session.should_stop():
                    if self.finished == self.flows:
                        continue  # other processes still have flows to simulate
                    limits = [limit for flow, limit in self.header.limits if flow <= self.finished]
                    next_flow = self.share[self.finished]
                    group = stops[bisect_right(stops, next_flow)] - next_flow
                    together = min([group, *limits])
                    if size := self._add_flows(together):
                        progress.update(size)
        finally:
            if self.file:
                self.file.save()
        done = self.finished - first
        seconds = max(time.perf_counter() - started, 1e-9)
        solved = f"; {self.solver.report}" if self.solver.report.solves else ""
        log.write(
            f"pool: {done} flows in {seconds:.1f} s, {done / seconds:.3g} flows/s, {together} at a "
            f"time{solved}"
        )

    def _has_work(self) -> bool:
        """Whether any process has flows to simulate."""
        return self.session.world.any(self.finished < self.flows, has_worked=True)

    def _add_flows(self, together: int) -> int:
        """Simulate the next flows, and return their number. If the card has too little memory,
        return 0. The next call then tries fewer flows. Raise UserError if the memory is too small
        for a single flow."""
        session = self.session
        numbers = self.share[self.finished : self.finished + together]
        size = len(numbers)
        before = replace(self.solver.report)
        try:
            flows = simulate(
                self.settings, self.source, self.target, self.solver, session.device, numbers
            )
            self.pool.append(flows)
            self.finished += size
            if self.file:
                self.file.commit(self.finished)
            return size
        except torch.cuda.OutOfMemoryError as error:
            if size == 1:
                raise wrong_setting(
                    "sinkhorn.batch_size",
                    self.settings.sinkhorn.batch_size,
                    "the card's memory is full "
                    "with a single flow of the pool; use a smaller one, or a smaller "
                    f"{suggest('sinkhorn.target_batch')}",
                ) from error
        # leaving the except block has freed the flows
        self.solver.report = before
        release_memory(session.device)
        half = size // 2
        session.log.write(f"pool: the card has no memory for {size} flows, trying {half}")
        # a resumed or rebuilt pool must use the same limit, because the limit affects rounding
        self.header.limits.append([self.finished, half])
        if not self.file:  # a pool on disk writes the header with the next flows
            write_header(self.folder, self.header)
        return 0


def simulate(
    settings: PoolSettings,
    source: Sampler,
    target: Sampler,
    solver: Flow,
    device: torch.device,
    numbers: range,
) -> Tensor:
    """Return the trajectories of the flows with these numbers.  (len(numbers) n, T+1, *shape)

    Flow k uses the source samples k n to (k + 1) n - 1 and the target samples k m to (k + 1) m - 1,
    so any part of the pool can be built again.

    Raises:
        Diverged: a flow diverges, or the blur is too small for float32.
    """
    flow = settings.flow

    def clouds_of(stream: Sampler, size: int) -> Tensor:
        samples = stream.at(range(numbers.start * size, numbers.stop * size))
        return samples.to(device).unflatten(0, (-1, size))

    x = clouds_of(source, settings.sinkhorn.batch_size)
    y = clouds_of(target, settings.sinkhorn.targets)
    try:
        return run_flow(solver, x, y, step_sizes(flow.steps, flow.step_size)).flatten(0, 1)
    except (UserError, ValueError, ArithmeticError) as error:
        remedy = f"with {name_setting('flow.eta', flow.eta)}: try a smaller {suggest('flow.eta')}"
        if "blur" in solver.uses:
            remedy += f" or a larger {suggest('sinkhorn.blur')}"
        raise Diverged(
            f"flows {numbers.start} to {numbers.stop - 1} of the pool failed ({one_line(error)}); "
            f"{remedy}"
        ) from error
