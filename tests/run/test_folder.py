"""Files of a run folder: replaced as a whole, beside other processes, and never through a link."""

import os
import resource
import subprocess
import sys

import pytest

from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, append_text, check_links, replacing, write_text
from tests.run.test_checkpoint import START


def test_two_processes_may_write_the_same_file_at_once(tmp_path, monkeypatch):
    """Each ends with a whole file, and takes nothing from the other."""
    file, mine = tmp_path / "metrics.json", os.getpid()
    with replacing(file) as one:
        one.write(b"one")
        monkeypatch.setattr("nsgf.run.folder.os.getpid", os.getppid)
        with replacing(file) as other:
            other.write(b"other")
        monkeypatch.setattr("nsgf.run.folder.os.getpid", lambda: mine)
        assert file.read_bytes() == b"other"
    assert file.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_what_ended_processes_have_left_is_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"a.txt.{who}.partial" for who in (ended.pid, os.getpid(), "x", "9" * 30, "1")]
    for name in [*names, "other.txt.x.partial"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "a.txt", "whole")
    kept = {"a.txt", "a.txt.1.partial", "other.txt.x.partial"}
    assert set(os.listdir(tmp_path)) == kept


@pytest.mark.parametrize("place", ["a.txt", "a.txt.PID.partial"])
def test_a_link_in_the_way_is_replaced_and_never_followed(place, tmp_path):
    place = place.replace("PID", str(os.getpid()))
    (tmp_path / "folder").mkdir()
    (victim := tmp_path / "victim").write_text("precious")
    (tmp_path / "folder" / place).symlink_to(victim)
    write_text(tmp_path / "folder" / "a.txt", "whole")
    assert victim.read_text() == "precious"
    assert os.listdir(tmp_path / "folder") == ["a.txt"]
    assert not (tmp_path / "folder" / "a.txt").is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be synchronized")
def test_renames_and_new_folders_are_brought_to_the_disk(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    run = RunFolder.prepare(tmp_path / "run")
    assert {tmp_path.stat().st_ino, run.path.stat().st_ino} <= set(synced)
    file = run.checkpoint_file("nsgf")
    damaged = run.checkpoint_file("nsf")
    for act in (
        lambda: checkpoint.save(file, {**START, "step": 1}),
        lambda: checkpoint.save(damaged, {**START, "step": 1}),
        lambda: checkpoint.save(damaged, {**START, "step": 2}),
        lambda: (damaged.unlink(), checkpoint.mend(damaged, lambda _: None)),
        lambda: run.set_aside("nsgf"),
    ):
        synced.clear()
        act()
        assert file.parent.stat().st_ino in synced


def test_links_are_looked_for_beside_a_training_that_replaces_files(tmp_path, monkeypatch):
    """A name that was listed may be gone when it is looked at."""
    walked = [(str(tmp_path), [], ["a.pt.1.partial", "a.pt"])]
    monkeypatch.setattr("nsgf.run.folder.os.walk", lambda _: walked)
    check_links(tmp_path)


@pytest.mark.parametrize("write", [write_text, append_text])
def test_a_file_that_grows_too_large_is_named(tmp_path, write):
    """As on a full disk: the system itself names no file then."""
    file, (soft, hard) = tmp_path / "log.txt", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(file, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(file)
