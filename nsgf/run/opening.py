"""Open a run for training: lock it, see what is left, check everything, load the data."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from nsgf.config.resume_rules import contradictions
from nsgf.config.schema import FAMILIES, Config, PhaseName
from nsgf.data import Data
from nsgf.phases import Phase, get_phase, get_phases
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.lock import only_process
from nsgf.run.log import Tracker
from nsgf.run.mirrors import open_mirror, require_tracker
from nsgf.run.plan import training_plan
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, cause
from nsgf.system.hardware import describe, pick_device
from nsgf.training.precision import prepare_environment


class OpenRun(NamedTuple):
    """A run that this process may train."""

    session: Session
    phases: list[Phase]
    """Phases to train, in order."""
    data: Data | None
    """Source and target; None if there is nothing to train."""


@contextmanager
def open_run(
    config: Config,
    run: RunFolder | None,
    first: PhaseName | None,
    world: World | None,
    stop: StopRequest | None,
) -> Iterator[OpenRun]:
    """A run, locked and checked, for as long as the context lasts.

    Arguments are those of :func:`nsgf.experiment.train`.

    Raises:
        Stopped: whatever was done in the context was stopped; names the run folder.
        UserError: something is missing, does not fit, or contradicts the configuration.
    """
    world, stop = world or World(), stop or StopRequest(config.train.max_hours)
    if run is None or not run.config_file.exists():  # a run's own settings may be from elsewhere
        require_tracker(config)
    prepare_environment(config.train)
    device = pick_device(config.device, world.card)
    with ExitStack() as held:
        if run and world.is_main:
            _hold(run, held)
            for name in config.phases:
                checkpoint.mend(run.checkpoint_file(name), Tracker(run.path).log)
        world.wait()
        phases, restarts = pending_phases(config, run, first) if run else (config.phases, [])
        plan = training_plan(config, phases, device, run, world, restarts)
        world.wait()  # the first process moves checkpoints only when all have read them
        data = load_data(config, device) if phases else None
        is_new = run is None
        if world.is_main and is_new:
            run = RunFolder.create(config)
            held.enter_context(only_process(run.path))
        run = RunFolder(world.agree(run.path if run else Path()))
        _see(run, world)
        tracker = held.enter_context(Tracker(run.path, quiet=not world.is_main))
        session = Session(config, run, tracker, device, world, stop)
        for line in [f"run {run.path} on {describe(device, world.size)}", *plan]:
            tracker.log(line)
        if world.is_main and phases:
            for name in reversed(restarts):  # what is left by a kill in between can be resumed
                aside = run.set_aside(name)
                tracker.log(f"{name}: starts anew, its earlier checkpoint is {aside}")
            if not is_new:
                run.write_config(config)  # only now: a kill leaves no old phase under new settings
            tracker.mirror = open_mirror(config, run, tracker.log)
        for name in config.phases:  # a kill may have come before its own clean-up
            if name not in phases:
                get_phase(name).clean(session)
        tracker.sort(config.phases)
        try:
            yield OpenRun(session, get_phases(phases), data)
        except Stopped as stopped:
            stopped.folder = run.path
            raise


def _see(run: RunFolder, world: World) -> None:
    """
    Raises:
        UserError: this process is on a machine that does not have the first one's run folder.
    """
    if not run.path.is_dir():
        raise UserError(
            f"out_dir: process {world.rank} does not see {run.path}, which the first one has; "
            "name a folder that all machines share with --out-dir DIR"
        )


def _hold(run: RunFolder, held: ExitStack) -> None:
    """Lock an earlier run's folder, for as long as the context lasts.

    Raises:
        UserError: another process works there, or the folder cannot be written.
    """
    try:
        held.enter_context(only_process(run.path))
    except OSError as error:
        raise UserError(
            f"run = {run.path}: cannot be written ({cause(error)}); copy the run folder "
            "to where you may write, and go on there with --run COPY"
        ) from error


def load_data(config: Config, device: torch.device) -> Data:
    """Source and target, a small image set on the card that trains.

    Raises:
        UserError: the target's files are missing or damaged.
    """
    on_card = config.train.data_on_device and device.type == "cuda"
    return Data(config.data, config.seed, device if on_card else None)


def pending_phases(
    config: Config, run: RunFolder, first: PhaseName | None = None
) -> tuple[list[PhaseName], list[PhaseName]]:
    """What training a run with this configuration has to do.

    Args:
        config: the experiment.
        run: the run folder.
        first: start with this phase: those before must be finished; from it on, what is half done
            goes on, unless it needs one that is trained too, and what is finished starts anew.

    Returns:
        Phases to train, in order; those of them that start anew although they have a checkpoint.

    Raises:
        UserError: a checkpoint contradicts the configuration, or a phase before ``first`` is not
            finished.
    """
    pending: list[PhaseName] = []
    restarts: list[PhaseName] = []
    begin = config.phases.index(first) if first else len(config.phases)
    for number, phase in enumerate(config.phases):
        done = _is_finished(config, run, phase)
        if not done and number < begin and first:
            raise UserError(
                f"--resume-phase {begin + 1}: phase {phase} of {run.path} is not finished; "
                "use --resume"
            )
        if number >= begin and (done or _stands_on(phase, pending, config, run)):
            restarts.append(phase)
        if not done or number >= begin:
            pending.append(phase)
    _refuse_new_ground(config, run, pending, restarts)
    return pending, restarts


def _stands_on(phase: PhaseName, pending: list[PhaseName], config: Config, run: RunFolder) -> bool:
    """Whether what a phase has learned came from a network that is going to change."""
    needed = {needed.name for needed in get_phase(phase).needs(config)}
    return run.checkpoint_file(phase).exists() and bool(needed & set(pending))


def _is_finished(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    """Whether no updates of a phase are left.

    Raises:
        UserError: its checkpoint cannot be read, or contradicts the configuration.
    """
    file = run.checkpoint_file(phase)
    if not file.exists():
        return False
    header = checkpoint.read_header(file)
    checkpoint.check_phase(file, header, phase)
    done = int(header["step"]) >= get_phase(phase).optim(config).iterations
    follows, running = get_phase(phase).follows, None if done else phase
    texts = contradictions(header["config"], config, follows, running)
    if texts:
        raise UserError(f"cannot resume {file}: " + "; ".join(texts))
    return done


def _refuse_new_ground(
    config: Config, run: RunFolder, pending: list[PhaseName], restarts: list[PhaseName]
) -> None:
    """
    Raises:
        UserError: a phase would change under later ones whose samples come from its network.
    """
    every = dict.fromkeys(chain(*FAMILIES))
    started = [name for name in every if run.checkpoint_file(name).exists()]
    for name in pending:
        later = [
            phase.name
            for phase in get_phases(started)
            if phase.name not in restarts
            and name in [needed.name for needed in phase.needs(config)]
        ]
        if later:
            number = config.phases.index(name) + 1
            raise UserError(
                f"{name}.iterations = {get_phase(name).optim(config).iterations}: phase {number} "
                f"would change under {later}, whose samples come from its output; "
                f"--resume-phase {number} trains all anew"
            )
