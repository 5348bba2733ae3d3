"""Show the progress of long work: a bar on a terminal or in a notebook, or plain lines."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tqdm.auto import tqdm

from nsgf.system.output import format_hours, show_error

LINE_SECONDS = 30.0
DRAW_SECONDS = 0.2

Item = TypeVar("Item")


def is_terminal() -> bool:
    """Whether stderr, where bars are drawn, is a terminal or a notebook's cell."""
    try:
        return sys.stderr.isatty() or type(sys.stderr).__module__ == "ipykernel.iostream"
    except (AttributeError, ValueError):  # stderr is missing or closed
        return False


class Progress:
    """Count units of work and show progress; a context manager that prints the last line."""

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        line: Callable[[str], None] | None = None,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            title: name of the work.
            total: number of units, of which ``done`` are already finished.
            line: function that gets a line every LINE_SECONDS, and after the first and last unit.
                None: print lines to stderr if there is no bar; short work prints none.
            shown: whether to show a bar.
            clock: monotonic clock, in seconds.
        """
        self._title = title
        self._total = total
        self._unit = unit
        self._done = done
        self._has_log = line is not None
        self._line = line or _to_stderr
        self._clock = clock
        self._loss: float | None = None
        self._last = done
        self._last_at = clock()
        self._lines = 0
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=title,
            unit=unit,
            leave=self._has_log,
            delay=0 if self._has_log else 1,
            mininterval=DRAW_SECONDS,
            disable=not (shown and is_terminal()),
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._done > self._last and (self._has_log or self._lines):
            self._write_line(self._clock())
        self._draw(self._bar.close)

    def update(self, count: int = 1, loss: float | None = None) -> None:
        """Count finished units, and show ``loss``."""
        self._done += count
        if loss is not None:
            self._loss = loss
            self._bar.set_postfix_str(f"loss={loss:.4g}", refresh=False)
        self._draw(lambda: self._bar.update(count))
        now = self._clock()
        if now - self._last_at >= LINE_SECONDS or (self._has_log and not self._lines):
            self._write_line(now)

    def _draw(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (OSError, ValueError):  # the terminal is gone
            self._bar.disable = True

    def _write_line(self, now: float) -> None:
        """Write a line: units, loss, units per second since the last line, time left."""
        parts = [f"{self._title}: {self._unit} {self._done} of {self._total}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4g}")
        seconds = now - self._last_at
        if seconds > 0 and (self._lines or not self._has_log):  # the first unit is slow
            speed = (self._done - self._last) / seconds
            parts.append(f"{speed:.3g}/s")
            if self._done < self._total:
                parts.append(f"{format_hours((self._total - self._done) / speed)} left")
        self._last = self._done
        self._last_at = now
        self._lines += 1
        self._line(", ".join(parts))


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


def _to_stderr(text: str) -> None:
    if not is_terminal():
        show_error(text)
