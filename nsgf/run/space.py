"""Room on the disk for what a run will write, asked for before its first update."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from nsgf.config.schema import PhaseName
from nsgf.run.folder import RunFolder, earlier
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes

COPIES = 4
"""Values a checkpoint keeps per weight, in float32: weight, average, two moments of Adam."""


def checkpoint_bytes(weights: int) -> int:
    """Bytes of a checkpoint of a network with that many weights."""
    return 4 * COPIES * weights


def check_space(
    weights: Mapping[PhaseName, int],
    pool: int,
    run: RunFolder,
    available: int | None = None,
) -> None:
    """Refuse a run whose disk would be full before its end.

    Each phase keeps two checkpoints, and one more while it is written.

    Args:
        weights: weights of the network of each phase that is not done.
        pool: bytes that a pool on disk still takes.
        run: its folder, also one that is not there yet.
        available: free bytes there; measured when not given.

    Raises:
        UserError: there is less room.
    """
    sizes = {phase: checkpoint_bytes(count) for phase, count in weights.items()}
    taken = sum(_taken(run.checkpoint_file(phase)) for phase in sizes)
    checkpoints = max(0, 2 * sum(sizes.values()) + max(sizes.values(), default=0) - taken)
    if available is None:
        available = shutil.disk_usage(_existing(run.path)).free
    if checkpoints + pool > available:
        what = f"the checkpoints need {format_bytes(checkpoints)}"
        if pool:
            what += f" and the pool {format_bytes(pool)}"
        raise UserError(
            f"out_dir: {what} of disk space, {_existing(run.path)} has {format_bytes(available)} "
            "free; name a folder on another disk with --out-dir DIR"
        )


def _taken(file: Path) -> int:
    return sum(path.stat().st_size for path in (file, earlier(file)) if path.exists())


def _existing(place: Path) -> Path:
    place = place.absolute()
    while not place.exists():
        place = place.parent
    return place
