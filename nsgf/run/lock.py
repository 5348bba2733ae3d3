"""One process at a time in a folder."""

import errno
import functools
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from nsgf.run.folder import write_text
from nsgf.system.errors import UserError
from nsgf.system.output import show_error

WAIT_SECONDS = 1.0
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO)
"""Errors of file systems that have no locks."""


class Busy(UserError):
    """Another process has locked the run folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder.

    The operating system releases the lock when its process ends, so a killed process blocks nobody.
    A file system without locks is used with a warning.

    Raises:
        Busy: another process works there; the message names it.
        OSError: the folder cannot be written.
    """
    lock, owner = _lock(folder / "lock"), folder / "lock.owner"
    try:
        lock.acquire()
    except Timeout as error:
        who = owner.read_text(errors="replace").strip() if owner.exists() else "another process"
        raise Busy(f"run = {folder}: {who} works on it; wait for its end") from error
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        _warn_once(folder.stat().st_dev)
    try:
        started = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        write_text(owner, f"process {os.getpid()} on {platform.node()} since {started}\n")
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process works in a run folder, or may do so where locks cannot be tried."""
    if not (folder / "lock").exists():
        return False
    lock = _lock(folder / "lock")
    try:
        lock.acquire()
    except (Timeout, OSError, NotImplementedError):
        return True
    lock.release()
    return False


@contextmanager
def wait_for_lock(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock a folder as soon as other processes have released it.

    Args:
        folder: made if needed.
        waiting: called about once a second while waiting; an exception ends the wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(lock_folder(folder))
                break
            except Busy:
                waiting()
                time.sleep(WAIT_SECONDS)
        yield


@functools.cache
def _warn_once(device: int) -> None:
    """Warn about a device without locks."""
    show_error(
        "warning: this file system has no locks; let only one process at a time work in a run"
    )


def _lock(file: Path) -> FileLock:
    """Return a lock of the operating system, never one that a killed process leaves behind."""
    try:
        return FileLock(file, timeout=0, fallback_to_soft=False)
    except TypeError:  # versions that know no other kind
        return FileLock(file, timeout=0)
