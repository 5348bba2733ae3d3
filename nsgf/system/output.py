"""Output to the terminal, numbers with units as text, and facts about torchrun.

Control characters are escaped, and a closed terminal or pipe does not end the program. This module
does not import torch, so that --help is fast.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TextIO

from nsgf.system.errors import printable

Log = Callable[[str], None]
"""Function that takes a line for the user."""
_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)


def show(text: str, stream: TextIO | None = None) -> None:
    """Print a text to ``stream``, or to stdout, immediately and above a progress bar."""
    from tqdm import tqdm

    stream = stream or sys.stdout
    if is_silent() or stream is None:  # stdout is None in a program without a terminal
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    line = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        tqdm.write(line, file=stream)
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # Python flushes at exit, which must not fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_error(text: str) -> None:
    """Print a text to stderr at once."""
    show(text, sys.stderr)


@contextmanager
def silence(is_on: bool = True) -> Iterator[None]:
    """Context in which the package prints nothing in this thread. If not ``is_on``, the package
    prints again. The output streams do not change, because they belong to all threads of the
    caller."""
    token = _is_silent.set(is_on)
    try:
        yield
    finally:
        _is_silent.reset(token)


def is_silent() -> bool:
    """Whether the package prints nothing in this thread."""
    return _is_silent.get()


STARTED_BY = os.getppid()
"""Id of the parent process at the start. If the id changes later, the parent has ended."""


def is_launched() -> bool:
    """Whether torchrun started this process as one of several processes."""
    numbers = [os.environ.get(key, "") for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK")]
    return all(map(str.isdecimal, numbers)) and int(numbers[0]) > 1


def launched_rank() -> int:
    """Return the rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0


def local_processes(size: int) -> int:
    """Return how many of ``size`` processes torchrun started on this machine."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(number) if number.isdecimal() else size


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in powers of 1000: 1536 is '1.5 KB'."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_hours(seconds: float) -> str:
    """Return seconds as text: 90 is '1.5 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
