"""Algorithm 3: open a run, then train its phases in order.

    phase 1  nsgf       Sinkhorn flows -> trajectory pool -> velocity network v_theta
    phase 2  nsf        straight lines from noise to data -> straight-flow network u_delta
    phase 3  predictor  points on these lines -> time predictor t_phi

Phases share data and settings; a phase reads the networks of earlier phases from their checkpoints.
Methods for comparison have phases too (:mod:`nsgf.phases`).
"""

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from nsgf.config.schema import Config, OptimConfig, PhaseName
from nsgf.config.settings import SETTINGS, change
from nsgf.data import Data
from nsgf.models import OwnNetwork
from nsgf.phases import get_phases
from nsgf.phases.base import outline
from nsgf.phases.resume import (
    finish_restart,
    keep_finished,
    keep_precision,
    pending_phases,
    restart,
)
from nsgf.run import checkpoint
from nsgf.run.checkpoint import previous_file
from nsgf.run.folder import RunFolder
from nsgf.run.lock import lock_folder
from nsgf.run.log import RunLog
from nsgf.run.stop import Stopped, StopRequest
from nsgf.samples import lacks_preview, show_preview
from nsgf.system.distributed import ALONE, World, check_shares
from nsgf.system.errors import UserError, cause, wrong_setting
from nsgf.system.hardware import (
    describe_device,
    free_disk_bytes,
    pick_device,
    release_memory,
)
from nsgf.system.output import format_bytes
from nsgf.training.loop import fit
from nsgf.training.precision import pick_precision, prepare_compiler
from nsgf.training.task import OnLog, Session
from nsgf.trial import LEAST, MOST_MINUTES, PREPARED, fit_minutes

WEIGHT_BYTES = 16
"""Bytes of a checkpoint per weight: the weight, its average and Adam's two moments, in float32."""


def train(
    config: Config,
    run: RunFolder | None = None,
    first: PhaseName | None = None,
    world: World = ALONE,
    stop: StopRequest | None = None,
    network: OwnNetwork | None = None,
    on_log: OnLog | None = None,
    minutes: float | None = None,
) -> RunFolder:
    """Train the configured phases that are not finished, and return the run folder.

    Everything is checked before anything is written, except that an existing run folder is locked
    and damaged checkpoints are renamed.

    Args:
        config: the experiment, from :func:`nsgf.resolve.resolve`, which checks it.
        run: a run to resume; None: a new one.
        first: start with this phase (see :func:`nsgf.phases.resume.pending_phases`).
        world: the processes that train together.
        stop: ends training early; None: only ``train.max_hours`` does.
        network: the caller's network, for a run with ``model.network``.
        on_log: see :class:`nsgf.training.task.Session`.
        minutes: time for a new run; the numbers of updates are chosen to fit. None: as configured.

    Raises:
        Stopped: ``stop`` ended training after a checkpoint; the error names the run folder.
        UserError: minutes are not allowed, data are missing, the pool does not fit, the
            device does not exist, or the run's pool or checkpoints contradict the configuration.
    """
    stop = stop or StopRequest(config.train.max_hours)
    device = pick_device(config.device)
    fitted: list[str] = []
    if minutes is not None:
        if run or config.smoke or world.size > 1 or not 0 < minutes <= MOST_MINUTES:
            raise UserError(
                f"minutes = {minutes:g}: must be > 0 and <= {MOST_MINUTES}, for a new run in one "
                "process without smoke"
            )
        amounts = {key: SETTINGS[key].get(config) for key in PREPARED}
        least = {key: amount and min(amount, LEAST) for key, amount in amounts.items()}
        training_plan(change(config, least), config.phases, device, network=network)
        config, *fitted = fit_minutes(config, minutes, device, stop, network)
    with ExitStack() as held:
        # complete a restart that a killed process began
        if run and world.is_main:
            try:
                held.enter_context(lock_folder(run.path))
            except OSError as error:
                raise wrong_setting(
                    "run", run.path, f"cannot be written ({cause(error)}); resume a copy of it"
                ) from error
            write = RunLog(run.path).write
            finish_restart(run, write)
            for name in config.phases:
                checkpoint.restore_previous(run.checkpoint_file(name), write)
            run.remove_leftovers()
        world.wait()
        # find the phases left to train, and check that they can be trained
        names, restarts = pending_phases(config, run, first) if run else (config.phases, [])
        ignored: list[str] = []
        if run:
            config, ignored = keep_finished(config, run, names)
        settings = keep_precision(config, run, device) if run else config
        plan = training_plan(settings, names, device, run, world, restarts, network)
        if run and not names:
            plan.append("nothing is left to train")
        plan += [f"ignored: {text}" for text in ignored]
        world.wait()  # all processes must read checkpoints before the first one renames them
        data = Data(config.data, config.seed) if names else None
        # the run folder, the same for all processes
        is_new = run is None
        if world.is_main and is_new:
            run = RunFolder.create(config)
            held.enter_context(lock_folder(run.path))
        run = RunFolder(world.agree(run.path if run else Path()))
        run.network = network
        if not run.path.is_dir():
            raise UserError(
                f"out_dir: process {world.rank} does not see {run.path}; must be shared"
            )
        # from here on, files are written
        log = held.enter_context(RunLog(run.path, quiet=not world.is_main))
        session = Session(settings, run, log, device, world, stop, on_log)
        for line in [f"run {run.path} on {describe_device(device, world.size)}", *fitted, *plan]:
            log.write(line)
        if world.is_main and names:
            if not is_new:
                restart(config, run, restarts, log.write)
            if config.tracking.tracker != "none":
                from nsgf.run.trackers import open_tracker

                log.tracker = open_tracker(config, run, log.write)
        for phase in get_phases(config.phases):  # a killed run may have skipped this
            if phase.name not in names:
                phase.clean(session)
                if world.is_main and lacks_preview(run, phase):
                    show_preview(session, data, phase)
        log.tidy(config.phases)
        # the phases
        try:
            if data:
                for phase in get_phases(names):
                    world.wait()  # for the first process, which writes and renames files
                    if phase.name != names[0] and session.should_stop():
                        raise Stopped(f"{phase.name}: not begun")
                    if world.is_main:  # so a picture always shows the last checkpoint of its phase
                        run.preview_file(phase.name).unlink(missing_ok=True)
                    started = time.perf_counter()
                    task = phase.task(session, data)
                    world.wait()  # a process may have drawn for longer than an update may take
                    fit(phase.name, task, session, prepare_seconds=time.perf_counter() - started)
                    del task  # frees its data
                    phase.clean(session)
                    release_memory(device)
                    log.tidy(config.phases)
                    log.write(f"{phase.name}: done, {run.checkpoint_file(phase.name)}")
                    show_preview(session, data, phase)
        except KeyboardInterrupt:  # a second Ctrl-C
            log.write(f"{phase.name}: interrupted; resuming continues from its last checkpoint")
            raise
        except Stopped as stopped:
            stopped.folder = run.path
            raise
    return run


def training_plan(
    config: Config,
    names: list[PhaseName],
    device: torch.device,
    run: RunFolder | None = None,
    world: World = ALONE,
    restarts: Collection[PhaseName] = (),
    network: OwnNetwork | None = None,
) -> list[str]:
    """Check that the phases ``names`` can be trained, and return lines for the user. ``restarts``:
    phases whose checkpoints will be set aside. For other arguments see :func:`train`.

    Raises:
        UserError: pool or checkpoints do not fit, the run has a pool with other settings, a
            precision or a package is missing, or there are more processes than samples in a batch.
    """
    pending = get_phases(names)
    if pending and config.train.precision == "fp16" and device.type == "cpu":
        raise UserError("train.precision = fp16: too slow on a CPU; use fp32, bf16 or auto")
    lines = [f"{name}: finished" for name in config.phases if name not in names]
    weights = {}
    for phase in pending:
        precision = pick_precision(config, device)
        optim: OptimConfig = getattr(config, phase.name)
        check_shares(f"{phase.name}.batch_size", optim.batch_size, world.size)
        parameters = outline(phase, config, network).parameters()
        weights[phase.name] = sum(one.numel() for one in parameters if one.requires_grad)
        lines.append(
            f"{phase.name}: {optim.iterations} updates of {optim.batch_size}, "
            f"{weights[phase.name] / 1e6:.2f} M weights, {precision}"
        )
    if config.train.compile:
        lines.append(f"train.compile = true: compiled code is kept in {prepare_compiler()}")
    plans = [phase.plan(config, device, run, world) for phase in pending]
    home = run or RunFolder(config.out_path)
    check_space(weights, sum(size for _, size in plans), home, restarts)
    return [*lines, *(line for line, _ in plans if line)]


def check_space(
    weights: Mapping[PhaseName, int],
    pool: int,
    run: RunFolder,
    restarts: Collection[PhaseName] = (),
) -> None:
    """Raise UserError if the disk would be full before the end of a run. A run needs two
    checkpoints of each unfinished phase (``weights``: numbers of weights), a third while it is
    written, and ``pool`` bytes. Checkpoints of ``restarts`` are set aside, not overwritten."""
    needed = WEIGHT_BYTES * (2 * sum(weights.values()) + max(weights.values(), default=0))
    for phase in weights:
        newest = run.checkpoint_file(phase)
        files = [previous_file(newest)] if phase in restarts else [newest, previous_file(newest)]
        needed -= sum(file.stat().st_size for file in files if file.exists())
    needed = pool + max(0, needed)
    available = free_disk_bytes(run.path)
    if needed > available:
        raise UserError(
            f"out_dir: checkpoints and pool need {format_bytes(needed)} of disk space, {run.path} "
            f"has {format_bytes(available)} free; name a folder on another disk"
        )
