"""What is finished of a run, and what is left to train."""

from typing import NamedTuple

from nsgf.config.resume_rules import contradictions
from nsgf.config.schema import Config, PhaseName, family
from nsgf.phases import get_phase, get_phases
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError


class Pending(NamedTuple):
    """What is left to train of a run."""

    phases: list[PhaseName]
    """Phases to train, in order."""
    restarts: list[PhaseName]
    """Those of them that are finished and shall start anew."""


def pending_phases(config: Config, run: RunFolder, first: PhaseName | None = None) -> Pending:
    """What training a run with this configuration has to do.

    Args:
        config: the experiment.
        run: the run folder.
        first: start with this phase: those before must be finished; from it on, what is half done
            goes on and what is finished starts anew.

    Raises:
        UserError: a checkpoint contradicts the configuration, or a phase before ``first`` is not
            finished.
    """
    pending, restarts = [], []
    begin = config.phases.index(first) if first else len(config.phases)
    for number, phase in enumerate(config.phases):
        done = _is_finished(config, run, phase)
        if not done and number < begin and first:
            raise UserError(
                f"--resume-phase {begin + 1}: phase {phase} of {run.path} is not finished; "
                "use --resume"
            )
        if done and number >= begin:
            restarts.append(phase)
        if not done or number >= begin:
            pending.append(phase)
    _refuse_new_ground(config, run, Pending(pending, restarts))
    return Pending(pending, restarts)


def _is_finished(config: Config, run: RunFolder, phase: PhaseName) -> bool:
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


def _refuse_new_ground(config: Config, run: RunFolder, pending: Pending) -> None:
    """
    Raises:
        UserError: a phase would change under later ones whose samples come from its network.
    """
    started = [name for name in family(config.phases[-1]) if run.checkpoint_file(name).exists()]
    for name in pending.phases:
        later = [
            phase.name
            for phase in get_phases(started)
            if phase.name not in pending.restarts
            and name in [needed.name for needed in phase.needs(config)]
        ]
        if later:
            number = config.phases.index(name) + 1
            raise UserError(
                f"{name}.iterations = {get_phase(name).optim(config).iterations}: phase {number} "
                f"would change under {later}, whose samples come from its output; "
                f"--resume-phase {number} trains all anew"
            )
