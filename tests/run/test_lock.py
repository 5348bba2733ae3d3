import errno
import fcntl
import multiprocessing
import os
import time
from unittest.mock import Mock

import pytest

from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.run import lock
from nsgf.run.lock import lock_folder, wait_for_lock
from nsgf.system.errors import UserError


def hold(folder, ready):
    with lock_folder(folder):
        ready.send(True)
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Another process that works in ``tmp_path``; forked, as starting one takes seconds."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, there), daemon=True)
    process.start()
    assert here.poll(30)
    yield process
    process.kill()
    process.join()


def test_second_process_is_refused_and_the_first_is_named(tmp_path, holder):
    expected = rf"process {holder.pid} on .* since .* works on it"
    with pytest.raises(UserError, match=expected), lock_folder(tmp_path):
        pass


def test_waiting_ends_when_the_other_process_is_killed(tmp_path, holder):
    ask = Mock(side_effect=holder.kill)
    with wait_for_lock(tmp_path, ask):
        assert f"process {holder.pid} " not in (tmp_path / "lock.owner").read_text()
        with pytest.raises(UserError), lock_folder(tmp_path):
            pass
    ask.assert_called()


def test_training_holds_its_run_folder(tiny, tiny_run):
    with lock_folder(tiny_run.path), pytest.raises(UserError, match="works on it"):
        train(Experiment(tiny), tiny_run)
    train(Experiment(tiny), tiny_run)


def test_a_run_that_cannot_be_written_is_to_be_copied(tiny, tiny_run):
    """A folder stands where the lock is to be: as for a read-only run, whoever runs the test."""
    (tiny_run.path / "lock").unlink(missing_ok=True)
    (tiny_run.path / "lock").mkdir()
    with pytest.raises(UserError, match=r"cannot be written \(.*\); resume a copy of it"):
        train(Experiment(tiny), tiny_run)


def without_locks(monkeypatch, number):
    """Let the file system refuse every lock with an error."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    lock._warn_once.cache_clear()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_file_system_without_locks_is_used_with_one_warning(tmp_path, number, monkeypatch, capsys):
    without_locks(monkeypatch, number)
    for folder in (tmp_path, tmp_path / "inner"):
        with wait_for_lock(folder, Mock()):
            assert (folder / "lock.owner").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")


def test_lock_that_is_refused_for_another_reason_is_an_error(tmp_path, monkeypatch):
    without_locks(monkeypatch, errno.EROFS)
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)), lock_folder(tmp_path):
        pass
