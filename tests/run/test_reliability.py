"""What may happen to a run folder between and during sessions."""

import errno
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

from nsgf.cli import main
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.phases.base import load_network
from nsgf.report.samples import sample_run
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, earlier
from nsgf.system.errors import UserError
from tests.run.test_checkpoint import START, craft, serialized
from tests.test_experiment import assert_equal

CPU = torch.device("cpu")


@pytest.fixture
def pair(tmp_path) -> Path:
    """A checkpoint of step 2, and beside it that of step 1."""
    file = tmp_path / "phase1_nsgf.pt"
    for step in (1, 2):
        checkpoint.save(
            file, {**START, "step": step, "model": {"w": torch.full((50,), float(step))}}
        )
    return file


def test_the_last_two_are_kept(pair):
    assert checkpoint.load(pair)["step"] == 2
    assert checkpoint.load(earlier(pair))["step"] == 1
    checkpoint.save(pair, {**START, "step": 3})
    assert checkpoint.load(pair)["step"] == 3
    assert checkpoint.load(earlier(pair))["step"] == 2
    assert len(list(pair.parent.iterdir())) == 2


def test_file_system_without_links_keeps_copies(pair, monkeypatch):
    def refuses(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuses)
    checkpoint.save(pair, {**START, "step": 3})
    assert checkpoint.load(earlier(pair))["step"] == 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_truncated_checkpoint_is_put_aside_for_the_one_before(pair, share):
    content, said = pair.read_bytes(), []
    pair.unlink()
    pair.write_bytes(content[: int(share * len(content))])
    payload, remark = checkpoint.load_good(pair)
    assert payload["step"] == 1
    assert "phase1_nsgf.pt is damaged" in remark
    checkpoint.mend(pair, said.append)
    assert checkpoint.load(pair)["step"] == 1
    assert "is damaged" in said[0]
    assert (pair.parent / "phase1_nsgf.damaged1.pt").exists()
    checkpoint.save(pair, {**START, "step": 5})  # the good one is the one before now
    assert checkpoint.load(earlier(pair))["step"] == 1


def test_flipped_bits_and_cuts_are_noticed(pair):
    content, flipped = pair.read_bytes(), pair.with_name("flipped.pt")
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        flipped.write_bytes(damaged)
        assert checkpoint.damage(flipped), position
    for length in (*range(0, len(content), 97), len(content) - 1):
        flipped.write_bytes(content[:length])
        assert checkpoint.damage(flipped), length
    for longer in (content + b"x", b"x" + content, content + content):
        flipped.write_bytes(longer)
        assert checkpoint.damage(flipped)


def test_checkpoint_that_vanished_is_replaced_by_the_one_before(pair):
    pair.unlink()
    checkpoint.mend(pair, lambda _: None)
    assert checkpoint.load(pair)["step"] == 1


def test_good_checkpoints_are_left_alone(pair):
    before, said = pair.read_bytes(), []
    checkpoint.mend(pair, said.append)
    assert (pair.read_bytes(), said) == (before, [])


def test_run_with_a_damaged_checkpoint_ends_as_it_would_have(tiny, tiny_run):
    """The newest checkpoint of phase 2 is damaged; training goes on from the one before."""
    file = tiny_run.checkpoint_file("nsf")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()
    file.write_bytes(content)
    assert "is damaged" in load_network(get_phase("nsf"), tiny, tiny_run, CPU).progress
    metrics = (tiny_run.path / "metrics.jsonl").read_bytes()
    train(tiny, tiny_run)
    log = (tiny_run.path / "log.txt").read_text()
    assert "phase2_nsf.pt is damaged" in log
    assert "nsf: going on after step 10 of 12" in log
    assert (tiny_run.path / "metrics.jsonl").read_bytes() == metrics
    assert_equal(tiny_run, train(tiny))


def test_damaged_checkpoint_without_one_before_says_how_to_train_its_phase_anew(
    tiny, tiny_run, capsys
):
    """And what is said can be done."""
    file = tiny_run.checkpoint_file("nsf")
    earlier(file).unlink()
    content = bytearray(file.read_bytes())
    content[-1000] ^= 255
    file.write_bytes(content)
    argv = ["--run", str(tiny_run.path)]
    assert main(["sample", *argv, "--num-samples", "9"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    way = f"remove it and train that phase anew: train --run {tiny_run.path} --resume-phase 2\n"
    assert said.endswith(way)
    with pytest.raises(UserError, match=r"--resume-phase 2$"):  # also where it is not asked for now
        load_network(get_phase("nsf"), replace(tiny, phases=["nsgf"]), tiny_run, CPU)
    file.unlink()
    assert main(["train", *argv, "--resume-phase", "2"]) == 0
    assert main(["sample", *argv, "--num-samples", "9"]) == 0


def test_run_whose_settings_have_a_removed_key_continues_or_is_refused(tiny_run, capsys):
    """As earlier versions wrote them: ignored with the value that still holds."""
    own = tiny_run.config_file.read_text()
    argv = ["--run", str(tiny_run.path)]
    tiny_run.config_file.write_text(own.replace("mlp:\n", "mlp:\n    depth: 3\n"))
    assert main(["train", *argv, "--resume"]) == 0
    assert main(["sample", *argv, "--num-samples", "9"]) == 0
    tiny_run.config_file.write_text(own.replace("mlp:\n", "mlp:\n    depth: 2\n"))
    capsys.readouterr()
    assert main(["sample", *argv]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nsgf: error: model.mlp.depth = 2: ")
    assert said.count("\n") == 1


def test_run_folder_may_be_moved(tiny, tiny_run, tmp_path):
    moved = RunFolder(Path(shutil.move(tiny_run.path, tmp_path / "elsewhere")))
    longer = replace(tiny, predictor=replace(tiny.predictor, iterations=14))
    assert train(longer, moved).path == moved.path
    assert checkpoint.load(moved.checkpoint_file("predictor"))["step"] == 14
    sample_run(replace(tiny, out_dir=str(tmp_path)), moved)
    assert (moved.samples / "samples.npz").exists()


def test_clock_that_went_back_leaves_the_new_run_the_newest(tiny, monkeypatch):
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2099, 1, 2, 3, 4, 5)

    with monkeypatch.context() as patch:
        patch.setattr("nsgf.run.folder.datetime", Later)
        first = RunFolder.create(tiny)
    second = RunFolder.create(tiny)
    assert first.path.name == "2d-20990102_030405"
    assert second.path.name == "2d-20990102_030405_2"
    assert RunFolder.newest(Path(tiny.out_dir), "2d").path == second.path


def test_checkpoint_from_a_card_and_another_torch_is_read_on_a_cpu(tmp_path):
    """The archive's record of tensors says cuda:0 where this one says cpu."""
    on_card, written = tmp_path / "card.pt", io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(serialized({"model": {"w": torch.ones(50)}}))) as old,
        zipfile.ZipFile(written, "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                assert content.count(b"X\x03\x00\x00\x00cpu") == 1
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(name, content)
    craft(on_card, written.getvalue(), **START, step=1, versions={"torch": "1.0.0"})
    payload = checkpoint.load(on_card)
    assert payload["model"]["w"].device == CPU
    assert torch.equal(payload["model"]["w"], torch.ones(50))


def limited(arguments: list[str], nbytes: int) -> subprocess.CompletedProcess:
    """A command whose files may not grow beyond a size: as on a full disk, but real."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [sys.executable, "-m", "nsgf", *arguments]
    return subprocess.run(
        command, preexec_fn=limit, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.e2e
def test_full_disk_is_one_line_and_the_checkpoint_before_is_kept(tiny, tiny_run):
    file = tiny_run.checkpoint_file("predictor")
    before = file.read_bytes()
    resumed = ["train", "--run", str(tiny_run.path), "--resume", "--predictor.iterations=20"]
    done = limited(resumed, len(before) // 2)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"nsgf: error: checkpoint {file} cannot be")
    assert "Traceback" not in done.stderr
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_one_line(tiny_run, capsys):
    tiny_run.path.chmod(0o500)
    try:
        assert main(["train", "--run", str(tiny_run.path), "--resume-phase", "3"]) == 2
    finally:
        tiny_run.path.chmod(0o700)
    assert "Permission denied" in capsys.readouterr().err


def test_garbage_in_the_logs_does_not_stop_a_resume(tiny, tiny_run):
    for name in ("metrics.jsonl", "costs.jsonl", "log.txt"):
        with (tiny_run.path / name).open("ab") as stream:
            stream.write(b'\xff\x00{"phase": "nsf"\n[1, 2]\n"x"\nnull\n')
    longer = replace(tiny, predictor=replace(tiny.predictor, iterations=14))
    train(longer, tiny_run)
    lines = (tiny_run.path / "metrics.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)


TORTURE = Path(__file__).resolve().parents[2] / "scripts" / "torture.py"


def torture(*flags: str) -> list[str]:
    """The lines that the script prints, once nothing differs."""
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
