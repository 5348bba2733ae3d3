"""Compare the time of this package's solver with the times of rivals, at equal error of the
velocity.

    python scripts/published/bench_precision.py [FOLDER OF MNIST]    # pip install ott-jax mdot-tnt

A case has eight problems. x is noise that was moved by 0 to 25 % of the way to the data. No solve
has a warm start. A call solves one problem or all eight problems. The error is the largest |v - v*|
/ |v*|, where v* is the fixed point in float64. The settings of a rival become finer and finer. The
last setting is at least as exact as this package's solver, or takes 30 times as long. A row of the
CSV file is one repeat. The repeats of all settings take turns.
"""

import os
import sys
import time
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
import ot
import torch
from bench_points import mixture, pinwheel
from geomloss import SamplesLoss
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

import nsgf
from nsgf.config.schema import DataConfig
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.user_data import load_data

PROBLEMS, REPEATS, MOST = 8, 5, 3000  # MOST is the largest number of updates of a rival
STOPS = [10 ** (-k / 2) for k in range(5, 15)]
SETTINGS = {"nsgf": [5e-4], "geomloss": [0.2, 0.1, 0.05, 0.02, 0.01, 0.001]}  # otherwise STOPS


def cases(root="data"):
    """Yield name, x (8, N, D), y (8, M, D) and blur of each case."""
    rng = np.random.default_rng(3)
    parts, digits = mixture(4000, rng, 8)[0], torch.tensor(load_digits().images / 8 - 1)
    along, sign = 3 * np.pi * np.sqrt(rng.random((4000, 1))), rng.choice([-1, 1], (4000, 1))
    arms = np.hstack([np.cos(along), np.sin(along)]) * sign * along / 6  # the radius is at most 1.6
    mnist = load_data(DataConfig(name="mnist", root=root), seed=0).target("bench").sample(4000)
    heavy = rng.standard_t(2, (4000, 3))
    radius = rng.choice([1.0, 2.5], 4000)[:, None] + 0.05 * rng.normal(size=(4000, 1))
    angle = 2 * np.pi * rng.random((4000, 1))
    rings = radius * np.hstack([np.cos(angle), np.sin(angle)])
    many = 3 * rng.normal(size=(40, 20))[rng.integers(40, size=4000)]
    for name, n, m, data, blur in (
        ("mixture", 200, 333, parts, 0.5),
        ("standardised mixture", 200, 333, parts / parts.std(0), 0.5),
        ("pinwheel", 300, 400, pinwheel(4000, rng)[0], 0.3),
        ("digits", 192, 192, interpolate(digits[:, None], size=16, mode="bilinear"), 1.0),
        ("two spirals", 512, 512, arms + 0.05 * rng.normal(size=arms.shape), 0.25),
        ("MNIST", 200, 200, mnist, 0.5),
        ("mixture in space", 64, 64, mixture(4000, rng, 3)[0], 0.5),
        ("small pinwheel", 128, 128, pinwheel(4000, rng)[0], 0.3),
        ("heavy tails", 256, 256, heavy, 0.5),
        ("two rings", 512, 512, rings, 0.25),
        ("40 parts", 128, 512, many + 0.3 * rng.normal(size=many.shape), 1.0),
    ):
        points = torch.as_tensor(data).float().flatten(1)
        chosen = [torch.tensor(rng.permutation(len(points))[: n + m]) for _ in range(PROBLEMS)]
        other, y = points[torch.stack(chosen)].split((n, m), 1)
        way = torch.linspace(0, 0.25, PROBLEMS).view(-1, 1, 1)
        x = torch.lerp(torch.tensor(rng.normal(size=other.shape)).float(), other, way)
        yield f"{name} {n} x {m} x {y.shape[2]}", x, y.contiguous(), blur


def debiased(plan, stop, x, y):
    """Return v = P y - Q x. ``plan`` computes P and Q from costs (B, N, M), and their rows are
    scaled to sum to 1."""
    p, q = (torch.as_tensor(plan(stop, 0.5 * torch.cdist(x, z).square())).float() for z in (y, x))
    return p / p.sum(2, keepdim=True) @ y - q / q.sum(2, keepdim=True) @ x


def pot_plan(blur, method, dtype, stop, costs):
    """Return POT's plan. It is computed with numpy, because torch is slower here."""
    if method == "solve_batch":
        return ot.solve_batch(costs, blur**2, max_iter=MOST, tol=stop, method="log_sinkhorn").plan
    a, b = (np.full(k, 1 / k, dtype) for k in costs.shape[1:])
    options = {"reg": blur**2, "method": method, "stopThr": stop, "numItermax": MOST}
    return np.stack([ot.sinkhorn(a, b, c, **options) for c in costs.numpy().astype(dtype)])


def mdot_plan(blur, dtype, stop, costs):
    """Return mdot-tnt's plan. The tolerance of mdot-tnt is (entropy of a marginal) / gamma^p. gamma
    is 1 / eps for costs that are divided by the largest cost."""
    from mdot_tnt.mdot import mdot

    gamma, plans = float(costs.max()) / blur**2, []
    a, b = (torch.full((k,), 1 / k, dtype=dtype) for k in costs.shape[1:])
    for cost in costs.to(dtype) / costs.max():
        power = np.log(np.log(min(cost.shape)) / stop) / np.log(gamma)
        u, v, reached, *_ = mdot(a, b, cost, gamma, p=power)
        plans.append((u.unsqueeze(1) + v - reached * cost).exp())
    return torch.stack(plans)


def geomloss_velocity(blur, gap, x, y):
    x = x.detach().requires_grad_(True)
    potential, _ = SamplesLoss("sinkhorn", blur=blur, scaling=1 - gap, potentials=True)(x, y)
    return -torch.autograd.grad(potential.sum(), x)[0]


def ott_solvers(blur):
    """Return ott-jax's solvers. They compile in the first call for each shape, which is not
    measured."""
    import jax
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem
    from ott.solvers.linear import acceleration, sinkhorn

    own = {"parallel_dual_updates": True, "momentum": acceleration.Momentum(value=0.5)}  # symmetric
    faster = {
        "momentum": acceleration.Momentum(start=20),
        "anderson": acceleration.AndersonAcceleration(memory=3),
    }

    def projected(x, y, stop, options):
        cost = ((x**2).sum(1)[:, None] + (y**2).sum(1)) / 2 - x @ y.T
        solver = sinkhorn.Sinkhorn(threshold=stop, max_iterations=MOST, **options)
        plan = solver(LinearProblem(Geometry(cost_matrix=cost, epsilon=blur**2))).matrix
        return plan / plan.sum(1, keepdims=True) @ y

    def compiled(options):
        def velocity(stop, x, y):
            return projected(x, y, stop, options) - projected(x, x, stop, own)

        one, several = jax.jit(velocity), jax.jit(jax.vmap(velocity, (None, 0, 0)))

        def solve(stop, x, y):
            x, y = x.numpy(), y.numpy()
            return np.array(several(stop, x, y) if len(x) > 1 else one(stop, x[0], y[0])[None])

        return solve

    return {
        ("ott-jax", name + how): compiled({name: option, "lse_mode": not how})
        for name, option in faster.items()
        for how in ("", " of kernels")
    }


def solvers(blur):
    """Return solvers (setting, x, y) -> v by name and kind. This package's solver comes first."""
    found = {("nsgf", "tolerance"): lambda s, x, y: nsgf.sinkhorn_velocity(x, y, blur, tolerance=s)}
    for method in ("sinkhorn", "sinkhorn_stabilized", "sinkhorn_log", "solve_batch"):
        for kind in ("float32", "float64") if method == "sinkhorn" else ("float32",):
            plan = partial(pot_plan, blur, method, kind)
            found["POT", f"{method} {kind}"] = partial(debiased, plan)
    found |= ott_solvers(blur) if find_spec("ott") else {}
    for dtype in (torch.float32, torch.float64) if find_spec("mdot_tnt") else ():
        found["mdot-tnt", str(dtype)[6:]] = partial(debiased, partial(mdot_plan, blur, dtype))
    return {**found, ("geomloss", "1 - scaling"): partial(geomloss_velocity, blur)}


def exact_velocity(x, y, blur):
    """Return v = P y - Q x of the particles x (N, D) towards y (M, D), computed in float64.  (N,
    D)"""
    x, y = x.double(), y.double()
    return exact_plan(x, y, blur) @ y - exact_plan(x, x, blur) @ x


def exact_plan(x, y, blur):
    """Return the entropic plan, with rows that sum to 1. Sinkhorn updates with annealing come
    first. Damped Newton steps on the semi-dual follow. They converge even if Sinkhorn would need
    thousands of updates.  (N, M)"""
    cost, eps, m = 0.5 * torch.cdist(x, y).square(), blur**2, len(y)
    g, level = cost.new_zeros(m), max(float(cost.max()), eps)

    def rows(g, eps=eps):
        return torch.softmax((g - cost) / eps, 1)

    def updated(g, eps=eps):
        f = -eps * torch.logsumexp((g - cost) / eps, 1, keepdim=True)
        return -eps * torch.logsumexp((f - cost) / eps, 0)

    def error(g):
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
        # g may have any additive constant; 1 / m^2 makes it unique
        hessian = torch.diag(share + 1e-13 / m) - plan.T @ plan / len(x) + 1 / m**2
        step, length = eps * torch.linalg.solve(hessian, 1 / m - share), 1.0
        while length > 1e-3 and error(g + length * step) >= before:
            length /= 2
        g = updated(g + length * step if length > 1e-3 else g)
    raise RuntimeError(f"no fixed point for blur {blur}")


def timed(solve, *problem):
    """Return the milliseconds of processor time per problem, and v."""
    begun = time.process_time()
    v = solve(*problem)
    return 1e3 * (time.process_time() - begun) / len(v), v


def measure(name, x, y, blur):
    """Return rows of the file. A setting that is not exact enough has one row. A setting that is
    exact enough has several rows."""
    v = torch.stack([exact_velocity(a, b, blur) for a, b in zip(x, y, strict=True)])
    rows, repeated, enough, limit = [], [], 0.0, np.inf
    for (solver, kind), solve in solvers(blur).items():
        for some in (slice(1), slice(PROBLEMS)):
            solve(0.1, x[some], y[some])
        for setting in SETTINGS.get(solver, STOPS):
            ms, found = timed(solve, setting, x, y)
            off = (torch.as_tensor(found) - v).norm(dim=(1, 2)) / v.norm(dim=(1, 2))
            error = float(off.nan_to_num(np.inf).max())
            if solver == "nsgf":
                enough, limit = error, 10 * ms
            key = (name, solver, f"{kind} {setting:.2g}", f"{error:.2e}")
            if error <= enough:
                repeated.append((key, solve, setting, 1 if ms > limit else REPEATS))
            else:
                rows.append((*key, PROBLEMS, 0, round(ms, 3)))
            if error <= enough or ms > 3 * limit:
                break
    for repeat in range(REPEATS):
        for key, solve, setting, _ in (each for each in repeated if repeat < each[3]):
            for some in (slice(repeat, repeat + 1), slice(PROBLEMS)):
                ms, found = timed(solve, setting, x[some], y[some])
                rows.append((*key, len(found), repeat, round(ms, 3)))
    return rows


def best(rows, solver, problems, most):
    """Find the fastest setting of a solver whose error is at most `most`. Return its median time,
    and the setting."""
    times: dict[str, list[float]] = {}
    for _, name, setting, error, count, _, ms in rows:
        if name == solver and count == problems and float(error) <= most:
            times.setdefault(setting, []).append(ms)
    return min(((median(ms), setting) for setting, ms in times.items()), default=(np.inf, "never"))


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # rivals warn if they do not converge
    table, rivals = {}, ("POT", "ott-jax", "mdot-tnt", "geomloss")
    for name, x, y, blur in cases(*sys.argv[1:]):
        solver = BatchedSolver(blur)
        solver.solve(x, y)
        rows = table[name] = measure(name, x, y, blur)
        error = min(float(row[3]) for row in rows if row[1] == "nsgf")
        own = [best(rows, "nsgf", count, error)[0] for count in (1, PROBLEMS)]
        cells = f"| {name} | {own[0]:.1f} / {own[1]:.1f} | {error:.2%} | "
        cells += f"{solver.report.iterations:.0f} |"
        for rival in rivals:
            (cold, how), (batch, _) = (best(rows, rival, count, error) for count in (1, PROBLEMS))
            cells += f" {cold / own[0]:.1f} / {batch / own[1]:.1f} ({how}) |"
        print(cells, flush=True)
    file = Path("docs/results/solver_work_precision.csv")
    lines = [",".join(map(str, row)) for rows in table.values() for row in rows]
    head = "case,solver,setting,largest_error,problems,repeat,processor_ms"
    file.write_text("\n".join([head, *lines]) + "\n")
    figure = Figure((16, 11), layout="constrained")
    panels = figure.subplots(3, 4, sharex=True, sharey=True)
    panels[-1, -1].set_axis_off()
    for axes, (name, rows) in zip(panels.flat, table.items(), strict=True):
        for label in ("nsgf", *rivals):
            errors = sorted({float(row[3]) for row in rows if row[1] == label})
            least = [best(rows, label, PROBLEMS, error)[0] for error in errors]
            axes.loglog(least, [100 * error for error in errors], "o-", ms=4, label=label)
        axes.set(title=name, xlabel="processor ms, of eight at once", ylabel="largest error, %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    figure.savefig(file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
