"""A run folder that is damaged, moved or killed between and during sessions."""

import subprocess
import sys
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.phases.base import load_network
from nsgf.run.checkpoint import previous_file
from nsgf.system.errors import UserError
from tests.commands.test_train import assert_equal
from tests.run.test_checkpoint import CPU


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # the one before may be the same file
    file.write_bytes(content)


def test_run_with_a_damaged_checkpoint_ends_as_it_would_have(tiny, tiny_run):
    """The newest checkpoint of phase 2 is damaged; training resumes from the one before."""
    flip_a_bit(tiny_run.checkpoint_file("nsf"))
    (nsf,) = Experiment(tiny).phases(["nsf"])
    assert "is damaged" in load_network(nsf, tiny_run, CPU).progress
    metrics = (tiny_run.path / "metrics.jsonl").read_bytes()
    train(Experiment(tiny), tiny_run)
    log = (tiny_run.path / "log.txt").read_text()
    assert "phase2_nsf.pt is damaged" in log
    assert "nsf: continues after step 10 of 12" in log
    assert (tiny_run.path / "metrics.jsonl").read_bytes() == metrics
    assert_equal(tiny_run, train(Experiment(tiny)))


def test_damaged_checkpoint_without_one_before_says_how_to_train_its_phase_anew(tiny_run, capsys):
    file = tiny_run.checkpoint_file("nsf")
    previous_file(file).unlink()
    flip_a_bit(file)
    assert main(["sample", "--run", str(tiny_run.path), "--num-samples", "9"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"train --run {tiny_run.path} --resume-phase 2\n")


def test_damaged_checkpoint_is_found_before_the_next_phase_is_trained(tiny, tiny_run):
    damaged = tiny_run.checkpoint_file("nsgf")
    for file in {*damaged.parent.iterdir()} - {damaged}:
        file.unlink()
    flip_a_bit(damaged)
    with pytest.raises(UserError, match="remove it"):
        train(Experiment(tiny), tiny_run)
    assert not tiny_run.checkpoint_file("nsf").exists()


TORTURE = Path(__file__).resolve().parents[2] / "scripts" / "torture.py"


def torture(*flags):
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
@pytest.mark.timeout(7200)
def test_commands_that_are_killed_at_every_file_operation_end_as_undisturbed_ones():
    assert len(torture()) == 2 + 8


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_runs_that_are_killed_end_as_the_undisturbed_one():
    flags = ["--damage", "0.4", "--train-iters=100", "--pool-batches=10"]
    assert "| 2d | 5 |" in torture("--exp", "2d", "--kills", "5", *flags)[-1]
