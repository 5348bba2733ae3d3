"""The phases of NSGF++ in their order (Algorithm 3), and nothing else.

    phase 1  nsgf       Sinkhorn flows -> trajectory pool -> velocity network v_theta
    phase 2  nsf        straight lines from noise to data -> straight-flow network u_delta
    phase 3  predictor  where on its line a sample is -> time predictor t_phi

Phases share data and settings; what one learns reaches the next through its checkpoint file. The
methods that NSGF is compared with are phases too (:mod:`nsgf.phases.reflow`).
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config, PhaseName
from nsgf.data import Data, data_shape
from nsgf.phases.flow_matching import check_installed
from nsgf.phases.reflow import train_peer, train_reflow
from nsgf.pool import build_pool, plan_pool, pool_folder
from nsgf.pool.storage import drop_positions, taken_bytes
from nsgf.run.checkpoint import mend, what_is_lost
from nsgf.run.folder import RunFolder
from nsgf.run.lock import only_process
from nsgf.run.log import Tracker
from nsgf.run.resume import Pending, load_network, new_network, pending_phases
from nsgf.run.session import Session
from nsgf.run.space import check_space
from nsgf.run.stop import Stopped, StopRequest
from nsgf.run.wandb_mirror import open_mirror
from nsgf.sampling.preview import save_preview
from nsgf.sampling.sampler import nsgf_steps
from nsgf.sinkhorn.schedule import flow_time
from nsgf.system.distributed import World, check_shares
from nsgf.system.errors import one_line
from nsgf.system.hardware import describe, format_bytes, pick_device, release_memory
from nsgf.system.seeding import derive_seed
from nsgf.training.loop import fit
from nsgf.training.memory import check_device_memory, training_memory
from nsgf.training.precision import prepare_environment
from nsgf.training.task import (
    NSFTrainer,
    NSGFTrainer,
    StraightLine,
    TimePredictorTrainer,
    Transport,
)


def train(
    config: Config,
    run: RunFolder | None = None,
    first: PhaseName | None = None,
    world: World | None = None,
    stop: StopRequest | None = None,
) -> RunFolder:
    """Algorithm 3: train the configured phases that are not done yet.

    Everything that can be refused is refused before anything is written, but for the lock of an
    earlier run's folder, and damaged checkpoints that are put aside.

    Args:
        config: the experiment.
        run: a run to go on with; None: a new one.
        first: start with this phase (see :func:`nsgf.run.resume.pending_phases`).
        world: the processes that train together; None: this one alone.
        stop: ends training early; None: only ``train.max_hours`` does.

    Returns:
        The run folder.

    Raises:
        Stopped: asked to by ``stop``, after a checkpoint; names the run folder.
        UserError: data are missing, the pool does not fit, the device does not exist, or the run's
            pool or checkpoints contradict the configuration.
    """
    world, stop = world or World(), stop or StopRequest(config.train.max_hours)
    prepare_environment(config.train, Path(config.out_dir).expanduser() / ".compiled")
    device = pick_device(config.device, world.local_rank if world.size > 1 else None)
    with ExitStack() as held:
        if run:
            _take_over(run, config.phases, world, held)
        pending = pending_phases(config, run, first) if run else Pending(config.phases, [])
        plan = training_plan(config, pending.phases, device, run, world)
        world.wait()  # the first process moves checkpoints only when all have read them
        keeps_images = config.train.data_on_device and device.type == "cuda"
        place = device if keeps_images else None
        data = Data(config.data, config.seed, place) if pending.phases else None
        run = _open_run(config, run, world, held, changes=bool(pending.phases))
        tracker = held.enter_context(_tracker(run, world))
        session = Session(config, run, tracker, device, world, stop)
        for line in [f"run {run.path} on {describe(device, world.size)}", *plan]:
            tracker.log(line)
        if data is not None:
            _begin(session, pending.restarts)
            if "nsgf" not in pending.phases:
                _drop_pool(session)
            for phase in pending.phases:
                _train_phase(session, data, phase)
    return run


def _train_phase(session: Session, data: Data, phase: PhaseName) -> None:
    """One phase from its start or checkpoint to its end."""
    session.world.wait()  # for what the first process alone writes and moves
    try:
        TRAIN_PHASE[phase](session, data)
    except Stopped as stopped:
        stopped.folder = session.run.path
        raise
    except KeyboardInterrupt:
        session.tracker.log(what_is_lost(session.run.checkpoint_file(phase), phase))
        raise
    if phase == "nsgf":
        _drop_pool(session)
    release_memory(session.device)
    session.tracker.sort(session.config.phases)
    session.tracker.log(f"{phase}: done, {session.run.checkpoint_file(phase)}")
    show_preview(session, data, phase)


def _drop_pool(session: Session) -> None:
    """Free the disk of a pool that phase 1 has learnt from; nothing else needs it."""
    session.world.wait()
    if session.world.is_main and (freed := drop_positions(session.run.pool)):
        session.tracker.log(
            f"pool: removed from the disk ({format_bytes(freed)}); a longer phase 1 builds it again"
        )


def train_nsgf(session: Session, data: Data) -> None:
    """Phase 1 (Algorithm 1): build the pool, regress its velocities."""
    config = session.config
    pool = build_pool(session, data.source("pool"), data.target("pool"))
    release_memory(session.device)
    trainer = NSGFTrainer(new_network(session.config, "nsgf", session.device), pool, config.seed)
    fit("nsgf", trainer, session, reads_disk=config.pool.storage == "disk")


def train_nsf(session: Session, data: Data) -> None:
    """Phase 2: regress the straight velocity X1 - X0."""
    trainer = NSFTrainer(
        new_network(session.config, "nsf", session.device), _straight_line(session, data, "nsf")
    )
    fit("nsf", trainer, session)


def train_predictor(session: Session, data: Data) -> None:
    """Phase 3: regress the time t on the same lines."""
    trainer = TimePredictorTrainer(
        new_network(session.config, "predictor", session.device),
        _straight_line(session, data, "predictor"),
    )
    fit("predictor", trainer, session)


TRAIN_PHASE: dict[PhaseName, Callable[[Session, Data], None]] = {
    "nsgf": train_nsgf,
    "nsf": train_nsf,
    "predictor": train_predictor,
    "peer": train_peer,
    "reflow": train_reflow,
}


def show_preview(session: Session, data: Data, phase: PhaseName) -> None:
    """A picture of samples after a phase, if ``train.preview`` asks for it.

    One that cannot be made is one line: what is trained is saved already.
    """
    config, run, tracker = session.config, session.run, session.tracker
    wanted = config.train.preview and session.stop.reason is None
    if not (wanted and session.world.is_main):
        return
    try:
        file = save_preview(config, run, phase, data, session.device)
    except Exception as error:
        tracker.log(f"{phase}: no picture of samples ({one_line(error)})")
        return
    tracker.log(f"{phase}: picture of samples, {file}")
    tracker.picture(f"{phase}/samples", file)


def training_plan(
    config: Config,
    phases: list[PhaseName],
    device: torch.device,
    run: RunFolder | None = None,
    world: World | None = None,
) -> list[str]:
    """What a training run is going to do, one line per phase.

    Args:
        config: the experiment.
        phases: those that are not done.
        device: where the networks train.
        run: the run that goes on, whose pool may be there already.
        world: the processes that share the work; None: this one alone.

    Raises:
        UserError: the pool does not fit this machine, the run has one of other settings, an update
            does not fit into the device's memory, checkpoints do not fit on the disk, or a process
            would have nothing to do.
    """
    world = world or World()
    check_shares(config, phases, world.size)
    if "peer" in phases:
        check_installed()
    lines, weights, pool_on_disk = [], {}, 0
    for phase in config.phases:
        if phase not in phases:
            lines.append(f"{phase}: done already")
            continue
        optim = getattr(config, phase)
        needed = training_memory(config, phase, device, world.size)
        check_device_memory(config, phase, needed, device)
        weights[phase] = needed.weights
        lines.append(
            f"{phase}: {optim.iterations} updates of {optim.batch_size}, "
            f"{needed.weights / 1e6:.2f} M weights, {needed.precision}, "
            f"about {format_bytes(needed.total)} on the device"
        )
    if "nsgf" in phases:
        folder = pool_folder(run, world) if run else None
        pool = plan_pool(config, data_shape(config.data.name), device, folder)
        lines.append(f"pool: {pool.text}")
        if config.pool.storage == "disk":
            pool_on_disk = max(0, pool.nbytes - taken_bytes(run.pool)) if run else pool.nbytes
    check_space(weights, pool_on_disk, run or RunFolder(Path(config.out_dir).expanduser()))
    return lines


def _take_over(run: RunFolder, phases: list[PhaseName], world: World, held: ExitStack) -> None:
    """Be the only one in an earlier run's folder, and see to its checkpoints."""
    if world.is_main:
        held.enter_context(only_process(run.path))
        for phase in phases:
            mend(run.checkpoint_file(phase), Tracker(run.path).log)
    world.wait()


def _open_run(
    config: Config, run: RunFolder | None, world: World, held: ExitStack, *, changes: bool
) -> RunFolder:
    """The run folder that all processes work in, with the configuration that ``changes`` it."""
    if world.is_main:
        if run is None:
            run = RunFolder.create(config)
            held.enter_context(only_process(run.path))
        if changes:
            run.write_config(config)
    return RunFolder(world.agree(run.path if run else Path()))


def _begin(session: Session, restarts: list[PhaseName]) -> None:
    """What the first process alone does before the first phase."""
    if not session.world.is_main:
        return
    run, tracker = session.run, session.tracker
    for phase in restarts:
        tracker.log(f"{phase}: starts anew, its earlier checkpoint is {run.set_aside(phase)}")
    tracker.mirror_to(open_mirror(session.config, run, tracker.log))


def _tracker(run: RunFolder, world: World) -> Tracker:
    return Tracker(run.path, quiet=not world.is_main)


def _straight_line(session: Session, data: Data, phase: PhaseName) -> StraightLine:
    config = session.config
    return StraightLine(
        data.source(phase),
        data.target(phase),
        config.nsf,
        _nsgf_transport(session) if config.nsf.source == "nsgf" else None,
        derive_seed(config.seed, phase),
    )


def _nsgf_transport(session: Session) -> Transport:
    """The trained NSGF steps, from the checkpoint of phase 1."""
    config, flow = session.config, session.config.flow
    velocity = load_network(config, session.run, "nsgf", "ema", session.device).network

    @torch.no_grad()
    def transport(x: Tensor) -> Tensor:
        return nsgf_steps(velocity, x, steps=flow.steps, flow_time=flow_time(flow))

    return transport
