"""Algorithm 3: open a run, then train its phases in order.

    phase 1  nsgf       Sinkhorn flows -> trajectory pool -> velocity network v_theta
    phase 2  nsf        straight lines from noise to data -> straight-flow network u_delta
    phase 3  predictor  points on these lines -> time predictor t_phi

Phases share data and settings. A phase reads the networks of earlier phases from their checkpoints.
The methods that NSGF is compared with also consist of phases (:mod:`nsgf.phases`).
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nsgf.commands.preview import lacks_preview, show_preview
from nsgf.commands.resume import Resumption, finish_restart
from nsgf.config.layers import sections_of
from nsgf.config.schema import PhaseName
from nsgf.data import Data
from nsgf.experiment import Experiment
from nsgf.models import UserNetwork
from nsgf.phases.base import Phase
from nsgf.run import checkpoint
from nsgf.run.checkpoint import previous_file
from nsgf.run.folder import RunFolder
from nsgf.run.lock import lock_folder
from nsgf.run.log import RunLog
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.distributed import ALONE, World, check_shares
from nsgf.system.errors import UserError, cause, wrong_setting
from nsgf.system.hardware import describe_device, free_disk_bytes, release_memory
from nsgf.system.output import format_bytes
from nsgf.training.loop import fit
from nsgf.training.precision import prepare_compiler
from nsgf.training.task import OnLog, Session

WEIGHT_BYTES = 16
"""Bytes of a checkpoint per weight: the weight, its average and Adam's two moments, in float32."""


def train(
    experiment: Experiment,
    run: RunFolder | None = None,
    first: PhaseName | None = None,
    world: World = ALONE,
    stop: StopRequest | None = None,
    network: UserNetwork | None = None,
    on_log: OnLog | None = None,
    notes: Sequence[str] = (),
) -> RunFolder:
    """Train the unfinished phases of the configuration, and return the run folder.

    All checks come before the first write. In an existing run, there are three exceptions: the
    lock, an unfinished restart, and the replacement of a damaged checkpoint.

    Args:
        experiment: the experiment, from :func:`nsgf.settings.resolve.resolve`, which checks it.
        run: a run to resume; None: a new one.
        first: start with this phase (see :meth:`nsgf.commands.resume.Resumption.pending_phases`).
        world: the processes that train together.
        stop: ends training early; None: only ``train.max_hours`` ends it early.
        network: the caller's network, for a run with ``model.network``.
        on_log: see :class:`nsgf.training.task.Session`.
        notes: lines for the log of the run.

    Raises:
        Stopped: ``stop`` ended training after a checkpoint; the error names the run folder.
        UserError: data are missing, the pool does not fit, the device does not exist, or the run's
            pool or checkpoints contradict the configuration.
    """
    stop = stop or StopRequest(experiment.config.train.max_hours)
    device = experiment.device
    with ExitStack() as stack:
        # complete a restart that a killed process began
        if run and world.is_main:
            _lock_and_repair(run, experiment.config.phases, stack)
        world.wait()

        # find the phases left to train, and check that they can be trained
        names = experiment.config.phases
        restarts: list[PhaseName] = []
        ignored: list[str] = []
        resumption = Resumption(experiment, run) if run else None
        trained = experiment  # gets the precision of the run's first phase
        if resumption:
            names, restarts = resumption.pending_phases(first)
            trained_settings, ignored = resumption.finished_settings(names)
            experiment = experiment.change(trained_settings)
            resumption = Resumption(experiment, resumption.run)
            trained = experiment.change(resumption.saved_precision())
        plan = training_plan(trained, names, run, world, restarts, network)
        if run and not names:
            plan.append("nothing is left to train")
        plan += [f"ignored: {text}" for text in ignored]
        world.wait()  # all processes must read checkpoints before the first one renames them
        data = experiment.load_data() if names else None

        # make the run folder, and tell all processes its name
        if world.is_main and run is None:
            run = RunFolder.create(experiment.config)
            stack.enter_context(lock_folder(run.path))
        run = RunFolder(world.agree(run.path if run else Path()))
        run.network = network
        if not run.path.is_dir():
            raise UserError(
                f"out_dir: process {world.rank} does not see {run.path}; must be shared"
            )

        # from here on, files are written
        log = stack.enter_context(RunLog(run.path, quiet=not world.is_main))
        session = Session(trained.config, experiment.target, run, log, device, world, stop, on_log)
        for line in [f"run {run.path} on {describe_device(device, world.size)}", *notes, *plan]:
            log.write(line)
        if world.is_main and names:
            if resumption:
                resumption.restart(restarts, log.write)
            if experiment.config.tracking.tracker != "none":
                from nsgf.run.trackers import open_tracker

                settings = sections_of(experiment.config)
                tracker = experiment.config.tracking.tracker
                log.tracker = open_tracker(tracker, settings, run, log.write)
        training = Training(trained, session, data)
        training.complete_finished(names)
        training.train(names)
    return run


def _lock_and_repair(run: RunFolder, phases: list[PhaseName], stack: ExitStack) -> None:
    """Lock an existing run until ``stack`` is closed. Then repair the run: complete a restart,
    replace a damaged checkpoint, and remove temporary files that killed processes left. Raise
    UserError if the run cannot be written."""
    try:
        stack.enter_context(lock_folder(run.path))
    except OSError as error:
        raise wrong_setting(
            "run", run.path, f"cannot be written ({cause(error)}); resume a copy of it"
        ) from error
    write = RunLog(run.path).write
    finish_restart(run, write)
    for name in phases:
        checkpoint.restore_previous(run.checkpoint_file(name), write)
    run.remove_leftovers()


@dataclass
class Training:
    """The work of a session on the phases of a run, after all checks."""

    experiment: Experiment
    session: Session
    data: Data | None
    """None if no phase is left to train."""

    def complete_finished(self, names: Collection[PhaseName]) -> None:
        """Complete the work that a killed process left undone after finished phases. Remove files
        that are not needed after training, and draw a missing picture. Phases in ``names`` are not
        finished."""
        session = self.session
        for phase in self.experiment.phases():
            if phase.name not in names:
                phase.clean(session)
                if session.world.is_main and lacks_preview(session.run, phase.name):
                    show_preview(self.experiment, session, self.data, phase)
        session.log.tidy(self.experiment.config.phases)

    def train(self, names: list[PhaseName]) -> None:
        """Train phases in order. Raise Stopped, with the run folder, if a stop was requested."""
        for number, phase in enumerate(self.experiment.phases(names)):
            try:
                self._train_phase(phase, is_first=number == 0)
            except KeyboardInterrupt:  # the user pressed Ctrl-C twice
                self.session.log.write(
                    f"{phase.name}: interrupted; resuming continues from its last checkpoint"
                )
                raise
            except Stopped as stopped:
                stopped.folder = self.session.run.path
                raise

    def _train_phase(self, phase: Phase, is_first: bool) -> None:
        """Prepare and train a phase, and draw its picture."""
        session = self.session
        run = session.run
        log = session.log
        session.world.wait()  # wait for the first process, which writes and renames files
        if not is_first and session.should_stop():
            raise Stopped(f"{phase.name}: not begun")
        if session.world.is_main:  # remove the old picture, which shows an old checkpoint
            run.preview_file(phase.name).unlink(missing_ok=True)
        assert self.data is not None
        started = time.perf_counter()
        task = phase.task(session, self.data)
        session.world.wait()  # drawing a picture may take longer than the time limit of an update
        fit(phase.name, task, session, prepare_seconds=time.perf_counter() - started)
        del task  # frees the data of the phase
        phase.clean(session)
        release_memory(session.device)
        log.tidy(self.experiment.config.phases)
        log.write(f"{phase.name}: done, {run.checkpoint_file(phase.name)}")
        show_preview(self.experiment, session, self.data, phase)


def training_plan(
    experiment: Experiment,
    names: list[PhaseName],
    run: RunFolder | None = None,
    world: World = ALONE,
    restarts: Collection[PhaseName] = (),
    network: UserNetwork | None = None,
) -> list[str]:
    """Check that the phases ``names`` can be trained, and return lines for the user. ``restarts``:
    phases whose checkpoints will be set aside. For the remaining arguments see :func:`train`.

    Raises:
        UserError: the pool or the checkpoints do not fit on this machine, the run has a pool with
            different settings, the precision does not suit the device, a package is missing, or
            there are more processes than samples in a batch.
    """
    config = experiment.config
    pending = experiment.phases(names)
    if pending and config.train.precision == "fp16" and experiment.device.type == "cpu":
        raise UserError("train.precision = fp16: too slow on a CPU; use fp32, bf16 or auto")
    lines = [f"{name}: finished" for name in config.phases if name not in names]
    weights = {}
    for phase in pending:
        optim = phase.optim
        check_shares(f"{phase.name}.batch_size", optim.batch_size, world.size)
        parameters = phase.outline(network).parameters()
        weights[phase.name] = sum(part.numel() for part in parameters if part.requires_grad)
        lines.append(
            f"{phase.name}: {optim.iterations} updates of {optim.batch_size}, "
            f"{weights[phase.name] / 1e6:.2f} M weights, {experiment.precision}"
        )
    if config.train.compile:
        lines.append(f"train.compile = true: compiled code is kept in {prepare_compiler()}")
    plans = [phase.plan(experiment.device, run, world) for phase in pending]
    home = run or RunFolder(config.out_path)
    check_space(weights, sum(size for _, size in plans), home, restarts)
    return [*lines, *(line for line, _ in plans if line)]


def check_space(
    weights: Mapping[PhaseName, int],
    pool: int,
    run: RunFolder,
    restarts: Collection[PhaseName] = (),
) -> None:
    """Raise UserError if the disk would be full before the end of a run. A run needs space for two
    checkpoints of each unfinished phase, for a third checkpoint while it is written, and for
    ``pool`` bytes. ``weights``: number of weights of each phase. Checkpoints of ``restarts`` are
    set aside, not overwritten."""
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
