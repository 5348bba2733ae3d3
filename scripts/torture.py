"""Kill commands, resume them, and compare their results with the results of undisturbed commands.

    python scripts/torture.py [--scenario NAME ...] [--every 1]
    python scripts/torture.py --exp 2d --kills 100 [--damage 0.1] [any training flag]

The first form kills small commands with SIGKILL, before each file operation and after each opening
of a file. The second form kills training at random moments, and sometimes also damages the newest
checkpoint. The script prints a table. The exit code is 1 if a result differs from the result of an
undisturbed command.
"""

import argparse
import atexit
import gc
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.image import imread

from nsgf.cli import main as nsgf
from nsgf.cli.arguments import parse
from nsgf.comparison import read_rows
from nsgf.run import store
from nsgf.run.checkpoint import previous_file

PLUS_PLUS = "--phases=[nsgf,nsf,predictor]"
SETTINGS = {
    "2d": f"{PLUS_PLUS} --steps=5 --pool-batches=30 --train-iters=3000 --train.checkpoint_every=20",
    "digits": "--model.unet.mult=[1] --model.unet.dropout=0.1 --pool-batches=60 --batch-size=16 "
    "--pool.storage=disk --train-iters=300 --nsf.starts=256 --nsf.coupling_batch=64 "
    "--train.checkpoint_every=5",
}
"""Settings of runs that are killed at random moments. A run takes about a minute and has many
checkpoints. 2d trains all three phases and has its pool in memory. digits uses the hand-over and
has its pool on disk."""
SHARED = "--device=cpu --train.log_every=7 --num-samples=32"
LIVES = 5
"""Approximate number of kills in a run that is killed at random moments."""
TINY = (
    *("--exp=2d", "--device=cpu", "--steps=2", "--flow.schedule=constant", "--flow.eta=0.5"),
    *("--train-iters=4", "--batch-size=8", "--pool-batches=2", "--sinkhorn-batch=8"),
    *("--model.mlp.width=8", "--train.checkpoint_every=2", "--train.log_every=2"),
    "--num-samples=8",
    *("--compare.methods=[nsgf]", "--compare.targets=[moons]", "--compare.seeds=1"),
    *("--compare.draws=1", "--compare.nfe=[2]"),
)
"""Flags of the scenarios in which each file operation is a moment for a kill. A run takes a
second."""


class Scenario(NamedTuple):
    """A command that is killed and then repeated. RUN in the command stands for a finished run.
    FILES in the flags stands for a folder with points."""

    command: str
    flags: tuple[str, ...] = (*TINY, PLUS_PLUS)
    """Flags of the command. If the command names a run, flags of the command that made the run."""
    again: str = ""
    """The command after a kill, if it differs from the first command."""
    damaged: str = "none"
    """A checkpoint of the run that is cut in half before the command starts."""


SCENARIOS = {
    "train, pool in memory": Scenario("train --resume"),
    "train, pool on disk": Scenario(
        "train --resume", (*TINY, PLUS_PLUS, "--pool.storage=disk", "--pool.build_batch=1")
    ),
    "train, source and target in files": Scenario(
        "train --resume",
        (
            "--exp=points",
            "--data.path=FILES/target.npy",
            "--data.source=FILES/source.npy",
            *TINY[1:11],
        ),
    ),
    "--resume, damaged checkpoint": Scenario("train --run RUN --resume", damaged="phase1_nsgf.pt"),
    "--resume-phase 1, lines from NSGF": Scenario(
        "train --run RUN --resume-phase 1",
        (*TINY, PLUS_PLUS, "--nsf.source=nsgf"),
        again="train --run RUN --resume",
    ),
    "sample": Scenario("sample --run RUN"),
    "evaluate": Scenario("evaluate --run RUN", (*TINY, PLUS_PLUS, "--sampling.batch_size=4")),
    "compare": Scenario("compare", TINY),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--every", type=int, default=1, help="kill at each N-th moment only")
    parser.add_argument("--exp", choices=sorted(SETTINGS), help="random moments of a run of it")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damage", type=float, default=0.1, help="share of kills that also damage")
    options, flags = parser.parse_known_args()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # files in memory survive a kill
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        _get_ready_to_fork()
        if options.exp:
            return _at_random_moments(options, flags, Path(folder, "run"))
        if flags:
            parser.error(f"{flags[0]} needs --exp")
        if options.every < 1:
            parser.error(f"--every {options.every}: must be >= 1")
        return _at_every_operation(options.scenario, options.every, Path(folder))


# --- every file operation -----------------------------------------------------------------------


def _at_every_operation(names: list[str], every: int, folder: Path) -> int:
    print("| scenario | file operations | kills | differences |\n|---|---|---|---|", flush=True)
    differences = []
    for name in names:
        operations, kills, found = _killed_everywhere(SCENARIOS[name], every, folder / name)
        differences += found
        print(f"| {name} | {operations} | {kills} | {'; '.join(found) or 'none'} |", flush=True)
    return int(bool(differences))


def _get_ready_to_fork() -> None:
    """Import modules whose import takes most of a small command's time. Nothing here may start a
    thread or train. After that, torch could not train in a child process."""
    for module in (
        *(
            "nsgf.commands.train",
            "nsgf.metrics.yardstick",
            "nsgf.commands.compare",
            "torch._dynamo",
        ),
        *("torch.testing", "sklearn.datasets", "ot", "matplotlib.backends.backend_agg"),
        *("matplotlib.figure", "PIL.PngImagePlugin"),
    ):
        importlib.import_module(module)
    torch.set_num_threads(1)
    parse(["train", *TINY])
    gc.collect()
    gc.freeze()
    # without this line, libraries that count their objects would report leaks
    atexit.register(gc.unfreeze)


def _killed_everywhere(scenario: Scenario, every: int, home: Path) -> tuple[int, int, list[str]]:
    """Return the number of file operations, the number of kills, and the differences after each
    kill."""
    before, whole, killed = home / "before", home / "whole", home / "killed"
    before.mkdir(parents=True)
    files = home / "files"
    files.mkdir()
    for number, name in enumerate(("source", "target")):
        np.save(files / name, np.random.default_rng(number).standard_normal((40, 2)) + number)
    if "RUN" in scenario.command:
        _finish("train --resume", scenario, before)
    for file in before.glob(f"*/checkpoints/{scenario.damaged}"):
        _replace(file, file.read_bytes()[: file.stat().st_size // 2])
    shutil.copytree(before, whole)
    _finish(scenario.command, scenario, whole)
    reference, differences = _contents(whole), []
    shutil.copytree(before, killed)
    moments, kills, said = itertools.count(1, every), 0, Path(f"{killed}.said")
    while (status := _forked(scenario.command, scenario, killed, next(moments))) == -signal.SIGKILL:
        kills += 1
        left = _contents(killed)
        broken = [place for place in left if isinstance(left[place], Exception)]
        found = [f"half of {place}" for place in broken if place.name != scenario.damaged]
        if _forked(scenario.again or scenario.command, scenario, killed):
            found.append(said.read_text())
        found += _differences(reference, _contents(killed))
        differences += [f"kill {kills}: {what}" for what in found]
        shutil.rmtree(killed)
        shutil.copytree(before, killed)
    differences += [said.read_text()] if status else []
    return int(Path(f"{whole}.said").read_text().split()[-1]), kills, differences


def _finish(command: str, scenario: Scenario, out: Path) -> None:
    if _forked(command, scenario, out):
        raise SystemExit(Path(f"{out}.said").read_text())


def _forked(
    command: str, scenario: Scenario, out: Path, moment: int | None = None, seconds: float = 0
) -> int:
    """Run a command in a child process. Return the exit code, or minus the number of the signal
    that killed the process. SIGKILL comes at a moment of :class:`Operations`. SIGALRM comes after
    ``seconds``; 0: never."""
    runs, words = [file.parent for file in out.glob("*/config.yaml")], command.split()
    if "RUN" in words:
        words[words.index("RUN")] = str(runs[0])
    else:
        files = str(out.parent / "files")
        words += [flag.replace("FILES", files) for flag in scenario.flags]
        words.append(f"--out-dir={out}")
        if not runs and "--resume" in words:
            words.remove("--resume")  # there is no run yet
    sys.stdout.flush()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with open(f"{out}.said", "w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            operations = Operations(out, moment)
            code = nsgf(words)
            said.write(f"{operations.count}\n")
    finally:
        os._exit(code)


class Operations:
    """Counts the file operations of this process below a folder, and kills the process at one
    moment. Possible moments are before each operation, and after each opening of a file."""

    AUDITED = ("open", "os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.truncate")
    """Audit events of file operations. os.replace raises the event os.rename."""
    SILENT = ("fsync", "posix_fallocate")
    """Functions of os that raise no audit event."""

    def __init__(self, folder: Path, moment: int | None) -> None:
        self._inside, self._moment, self._passed, self.count = f"{folder}/", moment, 0, 0
        sys.addaudithook(self._audit)
        for name in self.SILENT:
            function = getattr(os, name)
            setattr(os, name, lambda *given, do=function: (self._pass(), do(*given))[1])  # type: ignore[func-returns-value]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self.AUDITED or not str(arguments[0]).startswith(self._inside):
            return
        opens = event == "open"
        if not opens or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._pass()
            sys.setprofile(self._after if opens else None)

    def _after(self, frame: FrameType, *_: object) -> None:
        """Kill the process at the first event of the profiler after the operation. The end of the
        audit hook is also an event of the profiler, and is ignored."""
        if frame.f_code is not Operations._audit.__code__:
            sys.setprofile(None)
            self._pass(0)

    def _pass(self, operations: int = 1) -> None:
        self.count, self._passed = self.count + operations, self._passed + 1
        if self._passed == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


# --- random moments -----------------------------------------------------------------------------


def _at_random_moments(options: argparse.Namespace, flags: list[str], folder: Path) -> int:
    chance = random.Random(0)
    given = f"--exp={options.exp} {SETTINGS[options.exp]} {SHARED}".split()
    settings = {flag.partition("=")[0]: flag for flag in (*given, *flags)}  # the last flag counts
    scenario, sample = Scenario("train --resume", tuple(settings.values())), "sample --run RUN"
    start = time.monotonic()
    _finish(scenario.command, scenario, folder)
    span = 2 * (time.monotonic() - start) / LIVES
    _finish(sample, scenario, folder)
    reference, differences = _contents(folder), []
    kills, damaged, runs = 0, 0, 0
    while kills < options.kills:
        out, runs = folder.with_name(f"{folder.name}-killed{runs}"), runs + 1
        while kills < options.kills:
            seconds = chance.uniform(0, span)
            if _forked(scenario.command, scenario, out, seconds=seconds) != -signal.SIGALRM:
                break
            kills += 1
            if chance.random() < options.damage:
                damaged += _damage(out, chance)
        for command in (scenario.command, sample):
            _finish(command, scenario, out)
        differences += _differences(reference, _contents(out))
        shutil.rmtree(out)
    print("| experiment | kills | runs completed | damaged checkpoints | differences |")
    print("|---|---|---|---|---|")
    print(f"| {options.exp} | {kills} | {runs} | {damaged} | {', '.join(differences) or 'none'} |")
    return int(bool(differences))


def _damage(out: Path, chance: random.Random) -> int:
    """Damage the newest checkpoint for which an earlier checkpoint exists: cut it, empty it, or
    flip a bit. Return the number of damaged files."""
    found = out.glob("*/checkpoints/phase*.pt")
    files = [file for file in found if file.stat().st_size and previous_file(file).exists()]
    if not files:
        return 0
    file = max(files, key=lambda path: path.stat().st_mtime)
    content = file.read_bytes()
    place = chance.randrange(len(content))
    flipped = bytes([content[place] ^ 1 << chance.randrange(8)])
    whole = content[:place] + flipped + content[place + 1 :]
    _replace(file, chance.choice([content[:place], b"", whole]))
    return 1


def _replace(file: Path, content: bytes) -> None:
    file.unlink()  # the earlier checkpoint may be a link to the same file
    file.write_bytes(content)


# --- what is compared ---------------------------------------------------------------------------


def _contents(out: Path) -> dict[Path, Any]:
    """Return the contents of all files that must be equal, by path. The time in the name of a run
    folder is removed from the paths. If a file cannot be read, its content is the exception."""
    found: dict[Path, Any] = {}
    for file in out.rglob("*"):
        if file.suffix in READERS and not BESIDE.search(file.name):
            place = re.sub(r"-\d{8}_\d{6}(_\d+)?", "", str(file.relative_to(out)))
            try:
                found[Path(place)] = READERS[file.suffix](file)
            except Exception as error:
                found[Path(place)] = error
    return found


READERS: dict[str, Callable[[Path], Any]] = {
    ".pt": lambda file: json.dumps(store.read(file.open("rb")), default=store.fingerprint),
    ".npz": lambda file: {key: array.tobytes() for key, array in np.load(file).items()},
    ".png": lambda file: imread(file).tobytes(),
    ".json": lambda file: None if file.stem == "versions" else json.loads(file.read_text()),
    ".csv": lambda file: [
        row._replace(train_seconds=0, sample_seconds=0) for row in read_rows(file)
    ],
    ".jsonl": lambda file: file.read_bytes() if file.name == "metrics.jsonl" else None,
    ".partial": lambda file: "left behind",
}
BESIDE = re.compile(
    r"\.(earlier|previous\d+|damaged\d+)\.|^(facts\.json|config\.yaml)\..*\.partial$"
)
"""Matches names of files that are not compared. The moment of the kill determines which older
checkpoints exist. If a run is killed while its first files are written, it is not resumed, and its
folder keeps temporary files."""


def _differences(one: dict[Path, Any], other: dict[Path, Any]) -> list[str]:
    return [str(place) for place in sorted({*one, *other}) if one.get(place) != other.get(place)]


if __name__ == "__main__":
    raise SystemExit(main())
