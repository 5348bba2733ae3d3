"""The phases of NSGF++ in their order (Algorithm 3), and nothing else.

    phase 1  nsgf       Sinkhorn flows -> trajectory pool -> velocity network v_theta
    phase 2  nsf        straight lines from noise to data -> straight-flow network u_delta
    phase 3  predictor  where on its line a sample is -> time predictor t_phi

Phases share data and settings; what one learns reaches the next through its checkpoint file.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsgf.checkpoint import RunFolder
from nsgf.config import Config, PhaseName
from nsgf.data import Data, data_shape
from nsgf.handover import Pending, load_network, pending_phases
from nsgf.hardware import describe, format_bytes, pick_device, release_memory
from nsgf.memory import check_device_memory, training_memory
from nsgf.models import build_network
from nsgf.pool import build_pool, check_pool
from nsgf.preview import save_preview
from nsgf.sampling import nsgf_steps
from nsgf.seeding import derive_seed
from nsgf.sinkhorn import build_solver
from nsgf.tracking import Tracker, one_line
from nsgf.training.loop import fit
from nsgf.training.trainers import (
    NSFTrainer,
    NSGFTrainer,
    StraightLine,
    TimePredictorTrainer,
    Transport,
)
from nsgf.wandb_run import open_mirror


@dataclass
class Experiment:
    """What every phase needs."""

    config: Config
    run: RunFolder
    tracker: Tracker
    data: Data
    device: torch.device


def train(
    config: Config, run: RunFolder | None = None, first: PhaseName | None = None
) -> RunFolder:
    """Algorithm 3: train the configured phases that are not done yet.

    Everything that can be refused is refused before anything is written.

    Args:
        config: the experiment.
        run: a run to go on with; None: a new one.
        first: start with this phase (see :func:`nsgf.handover.pending_phases`).

    Returns:
        The run folder.

    Raises:
        UserError: data are missing, the pool does not fit, the device does not exist, or the run's
            pool or checkpoints contradict the configuration.
    """
    device = pick_device(config.device)
    pending = pending_phases(config, run, first) if run else Pending(config.phases, [])
    plan = training_plan(config, pending.phases, device, run)
    data = Data(config.data, config.seed) if pending.phases else None
    run = run or RunFolder.create(config)
    with Tracker(run.path) as tracker:
        tracker.say(f"run {run.path} on {describe(device)}")
        for line in plan:
            tracker.say(line)
        for phase in pending.restarts:
            tracker.say(f"{phase}: starts anew, its earlier checkpoint is {run.set_aside(phase)}")
        if data is not None:
            run.write_config(config)
            tracker.mirror_to(open_mirror(config, run, tracker.say))
            experiment = Experiment(config, run, tracker, data, device)
            for phase in pending.phases:
                TRAIN_PHASE[phase](experiment)
                release_memory(device)
                tracker.say(f"{phase}: done, {run.checkpoint_file(phase)}")
                show_preview(experiment, phase)
    return run


def train_nsgf(experiment: Experiment) -> None:
    """Phase 1 (Algorithm 1): build the pool, regress its velocities."""
    config, data, device = experiment.config, experiment.data, experiment.device
    pool = build_pool(
        config,
        data.source("pool"),
        data.target("pool"),
        build_solver(config.sinkhorn),
        device,
        experiment.run.pool,
        experiment.tracker.say,
    )
    release_memory(device)
    on_disk = config.pool.storage == "disk"
    network = _network(experiment, "nsgf")
    with closing(NSGFTrainer(network, pool, config.seed, device, prefetch=on_disk)) as trainer:
        fit("nsgf", trainer, experiment.config, experiment.run, experiment.tracker)


def train_nsf(experiment: Experiment) -> None:
    """Phase 2: regress the straight velocity X1 - X0."""
    trainer = NSFTrainer(_network(experiment, "nsf"), _straight_line(experiment, "nsf"))
    fit("nsf", trainer, experiment.config, experiment.run, experiment.tracker)


def train_predictor(experiment: Experiment) -> None:
    """Phase 3: regress the time t on the same lines."""
    trainer = TimePredictorTrainer(
        _network(experiment, "predictor"), _straight_line(experiment, "predictor")
    )
    fit("predictor", trainer, experiment.config, experiment.run, experiment.tracker)


TRAIN_PHASE: dict[PhaseName, Callable[[Experiment], None]] = {
    "nsgf": train_nsgf,
    "nsf": train_nsf,
    "predictor": train_predictor,
}


def show_preview(experiment: Experiment, phase: PhaseName) -> None:
    """A picture of samples after a phase, if ``train.preview`` asks for it.

    One that cannot be made is one line: what is trained is saved already.
    """
    config, run, tracker = experiment.config, experiment.run, experiment.tracker
    if not config.train.preview:
        return
    try:
        file = save_preview(config, run, phase, experiment.data, experiment.device)
    except Exception as error:
        tracker.say(f"{phase}: no picture of samples ({one_line(error)})")
        return
    tracker.say(f"{phase}: picture of samples, {file}")
    tracker.picture(f"{phase}/samples", file)


def training_plan(
    config: Config, phases: list[PhaseName], device: torch.device, run: RunFolder | None = None
) -> list[str]:
    """What a training run is going to do, one line per phase.

    Args:
        config: the experiment.
        phases: those that are not done.
        device: where the networks train.
        run: the run that goes on, whose pool may be there already.

    Raises:
        UserError: the pool does not fit this machine, the run has one of other settings, or an
            update does not fit into the device's memory.
    """
    shape, lines = data_shape(config.data.name), []
    for phase in config.phases:
        optim = getattr(config, phase)
        weights, needed = training_memory(config, phase)
        work = (
            f"{optim.iterations} updates of {optim.batch_size}, {weights / 1e6:.2f} M weights, "
            f"about {format_bytes(needed)} on the device"
        )
        if phase in phases:
            check_device_memory(config, phase, needed, device)
        lines.append(f"{phase}: {work if phase in phases else 'done already'}")
    if "nsgf" in phases:
        lines.append(f"pool: {check_pool(config, shape, run.pool if run else None)}")
    return lines


def _network(experiment: Experiment, phase: PhaseName) -> nn.Module:
    """The phase's network with its own seeded start, on the device."""
    config = experiment.config
    seed = derive_seed(config.seed, phase, "init")
    return build_network(phase, config.model, experiment.data.shape, seed).to(experiment.device)


def _straight_line(experiment: Experiment, phase: PhaseName) -> StraightLine:
    config, data = experiment.config, experiment.data
    transport = _nsgf_transport(experiment) if config.nsf.source == "nsgf" else None
    return StraightLine(
        data.source(phase),
        data.target(phase),
        config.nsf,
        transport,
        derive_seed(config.seed, phase),
        experiment.device,
    )


def _nsgf_transport(experiment: Experiment) -> Transport:
    """The trained NSGF steps, from the checkpoint of phase 1."""
    config = experiment.config
    velocity = load_network(config, experiment.run, "nsgf", "ema", experiment.device).network

    @torch.no_grad()
    def transport(x: Tensor) -> Tensor:
        flow = config.flow
        return nsgf_steps(velocity, x, steps=flow.steps, flow_time=flow.steps * flow.eta)

    return transport
