"""What a run says: ``log.txt`` for people, ``metrics.jsonl`` for programs, and a mirror of both.

The files are the record; a mirror (Weights & Biases, :mod:`nsgf.wandb_run`) is a service that may
be away, and nothing depends on it.
"""

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from nsgf.checkpoint import write_text


class Mirror(Protocol):
    """Where records and pictures are shown besides the run folder; may fail at any time."""

    def record(self, values: dict[str, Any]) -> None:
        """Take in one record of metrics.jsonl."""
        ...

    def picture(self, name: str, file: Path) -> None:
        """Show an image file under a name."""
        ...

    def close(self, failed: bool) -> None:
        """Hand over what is left; nothing follows."""
        ...


class Tracker:
    """Appends to the run folder's ``log.txt`` and ``metrics.jsonl``; as a context closes itself."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"
        self._mirror: Mirror | None = None

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None)

    def mirror_to(self, mirror: Mirror | None) -> None:
        """Send records and pictures to ``mirror`` too, from now on; None: to the files alone."""
        self._mirror = mirror

    def say(self, text: str) -> None:
        """One line on the terminal (above a progress bar) and, with the time, in the log."""
        tqdm.write(text, file=sys.stdout)
        with self._log.open("a") as stream:
            stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")

    def record(self, **values: Any) -> None:
        """One line of metrics.jsonl."""
        with self._metrics.open("a") as stream:
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

    def rewind(self, phase: str, step: int) -> None:
        """Drop the records of ``phase`` after ``step``: a resumed run writes them again.

        A mirror keeps what it got; a resumed run sends it the same values for the same steps.
        """
        if not self._metrics.exists():
            return
        lines = self._metrics.read_text(errors="replace").splitlines()
        kept = [line for line in lines if not _is_after(line, phase, step)]
        if len(kept) < len(lines):
            write_text(self._metrics, "".join(line + "\n" for line in kept))

    def _mirrored(self, send: Callable[[Mirror], None]) -> None:
        if self._mirror is None:
            return
        try:
            send(self._mirror)
        except Exception as error:  # a service that is away must not end a training run
            self._mirror = None
            self.say(f"tracking: nothing is mirrored from here on ({one_line(error)})")


def one_line(error: BaseException) -> str:
    """An exception's text as one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _is_after(line: str, phase: str, step: int) -> bool:
    try:
        record = json.loads(line)
        return bool(record.get("phase") == phase and record.get("step", 0) > step)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return True  # cut off by an interruption, or none of this program's


class SilentTracker(Tracker):
    """For the processes beside the first: one run, one log."""

    def say(self, text: str) -> None:
        pass

    def record(self, **values: Any) -> None:
        pass

    def rewind(self, phase: str, step: int) -> None:
        pass
