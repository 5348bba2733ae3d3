import os
import shutil
from dataclasses import replace

import pytest

from nsgf.cli import main
from nsgf.commands.list_runs import run_table
from nsgf.comparison import Row, table_csv
from nsgf.comparison.trials import FLOOR
from nsgf.report import curves
from nsgf.run.folder import RunFolder
from nsgf.run.lock import lock_folder
from nsgf.run.log import RunLog
from nsgf.system.errors import UserError
from tests.conftest import compared
from tests.run.test_checkpoint import craft


@pytest.fixture
def run(tmp_path):
    return RunFolder.prepare(tmp_path / "run")


def test_curves_are_those_of_the_phases(run):
    log = RunLog(run.path)
    for phase, step in (("nsgf", 10), ("nsgf", 20), ("nsf", 10)):
        log.record(phase=phase, step=step, loss=1 / step, grad_norm=float(step), lr=0.1)
    assert list(curves(run)) == ["nsgf", "nsf"]
    assert curves(run) == {"nsgf": [(10, 0.1, 10.0), (20, 0.05, 20.0)], "nsf": [(10, 0.1, 10.0)]}
    log.record(phase="nsf", step=20, loss=0.25, grad_norm=1.0)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "nsf", "step": 30, "lo')
    assert curves(run)["nsf"] == [(10, 0.1, 10.0), (20, 0.25, 1.0)]


@pytest.fixture
def runs(small_run):
    """A finished run, an older one without readable settings, and something else."""
    folder = small_run.path.parent
    other = folder / "2d-older"
    shutil.copytree(small_run.path, other)
    (other / "config.yaml").write_text("phases: [nsgf, nothing]\n")
    os.utime(other, (0, 0))
    (folder / ".features").mkdir()
    return folder


def test_runs_are_listed_the_newest_first(runs, small_run):
    for file in small_run.path.glob("checkpoints/phase3*"):
        file.unlink()
    head, newest, damaged = run_table(runs)
    assert head.split() == ["run", "data", "method", "progress", "last", "loss", "time", "size"]
    assert newest.split()[1:3] == ["8gaussians", "nsgf"]
    assert newest.startswith(small_run.path.name)
    assert "nsgf 12/12, nsf 12/12, predictor 0/12" in newest
    assert newest.endswith("KB")
    assert damaged.startswith("2d-older")
    assert "cannot be read" in damaged


def test_last_loss_is_that_of_the_last_phase(small, runs, small_run):
    small_run.write_config(replace(small, phases=["nsgf"]))
    loss = curves(small_run)["nsgf"][-1][1]
    assert f" {loss:.4g} " in run_table(runs)[1]


def test_run_without_a_checkpoint_is_aborted_unless_a_process_works_on_it(tiny):
    run = RunFolder.create(tiny)
    assert "aborted" in run_table(run.path.parent)[1]
    with lock_folder(run.path):
        assert "nsgf 0/12" in run_table(run.path.parent)[1]
    assert "aborted" in run_table(run.path.parent)[1]


def test_comparison_is_listed_with_its_trials(tmp_path):
    """Of a method that cannot be sampled with these calls there are none."""
    flags = ("--methods=nsgf,icfm,nsgf++", "--compare.targets=[moons,scurve]")
    flags += ("--compare.seeds=3", "--compare.nfe=[2]")
    comparison, folder = compared("2d", *flags), tmp_path / "compare-2d"
    folder.mkdir()
    (folder / "comparison.yaml").write_text(comparison.settings_text)
    places = [("moons", "nsgf", 0), ("moons", "nsgf", 1), ("moons", FLOOR, 0)]
    rows = [
        Row(*place, 0, nfe, 5.0, 9, 1.0, 1.0, {"w2": 1.0}) for place in places for nfe in (5, 9)
    ]
    (folder / "table.csv").write_text(table_csv(rows))
    line = run_table(tmp_path)[1]
    assert line.split()[:3] == ["compare-2d", "moons,scurve", "nsgf,icfm,nsgf++"]
    assert "2 of 12 trials" in line


def break_pipe(run):
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")


def break_checkpoint(run):
    shutil.copy(next(run.parent.glob("2d-2*/config.yaml")), run)
    for file in run.glob("checkpoints/phase1*"):
        craft(file, b"", phase="nsgf", step=12)


def break_comparison(run):
    text = compared("2d", "--methods=nsgf").settings_text
    (run / "comparison.yaml").write_text(text.replace("phases:\n    - nsgf", "phases: []"))


@pytest.mark.parametrize("break_run", [break_pipe, break_checkpoint, break_comparison])
def test_a_run_that_cannot_be_read_hides_no_other(runs, small_run, break_run):
    break_run(runs / "2d-older")
    lines = {line.split()[0]: line for line in run_table(runs)}
    assert "cannot be read" in lines["2d-older"]
    assert "nsgf 12/12" in lines[small_run.path.name]


def test_command_needs_no_experiment(runs, small_run, capsys):
    assert main(["list", "--out-dir", str(runs)]) == 0
    assert small_run.path.name in capsys.readouterr().out
    with pytest.raises(UserError, match="out_dir"):
        run_table(runs / "nowhere")
