import os
import shutil
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.report.listing import run_table
from nsgf.system.errors import UserError


@pytest.fixture
def runs(small_run) -> Path:
    """A finished run, an older one that is damaged, and what is none."""
    folder = small_run.path.parent
    other = folder / "2d-older"
    shutil.copytree(small_run.path, other)
    (other / "config.yaml").write_text("phases: [nsgf, nothing]\n")
    os.utime(other, (0, 0))
    (folder / ".classifiers").mkdir()
    return folder


def test_runs_are_listed_the_newest_first(runs, small_run):
    head, newest, damaged = run_table(runs)
    assert head.split() == ["run", "updates", "last", "loss", "time", "size"]
    assert newest.startswith(small_run.path.name)
    assert "nsgf 12/12, nsf 12/12, predictor 12/12" in newest
    assert newest.endswith("KB")
    assert damaged.startswith("2d-older")
    assert "cannot be read" in damaged


def test_a_phase_that_has_not_begun_has_no_updates(runs, small_run):
    for file in small_run.path.glob("checkpoints/phase3*"):
        file.unlink()
    assert "predictor 0/12" in run_table(runs)[1]


def test_a_folder_that_cannot_be_read_hides_no_other(runs, small_run):
    (runs / "2d-older" / "metrics.jsonl").unlink()
    (runs / "2d-older" / "metrics.jsonl").mkdir()
    lines = {line.split()[0]: line for line in run_table(runs)}
    assert "nsgf 12/12" in lines[small_run.path.name]
    assert "cannot be read: Is a directory" in lines["2d-older"]


@pytest.mark.parametrize("flags", [("--exp", "digits"), ("--nsf.lr", "1e-4"), ("--seed", "3")])
def test_flags_without_effect_are_refused(runs, flags, capsys):
    assert main(["list", "--out-dir", str(runs), *flags]) == 2
    assert "has no effect on list" in capsys.readouterr().err


def test_an_empty_folder_is_said(tmp_path):
    with pytest.raises(UserError, match="holds no run; train one"):
        run_table(tmp_path)


def test_command_needs_no_experiment(runs, small_run, capsys):
    assert main(["list", "--out-dir", str(runs)]) == 0
    assert small_run.path.name in capsys.readouterr().out
    assert main(["list", "--out-dir", str(runs / "nowhere")]) == 2
