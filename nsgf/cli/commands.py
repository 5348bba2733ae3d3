"""``nsgf COMMAND``: one function for each command.

Commands import modules only when they run, so that help and errors do not wait for torch.
"""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import pairwise

from nsgf.cli.arguments import COMMANDS, FLAG_NAMES, parse
from nsgf.config.schema import PhaseName
from nsgf.config.values import expand_path
from nsgf.settings.resolve import Request
from nsgf.system.errors import UserError, naming, wrong_setting
from nsgf.system.output import (
    is_launched,
    launched_rank,
    local_processes,
    show,
    show_error,
    silence,
)
from nsgf.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 for success, 2 for an error that the user can fix, and 130 for Ctrl-C. It is 1 for
    a bug, after a traceback, and also if preflight says NO.
    """
    try:
        with naming(FLAG_NAMES, are_flags=True):
            os.getcwd()  # torch would abort without a working folder
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
            for note in request.notes:
                show(note)
            return _show_lines(ACTIONS[request.command](request))
    except KeyboardInterrupt:
        show("nsgf: interrupted")
        return 130
    except UserError as error:
        who = f" (process {launched_rank()})" if is_launched() else ""
        show_error(f"nsgf: error{who}: {error}")
        return 2
    except ModuleNotFoundError:  # the caller prints the name of the module
        raise
    except Exception:
        show_error(f"{traceback.format_exc()}nsgf: unexpected error: please report these lines")
        return 1


def _show_lines(lines: Iterable[str]) -> int:
    """Print lines one after the other. If ``lines`` is a generator that returns an exit code,
    return this code, otherwise 0."""
    iterator = iter(lines)
    while True:
        try:
            show(next(iterator))
        except StopIteration as stop:
            return stop.value or 0


def _explains(words: list[str]) -> bool:
    """Print help, the version or completions if the command line requests them. Return whether
    something was printed."""
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
    from nsgf.commands.estimate import fit_minutes
    from nsgf.commands.train import train
    from nsgf.run.stop import Stopped, StopRequest
    from nsgf.system.distributed import join

    config = request.config
    experiment = request.experiment
    run = request.run
    first = _first_phase(request)
    notes: list[str] = []
    stop = StopRequest(config.train.max_hours)
    with join(config.device) as world, stop.listening():
        try:
            if (minutes := request.options.get("minutes")) is not None:
                is_new = run is None and world.size == 1
                experiment, note = fit_minutes(experiment, minutes, stop, is_new=is_new)
                notes.append(note)
            run = train(experiment, run, first, world, stop, notes=notes)
        except Stopped as stopped:
            if world.is_main:
                yield f"stopped ({stop.reason}), {stopped}; continue with:"
                tracker = config.tracking.tracker
                yield f"    {_resume_command(str(stopped.folder), world.size, tracker)}"
            return
        if world.is_main:
            for command in ("sample", "evaluate", "report"):
                yield f"next: python -m nsgf {command} --run {shlex.quote(str(run.path))}"


def _first_phase(request: Request) -> PhaseName | None:
    """Return the phase of ``--resume-phase``; None without this flag. Raise UserError if the phase
    does not exist, or if ``--run`` has no flag that says how to continue the run."""
    phases = request.config.phases
    number = request.options.get("resume-phase")
    if number is not None:
        if not 0 < number <= len(phases):
            raise UserError(f"--resume-phase {number}: the run has phases {phases}")
        return phases[number - 1]
    run = request.run
    if run and "resume" not in request.options:
        raise wrong_setting("run", run.path, "use --resume or --resume-phase N to train it further")
    return None


def _resume_command(folder: str, processes: int, tracker: str) -> str:
    """Return the command line that continues the run in a folder, with the same number of processes
    and the same tracker."""
    from nsgf.run.folder import IN_FOLDER

    runner = "python -m nsgf"
    if processes > 1:  # the user replaces ... by the rendezvous address of the machines
        local = local_processes(processes)
        nodes = f"--nnodes {processes // local} ... " if processes > local else ""
        # -- keeps torchrun from reading --run as its flag --run-path
        runner = f"torchrun {nodes}--nproc-per-node {local} -m nsgf --"
    command = f"{runner} train --run {shlex.quote(folder)} --resume"
    # a tracker with a service starts only by a flag, not by saved settings
    if tracker not in IN_FOLDER:
        command += f" --tracker {tracker}"
    return command


def _sample(request: Request) -> Iterator[str]:
    from nsgf.commands.sample import sample_run
    from nsgf.system.distributed import join

    with join(request.config.device) as world:
        yield from sample_run(
            request.experiment,
            request.opened,
            world,
            nfe=request.options.get("nfe"),
            out=request.options.get("out"),
            start=request.options.get("start"),
            trajectory=request.options.get("trajectory", False),
        )


def _evaluate(request: Request) -> Iterator[str]:
    from nsgf.commands.evaluate import evaluate_run
    from nsgf.metrics.measures import report
    from nsgf.system.distributed import join

    with join(request.config.device) as world:
        file, metrics = evaluate_run(request.experiment, request.opened, world=world)
        if world.is_main:
            yield from [*report(metrics), str(file)]


def _report(request: Request) -> list[str]:
    from nsgf.commands.report import report_run
    from nsgf.commands.report_comparison import report_comparison

    options = request.options
    figures = options.get("figures", "png")
    out = options.get("out")
    if "compare" in options:
        out_dir = request.config.out_dir
        page, *files = report_comparison(options["compare"], out_dir, figures, out)
    else:
        page, *files = report_run(request.experiment, request.opened, figures, out)
    return [*files, page]


def _list(request: Request) -> list[str]:
    from nsgf.commands.list_runs import run_table

    return run_table(expand_path("out_dir", request.config.out_dir))


def _compare(request: Request) -> Iterator[str]:
    from nsgf.commands.compare import compare
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
    from nsgf.commands.export import export_run

    options = request.options
    return export_run(request.experiment, request.opened, options["to"], options.get("half", False))


def _preflight(request: Request) -> Generator[str, None, int]:
    """Yield lines, and return the exit code: 1 if a line names a problem, otherwise 0."""
    from nsgf.commands.preflight import preflight

    words = shlex.join(["python", "-m", "nsgf", "train", *request.options["words"]])
    command = re.sub(r" --(session-hours|max-hours|train\.max_hours)[ =]\S+", "", words)
    hours = request.options.get("session-hours", 12.0)
    has_problem = False
    for finding in preflight(request.experiment, hours, command):
        has_problem |= finding.is_problem
        yield str(finding)
    return int(has_problem)


ACTIONS: dict[str, Callable[[Request], Iterable[str]]] = {
    "train": _train,
    "sample": _sample,
    "evaluate": _evaluate,
    "report": _report,
    "list": _list,
    "compare": _compare,
    "export": _export,
    "preflight": _preflight,
}
"""The function of each command, which yields lines to print."""
