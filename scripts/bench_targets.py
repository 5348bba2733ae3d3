"""Error of the mini-batch velocity, by particles n and targets m of a flow.

    python scripts/bench_targets.py [--exp mnist --data-root data --reference 6000 --rounds 2]

The reference is the flow of all: N noise particles against N images. At some of its steps the
particles are cut at random into clouds of n, each against m of the images, as flows of the pool
are, in several rounds. A particle thus has several velocities; relative to its reference velocity,
over all particles,

    error^2 = bias^2 + spread^2      of one velocity
    bias                             of the mean over companions and targets, which a network learns
    spread                           of the velocities around their mean, which averages out

More targets than N are timed only, in seconds of the processor. Memory is what one solve takes
beyond its clouds.
"""

import argparse
import math
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import bench_common
import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data, is_image_set
from nsgf.sinkhorn import FlowSolver, build_solver
from nsgf.sinkhorn.schedule import step_sizes
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes, pick_device

MOST = 6000
"""Images of the reference unless told: its matrices take 0.7 GB."""
PARTICLES, MORE_PARTICLES = 256, 1024
TARGETS = (64, 128, 256, 512, 1024)


class Errors(NamedTuple):
    """Relative to the reference velocity, in the L2 norm over all particles."""

    error: float
    bias: float
    spread: float

    def __str__(self) -> str:
        return " | ".join(f"{100 * value:.1f} %" for value in self)


def main() -> None:
    options, flags = _parser().parse_known_args()
    config = bench_common.experiment(options.exp, flags)
    if not is_image_set(config.data.name):
        raise UserError(f"--exp {options.exp}: must be an image set, whose images can be counted")
    if options.rounds < 2:
        raise UserError(f"--rounds {options.rounds}: must be >= 2")
    device = pick_device(config.device)
    x, y, size = _clouds(config, options.reference, device)
    solver, count = build_solver(config.sinkhorn), len(x)
    print(
        bench_common.machine(
            device,
            f"blur {config.sinkhorn.blur}, reference n = m = {count} of {size} images, "
            f"{options.rounds} rounds",
        )
    )
    etas = step_sizes(config.flow)
    positions = solver.flows(x[None], y[None, :count], etas[:-1])[0]
    for step in sorted({0, len(etas) - 1}):
        start = bench_common.busy_clock(device)
        exact = solver.velocity(positions[:, step], y[:count])
        took = bench_common.busy_clock(device) - start
        print(f"\n### step {step + 1} of {len(etas)}, whose reference took {took:.3g} s\n")
        for line in _table(solver, positions[:, step], y, exact, options.rounds):
            print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Any other flag is one of `python -m nsgf train`.",
        allow_abbrev=False,
    )
    parser.add_argument("--exp", default="digits", help="experiment of images")
    parser.add_argument("--reference", type=int, default=MOST, help="N, at most all images")
    parser.add_argument("--rounds", type=int, default=8, help="velocities of a particle, at most")
    return parser


def _clouds(config: Config, most: int, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Noise (N, *shape), all images in a random order (size, *shape), and their number."""
    data = Data(config.data, config.seed)
    assert data.images is not None
    size = len(data.images)
    if most <= PARTICLES:
        raise UserError(f"--reference {most}: must be > {PARTICLES}")
    noise = data.source("bench").sample(min(most, size))
    return noise.to(device), data.target("bench").sample(size).to(device), size


def _table(solver: FlowSolver, x: Tensor, y: Tensor, exact: Tensor, rounds: int) -> Iterator[str]:
    """Rows of n and m for particles x (N, *shape) and images y, the first N of the reference."""
    count, size = len(x), len(y)
    yield "| n | m | error | bias | spread | s a solve | memory of it |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    sizes = [(PARTICLES, m) for m in sorted({m for m in (*TARGETS, size) if m <= size} | {count})]
    if count > MORE_PARTICLES:
        sizes += [(MORE_PARTICLES, m) for m in (MORE_PARTICLES, count)]
    for n, m in sizes:
        found, seconds = " |  | ", []
        if m <= count:
            errors, seconds = measured(solver, x, y[:count], exact, n, m, rounds)
            found = str(errors)
        taken, nbytes = _timed(solver, x[:n], y[:m])
        cost = f"{median([*seconds, taken]):.3g} | {format_bytes(nbytes)}"
        yield f"| {n} | {m} | {found} | {cost} |"


def measured(
    solver: FlowSolver, x: Tensor, y: Tensor, exact: Tensor, n: int, m: int, rounds: int
) -> tuple[Errors, list[float]]:
    """Errors of clouds of n particles of x (N, *shape) against m of y, and seconds of each solve.

    ``exact`` is the reference velocity, (N, *shape). Of N, what n does not divide stays out of a
    round.
    """
    generator = torch.Generator().manual_seed(0)
    total, squares, counts = (torch.zeros_like(exact), *torch.zeros(2, len(x), device=x.device))
    seconds = []
    for _ in range(rounds):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for cloud in order.split(n)[: len(x) // n]:
            chosen = torch.randperm(len(y), generator=generator)[:m].to(x.device)
            targets, start = y[chosen], bench_common.busy_clock(x.device)
            gap = solver.velocity(x[cloud], targets) - exact[cloud]
            seconds.append(bench_common.busy_clock(x.device) - start)
            total[cloud] += gap
            squares[cloud] += gap.flatten(1).square().sum(1)
            counts[cloud] += 1
    return _divided(total.flatten(1), squares, counts, exact), seconds


def _divided(total: Tensor, squares: Tensor, counts: Tensor, exact: Tensor) -> Errors:
    """Errors from the sums of gaps (N, D), of their squares (N,), and their numbers (N,).

    Unbiased: the mean of few gaps is off by a part of their spread, which is taken away again.
    """
    seen = counts >= 2
    total, squares, counts = total[seen], squares[seen], counts[seen]
    of_mean = total.square().sum(1) / counts
    variance = (squares - of_mean) / (counts - 1)
    bias = (of_mean - variance) / counts
    scale = exact.flatten(1)[seen].square().sum()
    return Errors(
        *(
            math.sqrt(max(0.0, float(part.sum() / scale)))
            for part in (bias + variance, bias, variance)
        )
    )


def _timed(solver: FlowSolver, x: Tensor, y: Tensor) -> tuple[float, int]:
    """Seconds and bytes of one solve."""
    memory, start = bench_common.PeakMemory(x.device), bench_common.busy_clock(x.device)
    solver.velocity(x, y)
    return bench_common.busy_clock(x.device) - start, memory.bytes()


if __name__ == "__main__":
    bench_common.finish(main)
