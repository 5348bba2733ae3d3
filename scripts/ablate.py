"""Ablations: one setting at a time, trained and measured by `nsgf compare`.

    python scripts/ablate.py 2d                 # what the settings of configs/2d.yaml rest on
    python scripts/ablate.py digits --seeds 3   # choices of NSGF++

Further flags go to every variant (``--precision bf16``). The same command continues a stopped one.
"""

import argparse
import hashlib
import re
from dataclasses import replace
from pathlib import Path

from nsgf.cli.arguments import parse
from nsgf.comparison.compare import compare, comparison_plan
from nsgf.comparison.results import Row, read_rows
from nsgf.comparison.tables import all_tables, markdown
from nsgf.comparison.trials import Comparison
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError
from nsgf.system.files import write_text

PAPER = "--sinkhorn-batch 256 --pool-batches 200 --sinkhorn.blur 0.5"
POINTS = {
    "configs/2d.yaml": "",
    "constant eta 0.5": "--flow.schedule constant --flow.eta 0.5",
    "blur 0.5": "--sinkhorn.blur 0.5",
    "blur 0.1": "--sinkhorn.blur 0.1",
    "T 5": "--steps 5",
    "T 20": "--steps 20",
    "T 40, 50 flows": "--steps 40 --pool-batches 50",
    "25 flows": "--pool-batches 25",
    "400 flows": "--pool-batches 400",
    "n 256, 400 flows": "--sinkhorn-batch 256 --pool-batches 400",
    "paper's n, pool, blur; harmonic": PAPER,
    "paper's n, pool, blur; eta 0.5": f"{PAPER} --flow.schedule constant --flow.eta 0.5",
    "paper's n, pool, blur; eta 1": f"{PAPER} --flow.schedule constant --flow.eta 1",
}
PLUS_PLUS = {
    "NSGF++": "",
    "coupling ot": "--nsf.coupling ot",
    "source nsgf": "--nsf.source nsgf --sampling.tau 0",
    "tau fixed to 0.64": "--sampling.tau 0.64",
    "straight leg: dopri5": "--sampling.solver dopri5",
}
VARIANTS = {
    "2d": {label: f"--methods nsgf {flags}" for label, flags in POINTS.items()},
    "digits": {
        label: f"--methods nsgf++ --compare.updates [1800] {flags}"
        for label, flags in PLUS_PLUS.items()
    },
}
"""Flags by name of the ablation and label."""
FIRST_SEED = 2000
"""Not those of a comparison: settings must not be chosen by the draws they are judged with."""


def main() -> None:
    """Train and measure the variants, print the tables and write them into the folder."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("exp", choices=VARIANTS, metavar="|".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--only", nargs="+", metavar="LABEL")
    parser.add_argument("--out-dir", default="runs")
    options, flags = parser.parse_known_args()
    if "--seed" in [word.split("=")[0] for word in flags]:
        parser.error(f"--seed: the first seed is {FIRST_SEED}; --seeds N trains N of them")
    if options.targets and options.exp != "2d":
        parser.error("--targets: for 2d only")
    for label in options.only or []:
        if label not in VARIANTS[options.exp]:
            parser.error(f"--only {label}: must be among {', '.join(VARIANTS[options.exp])}")
    rows: list[Row] = []
    try:
        _measure(options, flags, rows)
    except UserError as error:
        parser.exit(2, f"ablate.py: error: {error}\n")
    except Stopped as stopped:
        print(f"stopped, {stopped}; the same command continues")
    finally:
        if rows:
            text = markdown(all_tables(rows))
            print(text)
            write_text(Path(options.out_dir) / f"ablate-{options.exp}.md", text)


def _measure(options: argparse.Namespace, flags: list[str], rows: list[Row]) -> None:
    """Add the measures of each variant to ``rows``, its label in the place of the method.

    Raises:
        UserError: a variant cannot be trained; raised before the first one is.
        Stopped: the user asked for it.
    """
    labels = options.only or VARIANTS[options.exp]
    comparisons = {label: _configured(options, flags, label) for label in labels}
    for comparison in comparisons.values():
        comparison_plan(comparison)
    stop = StopRequest(next(iter(comparisons.values())).config.train.max_hours)
    with stop.listening():
        for label, comparison in comparisons.items():
            print(f"ablate: {label}")
            (table,) = (file for file in compare(comparison, stop) if file.suffix == ".csv")
            rows += [row._replace(method=label) if row.nfe else row for row in read_rows(table)]


def _configured(options: argparse.Namespace, flags: list[str], label: str) -> Comparison:
    """The comparison that trains and measures a variant.

    Variants that differ only in sampling share a folder, so a run. All share ``out_dir``, where
    the features of real images are kept.
    """
    words = [*flags, *VARIANTS[options.exp][label].split()]
    trained = re.sub(r"--sampling\.\S+ \S+", "", " ".join(words)).strip()
    digest = hashlib.sha256(trained.encode()).hexdigest()[:8]
    name = f"{digest}-{re.sub(r'[^a-z0-9]+', '-', trained)[:80].strip('-')}"
    if options.exp == "2d":
        targets = ",".join(options.targets or ["moons", "checkerboard"])
        words.append(f"--compare.targets=[{targets}]")
    words += ["--seed", str(FIRST_SEED), "--compare.seeds", str(options.seeds)]
    words += ["--out-dir", str(Path(options.out_dir) / f"ablate-{options.exp}")]
    experiment = "2d" if options.exp == "2d" else "digits"
    request = parse(["compare", "--exp", experiment, *words])
    named = [replace(config, exp=name) for config in (request.config, *request.methods)]
    return Comparison.of(named[0], tuple(named[1:]))


if __name__ == "__main__":
    main()
