"""The log of a run: ``log.txt`` for people, ``metrics.jsonl`` and ``costs.jsonl`` for programs."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsgf.run.progress import Progress, is_terminal
from nsgf.run.stop import Stopped
from nsgf.system.errors import one_line, printable
from nsgf.system.files import append_text, fields, parse_object, read_lines, write_text
from nsgf.system.output import show

if TYPE_CHECKING:
    from nsgf.run.trackers import Tracker


class RunLog:
    """Write the log and the records of a run folder; a context manager."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        """``quiet``: write nothing. Set for all processes except the first."""
        self._quiet = quiet
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"
        self._costs = folder / "costs.jsonl"
        self.tracker: Tracker | None = None
        """Also receives records and pictures; None after it failed."""

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and not issubclass(kind, Stopped)
        self._send(lambda tracker: tracker.close(failed), is_last=True)
        self.tracker = None

    def write(self, text: str, shown: bool = True) -> None:
        """Append a line with the time to the log; if ``shown``, print it too."""
        if self._quiet:
            return
        if shown:
            show(text)
        line = printable(text).replace("\n", "\\n")
        append_text(self._log, f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    def progress(
        self,
        title: str,
        total: int,
        unit: str,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Progress:
        """Return a progress counter that writes lines to the log, and shows them without a bar."""
        return Progress(
            title,
            total,
            unit,
            done=done,
            line=lambda text: self.write(text, shown=not is_terminal()),
            shown=not self._quiet,
            clock=clock,
        )

    def record(self, **values: Any) -> None:
        """Append a line to metrics.jsonl, for values that the seed determines."""
        self._append(self._metrics, values)

    def record_cost(self, **values: Any) -> None:
        """Append a line to costs.jsonl, for time and memory, which differ from run to run."""
        self._append(self._costs, values)

    def _append(self, file: Path, values: dict[str, Any]) -> None:
        if self._quiet:
            return
        append_text(file, json.dumps(values, allow_nan=False) + "\n")
        self._send(lambda tracker: tracker.record(values))

    def picture(self, name: str, file: Path) -> None:
        """Send a PNG to the tracker, under a name like ``nsgf/samples``."""
        self._send(lambda tracker: tracker.picture(name, file))

    def rewind(self, phase: str, step: int) -> None:
        """Remove the records of ``phase`` after ``step``, since a resumed run writes them again."""
        self._rewrite(lambda records: [one for one in records if one[0] != phase or one[1] <= step])

    def sort(self, phases: Sequence[str]) -> None:
        """Sort the records by phase, as in an uninterrupted run."""
        order = {phase: number for number, phase in enumerate(phases)}
        self._rewrite(lambda rows: sorted(rows, key=lambda one: order.get(one[0], len(order))))

    def _rewrite(self, change: Callable[[list[list[Any]]], list[list[Any]]]) -> None:
        """Change the records: phase, step and line of each. Drop lines that are cut off."""
        for file in (self._metrics, self._costs):
            if self._quiet or not file.exists():
                continue
            text = file.read_text(errors="replace")
            records = []
            for line in text.splitlines():
                with suppress(ValueError):
                    records.append([*fields(parse_object(line), phase=str, step=int), line])
            changed = "".join(f"{line}\n" for *_, line in change(records))
            if changed != text:
                write_text(file, changed)

    def _send(self, action: "Callable[[Tracker], None]", is_last: bool = False) -> None:
        if self.tracker is None:
            return
        try:
            action(self.tracker)
        except Exception as error:  # a tracker must not end a training run
            failed = self.tracker
            self.tracker = None
            self.write(f"tracking: the tracker failed and is not used any more ({one_line(error)})")
            if not is_last:
                with suppress(Exception):  # release its threads and files
                    failed.close(failed=True)


class Cost(NamedTuple):
    """Time and memory of a phase, from ``costs.jsonl``."""

    seconds: float
    """Time for preparation (such as the pool) and updates, in seconds."""
    peak_memory: int
    """Peak memory in bytes."""


def read_costs(folder: Path) -> dict[str, Cost]:
    """Return the costs by phase. Each line of the file has the speed since the line before it."""
    found: dict[str, Cost] = {}
    steps: dict[str, int] = {}
    kinds = {"phase": str, "step": int, "steps_per_second": float, "peak_memory": int}
    for phase, step, speed, peak, prepared in read_lines(
        folder / "costs.jsonl", **kinds, prepare_seconds=float
    ):
        if speed <= 0:
            continue
        seconds = (step - steps.get(phase, 0)) / speed
        before = found.get(phase, Cost(0.0, 0))
        found[phase] = Cost(before.seconds + prepared + seconds, max(peak, before.peak_memory))
        steps[phase] = step
    return found
