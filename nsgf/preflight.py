"""What training would take on this machine: what can be tried is tried, and a few steps timed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from nsgf.checks import check
from nsgf.config.schema import Config
from nsgf.data import shape_and_classes
from nsgf.phases import Phase, get_phases
from nsgf.phases.base import timed_samples
from nsgf.readiness import checkpoint_kept, data_found, tried, updates_finite
from nsgf.run.plan import training_plan
from nsgf.run.trial import naming_the_model
from nsgf.sessions import Part, session_lines, training_hours
from nsgf.system.distributed import World
from nsgf.system.hardware import (
    OTHERS,
    describe,
    format_bytes,
    format_hours,
    peak_memory,
    pick_device,
    reset_peak_memory,
)
from nsgf.training.precision import (
    Forward,
    compiling,
    device_settings,
    prepare_environment,
)
from nsgf.training.state import TrainState
from nsgf.training.task import Batch


def preflight(
    config: Config, session_hours: float = 12.0, command: str = "python -m nsgf train"
) -> Iterator[str]:
    """Lines for people, each as soon as it is known (a CPU takes minutes for a large network):
    plan, what was tried, measured time of each phase, and sessions.

    Lines that begin with NO say what would stop a run, and the setting that would mend it; with ok,
    what was tried and worked. Data are downloaded where they may be.

    Args:
        config: the experiment.
        session_hours: hours that a session has.
        command: what starts the training.

    Raises:
        UserError: the configuration is not valid, or the device does not exist.
    """
    check(config)
    limit = training_hours(session_hours)
    prepare_environment(config.train)
    return _lines(config, pick_device(config.device), limit, command)


def _lines(config: Config, device: torch.device, limit: float, command: str) -> Iterator[str]:
    yield f"machine: {describe(device)}"
    plan = partial(training_plan, config, config.phases, device)
    yield from tried(lambda: [*plan(), "ok memory and disk"])
    yield from tried(lambda: [data_found(config)])
    parts: list[Part] = []
    for phase in get_phases(config.phases):
        yield from tried(partial(_measured, config, phase, device, parts))
    if len(parts) == len(config.phases):
        yield "measured on a few steps each:"
        yield from tried(lambda: session_lines(parts, limit, command))


def _measured(
    config: Config, phase: Phase, device: torch.device, parts: list[Part]
) -> Iterator[str]:
    """Lines about a phase, whose share of the sessions joins ``parts``.

    Raises:
        UserError: its network cannot be trained, updates are not finite, or a checkpoint cannot be
            written or read.
    """
    optim, prepared = phase.optim(config), []
    for preparation in phase.preparations(config, device):
        seconds = _median_seconds(preparation.unit, device) * preparation.units
        yield f"{preparation.name}: about {format_hours(seconds)}"
        prepared.append((preparation, seconds))
    with device_settings(config.train):
        with naming_the_model(config, phase):
            state, batch = ready(config, phase, device)
            reset_peak_memory(device)
            each = _median_seconds(lambda: state.update(batch), device)
        each *= optim.batch_size / len(batch.target)
        peak = f"; peak {format_bytes(peak_memory(device))} on the card"
        whole, where = each * optim.iterations, peak if device.type == "cuda" else ""
        parts.append(Part.of(phase.name, whole, prepared))
        yield f"{phase.name}: {each:.3g} s an update, about {format_hours(whole)}{where}"
        yield updates_finite(config, phase.name, lambda: state.update(batch).read())
    yield checkpoint_kept(config, phase.name, state.state_dict())


def ready(config: Config, phase: Phase, device: torch.device) -> tuple[TrainState, Batch]:
    """A phase before its first update, and a batch that may be smaller than the configured one."""
    optim, (shape, classes) = phase.optim(config), shape_and_classes(config.data)
    size = timed_samples(config, device, optim.batch_size)
    model = phase.build(config.model, shape, 0, classes).to(device)
    state = TrainState(
        Forward(model.train(), config.train, device, World()),
        replace(optim, batch_size=size),
        accumulate=min(config.train.accumulate, size),
    )
    with device:
        batch = phase.example(size, shape, classes)
    if config.train.compile:
        with compiling():
            state.rehearse(batch)
    return state, batch


def _median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    work()  # warm-up
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type in OTHERS:
        torch.accelerator.synchronize(device)
