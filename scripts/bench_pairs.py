"""Benchmark of exact pairs: the table of docs/performance.md.

    OMP_NUM_THREADS=1 python scripts/bench_pairs.py --sizes 256 1024 2048 --data-root FOLDER

Each row alternates the solvers in one process: medians of processor seconds, with the time to
compute the costs. "simplex" is ot.emd on the same costs, which the package used before. Peers that
are not installed are named and left out. MNIST and CIFAR-10 are random images without --data-root.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ot
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "published"))
from bench_points import SETS

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS, PointSet
from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS, optimal_pairs, squared_distances

NAMES = ("mnist", "cifar10", "mixture-8", "8gaussians", "moons", "roll")
Solver = Callable[[Tensor, Tensor], np.ndarray]
"""Maps clouds (n, *shape) to a permutation (n,)."""


def clouds(name: Any, n: int, root: str | None) -> tuple[Tensor, Tensor]:
    """Return noise and data, each (n, *shape)."""
    if name in SETS:  # standardised, as networks see them
        points = torch.tensor(SETS[name](n, np.random.default_rng(0))[0])
        y = ((points - points.mean(0)) / points.std(0)).float()
        return torch.randn(y.shape, generator=torch.Generator().manual_seed(0)), y
    record = DATA_SETS[name]
    generator = torch.Generator().manual_seed(0)
    if isinstance(record, PointSet):
        y = record.draw(n, generator)
    else:
        config = replace(DataConfig(), name=name, root=root or "data", fake=root is None)
        images = record.load(config, 0)
        assert images is not None
        y = record.from_units(images[torch.randperm(len(images), generator=generator)[:n]])
    return torch.randn(y.shape, generator=generator), y


def from_costs(solve: Callable[[np.ndarray], np.ndarray]) -> Solver:
    """Return a solver that computes the costs first."""
    return lambda x, y: solve(squared_distances(x, y, by_product=True).numpy())


@cache
def solvers() -> dict[str, Solver]:
    """Return the solvers that are installed, by name."""
    found: dict[str, Solver] = {
        "nsgf": lambda x, y: optimal_pairs(x, y).numpy(),
        "simplex": from_costs(
            lambda cost: ot.emd([], [], cost, numItermax=SIMPLEX_ITERATIONS).argmax(1)
        ),
        "scipy": from_costs(lambda cost: linear_sum_assignment(cost)[1]),
        "ot.solve": from_costs(
            lambda cost: ot.solve(cost, max_iter=SIMPLEX_ITERATIONS).plan.argmax(1)
        ),
    }
    try:
        lap = import_module("lap")

        found["lapx"] = from_costs(lambda cost: lap.lapjv(cost)[1])
    except ImportError:
        print("lapx is not installed: left out", file=sys.stderr)
    return found


def row(name: str, n: int, options: argparse.Namespace) -> str:
    """Return the row of a set: seconds of each solver, and the factor of the simplex."""
    x, y = clouds(name, n, options.data_root)
    known = {solver: solve for solver, solve in solvers().items() if solver in options.solvers}
    seconds: dict[str, list[float]] = {solver: [] for solver in known}
    values = {}
    for _ in range(options.repeats):
        for solver, solve in known.items():
            start = time.process_time()
            index = solve(x, y)
            seconds[solver].append(time.process_time() - start)
            values[solver] = float((x.double() - y[torch.as_tensor(index)]).square().sum())
    for solver, value in values.items():
        assert abs(value / values["simplex"] - 1) < 1e-12, (solver, value, values["simplex"])
    times = {solver: median(found) for solver, found in seconds.items()}
    cells = " | ".join(f"{value:.3g}" for value in times.values())
    return f"| {n}, {name} | {cells} | {times['simplex'] / times['nsgf']:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 1024, 2048])
    parser.add_argument("--data", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--solvers", nargs="+", default=[*solvers()], help="with simplex and nsgf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-root", help="folder of the published MNIST and CIFAR-10")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}")
    names = [solver for solver in solvers() if solver in options.solvers]
    print(f"| n, data | {' | '.join(names)} | simplex / nsgf |")
    print("|---" * (len(names) + 2) + "|")
    for n in options.sizes:
        for name in options.data:
            print(row(name, n, options), flush=True)


if __name__ == "__main__":
    main()
