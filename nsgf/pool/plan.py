"""Size of the pool and of its solver, checked against free memory and disk space.

A *flow* is the simulation of one mini-batch, a *trajectory* the path of one of its particles. The
pool holds ``pool.num_batches`` flows of ``sinkhorn.batch_size`` trajectories each.
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.config.leaves import fixed_values
from nsgf.config.schema import Config
from nsgf.pool.storage import (
    SECTIONS,
    differences,
    read_header,
    refuse_mismatch,
    taken_bytes,
)
from nsgf.run.folder import RunFolder
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes, free_disk_bytes

MEMORY_SHARE = 0.85
"""Share of the free memory that pool and solver may take; the rest is for networks and batches."""
DISK_SHARE = 0.95
"""Share of the free disk space that a pool may take; the rest is for checkpoints."""
BUILD_BYTES = 80 * 10**6
"""Memory of the flows that are simulated together on a CPU, about the size of its caches."""
BUILD_BYTES_CUDA, BUILD_SHARE_CUDA = 4 * 10**9, 0.25
"""The same on a graphics card, and the largest share of its memory."""
CLOUDS, MATRICES = 10, 10
"""Clouds and matrices of one flow, an upper bound for the number of flows together."""
SOLVER_CLOUDS, SOLVER_MATRICES = 4, {"batched": 5, "geomloss": 8}
"""Clouds and matrices as measured, for the check that a flow fits."""

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class PoolPlan(NamedTuple):
    """Type and size of the pool."""

    dtype: str
    """float32 or float16."""
    nbytes: int
    """Bytes of all positions."""
    text: str
    """A line for the user."""


def pool_folder(run: RunFolder, world: World) -> Path:
    """Return the folder of this process's part of the pool."""
    if world.size == 1:
        return run.pool
    return run.pool / f"part{world.rank + 1}of{world.size}"


def pool_bytes(config: Config, shape: tuple[int, ...], dtype: str | None = None) -> int:
    """Return the bytes of all positions in ``dtype``, by default ``pool.dtype`` with auto as
    float32."""
    itemsize = DTYPES.get(dtype or config.pool.dtype, torch.float32).itemsize
    trajectories = config.pool.num_batches * config.sinkhorn.batch_size
    return trajectories * (config.flow.steps + 1) * math.prod(shape) * itemsize


def solver_bytes(config: Config, shape: tuple[int, ...], device: torch.device) -> int:
    """Return the bytes of the flows that are simulated together, with the solver's matrices."""
    n, m = config.sinkhorn.batch_size, config.sinkhorn.targets
    larger = max(n, m)
    clouds = (config.flow.steps + 1) * n + SOLVER_CLOUDS * larger
    rows = larger if config.sinkhorn.solver == "geomloss" else n
    matrices = SOLVER_MATRICES[config.sinkhorn.solver] * rows * larger
    return build_batch(config, shape, device) * 4 * (clouds * math.prod(shape) + matrices)


def plan_pool(
    config: Config,
    shape: tuple[int, ...],
    device: torch.device,
    folder: Path | None = None,
    available: int | None = None,
) -> PoolPlan:
    """Choose the pool's type, and check that pool and solver fit.

    On a CPU the solver shares the memory with the pool. On a graphics card nothing is computed
    beforehand: flows that do not fit are halved while the pool is built.

    Args:
        config: the experiment.
        shape: shape of one sample.
        device: where the flows are computed.
        folder: the run's folder of the pool; None: a new run in ``config.out_dir``.
        available: free bytes of the storage; measured by default.

    Raises:
        UserError: it does not fit, or the folder holds a pool of other settings.
    """
    on_disk = config.pool.storage == "disk"
    if available is None:
        place = folder or Path(config.out_dir).expanduser()
        available = free_disk_bytes(place) if on_disk else available_bytes()
    solver = solver_bytes(config, shape, device) if device.type == "cpu" else 0
    memory = available_bytes() if on_disk else available
    if solver > MEMORY_SHARE * memory:
        raise UserError(_solver_too_large(config, solver, memory))
    if on_disk:
        taken = taken_bytes(folder) if folder else 0
        budget = generous = int(DISK_SHARE * available) + taken
        available += taken
    else:
        budget = generous = int(MEMORY_SHARE * available) - solver
        if len(shape) > 1:  # an image set and its networks need the other half of the memory
            generous = min(budget, available // 2)
    dtype = _known_dtype(config, shape, folder)
    if dtype is None:
        dtype = "float32" if pool_bytes(config, shape, "float32") <= generous else "float16"
    needed = pool_bytes(config, shape, dtype)
    if needed > budget:
        raise UserError(_pool_too_large(config, dtype, needed, budget))
    n, m = config.sinkhorn.batch_size, config.sinkhorn.target_batch
    text = (
        f"{config.pool.num_batches} flows of {n} particles{f' against {m} targets' if m else ''}, "
        f"{config.flow.steps} steps each, {needed:,} bytes ({format_bytes(needed)}) of "
        f"{format_bytes(available)} of {'disk space' if on_disk else 'memory'} free, {dtype}"
    )
    return PoolPlan(dtype, needed, text)


def content_settings(config: Config, shape: tuple[int, ...], dtype: str) -> dict[str, object]:
    """Return all settings that determine the values of a pool, by dotted key."""
    return {
        **fixed_values(config, SECTIONS),
        "pool.num_batches": config.pool.num_batches,
        "pool.dtype": dtype if config.pool.dtype == "auto" else config.pool.dtype,
        "shape": list(shape),
    }


def build_batch(config: Config, shape: tuple[int, ...], device: torch.device) -> int:
    """Return the number of flows that are simulated together.

    ``pool.build_batch``, or as many as fit a fixed budget. Depends only on the settings and the
    device, not on what happens to be free: flows that are computed together are rounded together.
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


def _known_dtype(config: Config, shape: tuple[int, ...], folder: Path | None) -> str | None:
    """Return the type that the settings or the pool in ``folder`` demand; None if it is free.

    A resumed run must see the same values, whatever is free now.
    """
    known = read_header(folder) if folder else None
    if known:
        settings = content_settings(config, shape, known["dtype"])
        if config.pool.storage == "disk":
            refuse_mismatch(known, folder, settings)
        if not differences(known, settings):
            return str(known["dtype"])
    return None if config.pool.dtype == "auto" else config.pool.dtype


def _solver_too_large(config: Config, needed: int, free: int) -> str:
    sinkhorn = config.sinkhorn
    return (
        f"sinkhorn.batch_size = {sinkhorn.batch_size}: transport plans of {sinkhorn.batch_size} x "
        f"{sinkhorn.targets} need about {format_bytes(needed)} of memory, {format_bytes(free)} are "
        "free; use a smaller --sinkhorn-batch, --sinkhorn.target_batch or --pool.build_batch"
    )


def _pool_too_large(config: Config, dtype: str, needed: int, budget: int) -> str:
    on_disk = config.pool.storage == "disk"
    fitting = config.pool.num_batches * budget // needed
    remedies = [f"--pool-batches {fitting}" if fitting > 0 else "a smaller --sinkhorn-batch"]
    if dtype == "float32":
        remedies.append("--pool.dtype float16")
    remedies.append("--out-dir on another disk" if on_disk else "--pool.storage disk")
    return (
        f"pool.num_batches = {config.pool.num_batches}: the pool needs {format_bytes(needed)} in "
        f"{dtype}, it may take {format_bytes(max(0, budget))} of the free "
        f"{'disk space' if on_disk else 'memory'}; use {' or '.join(remedies)}"
    )
