"""The exception for errors that the user can fix, and texts that are safe to show and share."""

import re
from collections.abc import Sequence

MAX_LENGTH = 2000
"""Largest number of characters of a message."""

ABSOLUTE_PATH = re.compile(
    r"""(?<![\w.+/~-])(?:~\w*)?/(?=[^\s/])(?:[^/\n"',;:()]*[^\s/"',;:()]/)*"""
)
"""All but the last part of an absolute path; names of folders may have spaces."""


class UserError(Exception):
    """An error that the user can fix. Its message is one line: setting, value, reason, remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(said: str | BaseException) -> str:
    """Return a text or an exception as one printable line; an exception without a message is named
    by its type."""
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
    """Return the reason that the operating system gives."""
    return one_line(error.strerror or error)


def printable(text: str) -> str:
    """Return a text with all characters escaped but line ends and printable ones."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def shorten_paths(text: str) -> str:
    """Return a text in which absolute paths keep only their last part. The other parts may name
    users of this machine."""
    return ABSOLUTE_PATH.sub("", text)
