"""Make the tables of docs/performance.md, and joint tables of several comparisons.

    python scripts/bench.py train --exp digits --vary precision=fp32,bf16
    python scripts/bench.py tables docs/results/2d.csv --nfe 10

The sub-command train also takes any flag of `nsgf train`. MNIST and CIFAR-10 are random images
unless --data-root names a folder with the real images. One process times the rows of a table in
turn. Each time is a median of --repeats. The smallest and the largest time follow in brackets.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from nsgf.cli.arguments import parse
from nsgf.comparison import Row, read_rows
from nsgf.comparison.figures import draw_quality
from nsgf.comparison.tables import all_tables, tables_text
from nsgf.config.schema import Config
from nsgf.plots.samples import save_figure
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from nsgf.system.output import format_bytes
from nsgf.version import versions

DOWNLOADED = ("mnist", "cifar10")
"""Data sets that are replaced by random images unless a folder has them."""
Options = argparse.Namespace


def main() -> None:
    """Print the table of a sub-command."""
    options, flags = parse_arguments()
    if options.command == "tables":
        print(merged_tables(options), end="")
        return
    device = pick_device(options.device)
    print(machine(device, options.repeats))
    for line in train_table(options, [*flags, "--device", str(device)]):
        print(line, flush=True)


def parse_arguments() -> tuple[Options, list[str]]:
    """Return the options of the sub-command, and the flags of `nsgf train`."""
    text, shown = __doc__, argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=text, formatter_class=shown, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", allow_abbrev=False)
    train.add_argument("--device", default="auto")
    train.add_argument("--repeats", type=int, default=5)
    train.add_argument("--exp", default="digits", help="experiment")
    text = "a row for each value of this flag of `nsgf train`; several are combined"
    train.add_argument("--vary", action="append", default=[], metavar="FLAG=A,B", help=text)
    train.add_argument("--steps", type=int, default=10, help="updates of a repeat")
    tables = commands.add_parser("tables", allow_abbrev=False)
    tables.add_argument("files", nargs="+", type=Path, metavar="TABLE.CSV")
    tables.add_argument("--methods", nargs="+", help="rows; the first against the others")
    tables.add_argument("--nfe", nargs="+", type=int, help="columns")
    tables.add_argument("--latex", action="store_true")
    tables.add_argument("--figure", type=Path, help="also draw the measures against NFE")
    options, flags = parser.parse_known_args()
    if flags and options.command == "tables":
        parser.error(f"unknown argument {flags[0]}")
    for name in ("repeats", "steps"):
        if getattr(options, name, 1) < 1:
            parser.error(f"--{name} {getattr(options, name)}: must be >= 1")
    return options, flags


# --- measuring ----------------------------------------------------------------------------------


def machine(device: torch.device, repeats: int) -> str:
    """Return the line above a table: command, hardware and versions."""
    name, file = platform.machine(), Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith("model name"):
            name = line.partition(": ")[2]
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    found = ", ".join(f"{key} {versions()[key]}" for key in ("nsgf", "python", "torch", "geomloss"))
    command = " ".join(["scripts/bench.py", *sys.argv[1:]])
    cores = f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}"
    return f"`python {command}`: {name}; {cores}; {found}; repeats: {repeats}.\n"


def spread(times: Sequence[float]) -> str:
    """Return the median, the smallest and the largest value as text."""
    return f"{median(times):.3g} ({min(times):.3g} to {max(times):.3g})"


def words_of(name: str, flags: Sequence[str]) -> list[str]:
    """Return the command that trains an experiment. By default the pool has 16 mini-batches."""
    given = {flag.partition("=")[0] for flag in flags}
    words = ["train", "--exp", name, *flags]
    if not given & {"--pool-batches", "--pool.num_batches"}:
        words += ["--pool-batches", "16"]
    if name.startswith(DOWNLOADED) and not given & {"--data-root", "--data.root", "--fake-data"}:
        words += ["--fake-data"]
    return words


class Variant(NamedTuple):
    """A combination of the values of --vary."""

    label: str
    flags: list[str]
    config: Config


def variants(options: Options, flags: Sequence[str]) -> list[Variant]:
    """Return all combinations of the values of --vary. The flags of a combination follow the flags
    of the command line."""
    axes = [text.partition("=") for text in options.vary]
    found = []
    for values in itertools.product(*(values.split(",") for _, _, values in axes)):
        chosen = [(flag, value) for (flag, _, _), value in zip(axes, values, strict=True)]
        label = ", ".join(f"{flag} {value}" for flag, value in chosen) or "as configured"
        own = [*flags, *(f"--{flag}={value}" for flag, value in chosen)]
        found.append(Variant(label, own, parse(words_of(options.exp, own)).config))
    return found


def trained(options: Options, variant: Variant) -> dict[str, dict[str, Any]]:
    """Return the speed and memory of the last --steps updates of each phase, from the records of
    `nsgf train`. As a warm-up, the phase runs another --steps updates first."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*words_of(options.exp, variant.flags), "--out-dir", folder]
        words += ["--train.preview=false", f"--train-iters={2 * options.steps}"]
        command = [sys.executable, "-m", "nsgf", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{variant.label}: {done.stderr.splitlines()[-1]}")
        (file,) = Path(folder).glob("*/costs.jsonl")
        records = [json.loads(line) for line in file.read_text().splitlines()]
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        own = found.setdefault(record["phase"], {"step": 0, "updates": 0, "seconds": 0.0})
        updates, own["step"] = record["step"] - own["step"], record["step"]
        if own["step"] > options.steps:
            own["updates"] += updates
            own["seconds"] += updates / record["steps_per_second"]
            own["steps_per_second"] = own["updates"] / own["seconds"]
            own["peak_memory"] = record["peak_memory"]
    return found


def train_table(options: Options, flags: Sequence[str]) -> Iterator[str]:
    """Return a table with the milliseconds of an update, the samples per second, the speed divided
    by the first row's speed, and the peak memory. On a card, this is the peak of the card's memory.
    On a CPU, it is the peak of the process so far, which includes libraries and earlier phases."""
    own = variants(options, flags)
    turns = [[trained(options, variant) for variant in own] for _ in range(options.repeats)]
    yield f"| {options.exp}: phase | settings | batch | ms | samples/s | speed | peak memory |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for phase in own[0].config.phases:
        sizes = [getattr(variant.config, phase).batch_size for variant in own]
        for number, variant in enumerate(own):
            rates = [sizes[number] * turn[number][phase]["steps_per_second"] for turn in turns]
            first = [sizes[0] * turn[0][phase]["steps_per_second"] for turn in turns]
            speed = median(a / b for a, b in zip(rates, first, strict=True))
            times = spread([1e3 * sizes[number] / rate for rate in rates])
            memory = format_bytes(max(turn[number][phase]["peak_memory"] for turn in turns))
            cells = f"{sizes[number]} | {times} | {median(rates):,.1f} | {speed:.3f} | {memory}"
            yield f"| {phase} | {variant.label} | {cells} |"


# --- tables of comparisons ----------------------------------------------------------------------


def merged_tables(options: Options) -> str:
    """Return joint tables of the measures in several files table.csv of `nsgf compare`."""
    found = [(file, row) for file in options.files for row in read_rows(file)]
    check_agreement(found)
    rows = [row for _, row in found]
    methods = chosen("--methods", options.methods, [row.method for row in rows if row.nfe])
    counts = chosen("--nfe", options.nfe, sorted(row.nfe for row in rows if row.nfe))
    shown = [row for row in rows if row.method in methods and row.nfe in counts]
    shown.sort(key=lambda row: methods.index(row.method))
    if not shown:
        raise UserError("--methods, --nfe: no measure of these methods with so many calls")
    places = {_floor_place(row) for row in shown}
    shown += [row for row in rows if row.nfe is None and _floor_place(row) in places]
    if options.figure:
        if options.figure.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"--figure {options.figure}: must end in .png, .svg or .pdf")
        save_figure(draw_quality(shown), options.figure, dpi=150)
    return tables_text("table.tex" if options.latex else "table.md", all_tables(shown))


def chosen(flag: str, wanted: Sequence[Any] | None, known: Sequence[Any]) -> list[Any]:
    """Return the requested values without repetition. If no values are requested, return all known
    values."""
    for value in wanted or []:
        if value not in known:
            names = ", ".join(map(str, dict.fromkeys(known)))
            raise UserError(f"{flag} {value}: must be among {names}")
    return list(dict.fromkeys(wanted or known))


def check_agreement(found: Sequence[tuple[Path, Row]]) -> None:
    """Raise UserError if rows do not belong in one table. The reasons are a measure that occurs
    twice, different kinds of measures, different numbers of updates of a method, or different
    floors. Floors differ if the data differ, or if the network for features differs."""
    facts: dict[str, tuple[Path, object]] = {}
    for file, row in found:
        label, values = row.target, row.values
        own: dict[str, object] = {"the measures": list(values)}
        if row.nfe is None:
            own[f"the {row.method} of {', '.join((*_floor_place(row), str(row.draw)))}"] = [
                f"{value:.5g}" for value in values.values()
            ]
        else:
            own[f"the updates of {row.method} on {label}"] = row.updates
            cell = f"{label}, {row.method}, seed {row.seed}, draw {row.draw}, NFE {row.nfe}"
            if cell in facts:
                raise UserError(f"{facts[cell][0]} and {file}: both have {cell}; only one may")
            own[cell] = None
        for name, value in own.items():
            other, known = facts.setdefault(name, (file, value))
            if value != known:
                raise UserError(f"{other} and {file}: {name} are {known} and {value}; must agree")


def _floor_place(row: Row) -> tuple[str, ...]:
    """Return the key of a floor. For features of a network, it is the target. For other measures,
    it is target, seed and draw."""
    is_split = any("imagenet_" in name for name in row.values)
    return (row.target,) if is_split else (row.target, f"seed {row.seed}", f"draw {row.draw}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"bench.py: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
