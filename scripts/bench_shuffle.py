"""Time of shuffled batches: our epoch permutation beside torch's DataLoader.

    python scripts/bench_shuffle.py [--items 10000 100000 1000000]

Both draw whole epochs of small uint8 images, in turn, in one process; times are per batch, the
median of the epochs with the smallest and largest in brackets, and include the start of an epoch,
where the permutation is made. Ours also turns the images into floats in [-1, 1]. "indices only"
leaves the images out: our permutation cut into batches, beside the loader's own batch sampler.
"""

import argparse
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Any

import torch
from bench_common import machine, spread
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from nsgf.data.samplers import ImageSampler

HEADER = "| items | what | DataLoader, ms | ours, ms | ratio |\n|---|---|---|---|---|"


def main() -> None:
    args = parse_arguments()
    what = f"1x{args.size}x{args.size} uint8, batches of {args.batch}"
    note = f"{what}, {args.epochs} epochs after one warm-up"
    print(machine(torch.device("cpu"), note) + "\n")
    print(HEADER)
    for items in args.items:
        for line in rows(items, args):
            print(line, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=8, help="pixels of an edge")
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def rows(items: int, args: argparse.Namespace) -> list[str]:
    """Lines of the table: with images, and indices only."""
    images = torch.randint(0, 256, (items, 1, args.size, args.size), dtype=torch.uint8)
    dataset = TensorDataset(images)
    loader = DataLoader(dataset, args.batch, shuffle=True, num_workers=0)
    indices = BatchSampler(RandomSampler(dataset), args.batch, drop_last=False)
    sampler = ImageSampler(images, seed=0)
    return [
        f"| {items:,} | images | {compare(loader, our_images(sampler, items, args.batch), args)} |",
        f"| {items:,} | indices only "
        f"| {compare(indices, our_indices(ImageSampler(images, seed=0), args.batch), args)} |",
    ]


def our_images(sampler: ImageSampler, items: int, batch: int) -> Callable[[], None]:
    """Draws one epoch at each call."""

    def epoch() -> None:
        for start in range(0, items, batch):
            sampler.sample(min(batch, items - start))

    return epoch


def our_indices(sampler: ImageSampler, batch: int) -> Callable[[], None]:
    """Draws the order of one more epoch at each call, and cuts it."""
    epochs = count()

    def epoch() -> None:
        sampler._turn_to(next(epochs))
        for start in range(0, len(sampler._order), batch):
            sampler._order[start : start + batch]

    return epoch


def compare(theirs: Any, ours: Callable[[], None], args: argparse.Namespace) -> str:
    """Cells of the table: milliseconds per batch of both, and their ratio."""
    loader_ms, our_ms = [], []
    for epoch in range(args.epochs + 1):
        taken = timed(lambda: deque(theirs, maxlen=0)), timed(ours)
        if epoch:
            loader_ms.append(taken[0] / len(theirs))
            our_ms.append(taken[1] / len(theirs))
    ratio = median(loader_ms) / median(our_ms)
    return f"{spread(loader_ms)} | {spread(our_ms)} | {ratio:.1f}"


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
