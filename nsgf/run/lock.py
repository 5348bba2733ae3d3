"""One process at a time in a folder."""

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

WAIT_SECONDS = 1.0


class Busy(UserError):
    """Another process holds the run folder."""


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes.

    The operating system lets go of the lock when its process ends, however it ends, so one that is
    left behind in a moved or interrupted run holds nobody up. A file system that knows no locks is
    used without one.

    Raises:
        Busy: another process works there; the message names it.
        OSError: the folder cannot be written.
    """
    lock, owner = _lock(folder / "lock"), folder / "lock.owner"
    try:
        lock.acquire()
    except NotImplementedError:
        pass
    except Timeout as error:
        who = owner.read_text(errors="replace").strip() if owner.exists() else "another process"
        raise Busy(f"run = {folder}: {who} works on it; wait for its end") from error
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


def _lock(file: Path) -> FileLock:
    """A lock of the operating system's, never the kind that a killed process leaves behind."""
    try:
        return FileLock(file, timeout=0, fallback_to_soft=False)
    except TypeError:  # versions that know no other kind
        return FileLock(file, timeout=0)
