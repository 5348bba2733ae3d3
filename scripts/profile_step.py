"""Where the time of an update goes, by stage, in the real step loop.

    python scripts/profile_step.py --exp cifar10 [--phase nsf] [--steps 50] [--batch 128]
        [--trace FILE] [any flag of `nsgf train`]

Trains one phase from a small pool into a temporary folder, with the engine's own marks ("sample",
"transfer", "forward", "backward", "optimizer") as the only stop watches. A step lasts from one
"sample" to the next, so "other" holds all the rest: reading the outcome before, progress bar,
schedule, log lines. Checkpoints, one in `train.checkpoint_every` steps, are left out.

torch.profiler does not time the stages: it notes every operation, which makes a step of small
networks up to several times as long, most of all the stages of many small operations. Here the
marks only read the clock, on CUDA by events on the current stream: a stage then is the time from
the card's reaching its beginning to reaching its end, waiting for the CPU included. Every second
step is left without stage marks; their median beside the marked ones' says what the marks cost.
With --trace a few more steps run under torch.profiler, whose time per step is printed too.

Stages are medians over the marked steps, "sample" without the transfer inside it. A log line occurs
in few steps; its cost, the difference of "other", is spread over `train.log_every` steps.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import bench_common
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from nsgf.config.schema import Config, PhaseName
from nsgf.experiment import train_phase
from nsgf.phases import get_phase
from nsgf.run.folder import RunFolder
from nsgf.run.log import Tracker
from nsgf.run.opening import load_data
from nsgf.run.session import Session
from nsgf.system.hardware import pick_device

STAGES = ("sample", "transfer", "forward", "backward", "optimizer")
COMPUTATION = ("forward", "backward", "optimizer")
TRACED_STEPS = 8
NEVER = 1 << 40
"""More steps than any run has."""


class Mark(NamedTuple):
    """A moment of the step loop."""

    stage: str
    begins: bool
    moment: Any
    """Seconds, or on CUDA an event."""


class StopWatch:
    """Notes when the engine's stages begin and end in the thread that made it."""

    def __init__(self, device: torch.device, log_every: int) -> None:
        """
        Args:
            device: on CUDA, moments are events of its current stream.
            log_every: steps that end with a log line are always marked.
        """
        self._cuda, self._log_every = device.type == "cuda", log_every
        self._device, self._thread = device, threading.get_ident()
        self.steps: list[list[Mark]] = []

    def is_marked(self, step: int) -> bool:
        """Whether the stages of step 0, 1, ... are noted, beside its beginning."""
        return step % 2 == 0 or self.logs(step)

    def logs(self, step: int) -> bool:
        """Whether a log line is written in it."""
        return (step + 1) % self._log_every == 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within, each mark of the engine is noted; it also does what it always does."""
        enter, leave = record_function.__enter__, record_function.__exit__

        def noted_enter(mark: record_function) -> object:
            self._note(mark.name, begins=True)
            return enter(mark)

        def noted_leave(mark: record_function, *error: Any) -> None:
            leave(mark, *error)
            self._note(mark.name, begins=False)

        with patch.multiple(record_function, __enter__=noted_enter, __exit__=noted_leave):
            yield

    def _note(self, stage: str, *, begins: bool) -> None:
        if stage not in STAGES or threading.get_ident() != self._thread:
            return  # what another thread does beside the step costs it nothing
        if stage == "sample" and begins:
            self.steps.append([])
        elif not self.steps or not self.is_marked(len(self.steps) - 1):
            return
        self.steps[-1].append(Mark(stage, begins, self._now()))

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def lengths(self, warm_up: int) -> list["Length"]:
        """Times of all steps but the first ``warm_up`` and the last, whose end is unknown."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
        found = []
        for number in range(warm_up, len(self.steps) - 1):
            marks, end = self.steps[number], self.steps[number + 1][0].moment
            stages = exclusive_times(marks) if self.is_marked(number) else None
            found.append(Length(seconds(marks[0].moment, end), stages, self.logs(number)))
        return found


class Length(NamedTuple):
    """How long a step took."""

    whole: float
    """Seconds."""
    stages: dict[str, float] | None
    """Seconds of each stage; None: an unmarked step."""
    logs: bool
    """Whether a log line was written."""

    @property
    def other(self) -> float:
        """Seconds outside all stages."""
        return self.whole - sum((self.stages or {}).values())


def seconds(begin: Any, end: Any) -> float:
    """Between two moments."""
    if isinstance(begin, float):
        return end - begin
    return begin.elapsed_time(end) / 1e3


def exclusive_times(marks: list[Mark]) -> dict[str, float]:
    """Seconds of each stage, without those of the stages inside it; several parts add up."""
    found = dict.fromkeys(STAGES, 0.0)
    open_marks: list[Mark] = []
    for mark in marks:
        if mark.begins:
            open_marks.append(mark)
            continue
        length = seconds(open_marks.pop().moment, mark.moment)
        found[mark.stage] += length
        if open_marks:
            found[open_marks[-1].stage] -= length
    return found


def main() -> None:
    parser = bench_common.parser(__doc__)
    parser.add_argument("--steps", type=int, default=100, help="steps measured")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before them")
    parser.add_argument("--batch", type=int, help="samples of a step; default: the experiment's")
    parser.add_argument("--trace", metavar="FILE", help="also write a Chrome trace of some steps")
    options, flags = parser.parse_known_args()
    if options.steps < 8 or options.warm_up < 1:
        parser.error("needs --steps >= 8 and --warm-up >= 1")
    size = ["--batch-size", str(options.batch)] if options.batch else []
    config = bench_common.experiment(options.exp, [*size, *flags, "--device", options.device])
    device = pick_device(config.device)
    every = max(3, min(config.train.log_every, options.steps // 5))
    watch = StopWatch(device, every)
    with watch.running():
        train(config, options.phase, device, options.warm_up + options.steps + 1, every)
    print(bench_common.machine(device, f"medians of {options.steps} steps"))
    print(f"\n{describe(config, options.phase)}\n")
    for line in table(watch.lengths(options.warm_up), config.train.log_every):
        print(line)
    if options.trace:
        took = trace(config, options, device)
        print(f"\nUnder torch.profiler a step takes {1e3 * took:.4g} ms; trace: {options.trace}")


def train(
    config: Config, phase: PhaseName, device: torch.device, steps: int, log_every: int
) -> None:
    """The phase as `nsgf train` does it, with ``steps`` updates, its lines on stderr."""
    parts = {name: replace(getattr(config, name), iterations=0) for name in ("nsgf", "nsf")}
    parts[phase] = replace(getattr(config, phase), iterations=steps)
    loop = replace(config.train, log_every=log_every, checkpoint_every=NEVER, preview=False)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        config = replace(config, out_dir=folder, train=loop, **parts)
        run = RunFolder.create(config)
        session = Session(config, run, Tracker(run.path), device)
        data = load_data(config, device)
        for needed in get_phase(phase).needs(config):
            train_phase(needed, session, data)  # no updates: it only hands over a network
        train_phase(get_phase(phase), session, data)


def describe(config: Config, phase: PhaseName) -> str:
    """What was measured."""
    images = "random images" if config.data.fake else config.data.name
    settings = config.train
    return (
        f"{config.exp}, {phase}, batch of {getattr(config, phase).batch_size}, {images}, "
        f"precision {settings.precision}, compile {settings.compile}, "
        f"prefetch {settings.prefetch}, pool of {config.pool.num_batches} mini-batches"
    )


def table(lengths: list[Length], log_every: int) -> Iterator[str]:
    """Markdown: milliseconds and share of each stage, and the share that is no computation."""
    marked = [length for length in lengths if length.stages is not None and not length.logs]
    rows = {name: median((length.stages or {})[name] for length in marked) for name in STAGES}
    rows["other"] = median(length.other for length in marked)
    line = median(length.other for length in lengths if length.logs) - rows["other"]
    rows[f"log line, 1 in {log_every}"] = max(0.0, line) / log_every
    total = sum(rows.values())
    yield "| stage | ms | share |"
    yield "|---|---:|---:|"
    for name, took in [*rows.items(), ("step", total)]:
        yield f"| {name} | {1e3 * took:.4g} | {100 * took / total:.1f} % |"
    bare = median(length.whole for length in lengths if length.stages is None)
    whole = median(length.whole for length in marked)
    yield (
        f"\nSteps without stage marks: {1e3 * bare:.4g} ms; with: {1e3 * whole:.4g} ms "
        f"({100 * (whole / bare - 1):+.1f} %)."
    )
    outside = 1 - sum(rows[stage] for stage in COMPUTATION) / total
    yield f"\nOutside forward, backward and optimizer: {100 * outside:.1f} % of a step."


def trace(config: Config, options: argparse.Namespace, device: torch.device) -> float:
    """Write a Chrome trace of some steps; returns a step's seconds under torch.profiler."""
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    watch = StopWatch(device, NEVER)
    warm_up = 3
    config = replace(config, pool=replace(config.pool, num_batches=2))  # its flows are traced too
    with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler, watch.running():
        train(config, options.phase, device, warm_up + TRACED_STEPS + 1, NEVER)
    profiler.export_chrome_trace(options.trace)
    return median(length.whole for length in watch.lengths(warm_up))


if __name__ == "__main__":
    bench_common.finish(main)
