"""Compute the size of pool and solver, and compare it with free memory and disk space."""

import math
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.config.schema import Config
from nsgf.pool.trajectories import POSITIONS, matching_header
from nsgf.run.folder import RunFolder
from nsgf.sinkhorn import FLOWS
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, name_setting, suggest
from nsgf.system.hardware import available_bytes, free_disk_bytes
from nsgf.system.output import format_bytes

MEMORY_SHARE = 0.85
"""Share of the free memory that pool and solver may take; the rest is for networks and batches."""
DISK_SHARE = 0.95
"""Share of the free disk space that a pool may take; the rest is for checkpoints."""
BUILD_BYTES = 80 * 10**6
"""Memory for flows simulated together on a CPU: about its caches."""
BUILD_BYTES_CUDA = 4 * 10**9
"""Memory for flows simulated together on a graphics card."""
BUILD_SHARE_CUDA = 0.25
"""Largest share of the graphics card's memory that flows simulated together may take."""
SHARED_BY = 12
"""On a CPU, the number of groups of flows is a multiple of it, so the parts of 2, 3, 4, 6 or 12
processes divide no group."""
ALLOCATED = 10
"""Number of clouds, and of matrices, that a flow allocates: 1.4 to 2 times the measured peak."""


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


def pool_bytes(config: Config, shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of all positions in ``dtype``."""
    itemsize: int = getattr(torch, dtype).itemsize
    trajectories = config.pool.num_batches * config.sinkhorn.batch_size
    return trajectories * (config.flow.steps + 1) * math.prod(shape) * itemsize


def flow_bytes(config: Config, shape: tuple[int, ...]) -> int:
    """Return about twice the peak memory of simulating one flow, in bytes."""
    n = config.sinkhorn.batch_size
    m = config.sinkhorn.targets
    matrix = FLOWS[config.flow.kind].matrix_entries(n, m)
    positions = 2 * (config.flow.steps + 1)  # the computed positions and a converted copy
    return 4 * ((positions * n + ALLOCATED * max(n, m)) * math.prod(shape) + ALLOCATED * matrix)


def flow_groups(config: Config, shape: tuple[int, ...], device: torch.device) -> list[range]:
    """Return the numbers of the flows of each group; flows of a group are simulated together."""
    flows = range(config.pool.num_batches)
    most = build_batch(config, shape, device)
    if config.pool.build_batch != "auto":
        return [flows[first : first + most] for first in range(0, len(flows), most)]
    shared = SHARED_BY if device.type == "cpu" else 1  # a card is fastest with large groups
    count = min(len(flows), shared * -(-len(flows) // (shared * most)))
    return [World(number, count).share(flows) for number in range(count)]


def build_batch(config: Config, shape: tuple[int, ...], device: torch.device) -> int:
    """Return how many flows a group may have. It depends on settings and device but not on free
    memory or the number of processes, because it affects rounding."""
    if config.pool.build_batch != "auto":
        return min(config.pool.build_batch, config.pool.num_batches)
    budget: float = BUILD_BYTES
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        budget = min(BUILD_BYTES_CUDA, BUILD_SHARE_CUDA * memory)
    return max(1, min(config.pool.num_batches, int(budget // flow_bytes(config, shape))))


def plan_pool(
    config: Config,
    shape: tuple[int, ...],
    device: torch.device,
    run: RunFolder | None = None,
    world: World = ALONE,
) -> PoolPlan:
    """Choose the pool's type, and check that pool and solver fit. On a graphics card the solver is
    not checked: the flows at a time are halved when its memory is full.

    Without ``run``, plan for a new run in ``config.out_dir``.

    Raises:
        UserError: it does not fit, or the run has a pool with other settings.
    """
    memory = available_bytes()
    solver = 0
    if device.type == "cpu":
        solver = build_batch(config, shape, device) * flow_bytes(config, shape) // 2
    if solver > MEMORY_SHARE * memory:
        raise UserError(
            f"{name_setting('sinkhorn.batch_size', config.sinkhorn.batch_size)}: flows need about "
            f"{format_bytes(solver)} of memory, {format_bytes(memory)} are free; use a smaller "
            f"one, or a smaller {suggest('sinkhorn.target_batch')}"
        )
    taken = 0
    if on_disk := config.pool.storage == "disk":
        taken = sum(file.stat().st_size for file in run.pool.rglob(POSITIONS)) if run else 0
        free = free_disk_bytes(run.path if run else Path(config.out_dir).expanduser())
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
        raise UserError(
            f"{name_setting('pool.num_batches', config.pool.num_batches)}: the pool needs "
            f"{format_bytes(needed)} in {dtype}, it may take {format_bytes(max(0, budget))} of the "
            f"free {place}; use {fitting}, a smaller {suggest('sinkhorn.batch_size')}, or in a run "
            f"{suggest('pool.storage', 'disk')}"
        )
    text = (
        f"{config.pool.num_batches} flows of {config.sinkhorn.batch_size} particles against "
        f"{config.sinkhorn.targets} targets, {config.flow.steps} steps each, {needed:,} bytes "
        f"({format_bytes(needed)}) of {format_bytes(free)} of {place} free, {dtype}"
    )
    return PoolPlan(dtype, max(0, needed - taken) if on_disk else 0, text)
