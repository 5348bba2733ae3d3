"""The log of a run: ``log.txt`` for people, ``metrics.jsonl`` and ``costs.jsonl`` for programs.

A mirror (a tracker, :mod:`nsgf.run.mirrors`) also gets the records; it may fail without effect.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from nsgf.run.folder import append_text, write_text
from nsgf.run.progress import Progress, is_terminal
from nsgf.run.stop import Stopped
from nsgf.system.errors import one_line, printable
from nsgf.system.json_reader import fields, parse_object
from nsgf.system.output import show


class Mirror(Protocol):
    """A run in a tracker. An exception of its methods ends the mirror, not the run."""

    def record(self, values: dict[str, Any]) -> None:
        """Take a record of metrics.jsonl or costs.jsonl, with its phase and step."""

    def picture(self, name: str, file: Path) -> None:
        """Take a PNG under a name like ``nsgf/samples``."""

    def close(self, failed: bool) -> None:
        """End, after a run that ``failed`` or not."""


class Tracker:
    """Writes the log and the records of a run folder; a context manager."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        """``quiet``: write nothing, for all but the first process."""
        self._quiet = quiet
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"
        self._costs = folder / "costs.jsonl"
        self.mirror: Mirror | None = None
        """Gets records and pictures too, until it fails."""

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and not issubclass(kind, Stopped)
        self._mirrored(lambda mirror: mirror.close(failed), is_last=True)
        self.mirror = None

    def log(self, text: str) -> None:
        """Print a line and, with the time, append it to the log."""
        if self._quiet:
            return
        show(text)
        self._append_line(text)

    def progress(
        self,
        title: str,
        total: int,
        unit: str,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Progress:
        """Return a progress counter, with lines in the log and, without a bar, on stdout."""
        shown = not self._quiet
        line = self._log_progress
        return Progress(title, total, unit, done=done, line=line, shown=shown, clock=clock)

    def _log_progress(self, text: str) -> None:
        if self._quiet:
            return
        if not is_terminal():
            show(text)
        self._append_line(text)

    def _append_line(self, text: str) -> None:
        line = printable(text).replace("\n", "\\n")
        append_text(self._log, f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    def record(self, **values: Any) -> None:
        """Append a line to metrics.jsonl, which the same seed fills with the same values."""
        self._append(self._metrics, values)

    def record_cost(self, **values: Any) -> None:
        """Append a line to costs.jsonl: time and memory, which differ from run to run."""
        self._append(self._costs, values)

    def _append(self, file: Path, values: dict[str, Any]) -> None:
        if self._quiet:
            return
        append_text(file, json.dumps(values) + "\n")
        self._mirrored(lambda mirror: mirror.record(values))

    def picture(self, name: str, file: Path) -> None:
        """Send a PNG to the mirror, under a name like ``nsgf/samples``."""
        self._mirrored(lambda mirror: mirror.picture(name, file))

    def rewind(self, phase: str, step: int) -> None:
        """Drop the records of ``phase`` after ``step``, which a resumed run writes again."""
        self._rewrite(lambda lines: [line for line in lines if not _is_after(line, phase, step)])

    def sort(self, phases: Sequence[str]) -> None:
        """Sort the records by phase, as in a run that was never interrupted."""
        self._rewrite(lambda lines: sorted(lines, key=lambda line: _place(line, phases)))

    def _rewrite(self, change: Callable[[list[str]], list[str]]) -> None:
        for file in (self._metrics, self._costs):
            if file.exists() and not self._quiet:
                lines = file.read_text(errors="replace").splitlines()
                changed = change(lines)
                if changed != lines:
                    write_text(file, "".join(line + "\n" for line in changed))

    def _mirrored(self, send: Callable[[Mirror], None], is_last: bool = False) -> None:
        if self.mirror is None:
            return
        try:
            send(self.mirror)
        except Exception as error:  # a service must not end a training run
            failed, self.mirror = self.mirror, None
            self.log(f"tracking: nothing is mirrored from here on ({one_line(error)})")
            if not is_last:
                with suppress(Exception):  # release its threads and files
                    failed.close(failed=True)


def _is_after(line: str, phase: str, step: int) -> bool:
    try:
        recorded, number = fields(parse_object(line), phase=str, step=int)
    except ValueError:
        return True  # cut off by an interruption
    return bool(recorded == phase and number > step)


def _place(line: str, phases: Sequence[str]) -> int:
    try:
        return phases.index(*fields(parse_object(line), phase=str))
    except ValueError:  # another phase, or no record
        return len(phases)
