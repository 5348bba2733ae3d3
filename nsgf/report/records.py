"""Curves, costs and remarks from the files of a run folder."""

from typing import NamedTuple

from nsgf.plots.figures import Curve
from nsgf.run.folder import RunFolder
from nsgf.system.json_reader import read_lines

REMARKS = (
    " skipped, ",
    "the card's memory is full",
    "no picture of samples",
    "the tracker failed",
    "starts anew",
    "is damaged",
)
"""Parts of log lines about something unplanned."""
LOG_LINES = 400
"""Number of lines at the end of the log that are shown."""


class Cost(NamedTuple):
    """Time and memory of a phase, from ``costs.jsonl``."""

    seconds: float
    """Seconds of its updates."""
    peak_memory: int
    """Peak memory in bytes."""


def curves(run: RunFolder) -> list[Curve]:
    """Return the curves of all phases, in the order in which they were trained."""
    found: dict[str, Curve] = {}
    kinds = {"phase": str, "step": int, "loss": float, "grad_norm": float}
    for phase, step, loss, norm in read_lines(run.path / "metrics.jsonl", **kinds):
        curve = found.setdefault(phase, Curve(phase, [], [], []))
        curve.steps.append(step)
        curve.loss.append(loss)
        curve.grad_norm.append(norm)
    return list(found.values())


def costs(run: RunFolder) -> dict[str, Cost]:
    """Return the costs by phase; a line's speed covers the updates since the line before."""
    found: dict[str, Cost] = {}
    steps: dict[str, int] = {}
    kinds = {"phase": str, "step": int, "steps_per_second": float, "peak_memory": int}
    for phase, step, speed, peak in read_lines(run.path / "costs.jsonl", **kinds):
        if speed <= 0:
            continue
        seconds, before = (step - steps.get(phase, 0)) / speed, found.get(phase, Cost(0.0, 0))
        found[phase] = Cost(before.seconds + seconds, max(peak, before.peak_memory))
        steps[phase] = step
    return found


def log_lines(run: RunFolder) -> list[str]:
    """Return the last lines of the log."""
    file = run.path / "log.txt"
    return file.read_text("utf-8", "replace").splitlines()[-LOG_LINES:] if file.exists() else []


def remarks(lines: list[str]) -> list[str]:
    """Return the lines of a log about something unplanned."""
    return [line for line in lines if any(words in line for words in REMARKS)]
