"""``nsgf COMMAND``: one function for each command.

Each command imports what it needs when it runs, so that help and errors do not wait for torch.
"""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from nsgf.cli.arguments import COMMANDS, FLAG_NAMES, parse
from nsgf.config.values import expand_path
from nsgf.resolve import Request
from nsgf.system.errors import UserError, naming, wrong_setting
from nsgf.system.output import (
    format_bytes,
    format_hours,
    is_launched,
    launched_rank,
    local_processes,
    show,
    show_error,
    silence,
)
from nsgf.version import __version__

if TYPE_CHECKING:
    from nsgf.run.folder import RunFolder


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0; 1 after the traceback of a bug, or if preflight says NO; 2 for an error that the
    user can fix; 130 for Ctrl-C.
    """
    try:
        with naming(FLAG_NAMES, are_flags=True):
            os.getcwd()  # torch ends the process if the folder is removed
            words = sys.argv[1:] if argv is None else argv
            if _explains(words):
                return 0
            request = parse(words)
            if request.options.get("print-config"):
                from nsgf.run.folder import dump_config

                show(dump_config(request.config).rstrip("\n"))
                return 0
            if is_launched() and request.command in ("export", "preflight", "report"):
                raise UserError(
                    f"{request.command}: runs in one process; start it without torchrun"
                )
            says_no = False
            for line in chain(request.notes, ACTIONS[request.command](request)):
                show(line)
                says_no |= line.startswith("NO ")
            return int(says_no and request.command == "preflight")
    except KeyboardInterrupt:
        show("nsgf: interrupted")
        return 130
    except UserError as error:
        who = f" (process {launched_rank()})" if is_launched() else ""
        show_error(f"nsgf: error{who}: {error}")
        return 2
    except ModuleNotFoundError:  # the caller names it
        raise
    except Exception:
        show_error(f"{traceback.format_exc()}nsgf: unexpected error: please report these lines")
        return 1


def _explains(words: list[str]) -> bool:
    """Print help, the version or completions if the command line asks for them."""
    command = words[0] if words else "--help"
    topics = [  # KEY of --help KEY or --help=KEY, empty without a key
        (word.partition("=")[2] or after).removeprefix("--")
        for word, after in pairwise([*words, ""])
        if word.partition("=")[0] in ("-h", "--help")
    ]
    if command in ("-h", "--help"):
        lines = ["usage: nsgf COMMAND [flags]", "", "Neural Sinkhorn Gradient Flow (NSGF++).", ""]
        lines += [f"  {name:10} {text}" for name, text in COMMANDS.items()]
        show("\n".join([*lines, "", "nsgf COMMAND --help lists the flags of a command."]))
    elif command == "--version":
        show(__version__)
    elif command in COMMANDS and topics:
        from nsgf.cli.help import help_parser

        show(help_parser(command, topics[0]).format_help().strip("\n"))
    elif command.startswith("--print-completion"):
        from nsgf.cli.help import completion

        show(completion(command.partition("=")[2] or " ".join(words[1:])))
    else:
        return False
    return True


def _train(request: Request) -> Iterator[str]:
    from nsgf.experiment import train
    from nsgf.run.folder import IN_FOLDER
    from nsgf.run.stop import Stopped, StopRequest
    from nsgf.system.distributed import join

    config = request.config
    run = request.run
    first = None
    number = request.options.get("resume-phase")
    if number is not None:
        if not 0 < number <= len(config.phases):
            raise UserError(f"--resume-phase {number}: the run has phases {config.phases}")
        first = config.phases[number - 1]
    elif run and "resume" not in request.options:
        raise wrong_setting("run", run.path, "use --resume or --resume-phase N to train it further")
    stop = StopRequest(config.train.max_hours)
    with join(config.device) as world, stop.listening():
        try:
            run = train(config, run, first, world, stop, minutes=request.options.get("minutes"))
        except Stopped as stopped:
            if world.is_main:
                yield f"stopped ({stop.reason}), {stopped}; continue with:"
                runner = "python -m nsgf"
                if world.size > 1:  # the user replaces ... by the address where machines meet
                    here = local_processes(world.size)
                    nodes = f"--nnodes {world.size // here} ... " if world.size > here else ""
                    # without -- torchrun reads --run as short for its --run-path
                    runner = f"torchrun {nodes}--nproc-per-node {here} -m nsgf --"
                command = f"{runner} train --run {shlex.quote(str(stopped.folder))} --resume"
                tracker = config.tracking.tracker
                if tracker not in IN_FOLDER:  # saved settings may not start a service
                    command += f" --tracker {tracker}"
                yield f"    {command}"
            return
        if world.is_main:
            for command in ("sample", "evaluate", "report"):
                yield f"next: python -m nsgf {command} --run {shlex.quote(str(run.path))}"


def _sample(request: Request) -> Iterator[str]:
    from nsgf.samples import sample_run
    from nsgf.system.distributed import join

    with join(request.config.device) as world:
        yield from sample_run(
            request.config,
            request.opened,
            world,
            nfe=request.options.get("nfe"),
            out=request.options.get("out"),
        )


def _evaluate(request: Request) -> Iterator[str]:
    from nsgf.metrics.evaluate import evaluate_run
    from nsgf.metrics.measures import report
    from nsgf.system.distributed import join

    with join(request.config.device) as world:
        file, metrics = evaluate_run(request.config, request.opened, world=world)
        if world.is_main:
            yield from [*report(metrics), str(file)]


def _report(request: Request) -> list[str]:
    from nsgf.comparison.page import report_comparison
    from nsgf.report.page import report_run

    config = request.config
    how = request.options.get("figures", "png"), request.options.get("out")
    if "compare" in request.options:
        page, *others = report_comparison(request.options["compare"], config.out_dir, *how)
    else:
        page, *others = report_run(config, request.opened, *how)
    return [*others, page]


def run_table(folder: Path) -> list[str]:
    """Return lines about runs and comparisons, newest first. Raise UserError if there are none."""
    from nsgf.comparison import SETTINGS
    from nsgf.run.folder import RunFolder

    files = [file for name in ("config.yaml", SETTINGS) for file in folder.glob(f"*/{name}")]
    runs = sorted((file.parent for file in files), key=lambda path: -path.stat().st_mtime)
    if not runs:
        raise wrong_setting("out_dir", folder, "holds no run; train one, or name another folder")
    head = ("run", "data", "method", "progress", "last loss", "time", "size")
    rows = [head, *map(_row, map(RunFolder, runs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(run: "RunFolder") -> tuple[str, ...]:
    """Return the cells of a run or a comparison, or the reason why it cannot be read."""
    from nsgf.comparison import SETTINGS, TABLE, read_rows
    from nsgf.config.settings import build
    from nsgf.report import curves, progress_of
    from nsgf.run.folder import check_links
    from nsgf.run.lock import is_locked
    from nsgf.run.log import read_costs
    from nsgf.system.errors import cause

    path = run.path
    try:
        check_links(path)
        if (path / SETTINGS).exists():
            from nsgf.comparison.trials import Comparison  # loads torch

            comparison = Comparison.stored(path)
            trials = {
                (trial.target, trial.method, trial.seed) for trial in comparison.trials if trial.nfe
            }
            rows = read_rows(path / TABLE)
            done = {(row.target, row.method, row.seed) for row in rows} & trials
            targets = dict.fromkeys(trial.target for trial in comparison.trials)
            progress = f"comparison, {len(done)} of {len(trials)} trials"
            about = (",".join(targets), ",".join(comparison.methods), progress, "", "")
        else:
            config = build(run.read_settings())
            found = curves(run)
            losses = [loss for name in config.phases for _, loss, _ in found.get(name, ())]
            taken = sum(cost.seconds for cost in read_costs(path).values())
            is_begun = any(map(run.has_checkpoint, config.phases)) or is_locked(path)
            progress = progress_of(run, config) if is_begun else "aborted: no checkpoint"
            time = format_hours(taken) if taken else ""
            shown = f"{losses[-1]:.4g}" if losses else ""
            about = (config.data.name, config.method, progress, shown, time)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return (path.name, *about, format_bytes(size))
    except Exception as error:  # a foreign folder must not hide the others
        problem = f"cannot be read: {cause(error).removeprefix(f'{path}: ')}"
        return (path.name, "", "", problem, "", "", "")


def _compare(request: Request) -> Iterator[str]:
    from nsgf.comparison.compare import compare
    from nsgf.comparison.trials import Comparison
    from nsgf.run.stop import Stopped, StopRequest
    from nsgf.system.distributed import take_card

    config = request.config
    is_first = launched_rank() == 0
    stop = StopRequest(config.train.max_hours)
    if is_launched():
        take_card(config.device)
    with stop.listening(), silence(not is_first):
        try:
            comparison = Comparison.of(config, request.methods, request.fixed)
            files = compare(comparison, stop, reports=is_first)
        except Stopped as stopped:
            yield f"stopped ({stop.reason}), {stopped}; the same command continues"
            return
    if is_first:
        yield from [files[0].read_text(encoding="utf-8").rstrip("\n"), *map(str, files)]


def _export(request: Request) -> list[str]:
    from nsgf.share import export_run

    options = request.options
    return export_run(request.config, request.opened, options["to"], options.get("half", False))


def _preflight(request: Request) -> Iterator[str]:
    from nsgf.preflight import preflight

    words = shlex.join(["python", "-m", "nsgf", "train", *request.options["words"]])
    command = re.sub(r" --(session-hours|max-hours|train\.max_hours)[ =]\S+", "", words)
    return preflight(request.config, request.options.get("session-hours", 12.0), command)


ACTIONS: dict[str, Callable[[Request], Iterable[str]]] = {
    "train": _train,
    "sample": _sample,
    "evaluate": _evaluate,
    "report": _report,
    "list": lambda request: run_table(expand_path("out_dir", request.config.out_dir)),
    "compare": _compare,
    "export": _export,
    "preflight": _preflight,
}
"""The function of each command, which yields lines to print."""
