"""Partners among all training images: time and memory to learn and to find them, and how even.

    python scripts/bench_semidiscrete.py --exp digits
    python scripts/bench_semidiscrete.py --exp mnist --data-root data --steps 20

Noise is carried to the real images; --data.flip counts the mirrored ones too. Learning takes
semidiscrete.passes draws for each image; with --steps only so many steps are taken, from which the
time of all is told. Seconds are those of the processor, of all its threads, or of a card. The
second table says what the pairs of a batch cost then, and what those of exact transport within
groups do, which is solved on the CPU.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import bench_common
import torch
from torch import Tensor

from nsgf.data import Data, Sampler, is_image_set
from nsgf.phases.coupling import optimal_pairs
from nsgf.phases.potential import check_steps, steps_of
from nsgf.sinkhorn.semidiscrete import BATCH, Semidiscrete
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes, pick_device

GROUPS = (128, 256, 512, 1024, 2048)
PAIRED = 128
"""Starts of a batch, as shipped for images."""
REPEATS = 3


def main() -> None:
    options, flags = _options()
    config = bench_common.experiment(options.exp, ["--device", options.device, *flags])
    if not is_image_set(config.data.name):
        raise UserError(f"--exp {options.exp}: must be an image set, whose images can be counted")
    device, data = pick_device(config.device), Data(config.data, config.seed)
    memory = bench_common.PeakMemory(device)
    images, source = data.everything(device), data.source("benchmark")
    dual = Semidiscrete(images, steps_of(config, len(images)))
    print(bench_common.machine(device, f"{config.data.name}, {BATCH} draws a step") + "\n")
    taken = _climbed(dual, source, min(dual.steps, options.steps or dual.steps))
    print("| images | values each | steps | s a step | s to learn | memory |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {len(images):,} | {images[0].numel():,} | {dual.steps:,} | {taken:.3g} "
        f"| {taken * dual.steps:.3g} | {format_bytes(memory.bytes())} |"
    )
    if dual.is_learned:
        print(f"\nLearned: {_checked(dual, source)}.")
    print("\n| partners of 128 starts | s |\n|---|---|")
    starts = source.at(range(PAIRED)).to(device)
    print(f"| among {len(images):,} images | {_seconds(lambda: dual.partners(starts)):.3g} |")
    for group in (size for size in GROUPS if size <= len(images)):
        ends, noise = images[:group], source.at(range(group)).to(device)
        share = _seconds(partial(optimal_pairs, noise, ends)) * PAIRED / group
        print(f"| within groups of {group:,} | {share:.3g} |")


def _options() -> tuple[argparse.Namespace, list[str]]:
    """
    Raises:
        UserError: no steps are to be taken.
    """
    parser = bench_common.parser(__doc__)
    parser.add_argument("--steps", type=int, help="take only so many, and do not check")
    options, flags = parser.parse_known_args()
    if options.steps is not None and options.steps < 1:
        raise UserError(f"--steps {options.steps}: must be >= 1")
    return options, flags


def _climbed(dual: Semidiscrete, source: Sampler, steps: int) -> float:
    """Seconds of a step, on average over these."""
    device = dual.points.device
    gap, started = dual.gap(source.at(range(BATCH)).to(device)), bench_common.busy_clock(device)
    for step in range(steps):
        x = source.at(range(step * BATCH, (step + 1) * BATCH)).to(device)
        dual.climb(dual.wins(x), gap)
    return (bench_common.busy_clock(device) - started) / steps


def _checked(dual: Semidiscrete, source: Sampler) -> str:
    """How even the images win draws that were not learned from."""
    wins = torch.zeros_like(dual.average)
    for step in range(dual.steps, dual.steps + check_steps(len(dual.points))):
        x = source.at(range(step * BATCH, (step + 1) * BATCH))
        wins += dual.average_wins(x.to(dual.points.device))
    return dual.shares(wins).text()


def _seconds(find: Callable[[], Tensor]) -> float:
    """Median of some calls."""
    times = []
    for _ in range(REPEATS):
        result = find()
        started = bench_common.busy_clock(result.device)
        find()
        times.append(bench_common.busy_clock(result.device) - started)
    return median(times)


if __name__ == "__main__":
    bench_common.finish(main)
