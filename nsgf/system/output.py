"""Output to the terminal, and facts about torchrun.

Control characters are escaped, and a closed terminal or pipe does not end the program. This module
does not import torch, so that --help is fast.
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

    _write_safely(sys.stdout, lambda stream: tqdm.write(_escape_for(text, stream), file=stream))


def show_error(text: str) -> None:
    """Print a text to stderr at once."""
    _write_safely(sys.stderr, lambda stream: print(_escape_for(text, stream), file=stream))


@contextmanager
def silence() -> Iterator[None]:
    """Context without any output of this process."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _escape_for(text: str, stream: TextIO) -> str:
    """Escape the characters that the stream's encoding cannot write."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def _write_safely(stream: TextIO, write: Callable[[TextIO], object]) -> None:
    try:
        write(stream)
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # otherwise Python fails when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


STARTED_BY = os.getppid()
"""Id of the parent process; another id later means that the parent has ended."""


def is_launched() -> bool:
    """Whether torchrun started this process together with others: its variables are numbers."""
    size, *ranks = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    return all(map(str.isdecimal, (size, *ranks))) and int(size) > 1


def launched_rank() -> int:
    """Return the rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0


def local_processes(size: int) -> int:
    """Return how many of ``size`` processes torchrun started on this machine."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(number) if number.isdecimal() else size
