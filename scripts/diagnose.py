"""Where does NSGF++ lose precision? One trained run, with a part replaced at a time.

    python scripts/diagnose.py RUN [RUN ...]

RUN is the folder of a run with `--method nsgf++` on images with classes. The straight flow takes 20
equal steps from each of these starts; a row is the mean over the runs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

import nsgf
from nsgf.data import Data
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.sampling.sampler import nsgf_steps
from nsgf.sinkhorn import build_solver
from nsgf.sinkhorn.base import flow_time, step_sizes

STEPS = 20
Starts = tuple[str, Tensor, Tensor]
"""Label, positions (N, *shape) and times (N,)."""


def starts(run: nsgf.Run, data: Data, count: int) -> Iterator[Starts]:
    """Yield the starts that are compared, from the same noise."""
    config, nets = run.config, run.networks
    flow, n = config.flow, config.sinkhorn.batch_size
    noise, real = data.source("diagnose").sample(count), data.target("diagnose").sample(count)
    yield "noise, time 0", noise, torch.zeros(count)
    path: list[Tensor] = []
    nsgf_steps(nets["nsgf"], noise, flow.steps, flow_time(flow), path.append)
    for steps, x in enumerate(path, 1):
        yield f"{steps} steps of v, predicted times", x, nets["predictor"](x)
    times = nets["predictor"](path[-1])
    yield "all steps of v, the mean of these times", path[-1], times.mean().expand(count)
    solver, flows = build_solver(config.sinkhorn), -(-count // n)
    x, y = (
        sampler.sample(flows * n).unflatten(0, (flows, n))
        for sampler in (data.source("true"), data.target("true"))
    )
    true = solver.flows(x, y, step_sizes(flow))[:, :, -1].flatten(0, 1)[:count]
    yield "true Sinkhorn particles, predicted times", true, nets["predictor"](true)
    weight = times.mean()
    lines = (1 - weight) * noise + weight * real
    yield "exact points of the lines, the mean time", lines, weight.expand(count)


def measure(folder: str) -> dict[str, dict[str, float]]:
    """Return the measures of a run by label."""
    run = nsgf.load(folder, device="cpu")
    data = Data(run.config.data, run.config.seed)
    assert data.images is not None
    classifier = ClassifierMetrics(
        run.config.data, data.images, Path(run.config.out_dir), run.device
    )
    found, count = {}, classifier.used(run.config.evaluation.num_samples)
    with torch.no_grad():
        for label, x, t in starts(run, data, count):
            step = (1 - t) / STEPS
            for number in range(STEPS):
                x = x + step.view(-1, 1, 1, 1) * run.networks["nsf"](x, t + number * step)
            found[label] = classifier.measure(x)
    return found


if __name__ == "__main__":
    runs = [measure(folder) for folder in sys.argv[1:]]
    print("| starts of the straight flow | " + " | ".join(next(iter(runs[0].values()))) + " |")
    print("| --- " * 4 + "|")
    for label, row in runs[0].items():
        cells = (f"{mean(run[label][name] for run in runs):.3f}" for name in row)
        print(f"| {label} | " + " | ".join(cells) + " |")
