"""Lines on the terminal: all go through here. What files or names brought in cannot command it, and
a reader or terminal that went away is no reason to end.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TextIO

from nsgf.system.errors import printable


def show(text: str) -> None:
    """Text on stdout, at once and above a progress bar."""
    from tqdm import tqdm

    _guarded(sys.stdout, lambda stream: tqdm.write(_encodable(text, stream), file=stream))


def show_error(text: str) -> None:
    """Text on stderr, at once."""
    _guarded(sys.stderr, lambda stream: print(_encodable(text, stream), file=stream))


@contextmanager
def silence() -> Iterator[None]:
    """No lines and no bars of this process, for as long as the context lasts."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _encodable(text: str, stream: TextIO) -> str:
    """What can be written to a stream whose encoding may be ASCII: ``\\xb1`` for a plus-minus."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def _guarded(stream: TextIO, write: Callable[[TextIO], object]) -> None:
    try:
        write(stream)
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # or the interpreter fails at its own end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
