"""The one exception that is meant for the user, and texts made safe to show and to share."""

import re

MAX_LENGTH = 2000
"""Characters of a message; what is longer quotes a file or a flag at length."""

ABSOLUTE_PATH = re.compile(
    r"""(?<![\w.+/~-])(?:~\w*)?/(?=[^\s/])(?:[^/\n"',;:()]*[^\s/"',;:()]/)*"""
)
"""All but the last part of a path, whose folders may have spaces within their names."""


class UserError(Exception):
    """Something the user can mend: its message is one line with the cause and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(said: str | BaseException) -> str:
    """A text or an exception as a single printable line: others' words may hold line ends or
    terminal codes. An exception without words is named by its type.
    """
    text = str(said)
    if isinstance(said, BaseException) and not text.strip():
        text = type(said).__name__
    if len(text) > MAX_LENGTH:
        text = f"{text[: MAX_LENGTH * 3 // 4]} ... {text[-MAX_LENGTH // 5 :]}"
    return printable(" ".join(text.split()))


def cause(error: OSError) -> str:
    """Why the system refused, in its words; without words an error is named by its type."""
    return one_line(error.strerror or error)


def printable(text: str) -> str:
    """A text with line ends, and everything else that is no printable character escaped."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def shorten_paths(text: str) -> str:
    """Return a text in which absolute paths have only their last part: they name folders and users
    of this machine.
    """
    return ABSOLUTE_PATH.sub("", text)
