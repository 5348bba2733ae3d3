"""Time exact pairs, for the table of docs/performance.md.

    OMP_NUM_THREADS=1 python scripts/bench_pairs.py --sizes 256 1024 2048 --data-root FOLDER
    OMP_NUM_THREADS=1 python scripts/bench_pairs.py --w2 --sizes 4096 --repeats 1 --data-root FOLDER

For each row, one process runs the solvers in turn. The cells are medians of processor seconds. They
include the time to compute the costs, which also has a column. "simplex" is ot.emd on the same
costs. The package used ot.emd before. The last column is the time of simplex divided by the time of
nsgf. These two times do not include the costs. With --w2, simplex and nsgf compute W2, and simplex
gets exact distances. Solvers that are not installed are named and left out. Without --data-root,
MNIST and CIFAR-10 are random images.
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
from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS, optimal_pairs, squared_distances, w2

ENTROPIC = "ott-jax"
NAMES = ("mnist", "cifar10", "mixture-8", "8gaussians", "moons", "roll")
Solver = Callable[[Tensor, Tensor], np.ndarray]
"""Maps clouds (n, *shape) to a permutation (n,)."""


def clouds(name: Any, n: int, root: str | None) -> tuple[Tensor, Tensor]:
    """Return noise and data, each (n, *shape)."""
    if name in SETS:  # networks see standardised points
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
    try:
        found[ENTROPIC] = from_costs(entropic_solver())
    except ImportError:
        print("ott-jax is not installed: left out", file=sys.stderr)
    return found


def entropic_solver() -> Callable[[np.ndarray], np.ndarray]:
    """Return ott-jax's Sinkhorn solver, at eps = 0.1 % of the mean cost. The result is the column
    of the largest entry in each row of the plan. So it is not exact, and not always a
    permutation."""
    jax = import_module("jax")
    geometry = import_module("ott.geometry.geometry")
    linear = import_module("ott.solvers.linear")

    @jax.jit
    def rows(cost: Any) -> Any:
        geom = geometry.Geometry(cost_matrix=cost, epsilon=1e-3 * cost.mean())
        return linear.solve(geom, max_iterations=2000).matrix.argmax(1)

    return lambda cost: np.array(rows(cost.astype(np.float32)))


def row(name: str, n: int, options: argparse.Namespace) -> str:
    """Return a table's row for a set, with the seconds of each solver, and the times of simplex
    divided by the times of nsgf."""
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
        if solver != ENTROPIC:
            assert abs(value / values["simplex"] - 1) < 1e-12, (solver, value, values["simplex"])
    times = {solver: median(found) for solver, found in seconds.items()}
    costs = median(seconds_of(lambda: squared_distances(x, y, by_product=True), options.repeats))
    cells = " | ".join(f"{value:.3g}" for value in times.values())
    both = f"{times['simplex'] / times['nsgf']:.1f}"
    alone = f"{(times['simplex'] - costs) / (times['nsgf'] - costs):.1f}"
    return f"| {n}, {name} | {costs:.2g} | {cells} | {both} | {alone} |"


def seconds_of(call: Callable[[], object], repeats: int) -> list[float]:
    """Call a function repeatedly, and return the processor seconds of each call."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return seconds


def row_of_w2(name: str, n: int, options: argparse.Namespace) -> str:
    """Return a table's row for a set, with the seconds of W2 by nsgf, and of W2 by the simplex with
    exact distances."""
    x, y = clouds(name, n, options.data_root)

    def simplex() -> None:
        ot.emd2([], [], squared_distances(x, y, by_product=False).numpy(), numItermax=10**7)

    times = [median(seconds_of(call, options.repeats)) for call in (lambda: w2(x, y), simplex)]
    return f"| W2, {n}, {name} | {times[0]:.3g} | {times[1]:.3g} | {times[1] / times[0]:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 1024, 2048])
    parser.add_argument("--data", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--solvers", nargs="+", default=[*solvers()], help="with simplex and nsgf")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data-root", help="folder of the published MNIST and CIFAR-10")
    parser.add_argument("--w2", action="store_true", help="time W2 in place of pairs")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}")
    names = [solver for solver in solvers() if solver in options.solvers]
    heads = ["n, data", "costs", *names, "simplex / nsgf", "without costs"]
    if options.w2:
        heads = ["n, data", "nsgf", "simplex", "simplex / nsgf"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for n in options.sizes:
        for name in options.data:
            print((row_of_w2 if options.w2 else row)(name, n, options), flush=True)


if __name__ == "__main__":
    main()
