"""Errors that the user can fix, the names of settings in messages, and texts that are safe to show.

Code that raises an error does not know its caller. The command line and each public Python function
call :func:`naming` to say how they name settings:

    f"{name_setting('sinkhorn.blur', 0)}: must be > 0; try {suggest('sinkhorn.blur', 0.5)}"

    command line    sinkhorn.blur = 0: must be > 0; try --sinkhorn.blur 0.5
    SinkhornPool    blur = 0: must be > 0; try blur=0.5
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

MAX_LENGTH = 2000
"""Largest number of characters of a message."""

ABSOLUTE_PATH = re.compile(
    r"""(?<![\w.+/~-])(?:~\w*)?/(?=[^\s/])(?:[^/\n"',;:()]*[^\s/"',;:()]/)*"""
)
"""Matches all parts of an absolute path except the last. Folder names may contain spaces."""

_names: ContextVar[tuple[Mapping[str, str], bool]] = ContextVar("names", default=({}, False))
_keys: ContextVar[Mapping[str, str]] = ContextVar("keys", default=MappingProxyType({}))


@contextmanager
def naming(names: Mapping[str, str], *, are_flags: bool = False) -> Iterator[None]:
    """Context or decorator in which messages call settings by ``names``. ``names`` maps keys to
    short flags of the command line, or to arguments of a Python function. An error of the machine
    becomes a UserError (:func:`machine_problem`)."""
    token = _names.set((names, are_flags))
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if (problem := machine_problem(error)) is None:
            raise
        raise UserError(problem) from error
    finally:
        _names.reset(token)


@contextmanager
def replacing_keys(keys: Mapping[str, str]) -> Iterator[None]:
    """Context in which messages replace each key of ``keys`` by its value. With this context, code
    that reads the target can also read the source."""
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def name_setting(key: str, value: Any) -> str:
    """Return ``KEY = VALUE``, the start of a message. For samples that the caller passed as
    ``data`` or ``source``, return only the name, because the user does not know the file."""
    names, are_flags = _names.get()
    key = _keys.get().get(key, key)
    name = key if are_flags else names.get(key, key)
    return name if name in ("data", "source") and "/.data/." in str(value) else f"{name} = {value}"


def wrong_setting(key: str, value: Any, reason: str) -> "UserError":
    """Return the error for a wrong setting: ``KEY = VALUE: REASON``."""
    return UserError(f"{name_setting(key, value)}: {reason}")


def suggest(key: str, value: Any = "") -> str:
    """Return ``--KEY VALUE`` or ``KEY=VALUE``, in the form in which the user sets it. Without a
    value, return only the name."""
    names, are_flags = _names.get()
    key = _keys.get().get(key, key)
    name = names.get(key, f"--{key}" if are_flags else key)
    if value == "":
        return name
    return f"{name} {value}" if are_flags else f"{name}={value}"


class UserError(Exception):
    """An error that the user can fix. Its message is one line: setting, value, reason, remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(said: str | BaseException) -> str:
    """Return a text as one printable line. For an exception without a message, return its type."""
    text = str(said)
    if isinstance(said, BaseException) and not text.strip():
        text = type(said).__name__
    if len(text) > MAX_LENGTH:
        text = f"{text[: MAX_LENGTH * 3 // 4]} ... {text[-MAX_LENGTH // 5 :]}"
    return printable(" ".join(text.split()))


def list_names(names: Sequence[str], most: int = 10) -> str:
    """Return one printable line with the first ``most`` names and the number of the remaining
    names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return one_line(", ".join(names[:most]) + more)


def cause(error: Exception) -> str:
    """Return the reason for an error. For an error of the operating system, return only the
    system's text."""
    return one_line(getattr(error, "strerror", None) or error)


def machine_problem(error: Exception) -> str | None:
    """Return the message for an error whose cause lies outside of this program: a file, the memory,
    or another process of torchrun. Return None for every other error."""
    kind = type(error).__name__  # by name, because torch may not be loaded
    reason = one_line(error)[:200]
    if isinstance(error, OSError):
        # an error of os.getcwd has no file name
        unnamed = "the working directory" if isinstance(error, FileNotFoundError) else "a file"
        return f"cannot use {error.filename or unnamed}: {cause(error)}"
    if kind == "OutOfMemoryError":
        return f"the card's memory is full; use a smaller {suggest('sampling.batch_size')} or model"
    if is_memory_full(error):
        return f"the main memory is full ({reason}); free some, or use smaller batches or data"
    if kind != "DistBackendError" and "gloo" not in reason:
        return None
    return (
        f"another process is gone or silent ({reason}): its own lines say why, or it hangs, or its "
        "machine or the network is down; end all processes, then resume from the last checkpoint"
    )


def is_memory_full(error: BaseException) -> bool:
    """Whether an error says that the main memory is full. Torch raises RuntimeError for this."""
    text = str(error)
    return isinstance(error, MemoryError) or "DefaultCPUAll" in text or "allocate memory" in text


def printable(text: str) -> str:
    """Escape all characters of a text that are neither printable nor line ends."""
    return "".join(
        [c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text]
    )


def shorten_paths(text: str) -> str:
    """Shorten absolute paths in a text to the last part, because the remaining parts may contain
    user names."""
    return ABSOLUTE_PATH.sub("", text)
