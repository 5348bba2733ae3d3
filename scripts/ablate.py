"""Ablations: one setting at a time, trained and measured like a cell of `nsgf compare`.

    python scripts/ablate.py 2d                 # what the settings of configs/2d.yaml rest on
    python scripts/ablate.py digits --seeds 3   # choices of NSGF++

Further flags go to every variant (``--precision bf16``). Interrupted, the same command goes on.
"""

import argparse
import re
from pathlib import Path

from nsgf.arguments import parse
from nsgf.checkpoint import RunFolder, write_text
from nsgf.compare.cells import Cell, cell_config, cell_folder
from nsgf.compare.comparison import Work
from nsgf.compare.measure import generated
from nsgf.compare.report import spread
from nsgf.config import Config, MethodName
from nsgf.errors import UserError
from nsgf.stopping import StopRequest

PAPER = "--sinkhorn-batch 256 --pool-batches 200 --sinkhorn.blur 0.5"
VARIANTS: dict[str, dict[str, str]] = {
    "2d": {
        "configs/2d.yaml": "",
        "constant eta 0.5": "--flow.schedule constant --flow.eta 0.5",
        "blur 0.5": "--sinkhorn.blur 0.5",
        "blur 0.1": "--sinkhorn.blur 0.1",
        "T 5": "--steps 5",
        "n 256, 400 flows": "--sinkhorn-batch 256 --pool-batches 400",
        "paper's n, pool, blur; harmonic": PAPER,
        "paper's n, pool, blur; eta 0.5": f"{PAPER} --flow.schedule constant --flow.eta 0.5",
        "paper's n, pool, blur; eta 1": f"{PAPER} --flow.schedule constant --flow.eta 1",
    },
    "digits": {
        "configs/digits.yaml": "",
        "coupling ot": "--nsf.coupling ot",
        "source nsgf": "--nsf.source nsgf --sampling.tau 0",
        "source nsgf, coupling ot": "--nsf.source nsgf --nsf.coupling ot --sampling.tau 0",
        "T 1": "--steps 1",
        "T 2": "--steps 2",
        "T 3": "--steps 3",
        "T 4": "--steps 4",
        "harmonic steps": "--flow.schedule harmonic",
        "tau fixed to its mean": "--sampling.tau MEAN",
        "straight leg: heun": "--sampling.solver heun",
        "straight leg: dopri5": "--sampling.solver dopri5",
    },
}
"""By experiment: label and flags. MEAN stands for the mean predicted tau of the first variant."""
FIRST_SEED = 1000
"""Not those of a comparison: settings must not be chosen by the draws they are judged with."""
TARGETS = {"2d": ["moons", "checkerboard"], "digits": ["digits"]}
METHOD: dict[str, MethodName] = {"2d": "nsgf", "digits": "nsgf++"}
Results = dict[str, dict[tuple[str, int], list[dict[str, float]]]]
"""By label, then target and NFE: measures of each seed."""


def main() -> None:
    """Train and measure all variants, print the tables and write them into the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exp", choices=VARIANTS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--only", nargs="+", metavar="LABEL")
    parser.add_argument("--out-dir", default="runs")
    own, flags = parser.parse_known_args()
    try:
        _ablate(own, flags)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error


def _ablate(own: argparse.Namespace, flags: list[str]) -> None:
    results: Results = {}
    for label, variant in VARIANTS[own.exp].items():
        if own.only and label not in own.only:
            continue
        results[label] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + own.seeds):
            for target in own.targets or TARGETS[own.exp]:
                _run(
                    own,
                    label,
                    [*flags, *variant.split()],
                    Cell(target, METHOD[own.exp], seed),
                    results,
                )
    text = _tables(results)
    print(text)
    write_text(Path(own.out_dir) / f"ablate-{own.exp}.md", text)


def _run(
    own: argparse.Namespace, label: str, flags: list[str], cell: Cell, results: Results
) -> None:
    """One variant, target and seed."""
    if "MEAN" in flags:
        flags = [_mean_tau(own, flags, cell) if word == "MEAN" else word for word in flags]
    config = _config(own, flags)
    work = Work(config, StopRequest(config.train.max_hours), print)
    if not work.finish(cell):
        raise SystemExit(f"{cell_folder(config, cell)}: another process works on it")
    for nfe in config.compare.nfe:
        for draw in range(config.compare.draws):
            found = work.found(cell, nfe, draw)
            assert found is not None
            values = {**found.values, "NFE": found.nfe}
            results[label].setdefault((cell.target, nfe), []).append(values)


def _config(own: argparse.Namespace, flags: list[str]) -> Config:
    """The variant's configuration; those that differ in sampling alone share their runs."""
    words = " ".join(flags)
    trained = re.sub(r"--sampling\.\S+ \S+", "", words).strip()
    folder = re.sub(r"[^a-z0-9]+", "-", trained).strip("-") or "base"
    out = Path(own.out_dir) / f"ablate-{own.exp}" / folder
    return parse(["compare", "--exp", own.exp, *flags, "--out-dir", str(out)]).config


def _mean_tau(own: argparse.Namespace, flags: list[str], cell: Cell) -> str:
    position = flags.index("MEAN")
    config = _config(own, flags[: position - 1] + flags[position + 1 :])
    cell_settings = cell_config(config, cell)
    work = Work(config, StopRequest(), print)
    if not work.finish(cell):
        raise SystemExit(f"{cell_folder(config, cell)}: another process works on it")
    run = RunFolder(cell_folder(config, cell))
    samples, _ = generated(cell_settings, run, 0, 256, work.device)
    assert samples.tau is not None
    return f"{float(samples.tau.mean()):.3f}"


def _tables(results: Results) -> str:
    """One table for each measure: variants down, targets and NFE across."""
    columns = list(next(iter(results.values())))
    metrics = list(next(iter(results.values()))[columns[0]][0])
    lines = []
    for metric in metrics:
        lines += ["", f"| {metric} | " + " | ".join(f"{t}, {n}" for t, n in columns) + " |"]
        lines.append("| --- " * (len(columns) + 1) + "|")
        for label, found in results.items():
            cells = [spread([values[metric] for values in found[column]]) for column in columns]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
