"""Show the progress of long work: a bar on a terminal or in a notebook, or plain lines."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

from tqdm.auto import tqdm

from nsgf.system.output import Log, format_hours, is_silent, show_error

LINE_SECONDS = 30.0
DRAW_SECONDS = 0.2
LOST = (OSError, ValueError)
"""Errors that are raised when the terminal no longer exists."""

Item = TypeVar("Item")


def is_terminal() -> bool:
    """Whether stderr, where bars are drawn, is a terminal or a notebook's cell."""
    try:
        return sys.stderr.isatty() or type(sys.stderr).__module__ == "ipykernel.iostream"
    except (AttributeError, ValueError):  # stderr is missing or closed
        return False


@dataclass
class Progress(AbstractContextManager["Progress"]):
    """Context manager that counts units of work and shows the progress. Leaving the context writes
    the last line."""

    title: str
    """Name of the work."""
    total: int
    """Number of units."""
    unit: str
    done: int = 0
    """Number of finished units."""
    line: Log | None = None
    """Function that is called with a line every LINE_SECONDS, after the first unit and after the
    last unit. None: if there is no bar, print the lines to stderr; short work prints none."""
    has_bar: bool = True
    """Whether to show a bar."""

    def __post_init__(self) -> None:
        self._loss = ""
        self._last = self.done
        self._last_at = time.monotonic()
        self._is_begun = False
        """Whether a line has been written."""
        has_log = self.line is not None
        self._bar = tqdm(
            total=self.total,
            initial=self.done,
            desc=self.title,
            unit=self.unit,
            leave=has_log,
            delay=0 if has_log else 1,
            mininterval=DRAW_SECONDS,
            disable=is_silent() or not (self.has_bar and is_terminal()),
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.done > self._last and (self.line or self._is_begun):
            self._write_line(time.monotonic())
        with suppress(*LOST):
            self._bar.close()

    def update(self, count: int = 1, loss: float | None = None) -> None:
        """Add ``count`` finished units, and show ``loss``."""
        self.done += count
        if loss is not None:
            self._loss = f", loss {loss:.4g}"
            self._bar.set_postfix_str(f"loss={loss:.4g}", refresh=False)
        try:
            self._bar.update(count)
        except LOST:
            self._bar.disable = True
        now = time.monotonic()
        if now - self._last_at >= LINE_SECONDS or (self.line and not self._is_begun):
            self._write_line(now)

    def _write_line(self, now: float) -> None:
        """Write a line with finished units, loss, units per second since the last line, and time
        left."""
        text = f"{self.title}: {self.unit} {self.done} of {self.total}{self._loss}"
        seconds = now - self._last_at
        if seconds > 0 and (self._is_begun or not self.line):  # the first unit is slow
            speed = (self.done - self._last) / seconds
            text += f", {speed:.3g}/s"
            if self.done < self.total and speed:
                text += f", {format_hours((self.total - self.done) / speed)} left"
        self._last = self.done
        self._last_at = now
        self._is_begun = True
        if self.line:
            self.line(text)
        elif not is_terminal():
            show_error(text)


def count_progress(
    things: Sequence[Item],
    title: str,
    unit: str,
    counter: Callable[[str, int, str], Progress] = Progress,
) -> Iterator[Item]:
    """Yield ``things`` and show the progress. ``counter`` makes the Progress."""
    with counter(title, len(things), unit) as progress:
        for thing in things:
            yield thing
            progress.update()
