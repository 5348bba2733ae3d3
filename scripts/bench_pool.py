"""The trajectory pool: bytes, sampling time, build rate, memory while building.

    python scripts/bench_pool.py [--device cuda] [--repeats 5] [--only sampling]

Prints Markdown. Times are medians of --repeats; what is compared alternates within one run. MNIST
and CIFAR-10 are replaced by random images of their shape, so that nothing is downloaded.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from bench_common import clock, machine, quiet_session, status_bytes

from nsgf.command_line import parse
from nsgf.config.schema import Config
from nsgf.data import Data, Sampler, data_shape
from nsgf.phases.nsgf import NSGFTask
from nsgf.pool import TrajectoryPool, build_batch, build_pool, pool_bytes
from nsgf.pool.build import Simulation
from nsgf.pool.storage import PoolFile, new_header
from nsgf.sinkhorn import build_solver
from nsgf.system.distributed import World
from nsgf.system.hardware import format_bytes, pick_device
from nsgf.training.prefetch import Batches

EXPERIMENTS = ("2d", "digits", "mnist", "cifar10")
CIFAR = (3, 32, 32)
SAMPLED_PARTICLES = 8192
"""Particles of the pool that is sampled: 604 MB in float32, far more than a cache holds."""
STEP_SECONDS = 0.01
"""Time between two batches where drawing ahead is measured, as a network on a GPU would take."""
HOST_FLOWS, HOST_CHUNKS = 32, 6
"""Flows at a time, and how often."""
MIB = 1 << 20


def main() -> int:
    options = _parser().parse_args()
    if options.memory_of:
        _print_extra_memory(options.memory_of)
        return 0
    device = pick_device(options.device)
    print(machine(device, f"medians of {options.repeats}"))
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "bytes": bytes_table,
        "sampling": lambda: sampling_table(options.repeats),
        "build": lambda: build_table(device, options.repeats),
        "memory": memory_table,
        "host": lambda: host_table(options.repeats),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            print(f"\n### {name}\n")
            for line in part():
                print(line, flush=True)
    return 0


def bytes_table() -> Iterator[str]:
    """Per pair (x, v), and the whole pool at the shipped settings."""
    yield "Bytes per pool entry, one pair (x, v); in brackets the whole pool.\n"
    yield "| experiment | pairs | (x, v) pairs, float32 | positions, float32 | positions, float16 |"
    yield "|---|---:|---:|---:|---:|"
    for name in EXPERIMENTS:
        config = _config(name)
        shape = data_shape(config.data)
        pairs = config.pool.num_batches * config.sinkhorn.batch_size * config.flow.steps
        both = pairs * 2 * math.prod(shape) * 4
        sizes = [both, *(pool_bytes(config, shape, dtype) for dtype in ("float32", "float16"))]
        cells = [f"{size / pairs:.0f} ({format_bytes(size)})" for size in sizes]
        yield f"| {name} | {pairs:,} | {' | '.join(cells)} |"


def sampling_table(repeats: int) -> Iterator[str]:
    """A batch of 128 CIFAR-10 pairs from either storage."""
    yield (
        f"Milliseconds for 128 CIFAR-10 pairs, pool of {SAMPLED_PARTICLES} particles, 5 steps. "
        "Disk: mapped file, cache warm. Prefetch: time the training loop waits, with "
        f"{STEP_SECONDS * 1e3:.0f} ms between two batches.\n"
    )
    yield "| storage | type | direct | slowest tenth | with prefetch | slowest tenth |"
    yield "|---|---|---:|---:|---:|---:|"
    for dtype in ("float32", "float16"):
        for storage in ("memory", "disk"):
            with tempfile.TemporaryDirectory() as folder:
                pool = _filled_pool(dtype, Path(folder) if storage == "disk" else None)
                cells = [*_draw_times(pool, repeats, False), *_draw_times(pool, repeats, True)]
                del pool
            yield f"| {storage} | {dtype} | {' | '.join(f'{1e3 * c:.2f}' for c in cells)} |"


def build_table(device: torch.device, repeats: int) -> Iterator[str]:
    """Flows per second: geomloss one by one against the configured solver in chunks."""
    yield (
        "Flows (of n particles) per second, sampling of clouds included, pool storage not. "
        "One chunk each is warm-up.\n"
    )
    yield "| experiment | n x D, steps | geomloss, one at a time | configured | at a time | ratio |"
    yield "|---|---|---:|---:|---:|---:|"
    for name in EXPERIMENTS:
        config = _config(name)
        data = Data(config.data, config.seed)
        together = build_batch(config, data.shape, device)
        reference = _simulation(config, data, "geomloss", device)
        ours = _simulation(config, data, config.sinkhorn.solver, device)
        reference.flows(range(1))
        ours.flows(range(together))
        rates: tuple[list[float], list[float]] = ([], [])
        for turn in range(repeats):
            rates[0].append(_flow_rate(reference, turn, 1, device))
            rates[1].append(_flow_rate(ours, turn * together, together, device))
        before, after = median(rates[0]), median(rates[1])
        n, steps = config.sinkhorn.batch_size, config.flow.steps
        yield (
            f"| {name} | {n} x {math.prod(data.shape)}, {steps} | {before:.2f} | "
            f"{after:.2f} ({config.sinkhorn.solver}) | {together} | {after / before:.1f} |"
        )


def memory_table() -> Iterator[str]:
    """Peak resident memory while building, beyond the data, the libraries and the pool."""
    yield "Peak memory of a process that builds three chunks, beyond its start and the pool.\n"
    yield "| experiment | flows at a time | pool | beyond it |"
    yield "|---|---:|---:|---:|"
    for name in EXPERIMENTS:
        done = subprocess.run(
            [sys.executable, __file__, "--memory-of", name],
            capture_output=True,
            text=True,
            check=False,
        )
        line = done.stdout.strip() or f"failed: {done.stderr.strip().splitlines()[-1]}"
        yield f"| {name} | {line} |"


def host_table(repeats: int) -> Iterator[str]:
    """What the host of a card does for CIFAR-10's pool beside the solver."""
    config = _config("cifar10")
    data = Data(config.data, config.seed)
    yield (
        f"Seconds of one core for the 2500 flows of CIFAR-10 in float16, {HOST_FLOWS} at a time, "
        f"computed from {HOST_CHUNKS} chunks. Targets are drawn on a card where there is one.\n"
    )
    yield "| source | targets | storing |"
    yield "|---:|---:|---:|"
    cells = []
    for _ in range(repeats):
        targets, _ = _host_times(data.target("host"))
        source, storing = _host_times(data.source("host"))
        cells.append([source, targets, storing])
    yield f"| {' | '.join(f'{median(column):.1f}' for column in zip(*cells, strict=True))} |"


def _host_times(sampler: Sampler) -> tuple[float, float]:
    """Seconds of the processor for CIFAR-10's pool, from a few chunks: for drawing clouds and for
    storing flows.
    """
    drawing, positions = 0.0, torch.randn(HOST_FLOWS * 128, 6, *CIFAR)
    pool = TrajectoryPool(HOST_CHUNKS * len(positions), 5, CIFAR, 0.2, dtype=torch.float16)
    started = time.thread_time()
    for start in range(0, HOST_CHUNKS * len(positions), len(positions)):
        drawing -= time.thread_time()
        sampler.at(range(start, start + len(positions)))
        drawing += time.thread_time()
        pool.append(positions)
    spent = time.thread_time() - started
    scale = 2500 / (HOST_FLOWS * HOST_CHUNKS)
    return scale * drawing, scale * (spent - drawing)


def _print_extra_memory(name: str) -> None:
    config = _config(name)
    data = Data(config.data, config.seed)
    device = torch.device("cpu")
    together = build_batch(config, data.shape, device)
    batches = min(3 * together, config.pool.num_batches)
    config = replace(config, pool=replace(config.pool, num_batches=batches, dtype="float16"))
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status_bytes("VmRSS")
    source, target = data.source("pool"), data.target("pool")
    with tempfile.TemporaryDirectory() as folder:
        pool = build_pool(quiet_session(config, device, Path(folder)), source, target)
    extra = status_bytes("VmHWM") - before - pool._positions.nbytes
    print(f"{together} | {pool._positions.nbytes / MIB:.0f} MiB | {extra / MIB:.0f} MiB")


def _flow_rate(simulation: Simulation, start: int, together: int, device: torch.device) -> float:
    started = clock(device)
    simulation.flows(range(start, start + together))
    return together / (clock(device) - started)


def _simulation(config: Config, data: Data, solver: str, device: torch.device) -> Simulation:
    settings = replace(config.sinkhorn, solver=solver)
    return Simulation(
        config, data.source("bench"), data.target("bench"), build_solver(settings), device
    )


def _draw_times(pool: TrajectoryPool, repeats: int, ahead: bool) -> tuple[float, float]:
    """Median and 90th percentile of the seconds for one batch, 20 batches a repeat."""
    task = NSGFTask(torch.nn.Identity(), pool, seed=0)
    batches = Batches(task, 128, torch.device("cpu"), World(), prefetch=ahead)
    seconds = []
    for turn in range(20 * repeats + 5):
        if ahead:
            time.sleep(STEP_SECONDS)
        started = time.perf_counter()
        batch = batches.at(turn)
        if turn >= 5:
            seconds.append(time.perf_counter() - started)
        del batch
    batches.close()
    return median(seconds), sorted(seconds)[int(0.9 * len(seconds))]


def _filled_pool(dtype: str, folder: Path | None) -> TrajectoryPool:
    kind, file = getattr(torch, dtype), None
    if folder:
        header = new_header({"pool.num_batches": 64}, dtype)
        file = PoolFile(folder / "pool", header, 64, SAMPLED_PARTICLES // 64, (6, *CIFAR))
    storage = file.positions if file else None
    pool = TrajectoryPool(SAMPLED_PARTICLES, 5, CIFAR, 0.2, dtype=kind, storage=storage)
    generator = torch.Generator().manual_seed(0)
    for _ in range(64):
        pool.append(torch.randn((SAMPLED_PARTICLES // 64, 6, *CIFAR), generator=generator))
    if file:
        file.commit(64, {})
        file.save()
    return pool


def _config(name: str) -> Config:
    fake = ["--fake-data"] if name in ("mnist", "cifar10") else []
    return parse(["train", "--exp", name, "--device", "cpu", *fake]).config


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="where flows are computed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("bytes", "sampling", "build", "memory", "host"))
    parser.add_argument("--memory-of", choices=EXPERIMENTS, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
