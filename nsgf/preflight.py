"""What training would take on this machine: memory, and time measured on a few real steps."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from nsgf.checks import check
from nsgf.config.schema import Config
from nsgf.data import data_shape
from nsgf.phases import Phase, get_phases
from nsgf.phases.base import timed_samples
from nsgf.run.plan import training_plan
from nsgf.system.distributed import World
from nsgf.system.hardware import (
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


def preflight(config: Config) -> list[str]:
    """Lines for people: plan, memory, measured time of each phase.

    Raises:
        UserError: the device does not exist or the pool does not fit.
    """
    check(config)
    prepare_environment(config.train)
    device = pick_device(config.device)
    lines = [f"machine: {describe(device)}", *training_plan(config, config.phases, device)]
    total = 0.0
    for phase in get_phases(config.phases):
        for preparation in phase.preparations(config, device):
            seconds = _median_seconds(preparation.unit, device) * preparation.units
            lines.append(f"{preparation.name}: about {format_hours(seconds)}")
            total += seconds
        seconds, memory = _step_cost(config, phase, device)
        whole = seconds * phase.optim(config).iterations
        total += whole
        lines.append(
            f"{phase.name}: {seconds:.3g} s an update, about {format_hours(whole)}{memory}"
        )
    return [*lines, f"all phases: about {format_hours(total)} (measured on a few steps each)"]


def _step_cost(config: Config, phase: Phase, device: torch.device) -> tuple[float, str]:
    """Seconds of one update, and the measured peak on a CUDA device in words."""
    optim, shape = phase.optim(config), data_shape(config.data.name)
    size = timed_samples(config, device, optim.batch_size)
    model = phase.build(config.model, shape, seed=0).to(device)
    with device_settings(config.train):
        state = TrainState(
            Forward(model.train(), config.train, device, World()),
            replace(optim, batch_size=size),
            accumulate=min(config.train.accumulate, size),
        )
        with device:
            batch = phase.example(size, shape)
        if config.train.compile:
            with compiling():
                state.rehearse(batch)
        reset_peak_memory(device)
        seconds = _median_seconds(lambda: state.update(batch), device) * optim.batch_size / size
    if device.type != "cuda":
        return seconds, ""
    return seconds, f"; peak {format_bytes(peak_memory(device))} on the card"


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
