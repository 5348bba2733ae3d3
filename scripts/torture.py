"""Is anything ever lost? Kills training at random moments until it is done, and compares.

    python scripts/torture.py --exp digits --kills 100 [--seed 0] [--damage 0.1] [any training flag]

One run trains undisturbed. Others with the same settings are ended by SIGKILL over and over, at
random moments from the start of the process to the end of its work, and resumed each time; now and
then the newest checkpoint is damaged as well. Whenever such a run is done, its weights, averages,
optimizers, metrics and samples are compared with the undisturbed run's, bit for bit. Prints a
table; exit code 1 if anything differs.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsgf.config.schema import PHASES
from nsgf.run.checkpoint import load
from nsgf.run.folder import RunFolder

SETTINGS = {
    "2d": (
        *("--phases=[nsgf,nsf,predictor]", "--steps=5", "--pool-batches=30"),
        *("--train-iters=3000", "--train.checkpoint_every=20", "--train.log_every=7"),
    ),
    "digits": (
        *("--model.unet.mult=[1]", "--model.unet.dropout=0.1", "--pool-batches=60"),
        *("--pool.storage=disk", "--train-iters=300", "--batch-size=16"),
        "--predictor.iterations=1500",
        *("--train.checkpoint_every=5", "--train.log_every=7"),
    ),
}
"""Small enough to be done in about a minute, with all three phases and many checkpoints."""


EARLY = 0.2
"""Share of kills that come before a process says that it begins."""


@dataclass
class Tally:
    """What happened so far."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by what the process was doing."""
    runs: int = 0
    damaged: int = 0
    differences: list[str] = field(default_factory=list)


def main() -> int:
    options, flags = _parser().parse_known_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        settings = _merged([*SETTINGS[options.exp], "--device=cpu", "--train.preview=false"], flags)
        reference, startup, work = _undisturbed(options.exp, folder / "whole", settings)
        span = 2 * work / options.lives
        tally = Tally()
        while sum(tally.kills.values()) < options.kills:
            disturbed = folder / f"disturbed{tally.runs}"
            left = options.kills - sum(tally.kills.values())
            run = _tortured(options, disturbed, settings, chance, (startup, span), left, tally)
            tally.differences += _differences(reference, run)
            tally.runs += 1
            shutil.rmtree(disturbed)
    print(_table(options.exp, tally))
    return 1 if tally.differences else 0


def _merged(settings: list[str], flags: list[str]) -> list[str]:
    """Settings of the form --key=value, with those of ``flags`` in the place of equal keys."""
    return list({flag.partition("=")[0]: flag for flag in (*settings, *flags)}.values())


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "nsgf", *map(str, arguments)]


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}


def _undisturbed(exp: str, out: Path, settings: list[str]) -> tuple[RunFolder, float, float]:
    """A run from start to end; also seconds until its folder appeared, and from then on."""
    started = time.monotonic()
    command = _command("train", "--exp", exp, "--out-dir", out, *settings)
    with subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL) as process:
        while not list(out.glob("*/config.yaml")) and process.poll() is None:
            time.sleep(0.01)
        startup = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"the undisturbed run failed: {' '.join(command)}")
    work = time.monotonic() - started - startup
    run = _only_run(out)
    _sample(run)
    return run, startup, work


def _tortured(
    options: argparse.Namespace,
    out: Path,
    settings: list[str],
    chance: random.Random,
    spans: tuple[float, float],
    left: int,
    tally: Tally,
) -> RunFolder:
    """A run that is killed again and again, at most as often as there are kills left."""
    out.mkdir()
    for life in range(10**6):
        runs = [path for path in out.iterdir() if (path / "config.yaml").exists()]
        start = ["--run", runs[0], "--resume"] if runs else ["--exp", options.exp, *settings]
        command = _command("train", *start, "--out-dir", out)
        process = subprocess.Popen(
            command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        begun = _beginnings(out)
        if life >= left or not _killed(process, out, begun, chance, spans):
            errors = process.communicate()[1].decode()
            if process.returncode:
                raise SystemExit(f"a resumed run failed:\n{errors[-2000:]}")
            break
        tally.kills[_place(out, begun)] += 1
        if chance.random() < options.damage:
            tally.damaged += _damage(out, chance)
        for path in out.iterdir():  # killed before its configuration was written: never began
            if not (path / "config.yaml").exists():
                shutil.rmtree(path)
    run = _only_run(out)
    _sample(run)
    return run


def _killed(
    process: "subprocess.Popen[bytes]",
    out: Path,
    begun: int,
    chance: random.Random,
    spans: tuple[float, float],
) -> bool:
    """Kill a process at a random moment of its start or, mostly, of its work.

    Args:
        process: to be killed.
        out: where its run is.
        begun: how often the run began to work before.
        chance: random numbers.
        spans: seconds within which both moments lie, from the start and from the beginning of work.

    Returns:
        False: it was done before.
    """
    startup, work = spans
    if chance.random() < EARLY:
        seconds = chance.uniform(0, startup)
    else:
        while _beginnings(out) == begun and process.poll() is None:
            time.sleep(0.005)
        seconds = chance.uniform(0, work)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True


def _log(out: Path) -> list[str]:
    return [line for file in out.glob("*/log.txt") for line in file.read_text().splitlines()]


def _beginnings(out: Path) -> int:
    """How often a run's log says that it begins."""
    return sum(" run " in line and " on CPU" in line for line in _log(out))


def _place(out: Path, begun: int) -> str:
    """What a killed process was doing, by what it left behind."""
    if _beginnings(out) == begun:
        return "starting"
    if list(out.glob("*/checkpoints/*.partial")):
        return "writing a checkpoint"
    log = _log(out)
    since = log[max(i for i, line in enumerate(log) if " on CPU" in line) :]
    finished = [phase for phase in PHASES if any(f" {phase}: done" in line for line in since)]
    for phase in PHASES:
        if phase not in finished:
            building = phase == "nsgf" and not any(
                " flows in " in line or "nothing to build" in line for line in since
            )
            return "building the pool" if building else phase
    return "ending"


def _damage(out: Path, chance: random.Random) -> int:
    """Cut off, empty, or flip a bit of a newest checkpoint that has one before it."""
    files = [
        file
        for file in out.glob("*/checkpoints/phase*.pt")
        if file.with_suffix(".earlier.pt").exists() and file.stem.count(".") == 0
    ]
    if not files:
        return 0
    file = max(files, key=lambda path: path.stat().st_mtime)
    content = bytearray(file.read_bytes())
    kind = chance.randrange(3)
    if kind == 0:
        content = content[: chance.randrange(len(content))]
    elif kind == 1:
        content = bytearray()
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.unlink()  # the earlier one may be the same file under another name
    file.write_bytes(content)
    return 1


def _sample(run: RunFolder) -> None:
    command = _command("sample", "--run", run.path, "--num-samples", 32, "--seed", 5)
    subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)


def _only_run(out: Path) -> RunFolder:
    [path] = (path for path in out.iterdir() if (path / "config.yaml").exists())
    return RunFolder(path)


def _differences(one: RunFolder, other: RunFolder) -> list[str]:
    """Names of everything in which two runs differ."""
    found = []
    for phase in PHASES:
        payloads = [load(run.checkpoint_file(phase)) for run in (one, other)]
        for key in ("step", "model", "ema", "optimizer", "scheduler", "scaler", "window"):
            if not _equal(*(payload[key] for payload in payloads)):
                found.append(f"{phase} {key}")
    if _read(one, "metrics.jsonl") != _read(other, "metrics.jsonl"):
        found.append("metrics.jsonl")
    files = [next(run.samples.glob("samples*.npz")) for run in (one, other)]
    samples = [np.load(file, allow_pickle=False) for file in files]
    for key in samples[0].files:
        if samples[0][key].tobytes() != samples[1][key].tobytes():
            found.append(f"samples {key}")
    return found


def _equal(one: Any, other: Any) -> bool:
    """Bit for bit, through nested dictionaries and lists."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _read(run: RunFolder, name: str) -> bytes:
    return (run.path / name).read_bytes()


def _table(exp: str, tally: Tally) -> str:
    kills = sum(tally.kills.values())
    places = ", ".join(f"{count} {place}" for place, count in tally.kills.most_common())
    verdict = ", ".join(tally.differences) or "none"
    return (
        "| experiment | kills | runs completed | damaged checkpoints | killed in | differences |\n"
        "|---|---|---|---|---|---|\n"
        f"| {exp} | {kills} | {tally.runs} | {tally.damaged} | {places} | {verdict} |"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--exp", choices=sorted(SETTINGS), default="2d")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--lives", type=int, default=20, help="kills that one run shall take to be done"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    parser.add_argument(
        "--damage", type=float, default=0.1, help="share of kills that also damage a checkpoint"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
