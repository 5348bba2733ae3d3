"""Write files and folders atomically, so that a killed process leaves either the old version or the
new version. Read JSON that may be incomplete, damaged or foreign."""

import json
import math
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import psutil

from nsgf.system.errors import UserError, cause, suggest

Plain = dict[str, Any]
"""Plain values by name, from an object of JSON or a section of YAML."""
OLD_SECONDS = 86400.0
"""Age after which a temporary file of another machine is removed."""


def ensure_writable(folder: Path, key: str = "out_dir", names: Iterable[str] = ()) -> Path:
    """Create a folder if needed, check that files can be written into it, and return it. Also check
    the files ``names``. If a check fails, raise UserError with ``key``, the folder's setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
        for name in names:
            with _temporary(folder / name) as partial:
                partial.touch()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({cause(error)}); name another with {suggest(key, 'DIR')}"
        ) from error
    return folder


def write_text(file: Path, text: str) -> None:
    """Replace the content of a file atomically by this text."""
    with replacing(file) as stream:
        stream.write(text.encode())


def append_text(file: Path, text: str) -> None:
    """Add a text to the end of a file."""
    with _naming(file), file.open("a", encoding="utf-8") as stream:
        stream.write(text)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Add the file's name to system errors that lack the name, such as an error for a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Yield a stream for a new version of a file. When the new version is completely on the disk,
    it replaces the old version. After a failure, the old version stays. If the file is a link, the
    new version replaces the link."""
    with _temporary(file) as partial:
        with partial.open("x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
        sync_folder(file.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder for files. ``folder`` must be missing or empty. When all files are
    written, the new folder takes its place. If writing fails, the new folder is removed."""
    folder = folder.resolve()
    with _temporary(folder) as partial:
        partial.mkdir()
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
        sync_folder(folder.parent)


def link_or_copy(file: Path, other: Path) -> None:
    """Give a file a second name, or copy it if the file system has no links."""
    with _temporary(other) as partial:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)
        partial.replace(other)


@contextmanager
def _temporary(file: Path) -> Iterator[Path]:
    """Yield a temporary name beside a file. Only this thread uses the name, because several threads
    may write the same file. Remove the temporary file at the end. At the start, remove temporary
    files of killed processes."""
    writer = str(os.getpid())
    if threading.current_thread() is not threading.main_thread():
        writer += f"_{threading.get_ident()}"
    partial = file.with_name(f"{file.name}.{platform.node()}-{writer}.partial")
    with suppress(OSError):
        _remove(partial)
    remove_leftovers(file.parent, escape(file.name))
    try:
        with _naming(file):
            yield partial
    finally:
        _remove(partial)


def remove_leftovers(folder: Path, pattern: str = "*") -> None:
    """Remove temporary files that killed processes left in a folder. Only files whose final names
    match ``pattern`` are removed. Files of this machine are removed if their process no longer
    exists. Files of every other machine are removed after a day."""
    of_machine = re.compile(rf".+\.{re.escape(platform.node())}-(\d{{1,9}})(_\d+)?\.partial")
    for leftover in folder.glob(f"{pattern}.*-*.partial"):
        with suppress(OSError):  # another process may have removed the file
            if name := of_machine.fullmatch(leftover.name):
                is_leftover = not psutil.pid_exists(int(name[1]))
            else:
                is_leftover = time.time() - leftover.lstat().st_mtime > OLD_SECONDS
            if is_leftover:
                _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all its files, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush new and renamed files of a folder to the disk, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


COUNT = range(2**63)
"""Allowed values of a count in a record."""


def parse_object(text: str | bytes) -> Plain:
    """Return the object in a JSON text. Raise ValueError if the text is not an object, or if it
    contains a number that is not finite or an integer of more than 64 bits."""
    try:
        content = json.loads(
            text, parse_float=_finite, parse_constant=_finite, parse_int=whole_number
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return expect(content, dict)


def expect(value: Any, kind: Any) -> Any:
    """Return a value of a stored record. Raise ValueError if the value is not of this ``kind``. A
    kind is a type, a range of whole numbers, ``[kind]`` for a list of values of this kind, or
    ``(kind, ...)`` for a list with one value of each kind. The type float also accepts int."""
    if isinstance(kind, list | tuple):
        parts = expect(value, list)
        kinds = kind * len(parts) if isinstance(kind, list) else kind
        for part, part_kind in zip(parts, kinds, strict=True):
            expect(part, part_kind)
        return value
    if isinstance(kind, range) and expect(value, int) in kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r:.50} instead of {kind}")
    return value


def fields(record: Any, **kinds: Any) -> list[Any]:
    """Return the named fields of an object. Raise ValueError if a field is not of its kind; see
    :func:`expect`."""
    values = expect(record, dict)
    return [expect(values.get(name), kind) for name, kind in kinds.items()]


def read_object(file: Path) -> Plain:
    """Return the object in a JSON file. If the file cannot be read, return an empty object."""
    try:
        return parse_object(file.read_bytes())
    except (OSError, ValueError):
        return {}


def read_lines(file: Path, /, **kinds: Any) -> Iterator[list[Any]]:
    """Yield the named fields of each line of a file. Skip lines without these fields."""
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            yield fields(parse_object(line), **kinds)
        except ValueError:
            continue  # the line is incomplete, or another version wrote it


def _finite(text: str) -> float:
    """Parse a number. Raise ValueError if it is not finite."""
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.20} is not finite")
    return float(text)


def whole_number(text: str) -> int:
    """Return the integer in a text. Raise ValueError if it has more than 64 bits."""
    number = int(text)
    if number.bit_length() > 64:
        raise ValueError(f"{text:.20}... is too large")
    return number
