"""The run folder: its name, and files that are replaced as a whole and never through a link."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest

from nsgf.config.layers import change
from nsgf.config.schema import DataFacts
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config, newest_run
from nsgf.share import open_run
from nsgf.system.errors import UserError
from nsgf.system.files import append_text, replacing, write_text
from tests.run.test_checkpoint import START


def test_clock_that_went_back_leaves_the_new_run_the_newest(tiny, monkeypatch):
    """Also of two runs that began in the same second."""
    later = Mock(now=lambda: datetime(2099, 1, 2, 3, 4, 5))
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.run.folder.datetime", later)
        RunFolder.create(tiny)
    runs = [RunFolder.create(tiny) for _ in range(2)]
    assert [run.path.name for run in runs] == ["2d-20990102_030405_2", "2d-20990102_030405_3"]
    assert newest_run(Path(tiny.out_dir), "2d", resume=True)[0].path == runs[-1].path


def test_run_of_another_process_that_begins_meanwhile_is_another_folder(tiny, monkeypatch):
    """Past mistake: A free name was looked for and then made. Two trainings shared a run folder
    in up to 70 of 300 starts.
    """
    made, mkdir = list[Path](), Path.mkdir

    def other_first(path, *args, **how):
        """Another process makes the folder just before this one."""
        if path.name.startswith("2d-") and not made:
            made.append(path)
            mkdir(path)
        mkdir(path, *args, **how)

    Path(tiny.out_dir).mkdir()
    monkeypatch.setattr(Path, "mkdir", other_first)
    assert RunFolder.create(tiny).path not in made


def test_folder_that_cannot_be_written_or_is_no_run_is_refused(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out_dir=DIR"):
        RunFolder.create(replace(tiny, out_dir=str(tmp_path / "file")))
    with pytest.raises(UserError, match="no run folder"):
        open_run(tmp_path)


def test_facts_may_have_any_name(tiny, tmp_path):
    """Past mistake: JSON's escapes of an emoji are no YAML: a run with such a name was trained
    and could not be opened.
    """
    facts = DataFacts(40, [1, 8, 8], "x", 2, class_names=["\U0001f600", "\u00e9\u65e5"])
    run = RunFolder.create(change(tiny, {"data.found": facts, "out_dir": str(tmp_path)}))
    assert run.read_settings()["data.found"] == facts
    (run.path / "facts.json").write_text("{")
    with pytest.raises(UserError, match=r"facts\.json: damaged"):
        run.read_settings()


def test_set_aside_never_overwrites(tiny):
    run = RunFolder.create(tiny)
    checkpoint.save(run.checkpoint_file("nsgf"), {**START, "step": 9})
    for step in (1, 2):
        checkpoint.save(run.checkpoint_file("nsf"), {**START, "step": step})
        run.set_aside("nsf")
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    kept = ["phase2_nsf.previous1.pt", "phase2_nsf.previous2.pt"]
    assert names == ["phase1_nsgf.pt", *kept]
    assert [checkpoint.load(run.path / "checkpoints" / name)["step"] for name in kept] == [1, 2]


def test_two_processes_may_write_the_same_file_at_once(tmp_path, monkeypatch):
    """Past mistake: All processes used one temporary name for a file. Two evaluations at once
    ended in errors or mixed files.
    """
    file, mine = tmp_path / "metrics.json", os.getpid()
    with replacing(file) as one:
        one.write(b"one")
        monkeypatch.setattr("nsgf.system.files.os.getpid", os.getppid)
        with replacing(file) as other:
            other.write(b"other")
        monkeypatch.setattr("nsgf.system.files.os.getpid", lambda: mine)
        assert file.read_bytes() == b"other"
    assert file.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_two_threads_may_write_the_same_file_at_once(tmp_path):
    file = tmp_path / "metrics.json"
    with replacing(file) as one:
        one.write(b"one")
        other = Thread(target=write_text, args=[file, "other"])
        other.start()
        other.join()
        assert file.read_bytes() == b"other"
    assert file.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_temporary_files_of_ended_processes_are_removed(tmp_path):
    """A process of another machine may still write for a day.

    Past mistake: Numbers of processes were compared across machines, and one machine removed the
    temporary files of another.
    """
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = platform.node()
    left = [f"a.txt.{here}-{number}.partial" for number in (ended.pid, os.getpid())]
    left += [f"a.txt.{here}-{ended.pid}_77.partial", f"a.txt.other-{ended.pid}.old.partial"]
    kept = [f"a.txt.{here}-1.partial", f"a.txt.other-{ended.pid}.partial"]
    kept += [f"other.txt.{here}-{ended.pid}.partial", "a.txt.my.partial"]
    for name in [*left, *kept]:
        (tmp_path / name).touch()
    os.utime(tmp_path / left[-1], (0, 0))
    write_text(tmp_path / "a.txt", "whole")
    assert {*os.listdir(tmp_path)} == {"a.txt", *kept}


@pytest.mark.parametrize("place", ["a.txt", "a.txt.HOST-PID.partial"])
def test_link_at_the_name_of_a_file_is_replaced_and_never_followed(place, tmp_path):
    place = place.replace("HOST-PID", f"{platform.node()}-{os.getpid()}")
    (tmp_path / "folder").mkdir()
    (victim := tmp_path / "victim").write_text("precious")
    (tmp_path / "folder" / place).symlink_to(victim)
    write_text(tmp_path / "folder" / "a.txt", "whole")
    assert victim.read_text() == "precious"
    assert os.listdir(tmp_path / "folder") == ["a.txt"]
    assert not (tmp_path / "folder" / "a.txt").is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be synchronized")
def test_renames_and_new_folders_are_brought_to_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    run = RunFolder.prepare(tmp_path / "run")
    assert {tmp_path.stat().st_ino, run.path.stat().st_ino} <= set(synced)
    file = run.checkpoint_file("nsgf")
    for act in (
        lambda: checkpoint.save(file, {**START, "step": 1}),
        lambda: checkpoint.save(file, {**START, "step": 2}),
        lambda: (file.unlink(), checkpoint.restore_previous(file, lambda _: None)),
        lambda: run.set_aside("nsgf"),
    ):
        synced.clear()
        act()
        assert file.parent.stat().st_ino in synced


@contextmanager
def files_up_to(size):
    """A real limit of the operating system on the size of files; as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [write_text, append_text])
def test_error_of_a_file_that_grows_too_large_names_it(tmp_path, write):
    """The system itself names no file then."""
    file = tmp_path / "log.txt"
    with files_up_to(100), pytest.raises(OSError, match="File too large") as caught:
        write(file, "x" * 1000)
    assert caught.value.filename == str(file)


# --- the run that --exp NAME stands for ---------------------------------------------------------


@pytest.fixture
def usable(tiny_run):
    return RunFolder(tiny_run.path.rename(tiny_run.path.parent / "2d-20260101_000000"))


def later(run, day):
    """A copy of a run that began on a later day."""
    return Path(shutil.copytree(run.path, run.path.parent / f"2d-202602{day:02}_000000"))


def test_runs_that_cannot_be_used_are_passed_over_by_name(usable, tiny):
    shutil.rmtree((empty := later(usable, 1)) / "checkpoints")
    shutil.rmtree(empty / "pool")
    (wrong := later(usable, 2) / "config.yaml").write_text("phases: 3\n")
    for file in (damaged := later(usable, 3)).glob("checkpoints/phase1*"):
        file.write_bytes(b"x")
    out_dir = Path(tiny.out_dir)
    for resume in (False, True):
        run, line = newest_run(out_dir, "2d", resume=resume)
        assert run.path == usable.path
        assert line.startswith(f"run {usable.path}; skipped {damaged.name} (")
        assert f"{wrong.parent.name} (" in line
        assert f"{empty.name} (no checkpoint)" in line
    (empty / "pool").mkdir()
    assert newest_run(out_dir, "2d", resume=True)[0].path == empty
    assert newest_run(out_dir, "2d")[0].path == usable.path
    newest = later(usable, 4)
    assert newest_run(out_dir, "2d")[1] == f"run {newest}"


def test_newest_run_is_of_that_experiment(tiny, tmp_path):
    for name in (
        *("2d-20260101_000000", "2d-20270101_000000", "2d-big-20280101_000000"),
        "2d-20290101_000000_backup",
    ):
        (tmp_path / name / "pool").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text(dump_config(tiny))
    (tmp_path / "2d-20290101_000000").mkdir()  # no configuration in it
    for exp, name in (("2d", "2d-20270101_000000"), ("2d-big", "2d-big-20280101_000000")):
        assert newest_run(tmp_path, exp, resume=True)[0].path.name == name
    with pytest.raises(UserError, match="no run of mnist"):
        newest_run(tmp_path, "mnist")
