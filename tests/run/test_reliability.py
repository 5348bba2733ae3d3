"""A run folder that is damaged, moved or killed between and during sessions."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.phases.base import load_network
from nsgf.run import checkpoint
from nsgf.run.checkpoint import previous_file
from nsgf.run.folder import RunFolder
from nsgf.samples import sample_run
from tests.run.test_checkpoint import CPU
from tests.run.test_folder import files_up_to
from tests.test_experiment import assert_equal


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # the one before may be the same file
    file.write_bytes(content)


def test_run_with_a_damaged_checkpoint_ends_as_it_would_have(tiny, tiny_run):
    """The newest checkpoint of phase 2 is damaged; training resumes from the one before."""
    flip_a_bit(tiny_run.checkpoint_file("nsf"))
    assert "is damaged" in load_network(get_phase("nsf"), tiny, tiny_run, CPU).progress
    metrics = (tiny_run.path / "metrics.jsonl").read_bytes()
    train(tiny, tiny_run)
    log = (tiny_run.path / "log.txt").read_text()
    assert "phase2_nsf.pt is damaged" in log
    assert "nsf: continues after step 10 of 12" in log
    assert (tiny_run.path / "metrics.jsonl").read_bytes() == metrics
    assert_equal(tiny_run, train(tiny))


def test_damaged_checkpoint_without_one_before_says_how_to_train_its_phase_anew(
    tiny, tiny_run, capsys
):
    file = tiny_run.checkpoint_file("nsf")
    previous_file(file).unlink()
    flip_a_bit(file)
    argv = ["--run", str(tiny_run.path)]
    assert main(["sample", *argv, "--num-samples", "9"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"train --run {tiny_run.path} --resume-phase 2\n")
    file.unlink()
    assert main(["train", *argv, "--resume-phase", "2"]) == 0
    assert main(["sample", *argv, "--num-samples", "9"]) == 0


def test_run_folder_may_be_moved(tiny, tiny_run, tmp_path):
    moved = RunFolder(Path(shutil.move(tiny_run.path, tmp_path / "elsewhere")))
    longer = replace(tiny, predictor=replace(tiny.predictor, iterations=14))
    assert train(longer, moved).path == moved.path
    assert checkpoint.load(moved.checkpoint_file("predictor"))["step"] == 14
    sample_run(replace(tiny, out_dir=str(tmp_path)), moved)
    assert (moved.samples / "samples.npz").exists()


def test_full_disk_is_one_line_and_the_checkpoint_before_is_kept(tiny_run, capsys):
    file = tiny_run.checkpoint_file("predictor")
    before = file.read_bytes()
    resumed = ["train", "--run", str(tiny_run.path), "--resume", "--predictor.iterations=20"]
    with files_up_to(len(before) // 2):
        assert main(resumed) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"nsgf: error: checkpoint {file} cannot be")
    assert file.read_bytes() == before
    assert not list(file.parent.glob("*.partial"))
    assert main(resumed) == 0
    assert checkpoint.load(file)["step"] == 20


def test_folder_that_vanishes_while_training_is_one_line(tiny, monkeypatch, capsys):
    run = RunFolder.create(tiny)
    save = checkpoint.save

    def vanishing(file, payload):
        save(file, payload)
        shutil.rmtree(run.path)

    monkeypatch.setattr("nsgf.run.checkpoint.save", vanishing)
    assert main(["train", "--run", str(run.path), "--resume"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"nsgf: error: cannot use {run.path}/")


TORTURE = Path(__file__).resolve().parents[2] / "scripts" / "torture.py"


def torture(*flags: str) -> list[str]:
    """The lines that the script prints, after a check that nothing differs."""
    done = subprocess.run(
        [sys.executable, TORTURE, *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert all(line.endswith("| none |") for line in lines[2:])
    return lines


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_commands_that_are_killed_at_every_file_operation_end_as_undisturbed_ones():
    assert len(torture()) == 2 + 7


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_runs_that_are_killed_end_as_the_undisturbed_one():
    flags = ["--damage", "0.4", "--train-iters=100", "--pool-batches=10"]
    assert "| 2d | 5 |" in torture("--exp", "2d", "--kills", "5", *flags)[-1]
