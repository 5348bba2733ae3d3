"""What training would take on this machine: memory, and time measured on a few real steps."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from nsgf.config.schema import Config, PhaseName
from nsgf.data import build_source, data_shape
from nsgf.experiment import training_plan
from nsgf.models import build_network
from nsgf.sinkhorn import build_solver
from nsgf.sinkhorn.schedule import step_sizes
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
from nsgf.training.task import Batch

CPU_BATCH = 8
"""Largest batch that is timed on a CPU; its time is scaled to the configured batch."""


def preflight(config: Config) -> list[str]:
    """Lines for people: plan, memory, measured time of each phase.

    Raises:
        UserError: the device does not exist or the pool does not fit.
    """
    prepare_environment(config.train, Path(config.out_dir).expanduser() / ".compiled")
    device = pick_device(config.device)
    lines = [f"machine: {describe(device)}", *training_plan(config, config.phases, device)]
    pool_seconds = _flow_seconds(config, device) * config.pool.num_batches
    lines.append(f"pool: about {format_hours(pool_seconds)}")
    total = pool_seconds
    for phase in config.phases:
        seconds, memory = _step_cost(config, phase, device)
        total += seconds * getattr(config, phase).iterations
        lines.append(
            f"{phase}: {seconds:.3g} s an update, about "
            f"{format_hours(seconds * getattr(config, phase).iterations)}{memory}"
        )
    return [*lines, f"all phases: about {format_hours(total)} (measured on a few steps each)"]


def _flow_seconds(config: Config, device: torch.device) -> float:
    """Seconds of one mini-batch of flows; noise stands in for the data."""
    n, flow = config.sinkhorn.batch_size, config.flow
    source = build_source(config.data, config.seed, "preflight")
    x = source.sample(n).to(device).unsqueeze(0)
    y = source.sample(n).to(device).unsqueeze(0).tanh()
    solver = build_solver(config.sinkhorn)
    return _median_seconds(lambda: solver.flows(x, y, step_sizes(flow)), device)


def _step_cost(config: Config, phase: PhaseName, device: torch.device) -> tuple[float, str]:
    """Seconds of one update, and the measured peak on a CUDA device in words."""
    optim, shape = getattr(config, phase), data_shape(config.data.name)
    small = device.type == "cpu" and config.model.kind == "unet"
    size = min(CPU_BATCH, optim.batch_size) if small else optim.batch_size
    model = build_network(phase, config.model, shape, seed=0).to(device)
    with device_settings(config.train):
        state = TrainState(
            Forward(model.train(), config.train, device, World()),
            replace(optim, batch_size=size),
            accumulate=min(config.train.accumulate, size),
        )
        batch = _noise(phase, size, shape, device)
        if config.train.compile:
            with compiling():
                state.rehearse(batch)
        reset_peak_memory(device)
        seconds = _median_seconds(lambda: state.update(batch), device) * optim.batch_size / size
    if device.type != "cuda":
        return seconds, ""
    return seconds, f"; peak {format_bytes(peak_memory(device))} on the card"


def _noise(phase: PhaseName, size: int, shape: tuple[int, ...], device: torch.device) -> Batch:
    """A batch of the phase's shapes."""
    x, t = torch.randn((size, *shape), device=device), torch.rand(size, device=device)
    return Batch((x,), t) if phase == "predictor" else Batch((x, t), torch.randn_like(x))


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
