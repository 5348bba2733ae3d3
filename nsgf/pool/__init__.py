"""Plan the trajectory pool, and fill it with independent flows (Algorithm 1).

``trajectories`` stores the flows, in memory or on disk, and returns pairs.
"""

import math
import time
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.config.schema import Config, Shape
from nsgf.data import Sampler
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.pool.trajectories import (
    POSITIONS,
    Header,
    PoolFile,
    TrajectoryPool,
    content_settings,
    matching_header,
    write_header,
)
from nsgf.run.folder import RunFolder
from nsgf.run.stop import Stopped
from nsgf.sinkhorn import FLOWS, Flow, build_flow
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, cause, name_setting, one_line, suggest, wrong_setting
from nsgf.system.hardware import available_bytes, free_disk_bytes, release_memory
from nsgf.system.output import format_bytes
from nsgf.training.loop import Diverged
from nsgf.training.task import Session

MEMORY_SHARE = 0.85
"""Fraction of the free memory for pool and solver. The rest is for networks and batches."""
DISK_SHARE = 0.95
"""Fraction of the free disk space for a pool. The rest is for checkpoints."""
BUILD_BYTES = 80_000_000
"""Memory in bytes for flows simulated together on a CPU: about the size of its caches."""
BUILD_BYTES_CUDA = 4_000_000_000
"""Memory in bytes for flows simulated together on a graphics card."""
BUILD_SHARE_CUDA = 0.25
"""Largest fraction of a graphics card's memory for flows simulated together."""
SHARED_BY = 12
"""On a CPU, the number of groups of flows is a multiple of this. So 2, 3, 4, 6 or 12 processes
divide no group."""
ALLOCATED = 10
"""Assumed number of clouds, and of matrices, in a flow: 1.4 to 2 times the measured peak."""


class PoolPlan(NamedTuple):
    """Type (float32 or float16) and size of the pool."""

    dtype: str
    disk_bytes: int
    """Bytes that the pool will still add to the run folder."""
    text: str
    """Description for the user, one line."""


def pool_folder(run: RunFolder, world: World) -> Path:
    """Return the folder of this process's part of the pool."""
    return run.pool if world.size == 1 else run.pool / f"part{world.rank + 1}of{world.size}"


def pool_bytes(config: Config, shape: Shape, dtype: str) -> int:
    """Return the bytes of all positions in ``dtype``."""
    trajectories = config.pool.num_batches * config.sinkhorn.batch_size
    values = trajectories * (config.flow.steps + 1) * math.prod(shape)
    return values * getattr(torch, dtype).itemsize


def flow_bytes(config: Config, shape: Shape) -> int:
    """Return about twice the peak memory of simulating one flow, in bytes."""
    n = config.sinkhorn.batch_size
    m = config.sinkhorn.targets
    matrix = FLOWS[config.flow.kind].matrix_entries(n, m)
    positions = 2 * (config.flow.steps + 1)  # the computed positions and a converted copy
    return 4 * ((positions * n + ALLOCATED * max(n, m)) * math.prod(shape) + ALLOCATED * matrix)


def flow_groups(config: Config, shape: Shape, device: torch.device) -> list[range]:
    """Return the numbers of the flows in each group, which is simulated together."""
    flows = range(config.pool.num_batches)
    most = build_batch(config, shape, device)
    if config.pool.build_batch != "auto":
        return [flows[first : first + most] for first in range(0, len(flows), most)]
    shared = SHARED_BY if device.type == "cpu" else 1  # a card is fastest with large groups
    count = min(len(flows), shared * -(-len(flows) // (shared * most)))
    return [World(number, count).share(flows) for number in range(count)]


def build_batch(config: Config, shape: Shape, device: torch.device) -> int:
    """Return the largest number of flows in a group. Because it affects rounding, it depends on
    settings and device, but not on free memory or the number of processes."""
    if config.pool.build_batch != "auto":
        return min(config.pool.build_batch, config.pool.num_batches)
    budget: float = BUILD_BYTES
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        budget = min(BUILD_BYTES_CUDA, BUILD_SHARE_CUDA * memory)
    return max(1, min(config.pool.num_batches, int(budget // flow_bytes(config, shape))))


def plan_pool(
    config: Config,
    shape: Shape,
    device: torch.device,
    run: RunFolder | None = None,
    world: World = ALONE,
) -> PoolPlan:
    """Choose the pool's type, and check that pool and solver fit. On a graphics card the solver is
    not checked, because the number of flows at a time is halved when the memory is full.

    Without ``run``, plan for a new run in ``config.out_dir``.

    Raises:
        UserError: pool or solver do not fit, or the run has a pool with other settings.
    """
    memory = available_bytes()
    solver = 0
    if device.type == "cpu":
        solver = build_batch(config, shape, device) * flow_bytes(config, shape) // 2
    if solver > MEMORY_SHARE * memory:
        raise wrong_setting(
            "sinkhorn.batch_size",
            config.sinkhorn.batch_size,
            "flows need about "
            f"{format_bytes(solver)} of memory, {format_bytes(memory)} are free; use a smaller "
            f"one, or a smaller {suggest('sinkhorn.target_batch')}",
        )
    taken = 0
    if on_disk := config.pool.storage == "disk":
        taken = sum(file.stat().st_size for file in run.pool.rglob(POSITIONS)) if run else 0
        free = free_disk_bytes(run.path if run else config.out_path)
        budget = generous = int(DISK_SHARE * free) + taken
        free += taken
    else:
        free = memory
        budget = int(MEMORY_SHARE * memory) - solver
        # images and networks need the other half of the memory
        generous = min(budget, memory // 2) if len(shape) > 1 else budget
    dtype: str = config.pool.dtype
    if run and (known := matching_header(pool_folder(run, world), config, shape)):
        dtype = known.dtype  # a resumed run must use the same values, whatever memory is free
    elif dtype == "auto":
        dtype = "float32" if pool_bytes(config, shape, "float32") <= generous else "float16"
    needed = pool_bytes(config, shape, dtype)
    place = "disk space" if on_disk else "memory"
    if needed > budget:
        fitting = max(0, config.pool.num_batches * budget // needed)
        raise wrong_setting(
            "pool.num_batches",
            config.pool.num_batches,
            "the pool needs "
            f"{format_bytes(needed)} in {dtype}, it may take {format_bytes(max(0, budget))} of the "
            f"free {place}; use {fitting}, a smaller {suggest('sinkhorn.batch_size')}, or in a run "
            f"{suggest('pool.storage', 'disk')}",
        )
    return PoolPlan(
        dtype,
        max(0, needed - taken) if on_disk else 0,
        f"{config.pool.num_batches} flows of {config.sinkhorn.batch_size} particles against "
        f"{config.sinkhorn.targets} targets, {config.flow.steps} steps each, {needed:,} bytes "
        f"({format_bytes(needed)}) of {format_bytes(free)} of {place} free, {dtype}",
    )


def build_pool(session: Session, source: Sampler, target: Sampler) -> TrajectoryPool:
    """Build the pool; complete it if an interrupted run left a part of it on the disk.

    Flows from mu0 to mu* are computed on the session's device; the pool is in main memory or on the
    disk. With several processes, each process builds a part. With ``pool.storage: memory``, the run
    folder stores only the header.

    Raises:
        Stopped: a stop was requested; a pool on disk keeps its finished flows.
        UserError: pool or solver do not fit, the folder cannot be used, or a flow diverges.
    """
    # what an earlier run left
    config = session.config
    world = session.world
    shape = source.shape
    log = session.log
    folder = pool_folder(session.run, world)
    n = config.sinkhorn.batch_size
    dtype = world.agree(plan_pool(config, shape, session.device, session.run, world).dtype)
    header = matching_header(folder, config, shape, dtype)
    header = header or Header(dtype, content_settings(config, shape, dtype))
    share = world.share(range(config.pool.num_batches))
    flows = len(share)
    flow_shape = n, config.flow.steps + 1, *shape
    # room for all positions
    file = None
    first = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_header(folder, header)
        if config.pool.storage == "disk":
            file = PoolFile(folder, header, flows, flow_shape, log.progress)
            positions = file.positions
            first = len(header.checksums)
        else:
            positions = torch.empty((flows * n, *flow_shape[1:]), dtype=getattr(torch, dtype))
    except OSError as error:
        raise wrong_setting(
            "pool.storage",
            config.pool.storage,
            f"{folder} cannot be written ({cause(error)}); "
            f"name another folder with {suggest('out_dir', 'DIR')}",
        ) from error
    pool = TrajectoryPool(positions, time_step(config.flow.steps, config.flow.step_size), first * n)
    finished = first
    if not world.any(first < flows, has_worked=True):
        log.write(f"pool: {dtype} from {folder}; complete")
        return pool
    if first:
        log.write(f"pool: continuing after {first} of {flows} flows")
    # simulate group after group; if the card is full, halve the flows at a time
    solver = build_flow(config)
    started = time.perf_counter()
    stops = [group.stop for group in flow_groups(config, shape, session.device)]
    together = stops[0]
    try:
        with log.progress("pool", flows, "flow", first) as progress:
            while world.any(finished < flows, has_worked=True) and not session.should_stop():
                if finished == flows:
                    continue  # other processes have more to do
                limits = [limit for flow, limit in header.limits if flow <= finished]
                left = stops[bisect_right(stops, share[finished])] - share[finished]
                together = min([left, *limits])
                numbers = share[finished : finished + together]
                size = len(numbers)
                before = replace(solver.report)
                try:
                    pool.append(simulate(config, source, target, solver, session.device, numbers))
                    finished += size
                    if file:
                        file.commit(finished)
                    progress.update(size)
                    continue
                except torch.cuda.OutOfMemoryError as error:
                    if size == 1:
                        raise wrong_setting(
                            "sinkhorn.batch_size",
                            n,
                            "the card's memory is full "
                            "with a single flow of the pool; use a smaller one, or a smaller "
                            f"{suggest('sinkhorn.target_batch')}",
                        ) from error
                # here the handler has freed the flows
                solver.report = before
                release_memory(session.device)
                half = size // 2
                log.write(f"pool: the card has no memory for {size} flows, trying {half}")
                # a resumed or rebuilt pool must use the same limit: rounding depends on it
                header.limits.append([finished, half])
                if not file:  # otherwise the header is written with the next flows
                    write_header(folder, header)
    finally:
        if file:
            file.save()
    # report
    done = finished - first
    seconds = max(time.perf_counter() - started, 1e-9)
    solved = f"; {solver.report}" if solver.report.solves else ""
    log.write(
        f"pool: {done} flows in {seconds:.1f} s, {done / seconds:.3g} flows/s, {together} at a "
        f"time{solved}"
    )
    if session.should_stop():
        kept = f"{finished} of {flows} flows" if file else "nothing"
        raise Stopped(f"pool: {kept} kept")
    return pool


def simulate(
    config: Config,
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
    flow = config.flow

    def clouds_of(stream: Sampler, size: int) -> Tensor:
        samples = stream.at(range(numbers.start * size, numbers.stop * size))
        return samples.to(device).unflatten(0, (-1, size))

    x = clouds_of(source, config.sinkhorn.batch_size)
    y = clouds_of(target, config.sinkhorn.targets)
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
