"""Ablations: one setting at a time, trained and measured by `nsgf compare`.

    python scripts/ablate.py 2d                 # what the settings of configs/2d.yaml rest on
    python scripts/ablate.py digits --seeds 3   # choices of NSGF++

Further flags go to every variant (``--precision bf16``). The same command continues what was
interrupted.
"""

import argparse
import hashlib
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from nsgf.cli.arguments import parse
from nsgf.comparison.compare import compare, comparison_plan
from nsgf.comparison.results import Row, read_rows
from nsgf.comparison.tables import by_seed, spread
from nsgf.comparison.trials import Comparison
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError
from nsgf.system.files import write_text

PAPER = "--sinkhorn-batch 256 --pool-batches 200 --sinkhorn.blur 0.5"


def recipe(base: str, changes: str = "") -> str:
    """Flags and their values, with others in their place or besides."""
    words = f"{base} {changes}".split()
    last = dict(zip(words[::2], words[1::2], strict=True))
    return " ".join(f"{flag} {value}" for flag, value in last.items())


plus_plus = partial(recipe, "--methods nsgf++ --compare.updates [1800]")
"""The paper's NSGF++ on digits."""
hand_over = partial(recipe, "--methods nsgf++h --compare.updates [1800]")
"""The hand-over on digits, with as many updates."""


def one_call(batch: int, changes: str = "") -> str:
    """One call with batches of this size; as many samples in all, whatever it is."""
    total = 128_000
    updates = f"--compare.updates [{total // batch}]"
    return recipe(f"--methods onecall --generator.batch_size {batch} {updates}", changes)


VARIANTS: dict[str, dict[str, str]] = {
    "2d": {
        "configs/2d.yaml": "",
        "constant eta 0.5": "--flow.schedule constant --flow.eta 0.5",
        "blur 0.5": "--sinkhorn.blur 0.5",
        "blur 0.1": "--sinkhorn.blur 0.1",
        "T 5": "--steps 5",
        "T 20": "--steps 20",
        "T 40, 50 flows": "--steps 40 --pool-batches 50",
        "25 flows": "--pool-batches 25",
        "400 flows": "--pool-batches 400",
        "constant rate": "--nsgf.schedule constant",
        "n 256, 400 flows": "--sinkhorn-batch 256 --pool-batches 400",
        "paper's n, pool, blur; harmonic": PAPER,
        "paper's n, pool, blur; eta 0.5": f"{PAPER} --flow.schedule constant --flow.eta 0.5",
        "paper's n, pool, blur; eta 1": f"{PAPER} --flow.schedule constant --flow.eta 1",
    },
    "digits": {
        "NSGF++": plus_plus(),
        "coupling ot": plus_plus("--nsf.coupling ot"),
        "source nsgf": plus_plus("--nsf.source nsgf --sampling.tau 0"),
        "source nsgf, coupling ot": plus_plus(
            "--nsf.source nsgf --nsf.coupling ot --sampling.tau 0"
        ),
        "T 1": plus_plus("--steps 1"),
        "T 2": plus_plus("--steps 2"),
        "T 3": plus_plus("--steps 3"),
        "T 4": plus_plus("--steps 4"),
        "harmonic steps": plus_plus("--flow.schedule harmonic"),
        "n 128": plus_plus("--sinkhorn-batch 128 --pool-batches 200"),
        "n 512": plus_plus("--sinkhorn-batch 512 --pool-batches 50"),
        "n 1024, m 1797": plus_plus("--sinkhorn.target_batch 1797"),
        "n 4096, m 1797": plus_plus(
            "--sinkhorn-batch 4096 --pool-batches 6 --sinkhorn.target_batch 1797"
        ),
        "tau fixed to 0.64": plus_plus("--sampling.tau 0.64"),
        "straight leg: heun": plus_plus("--sampling.solver heun"),
        "straight leg: dopri5": plus_plus("--sampling.solver dopri5"),
        "hand-over": hand_over(),
        "hand-over, T 1": hand_over("--steps 1"),
        "hand-over, T 3": hand_over("--steps 3"),
        "hand-over, T 5 harmonic": hand_over("--steps 5 --flow.schedule harmonic"),
        "hand-over, pairs of 128": hand_over("--nsf.coupling_batch 128"),
        "hand-over, pairs as drawn": hand_over(
            "--nsf.coupling independent --nsf.coupling_batch null"
        ),
        "hand-over, all starts new": hand_over("--nsf.starts null"),
        "hand-over, n 1024": hand_over("--sinkhorn-batch 1024 --pool-batches 50"),
        "hand-over, init random": hand_over("--nsf.init random"),
        "hand-over, source prior": plus_plus(
            "--nsf.init nsgf --nsf.coupling ot --nsf.coupling_batch 1024 --steps 2"
        ),
        "hand-over, more for nsgf": hand_over("--nsgf.iterations 600 --nsf.iterations 1200"),
        "hand-over, blur 0.25": hand_over("--sinkhorn.blur 0.25"),
        "hand-over, blur 1": hand_over("--sinkhorn.blur 1"),
    },
    "onecall": {
        "128,000 samples, n 256, m 1796": one_call(256),
        "n 64": one_call(64),
        "n 128": one_call(128),
        "n 512": one_call(512),
        "m 256": one_call(256, "--generator.targets 256"),
        "m 512": one_call(256, "--generator.targets 512"),
        "m 1024": one_call(256, "--generator.targets 1024"),
        "blur 0.1": one_call(256, "--generator.blurs [0.1]"),
        "blur 0.3": one_call(256, "--generator.blurs [0.3]"),
        "blur 0.4": one_call(256, "--generator.blurs [0.4]"),
        "tolerance 1e-2": one_call(256, "--generator.tolerance 1e-2"),
        "blurs 0.1, 0.2, 0.4": one_call(256, "--generator.blurs [0.1,0.2,0.4]"),
    },
}
"""By name of the ablation: label and flags. A straight flow from noise needs a predictor, which
says where it starts; so the hand-over with source prior has one."""
FIRST_SEED = 2000
"""Not those of a comparison: settings must not be chosen by the draws they are judged with."""
TARGETS = ["moons", "checkerboard"]
"""Of 2d, by default."""
EXPERIMENTS = {"2d": "2d", "digits": "digits", "onecall": "digits"}


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
    results: dict[str, list[Row]] = {}
    try:
        _measure(options, flags, results)
    except UserError as error:
        parser.exit(2, f"ablate.py: error: {error}\n")
    except Stopped as stopped:
        print(f"stopped, {stopped}; the same command continues")
    finally:
        if results:
            text = _tables(results)
            print(text)
            write_text(Path(options.out_dir) / f"ablate-{options.exp}.md", text)


def _measure(options: argparse.Namespace, flags: list[str], results: dict[str, list[Row]]) -> None:
    """Add the measures of each variant to ``results``.

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
            results[label] = [row for row in read_rows(table) if row.nfe is not None]


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
        words += ["--methods", "nsgf", "--compare.targets"]
        words += [f"[{','.join(options.targets or TARGETS)}]"]
    words += ["--seed", str(FIRST_SEED), "--compare.seeds", str(options.seeds)]
    words += ["--out-dir", str(Path(options.out_dir) / f"ablate-{options.exp}")]
    request = parse(["compare", "--exp", EXPERIMENTS[options.exp], *words])
    named = [replace(config, exp=name) for config in (request.config, *request.methods)]
    return Comparison.of(named[0], tuple(named[1:]))


def _tables(results: dict[str, list[Row]]) -> str:
    """One table for each measure and one for the calls: variants down, targets and NFE across."""
    every = [row for rows in results.values() for row in rows]
    columns = list(dict.fromkeys((row.target, row.nfe) for row in every))
    lines: list[str] = []
    for metric in (*every[0].values, "NFE"):
        lines += ["", f"| {metric} | " + " | ".join(f"{t}, {n}" for t, n in columns) + " |"]
        lines.append("| --- " * (len(columns) + 1) + "|")
        for label, rows in results.items():
            found: list[dict[tuple[int, int], float]] = [{} for _ in columns]
            for row in rows:
                value = {**row.values, "NFE": row.calls}[metric]
                column = columns.index((row.target, row.nfe))
                found[column][row.seed, row.draw] = value
            cells = [spread(by_seed(own)) for own in found]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
