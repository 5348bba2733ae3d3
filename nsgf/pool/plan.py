"""What a pool takes and where it fits, known before anything is computed.

A *flow* is the simulation of one mini-batch, a *trajectory* the path of one of its particles. The
pool holds ``pool.num_batches`` flows of ``sinkhorn.batch_size`` trajectories each.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.config.leaves import fixed_values
from nsgf.config.schema import Config
from nsgf.pool.storage import (
    SECTIONS,
    differences,
    free_disk_bytes,
    read_header,
    refuse_mismatch,
    taken_bytes,
)
from nsgf.run.folder import RunFolder
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes

MEMORY_SHARE = 0.85
"""Share of the free memory that pool and solver may take; the rest is for networks and batches."""
DISK_SHARE = 0.95
"""Share of the free disk space that a pool may take; the rest is for checkpoints."""
BUILD_BYTES = 80 * 10**6
"""Memory that flows under construction may take on a CPU; more no longer stays near its caches."""
BUILD_BYTES_CUDA, BUILD_SHARE_CUDA = 4 * 10**9, 0.25
"""The same on a graphics card, and the largest share of its memory."""
CLOUDS, MATRICES = 10, 10
"""Clouds and matrices that one flow takes besides its positions; generous, for the choice of how
many flows are simulated together. Each counts as the larger of n particles and m targets."""
SOLVER_CLOUDS, SOLVER_MATRICES = 4, {"batched": 5, "geomloss": 8}
"""The same as measured, for what must fit. geomloss compares the targets with each other, too."""

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class PoolPlan(NamedTuple):
    """Where the pool goes and what it takes."""

    dtype: str
    """float32 or float16."""
    nbytes: int
    """Bytes of all positions."""
    text: str
    """One line for people."""


def pool_folder(run: RunFolder, world: World) -> Path:
    """Folder of this process's part of the pool."""
    if world.size == 1:
        return run.pool
    return run.pool / f"part{world.rank + 1}of{world.size}"


def pool_bytes(config: Config, shape: tuple[int, ...], dtype: str | None = None) -> int:
    """Bytes of the configured pool, in ``pool.dtype`` unless told, with auto counted as float32."""
    name = dtype or config.pool.dtype
    itemsize = DTYPES.get(name, torch.float32).itemsize
    trajectories = config.pool.num_batches * config.sinkhorn.batch_size
    return trajectories * (config.flow.steps + 1) * math.prod(shape) * itemsize


def solver_bytes(config: Config, shape: tuple[int, ...], device: torch.device) -> int:
    """Bytes that the flows simulated together take while the pool is built."""
    one = _flow_bytes(config, shape, config.sinkhorn.batch_size, config.sinkhorn.targets)
    return build_batch(config, shape, device) * one


def plan_pool(
    config: Config,
    shape: tuple[int, ...],
    device: torch.device,
    folder: Path | None = None,
    available: int | None = None,
) -> PoolPlan:
    """Choose type and place of the pool, and check that pool and solver fit.

    A pool that ``folder`` already knows keeps its type under ``pool.dtype: auto``, whatever is free
    now: a resumed run must see the same values.

    Args:
        config: the experiment.
        shape: shape of one sample.
        device: where the flows are computed.
        folder: the run's folder of the pool; None: a new run in ``config.out_dir``.
        available: free bytes of the storage; measured when not given.

    Raises:
        UserError: it does not fit, or the folder holds a pool of other settings.
    """
    on_disk = config.pool.storage == "disk"
    if available is None:
        place = folder or Path(config.out_dir).expanduser()
        available = free_disk_bytes(place) if on_disk else available_bytes()
    _check_solver_memory(config, shape, device, None if on_disk else available)
    taken = taken_bytes(folder) if on_disk and folder else 0
    budget = int((DISK_SHARE if on_disk else MEMORY_SHARE) * available) + taken
    available += taken
    if not on_disk and device.type == "cpu":
        budget -= solver_bytes(config, shape, device)
    dtype = _known_dtype(config, shape, folder)
    if dtype is None:
        # an image set and its networks need the other half of the memory
        generous = budget if on_disk or len(shape) == 1 else min(budget, available // 2)
        dtype = "float32" if pool_bytes(config, shape, "float32") <= generous else "float16"
    needed = pool_bytes(config, shape, dtype)
    n, m = config.sinkhorn.batch_size, config.sinkhorn.target_batch
    size = (
        f"{config.pool.num_batches} flows of {n} particles{f' against {m} targets' if m else ''}, "
        f"{config.flow.steps} steps each, {needed:,} bytes ({format_bytes(needed)})"
    )
    if needed > budget:
        raise UserError(_does_not_fit(config, shape, f"{size} in {dtype}", budget, available))
    what = "disk space" if on_disk else "memory"
    text = f"{size} of {format_bytes(available)} of {what} free, {dtype}"
    return PoolPlan(dtype, needed, text)


def content_settings(config: Config, shape: tuple[int, ...], dtype: str) -> dict[str, object]:
    """Everything that determines the values of a pool, by dotted key."""
    return {
        **fixed_values(config, SECTIONS),
        "pool.num_batches": config.pool.num_batches,
        "pool.dtype": dtype if config.pool.dtype == "auto" else config.pool.dtype,
        "shape": list(shape),
    }


def build_batch(config: Config, shape: tuple[int, ...], device: torch.device) -> int:
    """Flows simulated together: ``pool.build_batch``, or as many as the memory budget allows.

    Depends on the settings and the kind of device alone, never on what happens to be free.
    """
    wanted = config.pool.build_batch
    if wanted != "auto":
        return min(wanted, config.pool.num_batches)
    budget: float = BUILD_BYTES
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        budget = min(BUILD_BYTES_CUDA, BUILD_SHARE_CUDA * memory)
    n, values = config.sinkhorn.batch_size, math.prod(shape)
    larger = max(n, config.sinkhorn.targets)
    positions = 2 * (config.flow.steps + 1)  # as computed, and as stacked or converted
    flow = 4 * ((positions * n + CLOUDS * larger) * values + MATRICES * n * larger)
    return max(1, min(config.pool.num_batches, int(budget // flow)))


def flow_flags(config: Config) -> list[str]:
    """The flags that set how large a flow is."""
    targets = ["--sinkhorn.target_batch"] if config.sinkhorn.target_batch else []
    return ["--sinkhorn-batch", *targets]


def _flow_bytes(config: Config, shape: tuple[int, ...], n: int, m: int) -> int:
    """Bytes of one flow of n particles and m targets under construction."""
    solver, larger = config.sinkhorn.solver, max(n, m)
    clouds = (config.flow.steps + 1) * n + SOLVER_CLOUDS * larger
    rows = larger if solver == "geomloss" else n
    return 4 * (clouds * math.prod(shape) + SOLVER_MATRICES[solver] * rows * larger)


def _fitting(config: Config, shape: tuple[int, ...], budget: int) -> str:
    """The flags with which a single flow would fit, each by itself."""
    n, m = config.sinkhorn.batch_size, config.sinkhorn.target_batch
    particles = _largest(n, budget, lambda k: _flow_bytes(config, shape, k, m or k))
    targets = _largest(m or 0, budget, lambda k: _flow_bytes(config, shape, n, k))
    fitting = [f"--sinkhorn-batch {particles}"] if particles else []
    fitting += [f"--sinkhorn.target_batch {targets}"] if targets else []
    return " or ".join(fitting) or "smaller " + " and ".join(flow_flags(config))


def _largest(most: int, budget: int, nbytes: Callable[[int], int]) -> int:
    """The largest number below ``most`` that takes at most ``budget``; 0: not even one does."""
    return bisect_right(range(1, most), budget, key=nbytes)


def _check_solver_memory(
    config: Config, shape: tuple[int, ...], device: torch.device, available: int | None
) -> None:
    """Compare what the solver takes with the card's memory, or with main memory.

    Raises:
        UserError: it does not fit.
    """
    if device.type == "cuda":
        free, where = torch.cuda.mem_get_info(device)[0], f"memory of {device}"
    else:
        free, where = available_bytes() if available is None else available, "main memory"
    needed, budget = solver_bytes(config, shape, device), int(MEMORY_SHARE * free)
    if needed <= budget:
        return
    together, sinkhorn = build_batch(config, shape, device), config.sinkhorn
    n, m = sinkhorn.batch_size, sinkhorn.targets
    targets = f", sinkhorn.target_batch = {m}" if sinkhorn.target_batch else ""
    what = "a flow needs" if together == 1 else f"{together} flows together need"
    affordable = budget * together // needed
    remedy = f"--pool.build_batch {affordable}" if affordable else _fitting(config, shape, budget)
    raise UserError(
        f"sinkhorn.batch_size = {n}{targets}: the transport plans are {n} x {m} matrices, and "
        f"{what} about {format_bytes(needed)} for them, more than {MEMORY_SHARE:.0%} of the "
        f"{format_bytes(free)} of free {where}; try {remedy}"
    )


def _known_dtype(config: Config, shape: tuple[int, ...], folder: Path | None) -> str | None:
    """The type that settings or the pool in ``folder`` demand; None: free to choose.

    Raises:
        UserError: the folder holds a pool of other settings.
    """
    known = read_header(folder) if folder else None
    if known:
        settings = content_settings(config, shape, known["dtype"])
        if config.pool.storage == "disk":
            refuse_mismatch(known, folder, settings)
        if not differences(known, settings):
            return str(known["dtype"])
    return None if config.pool.dtype == "auto" else config.pool.dtype


def _does_not_fit(
    config: Config, shape: tuple[int, ...], size: str, budget: int, available: int
) -> str:
    """The message for a pool that does not fit, with the settings that would, if any."""
    on_disk = config.pool.storage == "disk"
    smallest = pool_bytes(config, shape, "float16")
    fitting = int(budget * config.pool.num_batches / smallest)
    remedies = []
    if config.pool.dtype == "float32" and smallest <= budget:
        remedies.append("--pool.dtype float16 would")
    elif config.pool.dtype == "float32":
        fitting = fitting // 2
    if fitting < config.pool.num_batches and fitting:
        remedies.append(f"--pool-batches {fitting} would")
    if not fitting:
        remedies.append("a smaller --sinkhorn-batch might")
    remedies.append("--out-dir names another disk" if on_disk else "--pool.storage disk needs none")
    what = "disk space (pool.storage = disk)" if on_disk else "memory (pool.storage = memory)"
    share = DISK_SHARE if on_disk else MEMORY_SHARE
    return (
        f"pool.num_batches = {config.pool.num_batches}: the pool ({size}) does not fit into "
        f"{share:.0%} of the {format_bytes(available)} of free {what}; " + "; ".join(remedies)
    )
