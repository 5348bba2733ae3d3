"""What a run says: ``log.txt`` for people, ``metrics.jsonl`` and ``costs.jsonl`` for programs.

The files are the record; a mirror of them (Weights & Biases, :mod:`nsgf.run.wandb_mirror`) is a
service that may be away, and nothing depends on it.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from nsgf.run.folder import write_text
from nsgf.run.progress import is_terminal
from nsgf.run.stop import Stopped
from nsgf.system.errors import one_line


class Mirror(Protocol):
    """Where records and pictures are shown besides the run folder; may fail at any time."""

    def record(self, values: dict[str, Any]) -> None:
        """Take in one record of metrics.jsonl or costs.jsonl."""
        ...

    def picture(self, name: str, file: Path) -> None:
        """Show an image file under a name."""
        ...

    def close(self, failed: bool) -> None:
        """Hand over what is left; nothing follows."""
        ...


class Tracker:
    """Appends to the run folder's ``log.txt`` and ``metrics.jsonl``; as a context closes itself."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        """
        Args:
            folder: the run folder.
            quiet: nothing is written: a process beside the first, which does that for all.
        """
        self._quiet = quiet
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"
        self._costs = folder / "costs.jsonl"
        self._mirror: Mirror | None = None

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None and not issubclass(kind, Stopped))

    def mirror_to(self, mirror: Mirror | None) -> None:
        """Send records and pictures to ``mirror`` too, from now on; None: to the files alone."""
        self._mirror = mirror

    def log(self, text: str) -> None:
        """One line on the terminal (above a progress bar) and, with the time, in the log."""
        if self._quiet:
            return
        show(text)
        self._append_line(text)

    def log_progress(self, text: str) -> None:
        """One line in the log, and where no bar is drawn on a terminal, on stdout."""
        if self._quiet:
            return
        if not is_terminal():
            show(text)
        self._append_line(text)

    def _append_line(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as stream:
            stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")

    def record(self, **values: Any) -> None:
        """One line of metrics.jsonl, which the same seed fills with the same values."""
        self._append(self._metrics, values)

    def record_cost(self, **values: Any) -> None:
        """One line of costs.jsonl: time and memory, which differ from run to run."""
        self._append(self._costs, values)

    def _append(self, file: Path, values: dict[str, Any]) -> None:
        if self._quiet:
            return
        with file.open("a") as stream:
            stream.write(json.dumps(values) + "\n")
        self._mirrored(lambda mirror: mirror.record(values))

    def picture(self, name: str, file: Path) -> None:
        """Show an image of the run folder in the mirror, if there is one.

        Args:
            name: what it shows, e.g. ``nsgf/samples``.
            file: PNG.
        """
        self._mirrored(lambda mirror: mirror.picture(name, file))

    def close(self, failed: bool = False) -> None:
        """End the mirror; the files need no end. A second call does nothing.

        Args:
            failed: training ended by an error or an interruption.
        """
        self._mirrored(lambda mirror: mirror.close(failed))
        self._mirror = None

    @property
    def _records(self) -> list[Path]:
        return [] if self._quiet else [self._metrics, self._costs]

    def rewind(self, phase: str, step: int) -> None:
        """Drop the records of ``phase`` after ``step``: a resumed run writes them again.

        A mirror keeps what it got; a resumed run sends it the same values for the same steps.
        """
        for file in self._records:
            if file.exists():
                lines = file.read_text(errors="replace").splitlines()
                kept = [line for line in lines if not _is_after(line, phase, step)]
                if len(kept) < len(lines):
                    write_text(file, "".join(line + "\n" for line in kept))

    def sort(self, phases: Sequence[str]) -> None:
        """Bring the records into the order of ``phases``, where one was trained after a later one:
        the file then is the one of a run that was never interrupted.
        """
        for file in self._records:
            if file.exists():
                lines = file.read_text(errors="replace").splitlines()
                ordered = sorted(lines, key=lambda line: _place(line, phases))
                if ordered != lines:
                    write_text(file, "".join(line + "\n" for line in ordered))

    def _mirrored(self, send: Callable[[Mirror], None]) -> None:
        if self._mirror is None:
            return
        try:
            send(self._mirror)
        except Exception as error:  # a service that is away must not end a training run
            self._mirror = None
            self.log(f"tracking: nothing is mirrored from here on ({one_line(error)})")


def show(text: str) -> None:
    """One line on stdout, at once; a reader or terminal that went away is no reason to end."""
    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # or the interpreter fails at its own end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_after(line: str, phase: str, step: int) -> bool:
    try:
        record = json.loads(line)
        recorded, number = record["phase"], record["step"]
        return bool(recorded == phase and number > step)
    except (ValueError, KeyError, TypeError, RecursionError):
        return True  # cut off by an interruption, or none of this program's


def _place(line: str, phases: Sequence[str]) -> int:
    phase = json.loads(line)["phase"]
    return phases.index(phase) if phase in phases else len(phases)
