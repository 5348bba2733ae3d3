"""What a run says: ``log.txt`` for people, ``metrics.jsonl`` and ``costs.jsonl`` for programs.

The files are the record; a mirror of them (a tracker, :mod:`nsgf.run.mirrors`) may be away or
fail, and nothing depends on it.
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
    """A run as a tracker shows it. Whatever its methods raise ends the mirror, not the run."""

    def record(self, values: dict[str, Any]) -> None:
        """Take a record of metrics.jsonl or costs.jsonl, with its phase and step."""

    def picture(self, name: str, file: Path) -> None:
        """Take a PNG under a name like ``nsgf/samples``."""

    def close(self, failed: bool) -> None:
        """End, after a run that ``failed`` or got as far as it was asked to."""


class Tracker:
    """Appends to the run folder's ``log.txt`` and ``metrics.jsonl``; as a context closes itself."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        """Where ``quiet`` nothing is written: the first process does that for all."""
        self._quiet = quiet
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"
        self._costs = folder / "costs.jsonl"
        self.mirror: Mirror | None = None
        """Gets records and pictures too; left alone once it fails."""

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and not issubclass(kind, Stopped)
        self._mirrored(lambda mirror: mirror.close(failed), is_last=True)
        self.mirror = None

    def log(self, text: str) -> None:
        """One line on the terminal (above a progress bar) and, with the time, in the log."""
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
        """Count units of work, with lines in the log and, where no bar is drawn, on stdout."""
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
        """One line of metrics.jsonl, which the same seed fills with the same values."""
        self._append(self._metrics, values)

    def record_cost(self, **values: Any) -> None:
        """One line of costs.jsonl: time and memory, which differ from run to run."""
        self._append(self._costs, values)

    def _append(self, file: Path, values: dict[str, Any]) -> None:
        if self._quiet:
            return
        append_text(file, json.dumps(values) + "\n")
        self._mirrored(lambda mirror: mirror.record(values))

    def picture(self, name: str, file: Path) -> None:
        """Show a PNG in the mirror, if there is one, under a name like ``nsgf/samples``."""
        self._mirrored(lambda mirror: mirror.picture(name, file))

    def rewind(self, phase: str, step: int) -> None:
        """Drop the records of ``phase`` after ``step``: a resumed run writes them again.

        A mirror keeps what it got; a resumed run sends it the same values for the same steps.
        """
        self._rewrite(lambda lines: [line for line in lines if not _is_after(line, phase, step)])

    def sort(self, phases: Sequence[str]) -> None:
        """Bring the records into the order of ``phases``, where one was trained after a later one:
        the file then is the one of a run that was never interrupted.
        """
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
        except Exception as error:  # a service that is away must not end a training run
            failed, self.mirror = self.mirror, None
            self.log(f"tracking: nothing is mirrored from here on ({one_line(error)})")
            if not is_last:
                with suppress(Exception):  # it may hold threads and files, and fail at that too
                    failed.close(failed=True)


def _is_after(line: str, phase: str, step: int) -> bool:
    try:
        recorded, number = fields(parse_object(line), phase=str, step=int)
    except ValueError:
        return True  # cut off by an interruption, or none of this program's
    return bool(recorded == phase and number > step)


def _place(line: str, phases: Sequence[str]) -> int:
    try:
        return phases.index(*fields(parse_object(line), phase=str))
    except ValueError:  # another phase, or no record
        return len(phases)
