"""One process at a time in a folder."""

import errno
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from nsgf.run.folder import write_text
from nsgf.system.errors import UserError, one_line
from nsgf.system.output import show_error

WAIT_SECONDS = 1.0
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO)
"""Errors of file systems that have no locks."""
_warned: set[int] = set()
"""Devices of file systems that a warning has named."""


class Busy(UserError):
    """Another process holds the run folder."""


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes.

    The operating system lets go of the lock when its process ends, however it ends, so one that is
    left behind in a moved or interrupted run holds nobody up. A file system without locks is used
    all the same, and a warning says so once.

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
        _warn_once(folder, error)
    try:
        started = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        write_text(owner, f"process {os.getpid()} on {platform.node()} since {started}\n")
        yield
    finally:
        lock.release()


@contextmanager
def in_turn(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a folder that processes share, after those that hold it now.

    Args:
        folder: made if it is not there.
        waiting: called about once a second until it is free; what it raises ends the wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(only_process(folder))
                break
            except Busy:
                waiting()
                time.sleep(WAIT_SECONDS)
        yield


def _warn_once(folder: Path, error: Exception) -> None:
    """Warn that a file system has no locks, with the first of its folders that is used."""
    device = folder.stat().st_dev
    if device not in _warned:
        _warned.add(device)
        show_error(
            f"warning: {folder} cannot be locked ({one_line(error)}); let only one process at a "
            "time work there"
        )


def _lock(file: Path) -> FileLock:
    """A lock of the operating system's, never the kind that a killed process leaves behind."""
    try:
        return FileLock(file, timeout=0, fallback_to_soft=False)
    except TypeError:  # versions that know no other kind
        return FileLock(file, timeout=0)
