"""Ablations of NSGF in the plane: one setting at a time, trained and measured by `nsgf compare`.

    python scripts/ablate.py --seeds 3    # what the settings of configs/2d.yaml rest on

Further flags go to every variant (``--precision bf16``). The same command continues a stopped one.
"""

import argparse
import hashlib
import re
from dataclasses import replace
from pathlib import Path

from nsgf.cli.arguments import parse
from nsgf.comparison import Row, read_rows
from nsgf.comparison.compare import compare, comparison_plan
from nsgf.comparison.tables import all_tables, markdown
from nsgf.comparison.trials import Comparison
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError
from nsgf.system.files import write_text

PAPER = "--sinkhorn-batch 256 --pool-batches 200 --sinkhorn.blur 0.5"
VARIANTS = {
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
"""Flags by label."""
FIRST_SEED = 2000
"""Not those of a comparison: settings must not be chosen by the draws they are judged with."""


def main() -> None:
    """Train and measure the variants, print the tables and write them into the folder."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--targets", nargs="+", default=["moons", "checkerboard"])
    parser.add_argument("--only", nargs="+", metavar="LABEL")
    parser.add_argument("--out-dir", default="runs")
    options, flags = parser.parse_known_args()
    if "--seed" in [word.split("=")[0] for word in flags]:
        parser.error(f"--seed: the first seed is {FIRST_SEED}; --seeds N trains N of them")
    for label in options.only or []:
        if label not in VARIANTS:
            parser.error(f"--only {label}: must be among {', '.join(VARIANTS)}")
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
            write_text(Path(options.out_dir) / "ablate-2d.md", text)


def _measure(options: argparse.Namespace, flags: list[str], rows: list[Row]) -> None:
    """Add the measures of each variant to ``rows``, its label in the place of the method.

    Raises:
        UserError: a variant cannot be trained; raised before the first one is.
        Stopped: the user asked for it.
    """
    labels = options.only or VARIANTS
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
    """Return the comparison that trains and measures a variant."""
    words = ["--methods", "nsgf", *flags, *VARIANTS[label].split()]
    digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]
    name = f"{digest}-{re.sub(r'[^a-z0-9]+', '-', ' '.join(words))[:80].strip('-')}"
    words += ["--seed", str(FIRST_SEED), "--compare.seeds", str(options.seeds)]
    words += [f"--compare.targets=[{','.join(options.targets)}]"]
    words += ["--out-dir", str(Path(options.out_dir) / "ablate-2d")]
    request = parse(["compare", "--exp", "2d", *words])
    named = [replace(config, exp=name) for config in (request.config, *request.methods)]
    return Comparison.of(named[0], tuple(named[1:]))


if __name__ == "__main__":
    main()
