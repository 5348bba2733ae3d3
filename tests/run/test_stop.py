import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from nsgf.cli import main
from nsgf.run.stop import SIGNALS, Stopped, StopRequest
from tests.conftest import shipped
from tests.pool.conftest import HalfWay, build, with_pool


@pytest.fixture
def now(monkeypatch):
    """The time of a clock that never goes back, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_time_limit_counts_hours_of_a_clock_that_never_goes_back(now):
    request = StopRequest(0.5)
    now[0] += 1799
    assert request.reason is None
    now[0] += 1
    assert request.reason == "train.max_hours = 0.5 is over"
    assert StopRequest().reason is None


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN])
def test_signals_are_requests_while_listening(number, before):
    """A hangup that nohup ignores stays ignored, and a Ctrl-C for a script that started this."""
    request, outside = StopRequest(), signal.signal(number, before)
    try:
        with request.listening():
            os.kill(os.getpid(), number)
            assert request.reason == (None if before == signal.SIG_IGN else number.name)
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signal_interrupts_and_an_echo_does_not(number, now):
    """A scheduler signals all processes of a job, and torchrun and ``timeout`` do it again.

    Past mistake: A second signal was taken for a person's wish, but torchrun and Slurm send
    signals twice.
    """
    request = StopRequest()
    outside = signal.signal(number, signal.default_int_handler)  # a shell may ignore it
    try:
        with request.listening(SIGNALS):
            for one in (number, number, signal.SIGHUP):
                signal.raise_signal(one)
            now[0] += 1.9
            signal.raise_signal(number)
            now[0] += 0.2
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    finally:
        signal.signal(number, outside)


WAITING = """
import ctypes, os, signal, threading, time
from nsgf.run import stop
stop.ECHO_SECONDS = 0.01

def send():
    for _ in range(2):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

with stop.StopRequest().listening():
    threading.Thread(target=send).start()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second call waits for ever, as a call of torch may
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.e2e
def test_repeated_signal_ends_a_process_that_waits_in_torch(launch):
    """Python calls no handler of signals there."""
    launch()
    assert subprocess.call([sys.executable, "-c", WAITING], timeout=60) == 130


def test_request_to_another_process_is_a_reason_too():
    request = StopRequest()
    request.follow()
    assert request.reason == "another process stops"
    limited = StopRequest(0.0)
    limited.follow()
    assert limited.reason == "train.max_hours = 0 is over"


def test_worker_whose_launcher_was_killed_ends(monkeypatch, launch):
    """Past mistake: A worker looked up its parent process with the first sample, too late to see
    that torchrun had ended.
    """
    launch()
    launched = StopRequest()
    assert launched.reason is None
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert launched.reason == "torchrun has ended"
    assert StopRequest().reason == "torchrun has ended"  # also if that was before it was asked
    monkeypatch.delenv("WORLD_SIZE")
    assert StopRequest().reason is None


def test_request_without_a_reader_is_one_too(monkeypatch):
    monkeypatch.setattr(os, "write", Mock(side_effect=OSError(5, "Input/output error")))
    request = StopRequest()
    request._take(signal.SIGHUP, None)
    assert request.reason == "SIGHUP"


def test_pool_on_disk_keeps_what_it_has_when_it_stops(tmp_path, monkeypatch):
    config = shipped("2d", "--pool-batches=7", "--sinkhorn-batch=8", "--steps=2")
    config = with_pool(replace(config, out_dir=str(tmp_path)), storage="disk", build_batch=2)
    folder, first, second, stop = tmp_path / "pool", HalfWay(), HalfWay(), StopRequest()

    def start(*how, real=first.start):
        if first.calls:
            stop.follow()
        return real(*how)

    monkeypatch.setattr(first, "start", start)
    with pytest.raises(Stopped, match="4 of 7 flows kept"):
        build(config, folder, first, stop=stop)
    pool = build(config, folder, second)
    assert (first.calls, second.calls) == ([2, 2], [2, 1])
    assert pool.filled == 56


COMMAND = (
    *(sys.executable, "-m", "nsgf", "train", "--exp", "2d", "--device", "cpu"),
    *("--pool-batches", "2", "--train.log_every", "5", "--train.checkpoint_every", "100000"),
)


def started(folder, *flags):
    """A long run, once it is in the middle of its updates."""
    process = subprocess.Popen(
        [*COMMAND, "--out-dir", str(folder), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # a shell may have told this process to ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not list(folder.glob("*/metrics.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    return process


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_run_says_the_command_that_goes_on_and_it_does(tmp_path, number, capsys):
    process = started(tmp_path)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"stopped ({number.name}), nsgf: step" in output
    said = re.search(r"^    python -m nsgf (train --run .* --resume)$", output, re.MULTILINE)
    step = int(re.search(r"stopped .*, nsgf: step (\d+) of 20000", output)[1])
    assert main([*said[1].split(), "--nsgf.iterations", str(step + 3)]) == 0
    assert f"nsgf: continues after step {step} of {step + 3}" in capsys.readouterr().out


def test_time_limit_ends_a_run_with_exit_code_0(tmp_path, capsys):
    assert main([*COMMAND[3:], f"--out-dir={tmp_path}", "--max-hours=1e-9"]) == 0
    said = capsys.readouterr().out
    assert "stopped (train.max_hours = 1e-09 is over), pool: nothing kept" in said
