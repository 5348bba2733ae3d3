"""The command line: ``nsgf train | sample | evaluate | preflight``."""

import sys
from collections.abc import Callable
from dataclasses import replace

from nsgf.arguments import Request, parse
from nsgf.checkpoint import RunFolder, dump_config
from nsgf.config import Config
from nsgf.errors import UserError
from nsgf.experiment import train
from nsgf.handover import pending_phases
from nsgf.inference import evaluate_run, sample_run
from nsgf.preflight import preflight


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 2 for what the user can mend, 130 for Ctrl-C."""
    try:
        request = parse(sys.argv[1:] if argv is None else argv)
        return _execute(request)
    except UserError as error:
        print(f"nsgf: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("nsgf: interrupted; train goes on from its last checkpoint with --resume")
        return 130


def _execute(request: Request) -> int:
    if request.print_config:
        print(dump_config(request.config), end="")
        return 0
    for note in request.notes:
        print(note)
    actions: dict[str, Callable[[Request], None]] = {
        "train": _train,
        "sample": _sample,
        "evaluate": _evaluate,
        "preflight": _preflight,
    }
    actions[request.command](request)
    return 0


def _train(request: Request) -> None:
    run = RunFolder(request.run) if request.run else None
    if run and request.resume_phase is not None:
        _start_at_phase(request.config, run, request.resume_phase)
    elif run and not request.resume:
        raise UserError(f"run = {run.path}: say --resume or --resume-phase N to train it further")
    run = train(request.config, run)
    for command in ("sample", "evaluate"):
        print(f"next: python -m nsgf {command} --run {run.path}")


def _start_at_phase(config: Config, run: RunFolder, number: int) -> None:
    """Set the checkpoints of phase ``number`` and later aside; those before must be finished."""
    if number > len(config.phases):
        raise UserError(f"--resume-phase {number}: this experiment has phases {config.phases}")
    phases = config.phases[: number - 1]
    pending = pending_phases(replace(config, phases=phases), run)
    if pending:
        raise UserError(
            f"--resume-phase {number}: phase {pending[0]} of {run.path} is not finished; "
            "use --resume"
        )
    for name in run.set_aside(config.phases[number - 1]):
        print(f"kept the earlier {name} as *.previous.pt (to go on from it: --resume)")


def _sample(request: Request) -> None:
    assert request.run is not None
    for line in sample_run(request.config, RunFolder(request.run)):
        print(line)


def _evaluate(request: Request) -> None:
    assert request.run is not None
    file, found = evaluate_run(request.config, RunFolder(request.run))
    for key, value in found.items():
        if not isinstance(value, dict):
            print(f"{key:24} {value:.4g}" if isinstance(value, float) else f"{key:24} {value}")
    print(file)


def _preflight(request: Request) -> None:
    for line in preflight(request.config):
        print(line)
