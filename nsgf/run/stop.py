"""Ending a training run on request: a signal, or a limit of time."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Stopped(Exception):
    """Training ended early, as asked; what was done is saved."""

    folder: Path | None = None
    """The run folder, where it is known."""


class StopRequest:
    """Whether training shall end after the update at hand, and why."""

    def __init__(
        self, max_hours: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            max_hours: time from now on after which training shall end; None: no limit.
            clock: seconds that never go backwards.
        """
        self._clock = clock
        self._deadline = None if max_hours is None else clock() + 3600 * max_hours
        self._limit = f"train.max_hours = {max_hours:g} is over" if max_hours is not None else ""
        self._signal: str | None = None

    @property
    def reason(self) -> str | None:
        """What asks for the end; None: nothing does."""
        if self._signal is None and self._deadline is not None and self._clock() >= self._deadline:
            return self._limit
        return self._signal

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT (Ctrl-C) and SIGTERM for requests; a Ctrl-C after either interrupts at once.

        Must be called in the main thread.
        """
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._take) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self._signal is not None:
            raise KeyboardInterrupt
        self._signal = name
        # not print: what was interrupted may be in the middle of printing
        os.write(2, f"\nnsgf: {name}: ends after this step; Ctrl-C ends at once\n".encode())
