"""What a training run is going to do, and whether this machine can."""

from pathlib import Path

import torch

from nsgf.config.schema import Config, PhaseName
from nsgf.phases import Phase, get_phase, get_phases
from nsgf.run.folder import RunFolder
from nsgf.run.space import check_space
from nsgf.system.distributed import World, check_shares
from nsgf.system.hardware import format_bytes
from nsgf.training.memory import TrainingMemory, check_device_memory, training_memory


def training_plan(
    config: Config,
    phases: list[PhaseName],
    device: torch.device,
    run: RunFolder | None = None,
    world: World | None = None,
) -> list[str]:
    """What a training run is going to do: one line for each phase, then what prepares them.

    Args:
        config: the experiment.
        phases: those that are not done.
        device: where the networks train.
        run: the run that goes on, whose pool may be there already.
        world: the processes that share the work; None: this one alone.

    Raises:
        UserError: the pool does not fit this machine, the run has one of other settings, an update
            does not fit into the device's memory, checkpoints do not fit on the disk, a package is
            missing, or a process would have nothing to do.
    """
    world, pending = world or World(), get_phases(phases)
    for phase in pending:
        check_shares(phase.shared_counts(config), world.size)
    lines, weights = [], {}
    for name in config.phases:
        if name not in phases:
            lines.append(f"{name}: done already")
            continue
        needed = training_memory(config, get_phase(name), device, world.size)
        lines.append(_updates(config, get_phase(name), needed, device))
        weights[name] = needed.weights
    plans = [phase.plan(config, device, run, world) for phase in pending]
    disk_bytes = sum(plan.disk_bytes for plan in plans)
    check_space(weights, disk_bytes, run or RunFolder(Path(config.out_dir).expanduser()))
    return [*lines, *(line for plan in plans for line in plan.lines)]


def _updates(config: Config, phase: Phase, needed: TrainingMemory, device: torch.device) -> str:
    """Number and size of a phase's updates.

    Raises:
        UserError: one does not fit into the device's memory.
    """
    optim = phase.optim(config)
    check_device_memory(phase.name, needed, device)
    return (
        f"{phase.name}: {optim.iterations} updates of {optim.batch_size}, "
        f"{needed.weights / 1e6:.2f} M weights, {needed.precision}, "
        f"about {format_bytes(needed.total)} on the device"
    )
