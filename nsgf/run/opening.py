"""Open a run for training: lock it, check everything, load the data, start the records."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from nsgf.config.schema import Config, PhaseName
from nsgf.data import Data
from nsgf.phases import Phase, get_phase, get_phases
from nsgf.run.checkpoint import mend, what_is_lost
from nsgf.run.folder import RunFolder
from nsgf.run.lock import only_process
from nsgf.run.log import Tracker
from nsgf.run.plan import training_plan
from nsgf.run.resume import Pending, pending_phases
from nsgf.run.session import Session
from nsgf.run.stop import Stopped, StopRequest
from nsgf.run.wandb_mirror import open_mirror
from nsgf.system.distributed import World
from nsgf.system.hardware import describe, pick_device
from nsgf.training.precision import prepare_environment


@dataclass
class OpenRun:
    """A run that this process may train."""

    session: Session
    phases: list[Phase]
    """Phases to train, in order."""
    loaded: Data | None
    """Source and target; None if there is nothing to train."""

    @property
    def data(self) -> Data:
        """Source and target."""
        assert self.loaded is not None
        return self.loaded


@contextmanager
def open_run(
    config: Config,
    run: RunFolder | None,
    first: PhaseName | None,
    world: World | None,
    stop: StopRequest | None,
) -> Iterator[OpenRun]:
    """A run, locked and checked, for as long as the context lasts.

    Args:
        config: the experiment.
        run: a run to go on with; None: a new one.
        first: start with this phase (see :func:`nsgf.run.resume.pending_phases`).
        world: the processes that train together; None: this one alone.
        stop: ends training early; None: only ``train.max_hours`` does.

    Raises:
        Stopped: whatever was done in the context was stopped; names the run folder.
        UserError: something is missing, does not fit, or contradicts the configuration.
    """
    world, stop = world or World(), stop or StopRequest(config.train.max_hours)
    prepare_environment(config.train, Path(config.out_dir).expanduser() / ".compiled")
    device = pick_device(config.device, world.local_rank if world.size > 1 else None)
    with ExitStack() as held:
        if run:
            _lock_and_mend(run, config.phases, world, held)
        pending = pending_phases(config, run, first) if run else Pending(config.phases, [])
        plan = training_plan(config, pending.phases, device, run, world)
        world.wait()  # the first process moves checkpoints only when all have read them
        data = load_data(config, device) if pending.phases else None
        run = _shared_folder(config, run, world, held, changes=bool(pending.phases))
        tracker = held.enter_context(Tracker(run.path, quiet=not world.is_main))
        session = Session(config, run, tracker, device, world, stop)
        for line in [f"run {run.path} on {describe(device, world.size)}", *plan]:
            tracker.log(line)
        if pending.phases:
            if world.is_main:
                _start_records(session, pending.restarts)
            for name in [name for name in config.phases if name not in pending.phases]:
                get_phase(name).clean(session)
        try:
            yield OpenRun(session, get_phases(pending.phases), data)
        except Stopped as stopped:
            stopped.folder = run.path
            raise


@contextmanager
def saying_what_is_lost(session: Session, phase: PhaseName) -> Iterator[None]:
    """Around the training of a phase: a second Ctrl-C leaves a line that says what is lost."""
    try:
        yield
    except KeyboardInterrupt:
        session.tracker.log(what_is_lost(session.run.checkpoint_file(phase), phase))
        raise


def load_data(config: Config, device: torch.device) -> Data:
    """Source and target, a small image set on the card that trains.

    Raises:
        UserError: the target's files are missing or damaged.
    """
    on_card = config.train.data_on_device and device.type == "cuda"
    return Data(config.data, config.seed, device if on_card else None)


def _lock_and_mend(run: RunFolder, phases: list[PhaseName], world: World, held: ExitStack) -> None:
    """Lock an earlier run's folder and repair its checkpoints, by the first process."""
    if world.is_main:
        held.enter_context(only_process(run.path))
        for phase in phases:
            mend(run.checkpoint_file(phase), Tracker(run.path).log)
    world.wait()


def _shared_folder(
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


def _start_records(session: Session, restarts: list[PhaseName]) -> None:
    """Set aside what starts anew, and begin the mirror."""
    run, tracker = session.run, session.tracker
    for phase in reversed(restarts):  # what is left by a kill in between can be resumed
        tracker.log(f"{phase}: starts anew, its earlier checkpoint is {run.set_aside(phase)}")
    tracker.mirror = open_mirror(session.config, run, tracker.log)
