"""What a pool takes, and where it fits: known before anything is computed."""

import math
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.config.leaves import is_free, leaves
from nsgf.config.schema import Config
from nsgf.pool.storage import free_disk_bytes, read_header, refuse_mismatch
from nsgf.system.errors import UserError
from nsgf.system.hardware import available_bytes, format_bytes

MEMORY_SHARE = 0.85
"""Share of the free memory that a pool may take; the rest is for networks and batches."""
DISK_SHARE = 0.95
"""Share of the free disk space that a pool may take; the rest is for checkpoints."""
BUILD_BYTES = 80 * 10**6
"""Memory that flows under construction may take on a CPU; more no longer stays near its caches."""
BUILD_BYTES_CUDA, BUILD_SHARE_CUDA = 4 * 10**9, 0.25
"""The same on a graphics card, and the largest share of its memory."""
CLOUDS, MATRICES = 10, 10
"""Arrays of n x D and of n x n values that one flow needs at a time, besides its positions."""

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class PoolPlan(NamedTuple):
    """Where the pool goes and what it takes."""

    dtype: str
    """float32 or float16."""
    nbytes: int
    """Bytes of all positions."""
    text: str
    """One line for people."""


def pool_bytes(config: Config, shape: tuple[int, ...], dtype: str | None = None) -> int:
    """Bytes of the configured pool.

    Args:
        config: the experiment.
        shape: shape of one sample.
        dtype: float32 or float16; None: ``pool.dtype``, with auto counted as float32.
    """
    name = dtype or config.pool.dtype
    itemsize = DTYPES.get(name, torch.float32).itemsize
    particles = config.pool.num_batches * config.sinkhorn.batch_size
    return particles * (config.flow.steps + 1) * math.prod(shape) * itemsize


def plan_pool(
    config: Config, shape: tuple[int, ...], folder: Path | None = None, available: int | None = None
) -> PoolPlan:
    """Type and place of the pool.

    A pool that ``folder`` already knows keeps its type under ``pool.dtype: auto``, whatever is free
    now: a resumed run must see the same values.

    Args:
        config: the experiment.
        shape: shape of one sample.
        folder: the run's folder of the pool; None: a new run in ``config.out_dir``.
        available: free bytes of the storage; measured when not given.

    Raises:
        UserError: it does not fit, or the folder holds a pool of other settings.
    """
    on_disk = config.pool.storage == "disk"
    if available is None:
        place = folder or Path(config.out_dir).expanduser()
        available = free_disk_bytes(place) if on_disk else available_bytes()
    budget = int((DISK_SHARE if on_disk else MEMORY_SHARE) * available)
    dtype = _known_dtype(config, shape, folder)
    if dtype is None:
        dtype = "float32" if pool_bytes(config, shape, "float32") <= budget else "float16"
    needed = pool_bytes(config, shape, dtype)
    batches, n = config.pool.num_batches, config.sinkhorn.batch_size
    size = (
        f"{batches} x {n} flows of {config.flow.steps} steps, {needed:,} bytes"
        f" ({format_bytes(needed)})"
    )
    if needed > budget:
        raise UserError(_does_not_fit(config, shape, f"{size} in {dtype}", budget, available))
    what = "disk space" if on_disk else "memory"
    text = f"{size} of {format_bytes(available)} of {what} free, {dtype}"
    return PoolPlan(dtype, needed, text)


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
        if known["settings"] == settings:
            return str(known["dtype"])
    return None if config.pool.dtype == "auto" else config.pool.dtype


def check_pool(
    config: Config, shape: tuple[int, ...], folder: Path | None = None, available: int | None = None
) -> str:
    """What the pool will take, in one line; arguments and errors of :func:`plan_pool`."""
    return plan_pool(config, shape, folder, available).text


def content_settings(config: Config, shape: tuple[int, ...], dtype: str) -> dict[str, object]:
    """Everything that determines the values of a pool, by dotted key."""
    settings: dict[str, object] = {
        key: value
        for key, value, item in leaves(config)
        if key.partition(".")[0] in ("seed", "data", "sinkhorn", "flow") and not is_free(item)
    }
    return {
        **settings,
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
        total = torch.cuda.get_device_properties(device).total_memory
        budget = min(BUILD_BYTES_CUDA, BUILD_SHARE_CUDA * total)
    n, values = config.sinkhorn.batch_size, math.prod(shape)
    positions = 2 * (config.flow.steps + 1)  # as computed, and as stacked or converted
    flow = 4 * n * ((positions + CLOUDS) * values + MATRICES * n)
    return max(1, min(config.pool.num_batches, int(budget // flow)))


def _does_not_fit(
    config: Config, shape: tuple[int, ...], size: str, budget: int, available: int
) -> str:
    """The settings that would fit, smallest change first."""
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
