"""Decide which phases of a run are left to train, and restart phases."""

import torch

from nsgf.config.schema import OF_PHASES, Config, PhaseName
from nsgf.config.settings import change, find_contradictions, look_up, nest
from nsgf.phases import PHASES
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import write_text
from nsgf.system.output import Log
from nsgf.training.precision import supported_precision

RESTART = "# restart:"
"""Start of the comment in ``config.yaml`` that names the phases to start again."""


def pending_phases(
    config: Config, run: RunFolder, first: PhaseName | None = None
) -> tuple[list[PhaseName], list[PhaseName]]:
    """Return the phases to train, in order, and those of them that start from their first update
    although they have a checkpoint.

    With ``first``, start with this phase; earlier phases must be finished. From here on, a phase
    starts again if it is finished or if it learned from a phase that starts again. Other unfinished
    phases resume.

    Raises:
        UserError: a checkpoint is damaged or contradicts the configuration, or a phase before
            ``first`` is not finished.
    """
    pending: list[PhaseName] = []
    restarts = []
    begin = config.phases.index(first) if first else len(config.phases)
    for number, name in enumerate(config.phases):
        is_done = _is_finished(config, run, name)
        if first and not is_done and number < begin:
            raise UserError(f"--resume-phase {begin + 1}: first finish phase {name} with --resume")
        is_stale = run.checkpoint_file(name).exists() and _needs(name, pending, config)
        if number >= begin and (is_done or is_stale):
            restarts.append(name)
        if number >= begin or not is_done:
            pending.append(name)
        else:
            checkpoint.load(run.checkpoint_file(name))  # not only its header: others may need it
    for name in pending:
        later = [
            other
            for other in OF_PHASES
            if run.checkpoint_file(other).exists()
            and other not in restarts
            and _needs(other, [name], config)
        ]
        if later:  # these phases learned from a network that would change
            number = config.phases.index(name) + 1
            again = f", or train them again: nsgf train --run {run.path} --resume-phase {number}"
            raise UserError(
                f"{name}.iterations = {getattr(config, name).iterations}: phase {number} would "
                f"change, but {later} learned from it; keep the value, or train a new run"
                + ("" if config.model.network else again)
            )
    return pending, restarts


def keep_precision(config: Config, run: RunFolder, device: torch.device) -> Config:
    """Return the settings with the run's first precision in place of ``auto``, if the device
    supports it; otherwise return them unchanged."""
    first = next(filter(run.has_checkpoint, config.phases), None)
    if first is None or config.train.precision != "auto":
        return config
    began = checkpoint.read_good_header(run.checkpoint_file(first)).get("precision")
    if supported_precision(began, device) != began:
        return config
    return change(config, {"train.precision": began})


def keep_finished(
    config: Config, run: RunFolder, names: list[PhaseName]
) -> tuple[Config, list[str]]:
    """Return the settings with the values that finished phases were trained with, and lines about
    settings that are ignored. ``names``: the phases to train."""
    finished = {*config.phases}.difference(names)
    if not finished:  # a new run may have no settings yet
        return config, []
    saved = run.read_settings()
    fixed = finished if names else {"train", "sampling", *finished}
    ignored = find_contradictions(nest(saved), config, fixed)
    if not names and config.data.path != saved.get("data.path"):
        ignored.append("data.path; give it to the commands that use the run")
    kept = {key: saved[key] for key in saved if key.partition(".")[0] in finished}
    return change(config, kept), ignored


def _needs(phase: PhaseName, others: list[PhaseName], config: Config) -> bool:
    """Whether a phase learns from the network of one of the others."""
    return any(needed.name in others for needed in PHASES[phase].needs(config))


def _is_finished(config: Config, run: RunFolder, phase: PhaseName) -> bool:
    """Whether all updates of a phase are done."""
    file = run.checkpoint_file(phase)
    if not file.exists():
        return False
    header = checkpoint.load(file, only_header=True)
    checkpoint.check_phase(file, header, phase)
    done = header["step"]
    wanted = getattr(config, phase).iterations
    key = f"{phase}.iterations"
    if wanted <= done and look_up(header["config"], key, wanted) not in (wanted, done):
        raise wrong_setting(key, wanted, f"{done} are done, must be more")
    running = None if done >= wanted else phase
    if texts := find_contradictions(header["config"], config, PHASES[phase].follows, running):
        raise UserError(f"cannot resume {file}: {'; '.join(texts)}")
    return not running


def restart(config: Config, run: RunFolder, restarts: list[PhaseName], log: Log) -> None:
    """Write the settings of a run, and set aside the checkpoints of phases that start again. Until
    this is done, the first line of ``config.yaml`` names these phases. So a single write decides
    about both, and :func:`finish_restart` can complete it after a kill."""
    run.write_config(config, f"{RESTART} {' '.join(restarts)}\n" if restarts else "")
    finish_restart(run, log)


def finish_restart(run: RunFolder, log: Log) -> None:
    """Set aside the checkpoints of phases that start again, as ``config.yaml`` names them."""
    text = run.config_file.read_text("utf-8") if run.config_file.exists() else ""
    line, _, settings = text.partition("\n")
    if not line.startswith(RESTART):
        return
    for name in OF_PHASES:
        if name in line.split() and run.checkpoint_file(name).exists():
            log(f"{name}: starts again, the previous checkpoint is {run.set_aside(name)}")
    (run.path / "metrics.json").unlink(missing_ok=True)
    write_text(run.config_file, settings)
