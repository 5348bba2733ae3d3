"""The exception for errors that the user can fix, and functions that make texts safe to show."""

import re
from collections.abc import Sequence

MAX_LENGTH = 2000
"""Largest number of characters of a message."""

ABSOLUTE_PATH = re.compile(
    r"""(?<![\w.+/~-])(?:~\w*)?/(?=[^\s/])(?:[^/\n"',;:()]*[^\s/"',;:()]/)*"""
)
"""Matches all parts of an absolute path except the last; folder names may contain spaces."""


class UserError(Exception):
    """An error that the user can fix. Its message is one line: setting, value, reason, remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(said: str | BaseException) -> str:
    """Return a text or an exception as one printable line. An exception without a message becomes
    the name of its type."""
    text = str(said)
    if isinstance(said, BaseException) and not text.strip():
        text = type(said).__name__
    if len(text) > MAX_LENGTH:
        text = f"{text[: MAX_LENGTH * 3 // 4]} ... {text[-MAX_LENGTH // 5 :]}"
    return printable(" ".join(text.split()))


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Return the first names in one printable line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return one_line(", ".join(names[:most]) + more)


def cause(error: OSError) -> str:
    """Return the operating system's reason for an error."""
    return one_line(error.strerror or error)


def printable(text: str) -> str:
    """Escape all characters of a text except printable ones and line ends."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def shorten_paths(text: str) -> str:
    """Shorten absolute paths in a text to their last part, since the rest may contain user
    names."""
    return ABSOLUTE_PATH.sub("", text)
