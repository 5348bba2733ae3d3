"""Error of v against time: the batched solver, geomloss and POT's log-domain Sinkhorn, blur 0.5.

    python scripts/bench_precision.py [FOLDER OF MNIST]

All solve the steps of flows of real data, in turn; a row of the CSV file is one repeat. Errors,
|v - v*| / |v*|, are against a float64 fixed point v*, over the steps of two flows.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import ot
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nsgf.config.schema import DataConfig, SinkhornConfig
from nsgf.data import Data
from nsgf.sinkhorn import build_solver
from nsgf.sinkhorn.base import half_squared_distances

BLUR, FLOWS, REPEATS, MOST_SECONDS = 0.5, 8, 7, 40.0  # after which no setting is repeated
CASES = {"moons": (256, 10, 0.5), "digits": (128, 5, 0.2), "mnist": (256, 5, 0.2)}  # n, T, eta
HEAD = "data,solver,setting,mean_error,largest_error,repeat,clock_ms,processor_ms"
WHOLE = f"batched: {FLOWS} flows at once"
Pair = tuple[Tensor, Tensor]  # positions and velocities (B, T, N, D)
Work = Callable[[Tensor, Tensor], Pair]  # from positions and targets (B, M, D)


def settings(eta: float) -> dict[tuple[str, float], Work]:
    """What is measured, by solver and tolerance, scaling or threshold."""
    found: dict[tuple[str, float], Work] = {}
    for tolerance in (1e-2, 5e-4, 1e-5):
        solver = build_solver(SinkhornConfig(blur=BLUR, tolerance=tolerance))
        found[WHOLE, tolerance] = partial(whole_flows, solver.flows, eta)
        found["batched: one problem", tolerance] = partial(one_by_one, solver.velocity)
    for scaling in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        library = SinkhornConfig(solver="geomloss", blur=BLUR, scaling=scaling)
        found["geomloss", scaling] = partial(one_by_one, build_solver(library).velocity)
    for threshold in (1e-3, 1e-4, 1e-5):
        found["POT log domain", threshold] = partial(one_by_one, partial(pot_velocity, threshold))
    return found


def whole_flows(flows: Callable[..., Tensor], eta: float, x: Tensor, y: Tensor) -> Pair:
    """As a pool is built: all flows at once, each step starting from the one before."""
    path = flows(x[:, 0], y, [eta] * x.shape[1]).movedim(2, 1)
    return path[:, :-1], path.diff(dim=1) / eta


def one_by_one(velocity: Callable[..., Tensor], x: Tensor, y: Tensor) -> Pair:
    """Each problem by itself, from the beginning."""
    found = [velocity(at, z) for path, z in zip(x, y, strict=True) for at in path]
    return x, torch.stack(found).unflatten(0, x.shape[:2])


def pot_velocity(threshold: float, x: Tensor, y: Tensor) -> Tensor:
    """v = P y - Q x with the plans that POT finds, in float64, where it is faster than in 32."""
    projected = []
    for z in (y.double(), x.double()):
        cost = half_squared_distances(x.double().unsqueeze(0), z.unsqueeze(0)).squeeze(0)
        plan = ot.sinkhorn([], [], cost, BLUR**2, "sinkhorn_log", 20_000, threshold)
        projected.append((plan / plan.sum(1, keepdim=True)) @ z)
    return projected[0] - projected[1]


def exact_velocity(x: Tensor, y: Tensor, blur: float) -> Tensor:
    """v = P y - Q x of the particles x (N, D) towards y (M, D), solved in float64.  (N, D)

    Raises:
        RuntimeError: no fixed point was found.
    """
    x, y = x.double(), y.double()
    return exact_plan(x, y, blur) @ y - exact_plan(x, x, blur) @ x


def exact_plan(x: Tensor, y: Tensor, blur: float) -> Tensor:
    """Entropic plan whose rows sum to 1: annealed Sinkhorn updates, then damped Newton steps on the
    semi-dual, which converge where Sinkhorn updates would need thousands.  (N, M)

    Raises:
        RuntimeError: the sums of the columns are not uniform.
    """
    cost, eps = 0.5 * torch.cdist(x, y).square(), blur**2
    n, m = cost.shape
    g, level = cost.new_zeros(m), max(float(cost.max()), eps)

    def updated(g: Tensor, eps: float) -> Tensor:
        f = -eps * torch.logsumexp((g - cost) / eps, 1, keepdim=True)
        return -eps * torch.logsumexp((f - cost) / eps, 0)

    def rows(g: Tensor) -> Tensor:
        return torch.softmax((g - cost) / eps, 1)

    def error(g: Tensor) -> float:
        return float((rows(g).mean(0) - 1 / m).abs().sum())

    while level > eps:
        level = max(0.6 * level, eps)
        for _ in range(8):
            g = updated(g, level)
    for _ in range(200):
        plan, before = rows(g), error(g)
        if before < 1e-8:
            return plan
        share = plan.mean(0)
        # 1 / m^2 fixes the constant by which g may be shifted
        hessian = torch.diag(share + 1e-13 / m) - plan.T @ plan / n + 1 / m**2
        step, length = eps * torch.linalg.solve(hessian, 1 / m - share), 1.0
        while length > 1e-3 and error(g + length * step) >= before:
            length /= 2
        g = updated(g + length * step if length > 1e-3 else g, eps)
    raise RuntimeError(f"no fixed point for blur {blur}")


def measure(name: str, root: str) -> list[tuple]:
    """All repeats of all settings on a data set, each a row under HEAD."""
    n, steps, eta = CASES[name]
    data, todo, rows = Data(DataConfig(name=name, root=root), seed=0), settings(eta), []
    clouds = [law.sample(FLOWS * n) for law in (data.source("bench"), data.target("bench"))]
    start, y = (z.flatten(1).unflatten(0, (FLOWS, n)) for z in clouds)
    x, _ = todo[WHOLE, 5e-4](start.unsqueeze(1).expand(-1, steps, -1, -1), y)
    exact = partial(one_by_one, partial(exact_velocity, blur=BLUR))
    known, errors, spent = exact(x[:2], y[:2])[1], {}, dict.fromkeys(todo, 0.0)
    for key, work in todo.items():
        visited, v = work(x[:2], y[:2])
        truth = exact(visited, y[:2])[1] if key[0] == WHOLE else known
        error = (v - truth).norm(dim=(2, 3)) / truth.norm(dim=(2, 3))
        errors[key] = round(float(error.mean()), 7), round(float(error.max()), 7)
    for repeat in range(REPEATS):
        for key, work in todo.items():
            some = slice(FLOWS) if key[0] == WHOLE else slice(repeat, repeat + 1)
            if spent[key] < MOST_SECONDS:
                begun, busy = time.perf_counter(), time.process_time()
                work(x[some], y[some])
                times = time.perf_counter() - begun, time.process_time() - busy
                spent[key] += times[0]
                each = [round(1e3 * t / len(x[some]) / steps, 4) for t in times]
                rows.append((name, *key, *errors[key], repeat, *each))
    return rows


def main() -> None:
    root = sys.argv[1] if len(sys.argv) > 1 else "data"
    cells = [measure(name, root) for name in CASES]
    lines = [HEAD, *(",".join(map(str, row)) for rows in cells for row in rows)]
    file = Path("docs/results/solver_work_precision.csv")
    file.write_text("\n".join(lines) + "\n")
    figure = Figure((13, 4.6), layout="constrained")
    for axes, rows in zip(figure.subplots(1, 3), cells, strict=True):
        for solver in dict.fromkeys(row[1] for row in rows):
            errors = {row[2]: 100 * row[4] for row in rows if row[1] == solver}
            ms = [median(row[7] for row in rows if row[1:3] == (solver, key)) for key in errors]
            place = -10 if solver.startswith("POT") else 5
            axes.loglog(ms, list(errors.values()), "o-", label=solver)
            for key, *at in zip(errors, ms, errors.values(), strict=True):
                axes.annotate(f"{key:g}", at, (3, place), textcoords="offset points", fontsize=8)
        axes.set(title=rows[0][0], xlabel="processor ms, flow and step", ylabel="largest error, %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.savefig(file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
