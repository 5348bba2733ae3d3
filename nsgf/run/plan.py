"""What a training run is going to do, and whether this machine can."""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from nsgf.config.schema import Config, PhaseName
from nsgf.phases import get_phase, get_phases
from nsgf.pool.storage import free_disk_bytes
from nsgf.run.folder import RunFolder, earlier
from nsgf.run.trial import try_networks
from nsgf.system.distributed import World, check_shares
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes
from nsgf.training.memory import check_device_memory, training_memory
from nsgf.training.precision import compiled_folder, sampling_precision

COPIES = 4
"""Values a checkpoint keeps per weight, in float32: weight, average, two moments of Adam."""


def training_plan(
    config: Config,
    phases: list[PhaseName],
    device: torch.device,
    run: RunFolder | None = None,
    world: World | None = None,
    restarts: Collection[PhaseName] = (),
) -> list[str]:
    """What a training run is going to do: one line for each phase, then what prepares them.

    Those of the configured phases that are not among ``phases`` are done already; ``restarts`` are
    those of ``phases`` whose checkpoints are set aside.

    Raises:
        UserError: the pool does not fit this machine, the run has one of other settings, an update
            does not fit into the device's memory, a precision is not there, checkpoints do not fit
            on the disk, a package is missing, a process would have nothing to do, or a network
            cannot be trained.
    """
    world, pending = world or World(), get_phases(phases)
    if pending and config.train.precision == "fp16" and device.type == "cpu":
        raise UserError("train.precision = fp16: a CPU is slow in it; use fp32, bf16 or auto")
    sampling_precision(config, device)
    for phase in pending:
        check_shares(phase.shared_counts(config), world.size)
    lines, weights = [], {}
    for name in config.phases:
        if name not in phases:
            lines.append(f"{name}: done already")
            continue
        needed = training_memory(config, get_phase(name), device, world.size)
        check_device_memory(name, needed, device)
        optim = get_phase(name).optim(config)
        lines.append(
            f"{name}: {optim.iterations} updates of {optim.batch_size}, "
            f"{needed.weights / 1e6:.2f} M weights, {needed.precision}, "
            f"about {format_bytes(needed.total)} on the device"
        )
        weights[name] = needed.weights
    plans = [phase.plan(config, device, run, world) for phase in pending]
    disk_bytes = sum(plan.disk_bytes for plan in plans)
    home = run or RunFolder(Path(config.out_dir).expanduser())
    check_space(weights, disk_bytes, home, restarts)
    try_networks(config, pending, device)
    if config.train.compile:
        lines.append(f"train.compile = true: compiled code is kept in {compiled_folder()}")
    return [*lines, *(line for plan in plans for line in plan.lines)]


def checkpoint_bytes(weights: int) -> int:
    """Bytes of a checkpoint of a network with that many weights."""
    return 4 * COPIES * weights


def check_space(
    weights: Mapping[PhaseName, int],
    pool: int,
    run: RunFolder,
    restarts: Collection[PhaseName] = (),
) -> None:
    """Refuse a run whose disk would be full before its end.

    Each phase keeps two checkpoints, and one more while it is written.

    Args:
        weights: their number for each phase that is not done.
        pool: bytes that a pool on disk still takes.
        run: its folder, also one that is not there yet.
        restarts: phases whose newest checkpoint is set aside, and so keeps its room.

    Raises:
        UserError: there is less room.
    """
    sizes = {phase: checkpoint_bytes(count) for phase, count in weights.items()}
    newest = {phase: run.checkpoint_file(phase) for phase in sizes}
    files = [earlier(file) for file in newest.values()]
    files += [file for phase, file in newest.items() if phase not in restarts]
    taken = sum(file.stat().st_size for file in files if file.exists())
    checkpoints = max(0, 2 * sum(sizes.values()) + max(sizes.values(), default=0) - taken)
    available = free_disk_bytes(run.path)
    if checkpoints + pool > available:
        what = f"the checkpoints need {format_bytes(checkpoints)}"
        if pool:
            what += f" and the pool {format_bytes(pool)}"
        raise UserError(
            f"out_dir: {what} of disk space, {run.path} has {format_bytes(available)} free; name a "
            "folder on another disk with --out-dir DIR"
        )
