"""``nsgf COMMAND``: one function for each command.

Each command imports what it needs when it runs, so that help and errors do not wait for torch.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from nsgf.cli.arguments import Request, parse
from nsgf.cli.flags import COMMANDS, command_parser, completion
from nsgf.system.errors import UserError, cause, one_line
from nsgf.system.launch import is_launched, launched_rank
from nsgf.system.output import show, show_error, silence
from nsgf.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    0; 1 after the traceback of a bug, or where preflight says NO; 2 for what the user can mend; 130
    for Ctrl-C.
    """
    request = None
    words = sys.argv[1:] if argv is None else argv
    try:
        if _explains(words):
            return 0
        request = parse(words)
        return _execute(request)
    except UserError as error:
        return _fail(str(error))
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return _fail(f"cannot use{where}: {cause(error)}")
    except KeyboardInterrupt:
        show("nsgf: interrupted")
        return 130
    except Exception as error:
        if request and type(error).__name__ == "OutOfMemoryError":  # torch's; not loaded for it
            return _fail(
                "the card's memory is full; try a smaller --batch-size, --sampling.batch_size or "
                "model, or --device cpu"
            )
        if is_launched() and ("gloo" in str(error) or type(error).__name__ == "DistBackendError"):
            return _fail(f"another process is gone, whose own lines say why ({str(error)[:100]})")
        show_error(traceback.format_exc() + _report(request))
        return 1


def _explains(words: list[str]) -> bool:
    """Print help, the version or completions if the command line asks for one of them."""
    if not words or words[0] in ("-h", "--help"):
        lines = ["usage: nsgf COMMAND [flags]", "", "Neural Sinkhorn Gradient Flow (NSGF++).", ""]
        lines += [f"  {name:10} {text}" for name, text in COMMANDS.items()]
        lines += ["", "nsgf COMMAND --help lists the flags of a command."]
        show("\n".join(lines))
    elif words[0] == "--version":
        show(__version__)
    elif words[0] in COMMANDS and {"-h", "--help"} & set(words):
        show(command_parser(words[0]).format_help().rstrip("\n"))
    elif words[0].startswith("--print-completion"):
        show(completion(words[0].partition("=")[2] or " ".join(words[1:])))
    else:
        return False
    return True


def _report(request: Request | None) -> str:
    """Return the line after a traceback: what to send along with a report."""
    where = "the command line"
    if request:
        config = request.config
        run = request.run or Path(config.out_dir) / f"{config.exp}-*"
        where = f"the command line, {run}/log.txt and {run}/config.yaml (if they exist)"
    return f"nsgf: unexpected error, a bug: please report it with the lines above and {where}"


def _fail(line: str) -> int:
    who = f" (process {launched_rank()})" if is_launched() else ""
    show_error(f"nsgf: error{who}: {one_line(line)}")
    return 2


def _execute(request: Request) -> int:
    if request.print_config:
        from nsgf.run.folder import dump_config

        show(dump_config(request.config).rstrip("\n"))
        return 0
    if is_launched() and request.command in ("export", "preflight", "report"):
        raise UserError(f"{request.command}: runs in one process; start it without torchrun")
    for note in request.notes:
        show(note)
    return ACTIONS[request.command](request) or 0


def _train(request: Request) -> None:
    from nsgf.experiment import train
    from nsgf.run.folder import RunFolder
    from nsgf.run.stop import Stopped, StopRequest
    from nsgf.system.distributed import join

    config, first = request.config, None
    run = RunFolder(request.run) if request.run else None
    if request.resume_phase is not None:
        if request.resume_phase > len(config.phases):
            raise UserError(
                f"--resume-phase {request.resume_phase}: this experiment has phases {config.phases}"
            )
        first = config.phases[request.resume_phase - 1]
    elif run and not request.resume:
        raise UserError(f"run = {run.path}: say --resume or --resume-phase N to train it further")
    stop = StopRequest(config.train.max_hours)
    with join(config.device) as world, stop.listening():
        try:
            run = train(config, run, first, world, stop)
        except Stopped as stopped:
            if world.is_main:
                show(f"stopped ({stop.reason}), {stopped}; go on with:")
                folder, tracker = Path(stopped.folder or ""), config.tracking.tracker
                show(f"    {_resume_command(folder, world.size, tracker)}")
            return
        if world.is_main:
            for command in ("sample", "evaluate", "report"):
                show(f"next: python -m nsgf {command} --run {shlex.quote(str(run.path))}")


def _resume_command(folder: Path, processes: int, tracker: str) -> str:
    """Return the shell command that resumes a run.

    The ... stands for where machines meet. The -- keeps torchrun from taking --run for an
    abbreviation of its own --run-path. A run does not begin a service by its own settings, so that
    flag is needed again.
    """
    from nsgf.run.folder import IN_FOLDER

    runner = "python -m nsgf"
    if processes > 1:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = f"--nnodes {processes // here} ... " if processes > here else ""
        runner = f"torchrun {nodes}--nproc-per-node {here} -m nsgf --"
    command = f"{runner} train --run {shlex.quote(str(folder))} --resume"
    return command if tracker in IN_FOLDER else f"{command} --tracker {tracker}"


def _sample(request: Request) -> None:
    from nsgf.report.samples import sample_run
    from nsgf.run.folder import RunFolder
    from nsgf.system.distributed import join

    assert request.run is not None
    with join(request.config.device) as world:
        for line in sample_run(request.config, RunFolder(request.run), world):
            show(line)


def _evaluate(request: Request) -> None:
    from nsgf.metrics.evaluate import evaluate_run, report
    from nsgf.run.folder import RunFolder
    from nsgf.system.distributed import join

    assert request.run is not None
    with join(request.config.device) as world:
        file, metrics = evaluate_run(request.config, RunFolder(request.run), world=world)
        if world.is_main:
            for line in [*report(metrics), str(file)]:
                show(line)


def _report_page(request: Request) -> None:
    from nsgf.report.comparison import report_comparison
    from nsgf.report.page import report_run
    from nsgf.run.folder import RunFolder

    if request.compare is not None:
        files = report_comparison(request.compare, request.config.out_dir, request.figures)
    else:
        assert request.run is not None
        files = report_run(request.config, RunFolder(request.run), request.figures)
    for line in files:
        show(line)


def _list(request: Request) -> None:
    from nsgf.report.records import run_table

    for line in run_table(Path(request.config.out_dir).expanduser()):
        show(line)


def _compare(request: Request) -> None:
    from nsgf.compare.compare import compare
    from nsgf.compare.trials import Comparison
    from nsgf.run.stop import Stopped, StopRequest
    from nsgf.system.distributed import take_card

    config, is_first = request.config, launched_rank() == 0
    stop = StopRequest(config.train.max_hours)
    if is_launched():
        take_card(config.device)
    with stop.listening(), nullcontext() if is_first else silence():
        try:
            comparison = Comparison.of(config, request.methods)
            files = compare(comparison, stop, reports=is_first)
        except Stopped as stopped:
            show(f"stopped ({stop.reason}), {stopped}; the same command goes on")
            return
    if is_first:
        for line in [files[0].read_text(encoding="utf-8").rstrip("\n"), *map(str, files)]:
            show(line)


def _export(request: Request) -> None:
    from nsgf.run.folder import RunFolder
    from nsgf.share.export import export_run

    assert request.run is not None
    assert request.to is not None
    for line in export_run(request.config, RunFolder(request.run), Path(request.to)):
        show(line)


def _preflight(request: Request) -> int:
    from nsgf.preflight import preflight

    command, stops = _training_command(request.words), False
    for line in preflight(request.config, request.session_hours, command):
        show(line)
        stops |= line.startswith("NO ")
    return int(stops)


def _training_command(words: tuple[str, ...]) -> str:
    """Return the shell command that trains what preflight was given."""
    kept: list[str] = []
    own, is_value = {"--session-hours", "--max-hours", "--train.max_hours"}, False
    for word in words:
        flag, equals, _ = word.partition("=")
        if not is_value and flag not in own:
            kept.append(word)
        is_value = flag in own and not equals
    return shlex.join(["python", "-m", "nsgf", "train", *kept])


ACTIONS: dict[str, Callable[[Request], int | None]] = {
    "train": _train,
    "sample": _sample,
    "evaluate": _evaluate,
    "report": _report_page,
    "list": _list,
    "compare": _compare,
    "export": _export,
    "preflight": _preflight,
}
"""The function of each command; tests compare the names with COMMANDS."""
