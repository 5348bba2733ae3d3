"""The log of a run: ``log.txt`` for people, ``metrics.jsonl`` and ``costs.jsonl`` for programs."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsgf.run.progress import Progress, is_terminal
from nsgf.run.stop import Stopped
from nsgf.system.errors import one_line, printable
from nsgf.system.files import append_text, fields, parse_object, read_lines, write_text
from nsgf.system.output import show

if TYPE_CHECKING:
    from nsgf.run.trackers import Tracker


@dataclass
class RunLog(AbstractContextManager["RunLog"]):
    """Write the log and the records of a run folder; a context manager."""

    folder: Path
    quiet: bool = False
    """Whether to write nothing. True in all processes except the first."""
    tracker: "Tracker | None" = None
    """Tracker that also receives records and pictures; None after a failure."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and not issubclass(kind, Stopped)
        self._send(lambda tracker: tracker.close(failed), is_last=True)
        self.tracker = None

    def write(self, text: str, prints: bool = True) -> None:
        """Append a line with the time to the log; if ``prints``, print it too."""
        if self.quiet:
            return
        if prints:
            show(text)
        line = printable(text).replace("\n", "\\n")
        append_text(self.folder / "log.txt", f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    @property
    def progress(self) -> Callable[..., Progress]:
        """Function that makes a Progress. The Progress writes lines to the log. If there is no bar,
        the lines are also printed."""
        return partial(
            Progress,
            line=lambda text: self.write(text, prints=not is_terminal()),
            has_bar=not self.quiet,
        )

    def record(self, name: str = "metrics", /, **values: Any) -> None:
        """Append a line to NAME.jsonl. The file ``metrics`` has values that the seed determines.
        The file ``costs`` has time and memory, which differ from run to run."""
        if self.quiet:
            return
        append_text(self.folder / f"{name}.jsonl", json.dumps(values, allow_nan=False) + "\n")
        self._send(lambda tracker: tracker.record(values))

    def picture(self, name: str, file: Path) -> None:
        """Send a PNG to the tracker, under a name like ``nsgf/samples``."""
        self._send(lambda tracker: tracker.picture(name, file))

    def tidy(self, phases: Sequence[str], phase: str = "", step: int = 0) -> None:
        """Sort the records by phase, as in an uninterrupted run. Remove incomplete lines. Also
        remove the records of ``phase`` after ``step``, because a resumed run writes them again."""
        for name in ("metrics", "costs"):
            file = self.folder / f"{name}.jsonl"
            if self.quiet or not file.exists():
                continue
            text = file.read_text(errors="replace")
            by_phase: dict[str, list[str]] = {name: [] for name in phases}
            for line in text.splitlines():
                with suppress(ValueError):
                    line_phase, line_step = fields(parse_object(line), phase=str, step=int)
                    if line_phase != phase or line_step <= step:
                        by_phase.setdefault(line_phase, []).append(f"{line}\n")
            changed = "".join(chain(*by_phase.values()))
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
                with suppress(Exception):  # release the tracker's threads and files
                    failed.close(failed=True)


class Cost(NamedTuple):
    """Time and memory of a phase, from ``costs.jsonl``."""

    seconds: float
    """Time of preparation (such as the pool) and updates."""
    peak_memory: int
    """Peak memory in bytes."""
    steps: int
    """Number of updates."""


def read_costs(folder: Path) -> dict[str, Cost]:
    """Return the costs by phase. The speed in a line of the file is the mean speed since the
    previous line."""
    costs: dict[str, Cost] = {}
    lines = read_lines(
        folder / "costs.jsonl",
        phase=str,
        step=int,
        steps_per_second=float,
        peak_memory=int,
        prepare_seconds=float,
    )
    for phase, step, speed, peak, prepared in lines:
        if speed > 0:
            seconds, highest, before = costs.get(phase, (0.0, 0, 0))
            seconds += prepared + (step - before) / speed
            costs[phase] = Cost(seconds, max(peak, highest), step)
    return costs
