"""Find the phases of a run that must still be trained, and restart phases."""

import json
from dataclasses import dataclass

from nsgf.config.layers import Layer, build, find_contradictions, look_up, nest, sections_of
from nsgf.config.schema import OF_PHASES, Config, PhaseName
from nsgf.experiment import Experiment
from nsgf.phases import PHASES
from nsgf.run import checkpoint
from nsgf.run.folder import Restart, RunFolder
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import sync_folder, write_text
from nsgf.system.output import Log
from nsgf.training.precision import supported_precision


@dataclass(frozen=True)
class Resumption:
    """Finds the phases of a run that must still be trained, and their settings."""

    experiment: Experiment
    run: RunFolder

    @property
    def config(self) -> Config:
        """The settings."""
        return self.experiment.config

    def pending_phases(
        self, first: PhaseName | None = None
    ) -> tuple[list[PhaseName], list[PhaseName]]:
        """Return the phases to train, in order. Also return the phases among them that have a
        checkpoint but start again from the first update.

        With ``first``, start with this phase; earlier phases must be finished. From ``first`` on, a
        phase starts again if it is finished, or if it learned from a phase that is now trained.
        Every other phase resumes.

        Raises:
            UserError: a checkpoint is damaged or contradicts the configuration, or a phase before
                ``first`` is not finished.
        """
        phases = self.config.phases
        pending: list[PhaseName] = []
        restarts = []
        begin = phases.index(first) if first else len(phases)
        for number, name in enumerate(phases):
            is_done = self._is_finished(name)
            if first and not is_done and number < begin:
                raise UserError(
                    f"--resume-phase {begin + 1}: first finish phase {name} with --resume"
                )
            file = self.run.checkpoint_file(name)
            is_stale = file.exists() and self._learns_from(name, pending)
            if number >= begin and (is_done or is_stale):
                restarts.append(name)
            if number >= begin or not is_done:
                pending.append(name)
            else:
                checkpoint.load(file)  # read the whole file: later phases may need the weights
        for name in pending:
            self._check_followers(name, restarts)
        return pending, restarts

    def _check_followers(self, name: PhaseName, restarts: list[PhaseName]) -> None:
        """Raise UserError if a later phase learned from the network of phase ``name``, which would
        change, and the later phase does not start again."""
        followers = [
            follower
            for follower in OF_PHASES
            if self.run.checkpoint_file(follower).exists()
            and follower not in restarts
            and self._learns_from(follower, [name])
        ]
        if not followers:
            return
        number = self.config.phases.index(name) + 1
        remedy = "keep the value, or train a new run"
        if not self.config.model.network:
            remedy += (
                f", or train them again: nsgf train --run {self.run.path} --resume-phase {number}"
            )
        raise UserError(
            f"{name}.iterations = {self.config.of_phase(name).iterations}: phase {number} would "
            f"change, but {followers} learned from it; {remedy}"
        )

    def saved_precision(self) -> Layer:
        """Return the run's first precision as a setting, in place of ``auto``. Return no setting if
        the device does not support it."""
        first = next(filter(self.run.has_checkpoint, self.config.phases), None)
        if first is None or self.config.train.precision != "auto":
            return {}
        header = checkpoint.read_good_header(self.run.checkpoint_file(first))
        precision = header.get("precision")
        if supported_precision(precision, self.experiment.device) != precision:
            return {}
        return {"train.precision": precision}

    def finished_settings(self, names: list[PhaseName]) -> tuple[Layer, list[str]]:
        """Return the values that finished phases were trained with, and lines about settings that
        are ignored. ``names``: the phases to train."""
        finished = {*self.config.phases}.difference(names)
        if not finished:  # a new run may have no saved settings
            return {}, []
        saved = self.run.read_settings()
        frozen = finished if names else {"train", "sampling", *finished}
        ignored = find_contradictions(nest(saved), self.config, frozen)
        if not names and self.config.data.path != saved.get("data.path"):
            ignored.append("data.path; give it to the commands that use the run")
        return {key: saved[key] for key in saved if key.partition(".")[0] in finished}, ignored

    def _learns_from(self, name: PhaseName, teachers: list[PhaseName]) -> bool:
        """Whether a phase learns from the network of a phase in ``teachers``."""
        (phase,) = self.experiment.phases([name])
        return any(needed.name in teachers for needed in phase.needs())

    def _is_finished(self, name: PhaseName) -> bool:
        """Whether all updates of a phase are done."""
        file = self.run.checkpoint_file(name)
        if not file.exists():
            return False
        header = checkpoint.load(file, only_header=True)
        checkpoint.check_phase(file, header, name)
        done = header["step"]
        updates = self.config.of_phase(name).iterations
        key = f"{name}.iterations"
        if updates <= done and look_up(header["config"], key, updates) not in (updates, done):
            raise wrong_setting(key, updates, f"{done} are done, must be more")
        running = None if done >= updates else name
        frozen = PHASES[name].follows
        if texts := find_contradictions(header["config"], self.config, frozen, running):
            raise UserError(f"cannot resume {file}: {'; '.join(texts)}")
        return not running

    def restart(self, restarts: list[PhaseName], log: Log) -> None:
        """Write the settings of the run, and set aside the checkpoints of phases that start again.

        Write ``restart.json`` first. After a kill, :func:`finish_restart` can then complete the
        restart."""
        if not restarts:
            self.run.write_config(self.config)
            return
        restart = Restart([*restarts], sections_of(self.config))
        write_text(self.run.restart_file, json.dumps(restart._asdict()))
        finish_restart(self.run, log)


def finish_restart(run: RunFolder, log: Log) -> None:
    """Complete the restart in ``restart.json``: write the settings, and set aside the checkpoints
    of the phases that start again."""
    restart = run.read_restart()
    if restart is None:
        return
    run.write_config(build(run.read_settings()))
    for name in OF_PHASES:
        if name in restart.phases and run.checkpoint_file(name).exists():
            log(f"{name}: starts again, the previous checkpoint is {run.set_aside(name)}")
    (run.path / "metrics.json").unlink(missing_ok=True)
    run.restart_file.unlink()
    sync_folder(run.path)
