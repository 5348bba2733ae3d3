"""Samples per second and memory of one phase's updates.

    python scripts/bench_train.py --exp cifar10 --phase nsf --precision fp32,bf16
        --compile false,true --channels-last false,true --batch 64,128 [any flag of `nsgf train`]

Lists separated by commas are combined with each other. All combinations are warmed up one after the
other, when their memory is measured, and then timed in turn, --repeats times --steps updates each.
"speed" is samples per second over the first one's, the median over the rounds.
"drawing" is the median time that an update waits for its batch, "computing" its counted operations
over its time. What one combination holds stays while the others are timed: on a small card compare
few at once.

    --overfit             each combination also on one fixed batch: what drawing the data costs
    --pool-dtype float32,float16    phase nsgf: what sampling from a pool in float16 costs
    --prefetch true,false           with drawing ahead and without
    --card-memory GB      largest batch of each phase when torch may take no more than this of the
                          card; CUDA's own context, about half a GB, comes on top of it
    --steady N            N updates: the last hundred beside the first after warm-up
    --against-torchcfm    first torchcfm's training step in float32 with its UNet (phase nsf)
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

import bench_common
import torch
from bench_updates import Phase, Steps, TorchCFM, Updates

from nsgf.config.schema import Config
from nsgf.phases import get_phase
from nsgf.preflight import reached
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes, pick_device, release_memory
from nsgf.training.precision import device_settings, pick_precision

AXES = {
    "batch": "--batch-size",
    "precision": "--precision",
    "compile": "--train.compile",
    "channels_last": "--train.channels_last",
    "prefetch": "--train.prefetch",
    "pool_dtype": "--pool.dtype",
}
"""What takes a list of values, and the flag of `nsgf train` that sets each of them."""
LARGEST_BATCH = 1 << 16


class Case(NamedTuple):
    """One combination of settings."""

    label: str
    config: Config
    fixed: bool = False


@dataclass
class Entry:
    """A combination that is ready to be timed."""

    label: str
    steps: Steps
    peak: int
    """Bytes beyond those in use before, network and optimizer included."""
    computing: Callable[[float], str] = lambda seconds: ""
    """What an update of so many seconds reaches."""
    seconds: list[float] = field(default_factory=list)
    """Of one update, one value a round."""


def main() -> None:
    options, flags = _parser().parse_known_args()
    flags += ["--device", options.device]
    base = bench_common.experiment(options.exp, flags)
    device = pick_device(base.device)
    if options.card_memory:
        limit_card(device, options.card_memory)
    note = f"medians of {options.repeats} rounds of {options.steps} updates"
    print(bench_common.machine(device, note) + "\n")
    work = throughput
    if options.card_memory:
        work = largest_batches
    elif options.steady:
        work = steadiness
    with device_settings(base.train):
        for line in work(options, flags, device):
            print(line, flush=True)


def combinations(options: argparse.Namespace, flags: list[str]) -> list[Case]:
    """All of what was asked for, the first value of each list first."""
    given = {name: getattr(options, name).split(",") for name in AXES if getattr(options, name)}
    if options.phase != "nsgf" and len(given.get("pool_dtype", [])) > 1:
        raise UserError(f"--pool-dtype {options.pool_dtype}: only phase nsgf samples from a pool")
    cases = []
    for values in itertools.product(*given.values()):
        chosen = dict(zip(given, values, strict=True))
        words = [word for name, value in chosen.items() for word in (AXES[name], value)]
        config = bench_common.experiment(options.exp, [*flags, *words])
        label = _label(options.phase, config, chosen)
        cases.append(Case(label, config))
        if options.overfit:
            cases.append(Case(f"{label}, one fixed batch", config, fixed=True))
    return cases


def _label(phase: str, config: Config, chosen: dict[str, str]) -> str:
    precision = pick_precision(config.train.precision, pick_device(config.device))
    words = [f"batch {getattr(config, phase).batch_size}", precision]
    rest = (name for name in chosen if name not in ("batch", "precision"))
    words += [f"{name.replace('_', ' ')} {chosen[name]}" for name in rest]
    return ", ".join(words)


def throughput(
    options: argparse.Namespace, flags: list[str], device: torch.device
) -> Iterator[str]:
    """Markdown: all combinations beside each other."""
    cases = combinations(options, flags)
    phase = Phase(options.phase, cases[0].config, device)
    phase.prepare(cases[0].config)
    make: Callable[[], Steps]
    entries: list[Entry] = []
    if options.against_torchcfm:
        make = partial(TorchCFM, phase, cases[0].config)
        entries.append(start("torchcfm, I-CFM, fp32", make, phase, options))
    for case in cases:
        phase.prepare(case.config)
        make = partial(Updates, phase, case.config, fixed=case.fixed)
        entries.append(start(case.label, make, phase, options))
        entries[-1].computing = partial(reached, case.config, get_phase(options.phase), device)
    for _ in range(options.repeats):
        for entry in entries:
            entry.seconds.append(time_steps(entry.steps, options.steps, device))
    columns = [f"{options.exp}, {options.phase}", "ms", "samples/s", "speed", "drawing, ms"]
    columns += ["peak memory", "computing"]
    yield f"| {' | '.join(columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for entry in entries:
        yield _row(entry, entries[0])
        entry.steps.close()
    ours = entries[1:] if options.against_torchcfm else entries
    for real, fixed in zip(ours[::2], ours[1::2], strict=True) if options.overfit else ():
        cost = median(a / b for a, b in zip(real.seconds, fixed.seconds, strict=True))
        yield f"\n{real.label}: {cost:.3f} times the time of one fixed batch."


def start(
    label: str, make: Callable[[], Steps], phase: Phase, options: argparse.Namespace
) -> Entry:
    """Make and warm up one combination, and see what memory it takes."""
    memory = bench_common.PeakMemory(phase.device)
    steps = make()
    for _ in range(max(2, options.warm_up)):
        steps.step()
    if isinstance(steps, Updates) and steps.parts > 1:
        label += f", in {steps.parts} parts"
    bench_common.clock(phase.device)
    return Entry(label, steps, memory.bytes())


def time_steps(steps: Steps, count: int, device: torch.device) -> float:
    """Seconds of an update, over ``count`` of them."""
    begin = bench_common.clock(device)
    for _ in range(count):
        steps.step()
    return (bench_common.clock(device) - begin) / count


def _row(entry: Entry, first: Entry) -> str:
    seconds = median(entry.seconds)
    rate, size = entry.steps.batch_size / seconds, entry.steps.batch_size / first.steps.batch_size
    speed = size * median(a / b for a, b in zip(first.seconds, entry.seconds, strict=True))
    cells = [entry.label, f"{1e3 * seconds:.4g}", f"{rate:.4g}", f"{speed:.3f}"]
    waits = entry.steps.drawing if isinstance(entry.steps, Updates) else []
    cells += [f"{1e3 * median(waits):.3f}" if waits else "", format_bytes(entry.peak)]
    cells.append(entry.computing(seconds))
    return f"| {' | '.join(cells)} |"


# --- memory -------------------------------------------------------------------------------------


def limit_card(device: torch.device, gigabytes: float) -> None:
    """Let torch take no more than this of the card."""
    if device.type != "cuda":
        raise UserError(f"--card-memory {gigabytes:g}: needs a CUDA device, not {device}")
    _, total = torch.cuda.mem_get_info(device)
    if not 0 < gigabytes * 1e9 <= total:
        raise UserError(f"--card-memory {gigabytes:g}: the card has {format_bytes(total)}")
    torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total, device)


def largest_batches(
    options: argparse.Namespace, flags: list[str], device: torch.device
) -> Iterator[str]:
    """Markdown: the largest batch of each phase, to an eighth of itself."""
    base = combinations(options, flags)[0].config
    yield f"| {options.exp}, phase | largest batch | peak memory | samples/s |"
    yield "|---|---:|---:|---:|"
    for name in base.phases:
        phase = Phase(name, base, device)
        phase.prepare(base)

        def attempt(size: int, phase: Phase = phase) -> tuple[float, int] | None:
            words = [*flags, *_words(options), "--batch-size", str(size)]
            return try_batch(phase, bench_common.experiment(options.exp, words), options)

        size = largest(lambda size: attempt(size) is not None, LARGEST_BATCH)
        tried = attempt(size) if size else None
        if tried is None:
            yield f"| {name} | none | | |"
            continue
        yield f"| {name} | {size} | {format_bytes(tried[1])} | {size / tried[0]:.4g} |"


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Largest batch up to ``limit`` that fits, found to an eighth of itself; 0: none."""
    size = 1
    while size <= limit and fits(size):
        size *= 2
    good, bad = size // 2, size
    while good and bad <= limit and bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def try_batch(
    phase: Phase, config: Config, options: argparse.Namespace
) -> tuple[float, int] | None:
    """Seconds of an update and peak memory; None: the batch does not fit in one go."""
    steps: Updates | None = None
    memory = bench_common.PeakMemory(phase.device)
    try:
        steps = Updates(phase, config)
        for _ in range(max(2, options.warm_up)):
            steps.step()
        if steps.parts > config.train.accumulate:
            return None
        return time_steps(steps, options.steps, phase.device), memory.bytes()
    except torch.cuda.OutOfMemoryError:
        return None
    except UserError as error:
        if "out of memory" not in str(error):
            raise
        return None
    finally:
        if steps is not None:
            steps.close()
        del steps
        release_memory(phase.device)


def _words(options: argparse.Namespace) -> list[str]:
    """The first value of each list but the batch's."""
    named = {name: getattr(options, name) for name in AXES if name != "batch"}
    return [word for n, v in named.items() if v for word in (AXES[n], v.split(",")[0])]


# --- steadiness ---------------------------------------------------------------------------------


def steadiness(
    options: argparse.Namespace, flags: list[str], device: torch.device
) -> Iterator[str]:
    """Markdown: time of an update and memory at both ends of a longer run."""
    case = combinations(options, flags)[0]
    phase = Phase(options.phase, case.config, device)
    phase.prepare(case.config)
    steps = Updates(phase, case.config)
    for _ in range(options.warm_up):
        steps.step()
    before, seconds = bench_common.used_memory(device), []
    for _ in range(options.steady):
        seconds.append(time_steps(steps, 1, device))
    after = bench_common.used_memory(device)
    steps.close()
    window = min(100, max(1, options.steady // 3))
    ends = median(seconds[:window]), median(seconds[-window:])
    yield f"| {options.exp}, {options.phase}, {case.label} | ms | memory in use |"
    yield "|---|---:|---:|"
    yield f"| first {window} of {options.steady} | {1e3 * ends[0]:.4g} | {format_bytes(before)} |"
    yield f"| last {window} | {1e3 * ends[1]:.4g} | {format_bytes(after)} |"
    yield f"| last / first | {ends[1] / ends[0]:.3f} | {after / before:.3f} |"


def _parser() -> argparse.ArgumentParser:
    parser = bench_common.parser(__doc__)
    for name in AXES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, metavar="A,B,..", help=f"values of {AXES[name]}")
    parser.add_argument("--steps", type=int, default=10, help="updates of a round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--warm-up", type=int, default=5, help="updates before the first round")
    parser.add_argument("--overfit", action="store_true", help="also on one fixed batch")
    parser.add_argument("--card-memory", type=float, metavar="GB", help="pretend a smaller card")
    parser.add_argument("--steady", type=int, metavar="N", help="compare both ends of N updates")
    parser.add_argument("--against-torchcfm", action="store_true", help="beside torchcfm's step")
    return parser


if __name__ == "__main__":
    bench_common.finish(main)
