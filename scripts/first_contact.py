"""All that has to be tried on a card on which nothing has run yet: nine minutes, one report.

    python scripts/first_contact.py --out DIR [--data-root DIR] [--only NAME ...] [--minutes 9]
    python scripts/first_contact.py --out DIR --tiny     # every stage on a CPU, in small sizes

Writes DIR/first_contact.md, with the end of each stage's output and pictures of MNIST; the whole
outputs are in DIR/logs. Each stage has a limit of time, and none needs another's success. The exit
code is 1 if one is red; what finds no time is left out, and counted. The last one trains MNIST in
the time that is left, as many updates as fit by what preflight measured, if it did, on random
images unless --data-root names real ones.

Nothing is fetched. What a machine without network lacks is named; bring it along:

    pip download --no-deps --only-binary=:all: --python-version 3.12 \\
        --platform manylinux2014_x86_64 -d wheels geomloss POT jsonargparse ...
    python -m pip install --no-index --no-deps --target SITE wheels/*.whl     # over there
    PYTHONPATH=SITE python scripts/first_contact.py --out DIR
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("torch", "torchvision", "numpy", "scipy", "sklearn", "matplotlib", "yaml", "psutil", "tqdm"),
    *("filelock", "jsonargparse", "docstring_parser", "typeshed_client", "wandb", "geomloss", "ot"),
    *("torch_fidelity", "torchdiffeq", "torchcfm", "pytest", "pytest_timeout", "hypothesis"),
)
FOR_THE_LAST = 110
"""Seconds that the other stages leave to the last one."""
SHOWN = 40
"""Lines of a stage's output that the report shows, the last ones."""
VERSIONS = """
import torch
print("torch", torch.__version__, "for", *torch.cuda.get_arch_list())
print("CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
for card in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(card), torch.cuda.mem_get_info(card))
"""
ALLOCATE = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
print(torch.ones(1 << 28, device="cuda").sum().item())
"""
SMALL = "--batch-size=2 --pool-batches=2 --sinkhorn-batch=8"
SMALL_UNET = (
    f"{SMALL} --model.unet.channels=32 --model.unet.mult=[1] --model.unet.attention=[] "
    "--sampling.straight_steps=4"
)
SIZES = {
    "2d": f"{SMALL} --model.mlp.width=16",
    "digits": SMALL_UNET,
    "mnist": SMALL_UNET,
    "cifar10": f"{SMALL_UNET} --model.unet.head_channels=32 --model.unet.res_blocks=1",
}
"""What --tiny adds to the flags of an experiment."""


class Stage(NamedTuple):
    """Commands of this Python, one after the other while they succeed."""

    name: str
    seconds: float
    """All of them may take; five times as much with --tiny."""
    commands: str
    """One a line: a module, a script, or Python's own flags. What stands in braces is explained in
    :func:`settings`; {exp} is an experiment's name and, with --tiny, its flags."""
    needs: tuple[str, ...] = ()
    """Packages without which it is left out."""
    on_cpu: bool = True
    """Whether it is tried with --tiny."""


TIMED = "bench_train.py {on} --exp={cifar10} --phase=nsf --steps={steps} --repeats=3 --warm-up=3"
STAGES = (
    Stage("versions", 40, "-c {versions}"),
    Stage("expandable segments", 30, "-c {allocate}", on_cpu=False),
    Stage("tests", 70, "pytest -q -m gpu -p no:cacheprovider {tests}", ("pytest", "hypothesis")),
    Stage(
        "smoke",
        80,
        """nsgf train --exp={2d} --smoke {where}
        nsgf train --exp={cifar10} --smoke {where} --fake-data {large}""",
    ),
    Stage(
        "kill and resume",
        80,
        """torture.py --exp={2d} {on} --kills=3 --damage=0 --train-iters={killed} \
            --train.deterministic=true""",
    ),
    Stage(
        "sample and evaluate",
        60,
        """nsgf train --exp={digits} --smoke {where}/asked
        nsgf sample --exp=digits --smoke {where}/asked --sampling.solver=heun
        nsgf evaluate --exp=digits --smoke {where}/asked""",
        ("torchdiffeq",),
    ),
    Stage(
        "pool",
        60,
        "nsgf train --exp={cifar10} {where} --fake-data --nsgf.iterations=1 {phase} {pool}",
    ),
    Stage(
        "pool beside geomloss",
        60,
        "bench_pool.py {on} --only=build --repeats=1",
        ("geomloss",),
        on_cpu=False,
    ),
    Stage(
        "another memory format",
        50,
        """nsgf train --exp={digits} {where}/format --nsgf.iterations=10 {phase}
        nsgf train --exp=digits {where}/format --nsgf.iterations=20 --resume \
            --train.channels_last=true""",
    ),
    Stage(
        "processes, one a card",
        70,
        """torch.distributed.run --standalone --nproc-per-node={processes} -m nsgf -- \
            train --exp={digits} --smoke {where}/processes {shared}""",
    ),
    Stage(
        "a small card",
        60,
        """bench_train.py {on} --exp=cifar10 --card-memory=3 --precision=fp16 --phases=[nsgf] \
            --steps=2 --repeats=1""",
        on_cpu=False,
    ),
    Stage(
        "memory",
        60,
        """bench_memory.py {on} --exp={cifar10}
        bench_memory.py {on} --exp={cifar10} --precision=fp32
        bench_memory.py {on} --exp={mnist}""",
    ),
    Stage(
        "parts of an update",
        60,
        """profile_step.py {on} --exp={cifar10} --phase=nsf --steps={some}
        profile_step.py {on} --exp={mnist} --phase=nsf --steps={some}""",
    ),
    Stage("beside torchcfm", 40, f"{TIMED} --against-torchcfm", ("torchcfm",)),
    Stage(
        "precisions and formats",
        70,
        f"{TIMED} --precision={{precisions}} --channels-last=false,true",
    ),
    Stage(
        "preflight",
        70,
        """nsgf preflight --exp={cifar10} {where} --fake-data
        nsgf preflight --exp={mnist} {where} {images}""",
    ),
    Stage(
        "compiled",
        120,
        f"{TIMED} --compile=false,true --channels-last=false,true",
        on_cpu=False,
    ),
)
LAST = Stage(
    "MNIST",
    600,
    """nsgf train --exp={mnist} {where}/last {images} --train-iters={iterations} {pool}
    nsgf sample --exp=mnist --out-dir={runs}/last
    nsgf evaluate --exp=mnist --out-dir={runs}/last --num-samples={samples} \
        --evaluation.inception=false --evaluation.classifier={judged}""",
)


class Outcome(NamedTuple):
    """Of a stage."""

    name: str
    said: str
    """green, or red or left out with the reason."""
    seconds: float = 0.0
    text: str = ""
    """Its commands and all that they printed."""


Execute = Callable[[list[str], float], tuple[int | None, str]]
"""Runs Python with these words for at most so many seconds: its exit code, None where it took
longer, and what it printed."""


def main() -> int:
    options, begin = parser().parse_args(), time.monotonic()
    out, outcomes = Path(options.out).absolute(), []
    (out / "logs").mkdir(parents=True, exist_ok=True)

    def left() -> float:
        return 60 * (60 if options.tiny else options.minutes) - (time.monotonic() - begin)

    with tempfile.TemporaryDirectory() as folder:
        values = settings(options, Path(folder))
        for stage in (*STAGES, LAST):
            if options.only and not any(word in stage.name for word in options.only):
                continue
            limit = left() - FOR_THE_LAST * (stage is not LAST)
            if stage is LAST:
                values["iterations"] = str(affordable(outcomes, 0 if options.tiny else left()))
            outcomes.append(run(stage, values, limit, execute, tiny=options.tiny))
            name, said, seconds, text = outcomes[-1]
            print(f"{name}: {said}, {seconds:.0f} s", flush=True)
            (out / "logs" / f"{name.replace(' ', '_')}.txt").write_text(text)
            for picture in Path(folder, "last").glob("*/samples/*.png"):
                shutil.copy(picture, out)
            (out / "first_contact.md").write_text(report(outcomes, options, out))
    print(out / "first_contact.md")
    return int(any(outcome.said.startswith("red") for outcome in outcomes))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    made.add_argument("--out", default=os.environ.get("OUT", "."), help="folder; default: $OUT")
    made.add_argument("--minutes", type=float, default=9.0, help="for all stages on a card")
    made.add_argument("--data-root", help="folder of the real MNIST")
    made.add_argument("--tiny", action="store_true", help="small sizes, on a CPU")
    made.add_argument("--only", nargs="+", metavar="NAME", help="stages with such words")
    return made


def settings(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """What the braces in the commands stand for."""
    tiny, device = options.tiny, "cpu" if options.tiny else "cuda"
    root = f"--data-root={shlex.quote(options.data_root)}" if options.data_root else ""
    judged = bool(root) and find_spec("torch_fidelity") is not None
    tests = (shlex.quote(str(ROOT / "tests" / of)) for of in ("training", "data", "pool", "models"))
    return {
        **{exp: f"{exp} {flags if tiny else ''}" for exp, flags in SIZES.items()},
        "on": f"--device={device}",
        "runs": str(folder),
        "where": f"--device={device} --out-dir={folder}",
        "versions": shlex.quote(VERSIONS),
        "allocate": shlex.quote(ALLOCATE),
        "tests": " ".join(tests),
        "phase": "--phases=[nsgf] --train.preview=false",
        "large": "" if tiny else "--batch-size=128",
        "pool": "" if tiny else "--pool-batches=300",
        "processes": "2" if tiny else "gpu",
        "shared": "" if tiny else "--batch-size=16 --pool-batches=16",
        "killed": "40" if tiny else "1500",
        "some": "8" if tiny else "100",
        "steps": "2" if tiny else "10",
        "precisions": "fp32,bf16" if tiny else "fp32,fp16,bf16",
        "images": f"{root} --data.download=false" if root else "--fake-data",
        "samples": "16" if tiny else "5000",
        "judged": str(judged).lower(),
    }


def affordable(outcomes: list[Outcome], left: float) -> int:
    """Updates of each phase for the last stage, by what preflight measured."""
    (text,) = [one.text for one in outcomes if one.name == "preflight"] or [""]
    each = re.findall(r"^(?:nsgf|nsf|predictor): (\S+) s an update", text, re.M)[-3:]
    return max(20, int(0.5 * left / sum(map(float, each or ["0.1"]))))


def run(
    stage: Stage, values: dict[str, str], limit: float, execute: Execute, *, tiny: bool = False
) -> Outcome:
    """Try a stage for at most its own time and ``limit`` seconds."""
    missing = [name for name in stage.needs if find_spec(name) is None]
    if missing or (tiny and not stage.on_cpu):
        why = f"needs {', '.join(missing)}" if missing else "for a card"
        return Outcome(stage.name, f"left out: {why}")
    if limit <= 0:
        return Outcome(stage.name, "left out: no time was left")
    begin, own, text = time.monotonic(), stage.seconds * (5 if tiny else 1), ""
    for command in stage.commands.splitlines():
        first, *rest = shlex.split(command.format_map(values))
        words = [first, *rest] if first == "-c" else ["-m", first, *rest]
        if first.endswith(".py"):
            words = [str(ROOT / "scripts" / first), *rest]
        seconds = min(limit, own) - (time.monotonic() - begin)
        code, said = execute(words, seconds) if seconds > 0 else (None, "")
        text += f"$ python {'-c ...' if first == '-c' else shlex.join(words)}\n{said}\n"
        if code != 0:
            ended = (
                f"red: exit code {code}" if code is not None else f"red: no end within {own:.0f} s"
            )
            if code is None and limit < own:
                ended = f"left out: {limit:.0f} s were left, in which it did not end"
            return Outcome(stage.name, ended, time.monotonic() - begin, text)
    return Outcome(stage.name, "green", time.monotonic() - begin, text)


def execute(words: list[str], seconds: float) -> tuple[int | None, str]:
    """Run Python; whatever it started ends with it."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as output:  # who keeps a pipe open would be waited for
        child = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(child)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill it and what it started: its group, and what has left that, as torchrun's workers."""
    started: list[int] = []
    with suppress(ImportError):  # it may be what is missing here
        import psutil

        with suppress(psutil.NoSuchProcess):
            started = [each.pid for each in psutil.Process(child.pid).children(recursive=True)]
    for kill, number in [(os.killpg, child.pid), *((os.kill, number) for number in started)]:
        with suppress(ProcessLookupError):
            kill(number, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # what hangs in a driver takes no signal
        child.wait(10)


def report(outcomes: list[Outcome], options: argparse.Namespace, out: Path) -> str:
    """Markdown: a table of all stages, then the end of what each of them said."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    sizes = "tiny sizes on a CPU" if options.tiny else "sizes of a card"
    images = f"MNIST of {options.data_root}" if options.data_root else "random images for MNIST"
    words = ("green", "red", "left out")
    counts = [f"{sum(one.said.startswith(word) for one in outcomes)} {word}" for word in words]
    lines = [
        "# First contact",
        "",
        f"{sizes}; {images}; missing: {', '.join(missing) or 'nothing'}; {', '.join(counts)}",
    ]
    lines += ["", "| stage | outcome | seconds |", "|---|---|---:|"]
    lines += [f"| {one.name} | {one.said} | {one.seconds:.0f} |" for one in outcomes]
    for one in outcomes:
        said = [line for line in one.text.splitlines() if line.strip()]
        if said:
            lines += ["", f"## {one.name}: {one.said}", "", "```", *said[-SHOWN:], "```"]
    pictures = [f"![{file.stem}]({file.name})" for file in sorted(out.glob("*.png"))]
    return "\n".join([*lines, "", *pictures]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
