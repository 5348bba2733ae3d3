"""Speed and error of the batched Sinkhorn solver beside geomloss's, along whole flows.

    python scripts/bench_sinkhorn.py [--device cuda] [--data-root data] [--only mnist]

geomloss is called once per flow and step; the batched solver runs a chunk of flows at once. Both
are timed in turn, in one process, in milliseconds per flow and step: the median of the repeats,
with the smallest and largest in brackets. Errors are relative, |v - v*| / |v*|, against a float64
fixed point v* at the positions that the batched solver visits: mean and largest over the steps.
"""

import argparse
from collections.abc import Callable
from statistics import mean, median
from typing import NamedTuple

import torch
from bench_common import clock, machine, spread
from torch import Tensor

from nsgf.config.schema import DataConfig, SinkhornConfig
from nsgf.data import Data
from nsgf.sinkhorn import FlowSolver, build_solver
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from tests.sinkhorn import reference


class Case(NamedTuple):
    data: str
    particles: int
    blur: float
    steps: int
    eta: float
    scaling: float = 0.8


CASES = [
    *(Case(name, 256, blur, 10, 0.5) for blur in (0.5, 0.1) for name in ("8gaussians", "moons")),
    Case("digits", 128, 0.5, 5, 0.2),
    *(Case("mnist", 256, blur, 5, 0.2) for blur in (0.5, 1.0, 2.0)),
    Case("cifar10", 128, 1.0, 5, 0.2),
]
HEADER = (
    "| data | blur | geomloss, ms | batched, ms | ratio | geomloss, error | batched, error "
    "| updates | cut off |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    args = parse_arguments()
    device = pick_device(args.device)
    note = f"chunks of {args.flows} flows, {args.repeats} repeats after one warm-up"
    print(machine(device, note) + "\n")
    print(HEADER)
    notes: set[str] = set()
    for case in CASES:
        if args.only in case.data:
            print(row(case, args, device, notes), flush=True)
    print("".join(f"\n{note}" for note in sorted(notes)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10")
    parser.add_argument("--only", default="", help="only sets whose name contains this")
    parser.add_argument("--flows", type=int, default=8, help="flows of a chunk")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tolerance", type=float, default=SinkhornConfig.tolerance)
    parser.add_argument("--no-errors", action="store_true", help="times only")
    return parser.parse_args()


def row(case: Case, args: argparse.Namespace, device: torch.device, notes: set[str]) -> str:
    """One line of the table."""
    x, y = (z.to(device) for z in clouds(case, args, notes))
    batched, library = (
        build_solver(
            SinkhornConfig(
                solver=name, blur=case.blur, scaling=case.scaling, tolerance=args.tolerance
            )
        )
        for name in ("batched", "geomloss")
    )
    positions = run(batched, x, y, case)  # the warm-up, and the flow on which errors are measured
    report = batched.report
    cut_off, updates = report.unconverged, report.iterations
    run(library, x[:1], y[:1], case)
    library_ms, batched_ms = [], []
    for repeat in range(args.repeats):
        one = slice(repeat % len(x), repeat % len(x) + 1)
        library_ms.append(
            milliseconds(lambda s=one: run(library, x[s], y[s], case), case, 1, device)
        )
        batched_ms.append(milliseconds(lambda: run(batched, x, y, case), case, len(x), device))
    errors = ["", ""]
    if not args.no_errors:
        try:
            errors = list(measure_errors(case, positions, x, y, library))
        except RuntimeError as error:  # the reference did not converge: no error can be stated
            notes.add(f"{case.data}, blur {case.blur}: {error}")
    return (
        f"| {case.data} | {case.blur} | {spread(library_ms)} | {spread(batched_ms)} "
        f"| {median(library_ms) / median(batched_ms):.1f} | {errors[0]} | {errors[1]} "
        f"| {updates:.0f} | {cut_off} |"
    )


def clouds(case: Case, args: argparse.Namespace, notes: set[str]) -> tuple[Tensor, Tensor]:
    """Noise and targets of a chunk of flows, (B, N, *shape) each."""
    config = DataConfig(name=case.data, root=args.data_root, download=False)
    try:
        data = Data(config, seed=0)
    except UserError as error:
        notes.add(f"{case.data}: random images, for there are no real ones ({error})")
        config.fake = True
        data = Data(config, seed=0)
    total = args.flows * case.particles
    x, y = data.source("bench").sample(total), data.target("bench").sample(total)
    return x.unflatten(0, (args.flows, -1)), y.unflatten(0, (args.flows, -1))


def run(solver: FlowSolver, x: Tensor, y: Tensor, case: Case) -> Tensor:
    return solver.flows(x, y, [case.eta] * case.steps)


def milliseconds(work: Callable[[], Tensor], case: Case, flows: int, device: torch.device) -> float:
    """Time of `work` per flow and step."""
    start = clock(device)
    work()
    return (clock(device) - start) * 1e3 / case.steps / flows


def measure_errors(
    case: Case, positions: Tensor, x: Tensor, y: Tensor, library: FlowSolver
) -> list[str]:
    """'mean (largest)' of geomloss and of the batched solver, along the chunk's first flow."""
    relative_errors: tuple[list[float], list[float]] = ([], [])
    for t in range(case.steps):
        at = positions[0, :, t]
        exact = reference.velocity(at.flatten(1).cpu(), y[0].flatten(1).cpu(), case.blur)
        taken = (positions[0, :, t + 1].double() - at.double()) / case.eta
        for errors, v in zip(relative_errors, (library.velocity(at, y[0]), taken), strict=True):
            gap = v.flatten(1).double().cpu() - exact
            errors.append(float(gap.norm() / exact.norm()))
    return [f"{100 * mean(e):.2g} % ({100 * max(e):.2g} %)" for e in relative_errors]


if __name__ == "__main__":
    main()
