"""nsgf.sinkhorn_divergence beside geomloss's SamplesLoss: value and gradient of batches of clouds.

    python scripts/bench_divergence.py [--device cuda] [--data-root data] [--only mnist]

Both get all B problems at once, (B, N, D), and compute S and its gradient in x. They are timed in
turn, in one process, in milliseconds per problem: the median of the repeats. `geomloss 0.5` is its
default scaling; closer to 1 is slower and more exact. Errors are relative, |g - g*| / |g*| and
|S - S*| / |S*|, of the first problem against a float64 fixed point, where one was found. `far`: x
is noise; `near`: x is another draw of y's law, moved by noise of a tenth.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import bench_common
import torch
from geomloss import SamplesLoss
from torch import Tensor

import nsgf
from nsgf.config.schema import DataConfig
from nsgf.data import Data
from nsgf.system.hardware import pick_device
from tests.sinkhorn import reference

Loss = Callable[[Tensor, Tensor], Tensor]


class Case(NamedTuple):
    data: str
    particles: int
    problems: int
    blur: float


CASES = [
    Case("8gaussians", 256, 16, 0.5),
    Case("8gaussians", 256, 16, 0.1),
    Case("8gaussians", 1024, 2, 0.25),
    Case("digits", 128, 16, 0.5),
    Case("mnist", 256, 4, 1.0),
    Case("cifar10", 128, 4, 1.0),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root", default="data", help="folder of MNIST and CIFAR-10")
    parser.add_argument("--only", default="", help="only sets whose name contains this")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scalings", type=float, nargs="+", default=[0.5, 0.9], help="geomloss's")
    args = parser.parse_args()
    device = pick_device(args.device)
    print(bench_common.machine(device, f"{args.repeats} repeats after one warm-up") + "\n")
    print(header([*(f"geomloss {scaling:g}" for scaling in args.scalings), "nsgf"]))
    for case in CASES:
        for place in ("far", "near") if args.only in case.data else ():
            print(row(case, place, args, device), flush=True)


def header(names: list[str]) -> str:
    """Of the table, its rule below."""
    columns = ["data", "B x N x D", "blur", "x", *(f"{name}, ms" for name in names)]
    columns += [f"{names[-1]} is faster than {name}" for name in names[:-1]]
    columns += [f"{what} of {name} off by" for what in ("gradient", "value") for name in names]
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def row(case: Case, place: str, args: argparse.Namespace, device: torch.device) -> str:
    """One line of the table."""
    x, y = (z.to(device) for z in clouds(case, place, args.data_root))
    losses: list[Loss] = [
        SamplesLoss("sinkhorn", p=2, blur=case.blur, scaling=scaling, backend="tensorized")
        for scaling in args.scalings
    ]
    losses.append(lambda a, b: nsgf.sinkhorn_divergence(a, b, case.blur))
    found = [solved(loss, x, y) for loss in losses]  # the warm-up
    times: list[list[float]] = [[] for _ in losses]
    for _ in range(args.repeats):
        for loss, own in zip(losses, times, strict=True):
            start = bench_common.clock(device)
            solved(loss, x, y)
            own.append((bench_common.clock(device) - start) * 1e3 / case.problems)
    ms = [median(own) for own in times]
    cells = [
        case.data,
        " x ".join(map(str, x.shape)),
        f"{case.blur}",
        place,
        *(f"{one:.3g}" for one in ms),
        *(f"{one / ms[-1]:.1f}" for one in ms[:-1]),
        *errors(found, x[0].cpu(), y[0].cpu(), case),
    ]
    return f"| {' | '.join(cells)} |"


def errors(found: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor, case: Case) -> list[str]:
    """Of the first problem's gradients, then of its values."""
    try:
        v, value = reference.velocity_and_divergence(x, y, case.blur)
    except RuntimeError:  # the reference did not converge: no error can be stated
        return ["not known"] * 2 * len(found)
    gradients = [-case.particles * gradient[0].cpu().double() for _, gradient in found]
    off = [float((one - v).norm() / v.norm()) for one in gradients]
    off += [abs(float(values[0]) / value - 1) for values, _ in found]
    return [f"{100 * one:.2g} %" for one in off]


def clouds(case: Case, place: str, root: str) -> tuple[Tensor, Tensor]:
    """(B, N, D) each."""
    data = Data(DataConfig(name=case.data, root=root, download=False), seed=0)  # type: ignore[arg-type]
    total = case.problems * case.particles
    y = data.target("bench").sample(total)
    noise = data.source("bench").sample(total)
    x = noise if place == "far" else data.target("near").sample(total) + 0.1 * noise
    x, y = (z.flatten(1).unflatten(0, (case.problems, -1)) for z in (x, y))
    return x, y


def solved(loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Values (B,) and gradients (B, N, D)."""
    x = x.detach().requires_grad_(True)
    values = loss(x, y)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), gradient


if __name__ == "__main__":
    bench_common.finish(main)
