"""What must hold on a machine before a long run starts, tried out: data, updates, checkpoints."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.run import checkpoint
from nsgf.system.errors import UserError, cause
from nsgf.system.hardware import format_bytes
from nsgf.training.step_stats import StepStats

PREFIX = ".nsgf-preflight-"
"""Of the folder in which a checkpoint is tried."""


def tried(work: Callable[[], Iterable[str]]) -> Iterator[str]:
    """The lines of some work, the last of which is NO and the reason where it is refused."""
    try:
        yield from work()
    except UserError as error:
        yield f"NO {error}"
    except torch.cuda.OutOfMemoryError:
        yield "NO the card's memory is full; use a smaller --batch-size or a smaller model"


def data_found(config: Config) -> str:
    """Load the data as training does, downloads included.

    Raises:
        UserError: they are missing or damaged.
    """
    data, name = Data(config.data, config.seed), config.data.name
    what = "images" if data.points is None else "points"
    return f"ok data: {name if data.count is None else f'{data.count} {what} of {name}'}"


def updates_finite(config: Config, phase: str, update: Callable[[], StepStats]) -> str:
    """Do updates until one is finite: a loss scale begins too large.

    Raises:
        UserError: so many in a row were not as end a run.
    """
    if not any(update().is_finite for _ in range(config.train.max_skipped)):
        raise UserError(
            f"{phase}: {config.train.max_skipped} updates without finite loss and gradient; try "
            "--precision fp32"
        )
    return f"ok {phase}: an update is finite"


def checkpoint_kept(config: Config, phase: str, state: dict[str, Any]) -> str:
    """Write a phase's checkpoint where runs are kept, read it, compare, and remove it.

    Raises:
        UserError: it cannot be written or read, or comes back changed.
    """
    place, begin = Path(config.out_dir).expanduser().absolute(), time.perf_counter()
    while not place.exists():
        place = place.parent
    for left in place.glob(f"{PREFIX}*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as folder:
            file = Path(folder) / "checkpoint.pt"
            checkpoint.save(file, {"phase": phase, "config": {}, **state})
            size, read = file.stat().st_size, checkpoint.load(file)
    except OSError as error:
        raise UserError(
            f"out_dir: {place} cannot be written ({cause(error)}); name another folder with "
            "--out-dir DIR"
        ) from error
    pairs = zip(tree_leaves(state), tree_leaves({key: read[key] for key in state}), strict=True)
    for kept, got in pairs:
        same = torch.equal(kept.cpu(), got) if isinstance(kept, Tensor) else kept == got
        if not same:
            raise UserError(
                f"out_dir: a checkpoint in {place} came back changed; use --out-dir DIR"
            )
    seconds = time.perf_counter() - begin
    return f"ok {phase}: checkpoint of {format_bytes(size)} written and read in {seconds:.1f} s"
