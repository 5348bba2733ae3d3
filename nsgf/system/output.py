"""Output to the terminal, and whether torchrun started this process.

Control characters are escaped, and a closed terminal or pipe does not end the program. Nothing here
loads torch, so that help is quick.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TextIO

from nsgf.system.errors import printable


def show(text: str) -> None:
    """Print a text to stdout at once, above a progress bar."""
    from tqdm import tqdm

    _guarded(sys.stdout, lambda stream: tqdm.write(_encodable(text, stream), file=stream))


def show_error(text: str) -> None:
    """Print a text to stderr at once."""
    _guarded(sys.stderr, lambda stream: print(_encodable(text, stream), file=stream))


@contextmanager
def silence() -> Iterator[None]:
    """Suppress all lines and progress bars of this process."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _encodable(text: str, stream: TextIO) -> str:
    """Return a text that the stream's encoding can write; other characters are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def _guarded(stream: TextIO, write: Callable[[TextIO], object]) -> None:
    try:
        write(stream)
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # else the interpreter fails when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


STARTED_BY = os.getppid()
"""Number of the parent process; a different one later means that the parent is gone."""


def is_launched() -> bool:
    """Whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def launched_rank() -> int:
    """Return the rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0
