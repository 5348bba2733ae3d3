"""What a run says: ``log.txt`` for people, ``metrics.jsonl`` for programs."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsgf.checkpoint import write_text


class Tracker:
    """Appends to the run folder's ``log.txt`` and ``metrics.jsonl``."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log.txt"
        self._metrics = folder / "metrics.jsonl"

    def say(self, text: str) -> None:
        """One line on the terminal (above a progress bar) and, with the time, in the log."""
        tqdm.write(text, file=sys.stdout)
        with self._log.open("a") as stream:
            stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")

    def record(self, **values: Any) -> None:
        """One line of metrics.jsonl."""
        with self._metrics.open("a") as stream:
            stream.write(json.dumps(values) + "\n")

    def rewind(self, phase: str, step: int) -> None:
        """Drop the records of ``phase`` after ``step``: a resumed run writes them again."""
        if not self._metrics.exists():
            return
        lines = self._metrics.read_text().splitlines()
        kept = [line for line in lines if not _is_after(line, phase, step)]
        if len(kept) < len(lines):
            write_text(self._metrics, "".join(line + "\n" for line in kept))


def _is_after(line: str, phase: str, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:  # cut off by an interruption
        return True
    return record.get("phase") == phase and record.get("step", 0) > step


class SilentTracker(Tracker):
    """For the processes beside the first: one run, one log."""

    def say(self, text: str) -> None:
        pass

    def record(self, **values: Any) -> None:
        pass

    def rewind(self, phase: str, step: int) -> None:
        pass
