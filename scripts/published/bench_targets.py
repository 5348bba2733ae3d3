"""Measure which share of a velocity a network can learn. This share is R squared of the first
step's target.

    OMP_NUM_THREADS=1 python scripts/published/bench_targets.py [FOLDER OF MNIST | draw | blurs]

A particle x gets a different velocity v in each mini-batch. A network can only learn the mean of
these velocities. Let e = x + v and e' be the end points of the same particles in two mini-batches
that share nothing else:

    known part = E e.e' - |E e|^2,    R^2 = known part / (E |e|^2 - |E e|^2)

The formulas use end points and not velocities, because the term -x in v is known. The time is 0, so
x is noise. The blur is 0.5, and `blurs` measures digits with several blurs. The two mini-batches
share a sixteenth of the n particles. The memory in the table is the memory that the solver adds to
the process.
"""

import sys
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch
from matplotlib import rcParams
from matplotlib.figure import Figure

from nsgf.config.schema import DataConfig, ImageName
from nsgf.data import Data
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.user_data import load_data

CASES: dict[ImageName, list[tuple[int, int]]] = {
    "digits": [(n, n) for n in (64, 128, 256, 512, 1024, 1797)]
    + [(n, 1797) for n in (128, 512, 1024, 4096)],
    "mnist": [(n, n) for n in (64, 256, 1024, 4096, 16384)]
    + [(256, 8192), (1024, 8192), (4096, 16384), (1024, 60000), (4096, 60000)],
}
PROBES = 1024
FILE = Path("docs/results/target_r2.csv")
HEAD = "data,n,m,r_squared,known_share_of_data,processor_s_a_solve,solver_mb"
BLURS = (0.25, 0.5, 1.0, 2.0, 4.0)
FILE_OF_BLURS = Path("docs/results/target_r2_blur.csv")


def measure(data: Data, name: str, n: int, m: int, blur: float = 0.5) -> tuple:
    """Return a row of the table, with the columns of HEAD."""
    solver, shared = BatchedSolver(blur), n // 16
    source, targets = data.source("r2"), [data.target("r2", str(n), str(m), side) for side in "ab"]
    rounds, busy = -(-PROBES // shared), 0.0
    products, squares, total = 0.0, 0.0, torch.zeros(())
    before = getrusage(RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        x, both = source.sample(n), []
        for target in targets:  # two samplers: draws of one sampler share no image
            x = x.clone()
            x[shared:] = source.sample(n - shared)
            begun = time.process_time()
            solution = solver.solve(x.unsqueeze(0), target.sample(m).unsqueeze(0))
            busy += time.process_time() - begun
            ends = x[:shared].flatten(1) + solution.velocity[0, :shared]
            both.append(ends.double())
        products += float((both[0] * both[1]).sum()) / shared / rounds
        squares += float((both[0].square() + both[1].square()).sum()) / 2 / shared / rounds
        total = total + (both[0] + both[1]).mean(0) / 2 / rounds
    mean = float((total**2).sum())
    known = products - mean
    variance = float(targets[0].sample(10_000).flatten(1).var(0).sum())
    memory = (getrusage(RUSAGE_SELF).ru_maxrss - before) // 1024
    shares = round(known / (squares - mean), 4), round(known / variance, 4)
    return name, n, m, *shares, round(busy / 2 / rounds, 4), memory


def measure_blurs() -> None:
    """Measure 1,024 particles and targets of digits with each blur."""
    data = load_data(DataConfig(name="digits"), seed=0)
    rows = ["blur," + HEAD]
    for blur in BLURS:
        row = (blur, *measure(data, "digits", 1024, 1024, blur))
        rows.append(",".join(map(str, row)))
        print(rows[-1], flush=True)
    FILE_OF_BLURS.write_text("\n".join(rows) + "\n")


def draw() -> None:
    """Draw the table. In the first line, the numbers of targets and particles are equal. In each
    further line, the number m of targets is fixed."""
    rows = [line.split(",") for line in FILE.read_text().splitlines()[1:]]
    rcParams["font.size"] = 15  # for narrow screens
    figure = Figure((10, 5.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), CASES, strict=True):
        own = sorted((int(n), int(m), float(r)) for found, n, m, r, *_ in rows if found == name)
        lines = {"m = n": [(n, r) for n, m, r in own if m == n]}
        for n, m, r in sorted(own, key=lambda row: row[1]):
            if m != n:
                lines.setdefault(f"m = {m:,}", []).append((n, r))
        for label, line in lines.items():
            axes.plot(*zip(*line, strict=True), "o-", label=label)
        axes.set(
            xlabel="particles n (targets: m)", ylabel="R squared", xscale="log", ylim=(0, 1.05)
        )
        axes.set_title(name.replace("mnist", "MNIST"))
        axes.legend(loc="lower right", fontsize=13)
    figure.savefig(FILE.with_suffix(".png"), dpi=100)


def main() -> None:
    """Measure all cases, and print each row as soon as it is known. With `draw`, only draw the
    table. With `blurs`, only measure digits with several blurs."""
    root, rows = sys.argv[1] if len(sys.argv) > 1 else "data", []
    if root == "blurs":
        measure_blurs()
        return
    for name, cases in CASES.items() if root != "draw" else ():
        data = load_data(DataConfig(name=name, root=root), seed=0)
        # start with small cases, because the measured memory is the peak so far
        for n, m in sorted(cases, key=lambda case: case[0] * case[1]):
            rows.append(",".join(map(str, measure(data, name, n, m))))
            print(rows[-1], flush=True)
    if rows:
        FILE.write_text("\n".join([HEAD, *rows]) + "\n")
    draw()


if __name__ == "__main__":
    main()
