"""Several processes, over gloo on this machine's CPU."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch

from nsgf.cli import main
from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.run.lock import lock_folder
from nsgf.system.distributed import World, join
from nsgf.system.errors import UserError
from nsgf.system.output import is_launched, launched_rank
from tests.conftest import new_network, records, shipped

FLAGS = (
    *("--exp=2d", "--phases=[nsgf,nsf,predictor]", "--steps=3", "--train-iters=3"),
    *("--batch-size=17", "--pool-batches=5", "--sinkhorn-batch=16", "--device=cpu"),
    *("--model.mlp.width=16", "--train.log_every=1", "--lr=1e-3"),
    *(f"--{phase}.schedule=constant" for phase in ("nsgf", "nsf", "predictor")),
)


@pytest.mark.parametrize(("size", "count"), [(1, 8), (3, 17), (8, 8), (8, 100)])
def test_shares_cover_everything_once_and_evenly(size, count):
    shares = [World(rank, size).share(range(5, 5 + count)) for rank in range(size)]
    assert [position for share in shares for position in share] == list(range(5, 5 + count))
    lengths = {len(share) for share in shares}
    assert max(lengths) - min(lengths) <= 1


def test_torchrun_is_known_by_its_variables(monkeypatch):
    assert World().agree("x") == "x"
    World().wait()
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not is_launched()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not is_launched()  # some clusters set this one for jobs of their own
    for key in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(key, "1")
    assert is_launched()
    for key in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        for value in ("", "auto", "1.5"):
            with monkeypatch.context() as patch:
                patch.setenv(key, value)
                assert not is_launched()
                assert launched_rank() == 0


@pytest.mark.parametrize(("key", "value"), [("MASTER_ADDR", ""), ("MASTER_PORT", "auto")])
def test_processes_that_cannot_meet_are_one_line(key, value, launch):
    launch(**{"RANK": "0", "MASTER_PORT": "1", "MASTER_ADDR": "localhost", key: value})
    with pytest.raises(UserError, match="torchrun: the processes cannot meet"), join("cpu"):
        pass


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["preflight", "--exp=2d"], "error (process 1): preflight: runs in one process; start it"),
        (["train", "--exp=2d", "--device=cuda:0"], "error (process 1): device = cuda:0: "),
    ],
)
def test_wrong_settings_of_several_processes_are_refused(words, error, launch, capsys):
    launch()
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"nsgf: {error}")


@pytest.mark.parametrize("error", [None, RuntimeError("Timed out, or closed by peer")])
def test_processes_end_together_unless_one_fails(error, launch, monkeypatch):
    """The first may measure for an hour; torchrun on other machines waits for it five minutes.

    Past mistake: Processes that had drawn their samples ended while the first one measured.
    torchrun on another machine would stop after five minutes.
    """
    launch(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    calls = mock.Mock(**{"barrier.side_effect": error})
    for name in ("init_process_group", "new_group", "barrier", "destroy_process_group"):
        monkeypatch.setattr(f"nsgf.system.distributed.distributed.{name}", getattr(calls, name))
    with join("cpu"):
        calls.work()
    names = [call[0] for call in calls.method_calls]
    started = ["init_process_group", "new_group"]
    assert names == [*started, "work", "barrier", "destroy_process_group"]
    calls.reset_mock()
    with pytest.raises(UserError), join("cpu"):
        raise UserError("one line")
    assert [call[0] for call in calls.method_calls] == started
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    calls.reset_mock()
    with join("cpu"):
        calls.work()
    assert "barrier" not in [call[0] for call in calls.method_calls]


def test_machine_that_does_not_share_the_run_folder_is_told(tiny, tiny_run, tmp_path, monkeypatch):
    """It would train for hours before it missed the checkpoint of the phase before."""
    monkeypatch.setattr(World, "agree", lambda *_: tmp_path / "elsewhere")
    monkeypatch.setattr(World, "wait", lambda _: None)
    with pytest.raises(UserError, match=r"^out_dir: process 1 does not see .*elsewhere"):
        train(Experiment(tiny), tiny_run, world=World(1, 2))


RUNNER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(*command):
    return subprocess.run(
        [*RUNNER, *command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def only_run(out_dir):
    [path] = out_dir.iterdir()
    return RunFolder(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same training by one process and by two."""
    torch.set_num_threads(1)
    folders = {size: tmp_path_factory.mktemp(f"by{size}") for size in (1, 2)}
    assert main(["train", *FLAGS, f"--out-dir={folders[1]}"]) == 0
    done = torchrun("-m", "nsgf", "train", *FLAGS, f"--out-dir={folders[2]}")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return {size: only_run(folder) for size, folder in folders.items()}


def moved(run, phase, part="model"):
    """How far a phase's weights went from their start, as one vector."""
    payload = checkpoint.load(run.checkpoint_file(phase))
    start = new_network(phase, shipped("2d", *FLAGS[1:])).state_dict()
    return torch.cat([(payload[part][key] - start[key]).flatten() for key in start])


def assert_close(one, other):
    """Up to rounding, which Adam magnifies where gradients are next to nothing."""
    assert float(one.norm()) > 0
    assert float((one - other).norm() / one.norm()) < 1e-3


@pytest.mark.e2e
def test_two_processes_update_as_one(runs):
    """The same global batch, though 17 samples are 8 and 9; also the average and the records."""
    for phase, part in itertools.product(("nsf", "predictor"), ("model", "ema")):
        assert_close(moved(runs[1], phase, part), moved(runs[2], phase, part))
    one, two = (records(runs[size]) for size in (1, 2))
    assert [(r["phase"], r["step"]) for r in one] == [(r["phase"], r["step"]) for r in two]
    for alone, shared in zip(one[3:], two[3:], strict=True):
        for key in ("loss", "grad_norm"):
            assert shared[key] == pytest.approx(alone[key], rel=1e-4)
    log = (runs[2].path / "log.txt").read_text()
    assert "2 processes" in log
    assert log.count("nsgf: done") == 1


@pytest.mark.e2e
def test_one_process_goes_on_where_two_stopped(runs, tmp_path):
    run = Path(shutil.copytree(runs[2].path, tmp_path / runs[2].path.name))
    assert main(["train", "--run", str(run), "--resume", "--train-iters=6"]) == 0
    shorter = [flag for flag in FLAGS if not flag.startswith("--train-iters")]
    assert main(["train", *shorter, f"--out-dir={tmp_path / 'one'}", "--train-iters=6"]) == 0
    other = only_run(tmp_path / "one")
    for phase in ("nsf", "predictor"):
        assert checkpoint.load(RunFolder(run).checkpoint_file(phase))["step"] == 6
        assert_close(moved(other, phase), moved(RunFolder(run), phase))


@pytest.mark.e2e
def test_two_processes_measure_what_one_does(runs, tmp_path):
    """Five batches of each repetition; the files of both are equal, byte for byte."""
    run = Path(shutil.copytree(runs[1].path, tmp_path / "run"))
    words = ["evaluate", "--run", str(run), "--num-samples=66", "--sampling.batch_size=16"]
    words += ["--sampling.solver=heun"]
    assert main(words) == 0
    alone = (run / "metrics.json").read_bytes()
    (run / "metrics.json").unlink()
    done = torchrun("-m", "nsgf", "--", *words)
    assert done.returncode == 0, done.stderr
    assert (run / "metrics.json").read_bytes() == alone
    assert done.stdout.count("W2 ↓") == 1
    assert not list((run / "samples").glob(".*"))


def begun(folder, words, *flags):
    """The torchrun of two processes and both of them, once their log has these words."""
    settings = {flag.partition("=")[0]: flag for flag in (*FLAGS, *flags)}.values()
    process = subprocess.Popen(
        [*RUNNER, "-m", "nsgf", "train", *settings, f"--out-dir={folder}"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not any(words in file.read_text() for file in folder.glob("*/log.txt")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    return process, [one for one in workers if "nsgf" in one.cmdline()]


LONG = ("--nsgf.iterations=100000", "--train.checkpoint_every=100000")


@pytest.mark.e2e
def test_two_processes_stop_on_request_after_the_same_update(tmp_path):
    process, _ = begun(tmp_path, "nsgf: step", *LONG)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    step = re.search(r"stopped \(SIGTERM\), nsgf: step (\d+) of 100000", output)
    assert step, output
    run = only_run(tmp_path)
    assert checkpoint.load(run.checkpoint_file("nsgf"))["step"] == int(step[1])
    assert f"torchrun --nproc-per-node 2 -m nsgf -- train --run {run.path} --resume" in output


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "flags"),
    [
        ("pool: flow", ["--pool-batches=200000"]),
        ("reflow paths: batch", ["--phases=[peer,reflow]", "--reflow.pairs=10000000"]),
    ],
)
def test_request_to_one_process_ends_the_work_before_the_first_update(tmp_path, work, flags):
    """Past mistake: One of several processes left before the first update on request, and the
    others waited for it.
    """
    process, workers = begun(tmp_path, work, *flags)
    workers[-1].send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert re.search(r"stopped \(.*\), (pool: nothing kept|reflow: before its first step)", output)


MANY = ("--nsgf.iterations=100000", "--train.checkpoint_every=20")
SHORT = """
import sys
from datetime import timedelta
from nsgf.system import distributed
from nsgf.cli import main

distributed.PATIENCE = timedelta(seconds=10)
raise SystemExit(main(sys.argv[1:]))
"""
"""The command, with less patience."""


@pytest.mark.e2e
@pytest.mark.slow
def test_processes_end_soon_after_a_torchrun_that_was_killed(tmp_path):
    """Past mistake: Workers survived a torchrun that was killed, and kept the run's lock."""
    process, workers = begun(tmp_path, "nsgf: step", *LONG)
    process.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    process.communicate()
    run = only_run(tmp_path)
    with lock_folder(run.path):  # the lock is free
        assert checkpoint.load(run.checkpoint_file("nsgf"))["step"] > 0


@contextmanager
def training_pair(folder):
    """Two processes in the middle of their updates."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    settings = {flag.partition("=")[0]: flag for flag in (*FLAGS, *MANY)}.values()
    words = [sys.executable, "-c", SHORT, "train", *settings, f"--out-dir={folder}"]
    common = {**ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    pair = [
        subprocess.Popen(
            words,
            env={**common, "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        while not list(folder.glob("*/checkpoints/phase1_nsgf.pt")):
            for process in pair:
                assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        yield pair
    finally:
        for process in pair:
            process.kill()
            process.communicate()


@pytest.mark.e2e
def test_process_that_is_silent_ends_the_other_in_one_line(tmp_path):
    """Past mistake: Each request to stop was an all_reduce without a bound, and a silent machine
    held the others for two hours.
    """
    with training_pair(tmp_path) as (first, second):
        second.send_signal(signal.SIGSTOP)
        first.send_signal(signal.SIGTERM)  # this request cannot be agreed on
        _, error = first.communicate(timeout=100)
    assert first.returncode == 2, error
    assert "another process is gone or silent (" in error.splitlines()[-1]
    assert checkpoint.load(only_run(tmp_path).checkpoint_file("nsgf"))["step"] >= 20
