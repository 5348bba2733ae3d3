"""The run that --exp NAME stands for."""

import shutil
from pathlib import Path

import pytest

from nsgf.run.folder import RunFolder, dump_config
from nsgf.run.newest import newest_run
from nsgf.system.errors import UserError


@pytest.fixture
def usable(tiny_run: RunFolder) -> RunFolder:
    return RunFolder(tiny_run.path.rename(tiny_run.path.parent / "2d-20260101_000000"))


def later(run: RunFolder, day: int) -> Path:
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
        assert line.startswith(f"run {usable.path}; skipped: {damaged.name} (")
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
