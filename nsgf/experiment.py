"""Algorithm 3: the phases of NSGF++ in their order, and nothing else.

    phase 1  nsgf       Sinkhorn flows -> trajectory pool -> velocity network v_theta
    phase 2  nsf        straight lines from noise to data -> straight-flow network u_delta
    phase 3  predictor  where on its line a sample is -> time predictor t_phi

Phases share data and settings; what one learns reaches the next through its checkpoint file. The
methods that NSGF is compared with are phases too (:mod:`nsgf.phases`).
"""

from nsgf.checks import check
from nsgf.config.schema import Config, PhaseName
from nsgf.data import Data
from nsgf.phases import Phase
from nsgf.run.checkpoint import what_is_lost
from nsgf.run.folder import RunFolder
from nsgf.run.opening import open_run
from nsgf.run.session import Session
from nsgf.run.stop import StopRequest
from nsgf.sampling.preview import show_preview
from nsgf.system.distributed import World
from nsgf.system.hardware import release_memory
from nsgf.training.loop import fit


def train(
    config: Config,
    run: RunFolder | None = None,
    first: PhaseName | None = None,
    world: World | None = None,
    stop: StopRequest | None = None,
) -> RunFolder:
    """Train the configured phases that are not done yet.

    Everything that can be refused is refused before anything is written, but for the lock of an
    earlier run's folder, and damaged checkpoints that are put aside.

    Args:
        config: the experiment.
        run: a run to go on with; None: a new one.
        first: start with this phase (see :func:`nsgf.run.opening.pending_phases`).
        world: the processes that train together; None: this one alone.
        stop: ends training early; None: only ``train.max_hours`` does.

    Returns:
        The run folder.

    Raises:
        Stopped: asked to by ``stop``, after a checkpoint; names the run folder.
        UserError: the configuration is not valid, data are missing, the pool does not fit, the
            device does not exist, or the run's pool or checkpoints contradict the configuration.
    """
    check(config)
    with open_run(config, run, first, world, stop) as (session, phases, data):
        if data is not None:
            for phase in phases:
                train_phase(phase, session, data)
    return session.run


def train_phase(phase: Phase, session: Session, data: Data) -> None:
    """One part of Algorithm 3, from its start or its checkpoint to its end."""
    file, tracker = session.run.checkpoint_file(phase.name), session.tracker
    session.world.wait()  # for what the first process alone writes and moves
    try:
        fit(phase.name, phase.task(session, data), session)  # the task and its data end here
    except KeyboardInterrupt:  # a second Ctrl-C
        tracker.log(what_is_lost(file, phase.name))
        raise
    phase.clean(session)
    release_memory(session.device)
    tracker.sort(session.config.phases)
    tracker.log(f"{phase.name}: done, {file}")
    show_preview(session, data, phase)
