"""Estimate time and memory of training on this machine, from a few updates of each phase."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch

from nsgf.config.schema import Config
from nsgf.config.settings import change
from nsgf.data import Data
from nsgf.experiment import training_plan
from nsgf.run.stop import StopRequest
from nsgf.system.errors import UserError
from nsgf.system.hardware import describe_device, pick_device
from nsgf.system.output import format_hours
from nsgf.trial import try_phases

SECONDS = 2.0
"""Seconds in which updates of each phase are measured."""
RESERVE_HOURS = 0.5
"""Hours of a session reserved for the start, loading data and the last checkpoint."""


def preflight(
    config: Config, session_hours: float = 12.0, command: str = "python -m nsgf train"
) -> Iterator[str]:
    """Yield lines for the user: plan, checks, measured time, and number of sessions that
    ``command`` needs. A line that begins with NO names a problem that would stop a run, and a
    remedy. Raise UserError if the device does not exist."""
    if not session_hours > 0:
        raise UserError(f"--session-hours = {session_hours:g}: must be > 0")
    device = pick_device(config.device)
    yield f"machine: {describe_device(device)}"

    def plan_sessions() -> Iterator[str]:
        hours = session_hours - min(RESERVE_HOURS, session_hours / 10)
        seconds = 0.0
        for tried in try_phases(
            change(config, {"train.preview": False}), device, SECONDS, StopRequest()
        ):
            seconds += tried.prepare + tried.updates
            yield tried.line
        sessions = math.ceil(seconds / 3600 / hours)
        yield f"all phases: about {format_hours(seconds)}, sessions: {sessions}"
        yield f"    {command} --max-hours {hours:g}"
        if sessions > 1:
            yield f"    {command} --resume --max-hours {hours:g}    # in each later session"

    def load() -> Iterator[str]:
        count = Data(config.data, config.seed).count or "unlimited"
        yield f"ok data: {count} samples of {config.data.name}"

    lines = [*_tried(lambda: [*training_plan(config, config.phases, device), "ok memory, disk"])]
    lines += _tried(load)
    yield from lines
    if not any(line.startswith("NO ") for line in lines):
        yield from _tried(plan_sessions)


def _tried(work: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Yield the lines of ``work``. After a UserError or a full card, yield NO and the reason."""
    try:
        yield from work()
    except UserError as error:
        yield f"NO {error}"
    except torch.cuda.OutOfMemoryError:
        yield "NO the card's memory is full; use a smaller --batch-size or a smaller model"
