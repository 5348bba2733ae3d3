"""Ablations: one setting at a time, trained and measured like a trial of `nsgf compare`.

    python scripts/ablate.py 2d                 # what the settings of configs/2d.yaml rest on
    python scripts/ablate.py digits --seeds 3   # choices of NSGF++

Further flags go to every variant (``--precision bf16``). Interrupted, the same command goes on.
Variants share one classifier, and the first phase where they differ in later ones alone.
"""

import argparse
import hashlib
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nsgf.checks import MAX_NAME
from nsgf.command_line import parse
from nsgf.compare.compare import Work, check_earlier, comparison_plan, is_trained
from nsgf.compare.measure import generated
from nsgf.compare.tables import by_seed, spread
from nsgf.compare.trials import Trial, named_target, trial_config, trial_folder
from nsgf.config.schema import Config, MethodName
from nsgf.run.folder import RunFolder, replacing, write_text
from nsgf.run.lock import only_process
from nsgf.run.stop import Stopped, StopRequest
from nsgf.system.errors import UserError

PAPER = "--sinkhorn-batch 256 --pool-batches 200 --sinkhorn.blur 0.5"


def recipe(base: str, changes: str = "") -> str:
    """Flags and their values, with others in their place or besides."""
    words = f"{base} {changes}".split()
    last = dict(zip(words[::2], words[1::2], strict=True))
    return " ".join(f"{flag} {value}" for flag, value in last.items())


def plus_plus(changes: str = "") -> str:
    """NSGF++ on digits as in the paper, whatever the experiment's file has, 1,800 updates."""
    return recipe(
        "--phases [nsgf,nsf,predictor] --nsf.source prior --nsf.init random "
        "--nsf.coupling independent --nsf.coupling_batch null --nsf.starts null --steps 5 "
        "--nsgf.iterations 300 --nsf.iterations 1100 --predictor.iterations 400",
        changes,
    )


def hand_over(changes: str = "") -> str:
    """The hand-over on digits, with as many updates."""
    return recipe(
        "--phases [nsgf,nsf] --nsf.source nsgf --nsf.init nsgf --nsf.coupling ot "
        "--nsf.coupling_batch 1024 --nsf.starts 65536 --steps 2 "
        "--nsgf.iterations 400 --nsf.iterations 1400",
        changes,
    )


def one_call(batch: int, changes: str = "") -> str:
    """One call with batches of this size; as many samples in all, whatever it is."""
    total = 128_000
    return recipe(f"--generator.batch_size {batch} --peer.iterations {total // batch}", changes)


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
        "last weights, no average": "--sampling.weights last",
        "n 256, 400 flows": "--sinkhorn-batch 256 --pool-batches 400",
        "paper's n, pool, blur; harmonic": PAPER,
        "paper's n, pool, blur; eta 0.5": f"{PAPER} --flow.schedule constant --flow.eta 0.5",
        "paper's n, pool, blur; eta 1": f"{PAPER} --flow.schedule constant --flow.eta 1",
    },
    "digits": {
        "configs/digits.yaml": "",
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
        "m 512": plus_plus("--sinkhorn.target_batch 512"),
        "m 1797": plus_plus("--sinkhorn.target_batch 1797"),
        "tau fixed to its mean": plus_plus("--sampling.tau MEAN"),
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
    "digits-onecall": {
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
        "blurs 0.1, 0.2, 0.4": one_call(256, "--generator.blurs [0.1,0.2,0.4]"),
        "tolerance 1e-2": one_call(256, "--generator.tolerance 1e-2"),
        "z + g(z, 0)": one_call(256, "--generator.residual true"),
    },
}
"""By experiment: label and flags. MEAN stands for the mean tau that the run's own predictor finds;
it takes one. Without it a straight flow from noise has no time to be entered at, so the hand-over
with source prior has a predictor."""
FIRST_SEED = 2000
"""Not those of a comparison: settings must not be chosen by the draws they are judged with."""
TARGETS = {"2d": ["moons", "checkerboard"], "digits": ["digits"], "digits-onecall": ["digits"]}
METHOD: dict[str, MethodName] = {"2d": "nsgf", "digits": "own", "digits-onecall": "onecall"}
Column = tuple[str, int]
"""Target and NFE."""
Results = dict[str, dict[Column, dict[tuple[int, int], dict[str, float]]]]
"""By label, then column, then seed and draw: measures by name."""


def main() -> None:
    """Train and measure all variants, print the tables and write them into the folder."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("exp", choices=VARIANTS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--targets", nargs="+")
    parser.add_argument("--only", nargs="+", metavar="LABEL")
    parser.add_argument("--out-dir", default="runs")
    own, flags = parser.parse_known_args()
    if "--seed" in [word.split("=")[0] for word in flags]:
        parser.error(f"--seed: an ablation begins at seed {FIRST_SEED}; --seeds N trains N of them")
    if own.seeds < 1:
        parser.error(f"--seeds {own.seeds}: must be >= 1")
    if own.targets and own.exp != "2d":
        parser.error("--targets: for 2d alone")
    for label in own.only or []:
        if label not in VARIANTS[own.exp]:
            parser.error(f"--only {label}: must be among {', '.join(VARIANTS[own.exp])}")
    results: Results = {}
    try:
        _ablate(own, flags, results)
    except UserError as error:
        parser.exit(2, f"ablate.py: error: {error}\n")
    except Stopped as stopped:
        print(f"stopped, {stopped}; the same command goes on")
    finally:
        if results:
            text = _tables(results)
            print(text)
            write_text(Path(own.out_dir) / f"ablate-{own.exp}.md", text)


def _ablate(own: argparse.Namespace, flags: list[str], results: Results) -> None:
    """
    Raises:
        UserError: a variant cannot be trained here, said before the first is.
        Stopped: asked to.
    """
    todo = [
        (
            label,
            [*flags, *VARIANTS[own.exp][label].split()],
            Trial(named_target(target), METHOD[own.exp], seed),
        )
        for label in own.only or VARIANTS[own.exp]
        for seed in range(FIRST_SEED, FIRST_SEED + own.seeds)
        for target in own.targets or TARGETS[own.exp]
    ]
    for _, words, trial in todo:
        comparison_plan(_config(own, words, trial))
    stop = StopRequest(_config(own, flags, todo[0][2]).train.max_hours)
    with stop.listening():
        for label, words, trial in todo:
            _run(own, words, trial, stop, results.setdefault(label, {}))


def _run(
    own: argparse.Namespace,
    words: list[str],
    trial: Trial,
    stop: StopRequest,
    measures: dict[Column, dict[tuple[int, int], dict[str, float]]],
) -> None:
    """One variant, target and seed."""
    tau = _mean_tau(own, words, trial, stop) if "MEAN" in words else None
    config = _config(own, words, trial, tau)
    for row in _finished(config, trial, stop).rows():
        assert row.nfe is not None
        values = {**row.measured.values, "NFE": row.measured.nfe}
        measures.setdefault((trial.target.label, row.nfe), {})[trial.seed, row.draw] = values


def _finished(config: Config, trial: Trial, stop: StopRequest) -> Work:
    shared = Path(config.out_dir).parent
    work = Work(config, stop, print, classifiers=shared)
    _take_first_phase(config, trial, shared)
    if not work.finish(trial):
        raise UserError(f"{trial_folder(config, trial)}: another process works on it")
    return work


def _take_first_phase(config: Config, trial: Trial, shared: Path) -> None:
    """Copy the first phase from another variant that has trained the same one.

    Args:
        config: of this variant.
        trial: what is to be trained.
        shared: folder of the variants' folders.
    """
    own = trial_config(config, trial)
    phase, *later = own.phases
    folder = trial_folder(config, trial)
    run, first = RunFolder(folder), replace(own, phases=[phase])
    for variant in sorted(shared.iterdir()) if later else []:
        if run.has_checkpoint(phase):
            return
        other = RunFolder(variant / folder.relative_to(config.out_dir))
        if not (other.has_checkpoint(phase) and is_trained(first, other, phase)):
            continue
        with suppress(UserError):  # it was trained with other settings
            check_earlier(first, other)
            RunFolder.prepare(folder)
            with only_process(folder), replacing(run.checkpoint_file(phase)) as stream:
                stream.write(other.checkpoint_file(phase).read_bytes())
            print(f"ablate: {phase} as in {other.path}")


def _config(
    own: argparse.Namespace, words: list[str], trial: Trial, tau: str | None = None
) -> Config:
    """A comparison of this trial alone; variants that differ in sampling alone share their runs."""
    trained = re.sub(r"--sampling\.\S+ \S+", "", " ".join(words)).strip()
    folder = re.sub(r"[^a-z0-9]+", "-", trained).strip("-") or "base"
    if len(folder) > MAX_NAME:  # file systems take no more than 255 characters
        folder = f"{hashlib.sha256(trained.encode()).hexdigest()[:12]}-{folder[-MAX_NAME:]}"
    out = Path(own.out_dir) / f"ablate-{own.exp}" / folder
    words = [(tau or "0.5") if word == "MEAN" else word for word in words]
    cell_words = ["--compare.methods", f"[{trial.method}]", "--seed", str(trial.seed)]
    cell_words += ["--compare.seeds", "1", "--out-dir", str(out)]
    if own.exp == "2d":
        cell_words += ["--compare.targets", f"[{trial.target.label}]"]
    return parse(["compare", "--exp", own.exp, *words, *cell_words]).config


def _mean_tau(own: argparse.Namespace, words: list[str], trial: Trial, stop: StopRequest) -> str:
    """The mean of the tau that the run's own predictor finds."""
    position = words.index("MEAN")
    config = _config(own, words[: position - 1] + words[position + 1 :], trial)
    work = _finished(config, trial, stop)
    run = RunFolder(trial_folder(config, trial))
    samples, _ = generated(trial_config(config, trial), run, 0, 256, work.device)
    assert samples.tau is not None
    return f"{float(samples.tau.mean()):.3f}"


def _tables(results: Results) -> str:
    """One table for each measure: variants down, targets and NFE across."""
    columns = list(dict.fromkeys(column for rows in results.values() for column in rows))
    every = [
        values for rows in results.values() for kept in rows.values() for values in kept.values()
    ]
    lines: list[str] = []
    for metric in every[0] if every else []:
        lines += ["", f"| {metric} | " + " | ".join(f"{t}, {n}" for t, n in columns) + " |"]
        lines.append("| --- " * (len(columns) + 1) + "|")
        for label, rows in results.items():
            kept = [rows.get(column, {}) for column in columns]
            texts = [spread(by_seed({p: v[metric] for p, v in own.items()})) for own in kept]
            lines.append(f"| {label} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
