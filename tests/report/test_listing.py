import json
import os
import shutil
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.report.listing import run_table
from nsgf.system.errors import UserError
from tests.run.test_checkpoint import craft


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


@pytest.mark.parametrize("key", ["step", "peak_memory", "loss", "steps_per_second"])
@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999", '"x"', "[]"])
def test_records_with_wrong_numbers_hide_no_run(runs, small_run, key, value):
    record = {"phase": "nsgf", "step": 12, "loss": 1.0, "grad_norm": 1.0}
    record |= {"steps_per_second": 1.0, "peak_memory": 1}
    record[key] = None
    for name in ("metrics.jsonl", "costs.jsonl"):
        (small_run.path / name).write_text(json.dumps(record).replace("null", value))
    assert any("nsgf 12/12" in line for line in run_table(runs))


def test_checkpoint_without_settings_hides_no_run(runs, small_run):
    for file in small_run.path.glob("checkpoints/phase1*"):
        craft(file, b"", phase="nsgf", step=12)
    lines = {line.split()[0]: line for line in run_table(runs)}
    assert "cannot be read: checkpoint" in lines[small_run.path.name]
    assert "2d-older" in lines


def test_pipe_in_a_run_hides_no_other(runs, small_run):
    (runs / "2d-older" / "metrics.jsonl").unlink()
    os.mkfifo(runs / "2d-older" / "metrics.jsonl")
    lines = {line.split()[0]: line for line in run_table(runs)}
    assert "cannot be read: metrics.jsonl is a pipe" in lines["2d-older"]
    assert "nsgf 12/12" in lines[small_run.path.name]


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
