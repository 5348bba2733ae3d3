"""Decide which phases of a run are left to train, and restart phases."""

import json
from collections.abc import Callable
from itertools import chain

from nsgf.config.leaves import find_contradictions
from nsgf.config.schema import FAMILIES, Config, PhaseName
from nsgf.phases import get_phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config, sync_folder, write_text
from nsgf.system.errors import UserError
from nsgf.system.json_reader import fields, read_object


def pending_phases(
    config: Config, run: RunFolder, first: PhaseName | None = None
) -> tuple[list[PhaseName], list[PhaseName]]:
    """Return the phases to train, in order, and the phases among them that start again although
    they have a checkpoint.

    With ``first``, start with this phase; earlier phases must be finished. From here on, a phase
    starts again if it is finished or if it learned from a phase that starts again. Other unfinished
    phases resume.

    Raises:
        UserError: a checkpoint contradicts the configuration, or a phase before ``first`` is not
            finished.
    """
    pending: list[PhaseName] = []
    restarts: list[PhaseName] = []
    begin = config.phases.index(first) if first else len(config.phases)
    for number, name in enumerate(config.phases):
        is_done = _is_finished(config, run, name)
        if first and not is_done and number < begin:
            raise UserError(
                f"--resume-phase {begin + 1}: phase {name} of {run.path} is not finished; "
                "use --resume"
            )
        is_stale = run.checkpoint_file(name).exists() and _needs(name, pending, config)
        if number >= begin and (is_done or is_stale):
            restarts.append(name)
        if number >= begin or not is_done:
            pending.append(name)
    for name in pending:
        later = [
            other
            for other in dict.fromkeys(chain(*FAMILIES))
            if run.checkpoint_file(other).exists()
            and other not in restarts
            and _needs(other, [name], config)
        ]
        if later:  # these phases learned from a network that would change
            number = config.phases.index(name) + 1
            raise UserError(
                f"{name}.iterations = {getattr(config, name).iterations}: phase {number} would "
                f"change, but {later} have learned from it; leave it, train a new run, or "
                f"say nsgf train --run {run.path} --resume-phase {number}, which trains them again"
            )
    return pending, restarts


def _needs(phase: PhaseName, others: list[PhaseName], config: Config) -> bool:
    """Whether a phase learns from the network of one of the others."""
    return any(needed.name in others for needed in get_phase(phase).needs(config))


def _is_finished(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    """Whether all updates of a phase are done."""
    file = run.checkpoint_file(phase)
    if not file.exists():
        return False
    header = checkpoint.read_header(file)
    checkpoint.check_phase(file, header, phase)
    is_done: bool = header["step"] >= getattr(config, phase).iterations
    follows, running = get_phase(phase).follows, None if is_done else phase
    texts = find_contradictions(header["config"], config, follows, running)
    if texts:
        raise UserError(f"cannot resume {file}: " + "; ".join(texts))
    return is_done


def restart(
    config: Config, run: RunFolder, restarts: list[PhaseName], log: Callable[[str], None]
) -> None:
    """Write the settings of a run, and set aside the checkpoints of phases that start again. A plan
    file is written first, so that :func:`finish_restart` can complete this after a kill."""
    intention = {"config": dump_config(config), "phases": restarts}
    write_text(run.restart_file, json.dumps(intention))
    run.write_config(config)
    finish_restart(run, log)


def finish_restart(run: RunFolder, log: Callable[[str], None]) -> None:
    """Set aside the checkpoints of phases that start again, if ``config.yaml`` already has the
    settings of the restart. Otherwise the restart was interrupted early and is dropped."""
    try:
        config, phases = fields(read_object(run.restart_file), config=str, phases=list)
    except ValueError:
        return  # no restart is planned
    for name in chain(*FAMILIES):
        is_left = name in phases and run.checkpoint_file(name).exists()
        if is_left and run.config_file.read_text("utf-8") == config:
            log(f"{name}: starts again, the previous checkpoint is {run.set_aside(name)}")
    run.restart_file.unlink()
    sync_folder(run.path)  # otherwise the file could come back after a power cut
