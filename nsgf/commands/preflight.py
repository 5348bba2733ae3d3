"""Estimate time and memory of training on this machine, from a few updates of each phase."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from nsgf.commands.estimate import estimate_phases
from nsgf.commands.train import training_plan
from nsgf.experiment import Experiment
from nsgf.run.stop import StopRequest
from nsgf.system.errors import UserError
from nsgf.system.hardware import describe_device
from nsgf.system.output import format_hours

SECONDS = 2.0
"""Seconds for measuring the updates of each phase."""
RESERVE_HOURS = 0.5
"""Hours of a session that are reserved for the start, for loading data and for the last
checkpoint."""


class Finding(NamedTuple):
    """One line for the user."""

    text: str
    is_problem: bool = False
    """Whether the line names a problem that would stop a run."""

    def __str__(self) -> str:
        return f"NO {self.text}" if self.is_problem else self.text


def preflight(
    experiment: Experiment, session_hours: float = 12.0, command: str = "python -m nsgf train"
) -> Iterator[Finding]:
    """Yield lines about the training: the plan, problems, the measured time, and the number of
    sessions that ``command`` needs. Raise UserError if the device does not exist."""
    if not session_hours > 0:
        raise UserError(f"--session-hours = {session_hours:g}: must be > 0")
    yield Finding(f"machine: {describe_device(experiment.device)}")

    def plan_sessions() -> Iterator[str]:
        hours = session_hours - min(RESERVE_HOURS, session_hours / 10)
        seconds = 0.0
        quiet = experiment.change({"train.preview": False})
        for estimate in estimate_phases(quiet, SECONDS, StopRequest()):
            seconds += estimate.prepare + estimate.updates
            yield f"ok {estimate.line}"
        sessions = math.ceil(seconds / 3600 / hours)
        yield f"all phases: about {format_hours(seconds)}, sessions: {sessions}"
        yield f"    {command} --max-hours {hours:g}"
        if sessions > 1:
            yield f"    {command} --resume --max-hours {hours:g}    # in each later session"

    def plan() -> list[str]:
        return [*training_plan(experiment, experiment.config.phases), "ok memory, disk"]

    def load() -> Iterator[str]:
        count = experiment.load_data().count or "unlimited"
        yield f"ok data: {count} samples of {experiment.config.data.name}"

    findings = [*_try(plan), *_try(load)]
    yield from findings
    if not any(finding.is_problem for finding in findings):
        yield from _try(plan_sessions)


def _try(work: Callable[[], Iterable[str]]) -> Iterator[Finding]:
    """Yield the lines of ``work``. If it raises a UserError or the card is full, yield the
    problem."""
    try:
        yield from map(Finding, work())
    except UserError as error:
        yield Finding(str(error), is_problem=True)
    except torch.cuda.OutOfMemoryError:
        text = "the card's memory is full; use a smaller --batch-size or a smaller model"
        yield Finding(text, is_problem=True)
