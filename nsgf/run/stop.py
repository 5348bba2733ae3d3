"""Requests to stop training: a signal, or a time limit."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from socket import socket, socketpair
from types import FrameType

from nsgf.system.errors import UserError
from nsgf.system.output import STARTED_BY, is_launched

ECHO_SECONDS = 2.0
"""A second signal within this time is ignored, because it may be a copy of the first. A scheduler
sends a signal to all processes, and torchrun or ``timeout`` may pass it on to the same
processes."""
CALLBACK = "the callback returned False"
"""Reason to stop that leaves time for a picture."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Raised when training ends early on request, after everything is saved."""

    folder: Path | None = None
    """The run folder; None if not known yet."""


class StopRequest:
    """Says whether training should end after the current update, and why."""

    def __init__(self, max_hours: float | None = None) -> None:
        """``max_hours``: time limit, starting now; None: no limit."""
        self._max_hours = max_hours
        self._started = time.monotonic()
        self._signal: str | None = None
        self._taken: dict[int, float] = {}
        self._launcher = STARTED_BY if is_launched() else None

    @property
    def reason(self) -> str | None:
        """Reason to stop; None if training should continue."""
        hours = (time.monotonic() - self._started) / 3600
        if self._signal is None and self._max_hours is not None and hours >= self._max_hours:
            return f"train.max_hours = {self._max_hours:g} is over"
        if self._launcher is not None and os.getppid() != self._launcher:
            return "torchrun has ended"  # a killed torchrun cannot end its processes
        return self._signal

    def by_callback(self) -> None:
        """Stop because the caller's callback returned False."""
        self._signal = self._signal or CALLBACK

    def follow(self) -> None:
        """Stop because another process stops."""
        if self.reason is None:
            self._signal = "another process stops"

    @contextmanager
    def listening(self, signals: Sequence[int] = SIGNALS) -> Iterator[None]:
        """Let these signals request a stop inside the context. A repeated signal interrupts at
        once. Signals that the process ignores stay ignored. For example, nohup ignores SIGHUP, and
        a job in the background ignores SIGINT. Enter the context in the main thread."""
        with ExitStack() as held:
            for number in signals:
                if signal.getsignal(number) != signal.SIG_IGN:
                    held.callback(signal.signal, number, signal.signal(number, self._take))
            if self._launcher is not None:
                # the main thread may wait in torch for a process that does not answer. Then Python
                # calls no handler for a signal, but writes the signal's number to this socket. So a
                # thread that reads the socket ends the process when a signal is repeated
                received, written = socketpair()
                written.setblocking(False)
                threading.Thread(target=self._watch, args=[received], daemon=True).start()
                held.callback(written.close)
                held.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(written.fileno()))
            yield

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._launcher is None and self._is_repeated(number):
            raise KeyboardInterrupt
        name = signal.Signals(number).name
        self._signal = name
        # print must not be called here, because the signal may have interrupted a print
        line = f"\nnsgf: {name}: saving and ending after this step; repeat it to end at once\n"
        with suppress(OSError):  # stderr is closed
            os.write(2, line.encode())

    def _is_repeated(self, number: int) -> bool:
        """Whether the same signal arrived more than ECHO_SECONDS ago."""
        now = time.monotonic()
        return now - self._taken.setdefault(number, now) >= ECHO_SECONDS

    def _watch(self, received: socket) -> None:
        """End the process when a signal arrives again."""
        while number := received.recv(1):
            if self._is_repeated(number[0]):
                os._exit(130)


@contextmanager
def stop_of_caller(
    max_hours: float | None, remedy: Callable[[Path | None], str]
) -> Iterator[StopRequest]:
    """Let Ctrl-C and a time limit end a Python function after a checkpoint. Ctrl-C works as before
    in a thread that is not the main thread, or if the caller handles Ctrl-C.

    ``remedy`` takes the run folder, and returns a text that says how to continue. The text goes
    into the message of the KeyboardInterrupt or UserError.
    """
    stop = StopRequest(max_hours)
    is_main = threading.current_thread() is threading.main_thread()
    takes = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        with stop.listening([signal.SIGINT]) if takes else nullcontext():
            yield stop
        if stop.reason == "SIGINT":  # in the last step
            raise KeyboardInterrupt("SIGINT, after the last step; all is complete and saved")
    except Stopped as stopped:
        text = f"{stop.reason}, all is saved ({stopped}); {remedy(stopped.folder)}"
        raise (KeyboardInterrupt if stop.reason == "SIGINT" else UserError)(text) from None
