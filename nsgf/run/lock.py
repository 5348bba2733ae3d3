"""Locks that let only one process at a time work in a folder."""

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

from nsgf.system.errors import UserError
from nsgf.system.files import write_text
from nsgf.system.output import show_error

WAIT_SECONDS = 1.0
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO)
"""Error numbers of file systems without locks."""


_warn_once = functools.cache(show_error)


class Busy(UserError):
    """Another process has locked the run folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Context in which a run folder is locked.

    The operating system releases the lock when the process ends, even if it is killed. If the file
    system has no locks, print a warning and continue.

    Raises:
        Busy: another process has locked the folder. The message names the process.
        OSError: the folder cannot be written.
    """
    lock = _lock(folder / "lock")
    owner = folder / "lock.owner"
    try:
        lock.acquire()
    except Timeout as error:
        who = owner.read_text(errors="replace").strip() if owner.exists() else "another process"
        raise Busy(f"run = {folder}: {who} works on it; wait until it ends") from error
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        _warn_once("warning: this file system has no locks; let only one process work in a run")
    try:
        write_text(
            owner,
            f"process {os.getpid()} on {platform.node()} since "
            f"{datetime.now():%Y-%m-%d %H:%M:%S}\n",
        )
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process works in a run folder. True if the lock cannot be tested."""
    if not (folder / "lock").exists():
        return False
    try:
        with _lock(folder / "lock"):
            return False
    except (Timeout, OSError, NotImplementedError):
        return True


@contextmanager
def wait_for_lock(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Make a folder if needed, wait until no other process locks it, then lock it in the context.

    ``waiting`` is called about once a second during the wait. An exception ends the wait.
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


def _lock(file: Path) -> FileLock:
    """Return a lock of the operating system. The system releases it when the process ends. A plain
    lock file would remain if the process is killed."""
    try:
        return FileLock(file, timeout=0, fallback_to_soft=False)
    except TypeError:  # older versions of filelock lack the argument fallback_to_soft
        return FileLock(file, timeout=0)
