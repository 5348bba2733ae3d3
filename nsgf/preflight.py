"""Estimate time and memory of a training on this machine, with a few updates of each phase."""

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.experiment import training_plan
from nsgf.phases import get_phases
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.session import Session
from nsgf.system.errors import UserError
from nsgf.system.files import ensure_writable, fields, parse_object
from nsgf.system.hardware import describe_device, peak_memory, pick_device, release_memory
from nsgf.system.output import format_bytes, format_hours, silence
from nsgf.training.loop import fit
from nsgf.training.precision import prepare_environment

UPDATES = 6
"""Number of updates of each phase; the loss scale of fp16 needs a few to settle."""
RESERVE_HOURS = 0.5
"""Hours of a session reserved for the start, loading data and the last checkpoint."""


def preflight(
    config: Config, session_hours: float = 12.0, command: str = "python -m nsgf train"
) -> Iterator[str]:
    """Yield lines for the user: plan, checks, measured time, number of sessions in which
    ``command`` trains. A line that begins with NO names a problem that would stop a run, and a
    remedy. Raise UserError if the device does not exist."""
    if not session_hours > 0:
        raise UserError(f"--session-hours = {session_hours:g}: must be > 0")
    prepare_environment(config.train)
    device = pick_device(config.device)
    yield f"machine: {describe_device(device)}"

    def load() -> Iterator[str]:
        data = Data(config.data, config.seed)
        yield f"ok data: {f'{data.count} samples of ' if data.count else ''}{config.data.name}"

    def plan_sessions() -> Iterator[str]:
        hours, seconds = session_hours - min(RESERVE_HOURS, session_hours / 10), 0.0
        for line, needed in try_phases(config, device):
            seconds += needed
            yield line
        sessions = math.ceil(seconds / 3600 / hours)
        yield f"all phases: about {format_hours(seconds)}, sessions: {sessions}"
        yield f"    {command} --max-hours {hours:g}"
        if sessions > 1:
            yield f"    {command} --resume --max-hours {hours:g}    # in each later session"

    lines = [*_tried(lambda: [*training_plan(config, config.phases, device), "ok memory, disk"])]
    lines += _tried(load)
    yield from lines
    if not any(line.startswith("NO ") for line in lines):
        yield from _tried(plan_sessions)


def _tried(work: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Yield the lines of ``work``; after a UserError or a full card yield NO and the reason."""
    try:
        yield from work()
    except UserError as error:
        yield f"NO {error}"
    except torch.cuda.OutOfMemoryError:
        yield "NO the card's memory is full; use a smaller --batch-size or a smaller model"


def try_phases(config: Config, device: torch.device) -> Iterator[tuple[str, float]]:
    """Train each phase for a few updates in a temporary folder. Yield for each a line for the user,
    and the estimated seconds of the whole phase."""
    data = Data(config.data, config.seed)
    place = Path(config.out_dir).expanduser().absolute()
    while not place.exists():
        place = place.parent
    with tempfile.TemporaryDirectory(
        prefix=".nsgf-preflight-", dir=ensure_writable(place)
    ) as folder:
        run = RunFolder.prepare(Path(folder) / "run")
        for phase in get_phases(config.phases):
            short, times = phase.trial(config, device)
            optim = replace(getattr(config, phase.name), iterations=UPDATES)
            own: dict[str, Any] = {phase.name: optim}
            short = replace(short, train=replace(config.train, log_every=1, max_hours=None), **own)
            with silence(), RunLog(run.path) as log:
                session = Session(short, run, log, device)
                begin = time.perf_counter()
                task = phase.task(session, data)
                prepared = (time.perf_counter() - begin) * times
                fit(phase.name, task, session)
            del task
            release_memory(device)
            costs = (run.path / "costs.jsonl").read_text().splitlines()[-UPDATES // 2 :]
            speeds = [fields(parse_object(line), steps_per_second=float)[0] for line in costs]
            file, begin = run.checkpoint_file(phase.name), time.perf_counter()
            checkpoint.load(file)
            read = time.perf_counter() - begin
            seconds = prepared + getattr(config, phase.name).iterations / max(speeds)
            line = (
                f"ok {phase.name}: {1 / max(speeds):.3g} s an update, about "
                f"{format_hours(seconds)} with {format_hours(prepared)} of preparation, checkpoint "
                f"of {format_bytes(file.stat().st_size)} read in {read:.1f} s"
            )
            if device.type == "cuda":
                line += f", peak {format_bytes(peak_memory(device))} on the card"
            yield line, seconds
