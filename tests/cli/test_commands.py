"""Every experiment through the command line; what a fresh process changes has one of its own."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from nsgf.cli import main
from nsgf.cli.commands import ACTIONS
from nsgf.commands.preflight import Finding
from nsgf.run.folder import RunFolder
from tests.conftest import records

LOCAL_IMAGES = ("mnist", "cifar10")
NARROW = {
    "cifar10": ("--model.unet.channels=32", "--model.unet.heads=2", "--model.unet.res_blocks=1")
}
"""A checkpoint of the whole network of CIFAR-10 has 600 MB."""


def process(*arguments):
    """A command as a user starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "nsgf", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def nsgf(capsys):
    """A command in this process, which has loaded torch already; what it printed."""

    def run(*arguments):
        assert main([str(word) for word in arguments]) == 0
        return capsys.readouterr().out

    return run


def only_run(folder):
    (run,) = folder.iterdir()
    return run


def steps(run):
    return [(line["phase"], line["step"]) for line in records(RunFolder(run))]


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("exp", ["2d", "digits", "mnist", "cifar10"])
def test_smoke_run_resume_sample_and_evaluate(exp, tmp_path, nsgf):
    """Train the first phase, resume the others, then use the run.

    Past mistake: A phase that was trained again appended to the metrics of its first attempt,
    because records were cut only when a checkpoint was loaded.
    """
    flags = ["--out-dir", tmp_path / "runs", "--smoke", "--device", "cpu"]
    flags += ["--sampling.straight_steps", "2", "--steps", "3", *NARROW.get(exp, ())]
    if exp in LOCAL_IMAGES:
        flags.append("--fake-data")
    process("train", "--exp", exp, *flags, "--phases", "[nsgf]")
    run = only_run(tmp_path / "runs")
    files = {file.name for file in (run / "checkpoints").iterdir()}
    assert files == {"phase1_nsgf.pt", "phase1_nsgf.earlier.pt"}
    before = (run / "checkpoints" / "phase1_nsgf.pt").read_bytes()

    where = ["--exp", exp, "--out-dir", tmp_path / "runs", "--smoke"]
    nsgf("train", *where, "--resume", "--phases", "[nsgf,nsf,predictor]")
    assert (run / "checkpoints" / "phase1_nsgf.pt").read_bytes() == before
    assert steps(run) == [
        (phase, step) for phase in ("nsgf", "nsf", "predictor") for step in range(1, 6)
    ]

    printed = nsgf("train", *where, "--resume-phase", "3")
    assert "phase3_predictor.pt" in printed
    assert f"next: python -m nsgf sample --run {run}" in printed
    assert steps(run).count(("predictor", 5)) == 1
    assert steps(run).count(("nsf", 5)) == 1

    nsgf("sample", "--run", run)
    saved = np.load(run / "samples" / "samples.npz", allow_pickle=False)
    assert len(saved["x"]) == len(saved["tau"]) == 4
    assert saved["nfe"] == 3 + 1 + 2
    nsgf("evaluate", "--run", run, "--evaluation.features", "none")
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["nfe"] == 6
    assert metrics["w2"] > 0


@pytest.mark.e2e
@pytest.mark.slow
def test_terminal_and_locale_of_ascii_end_nothing(tmp_path, monkeypatch):
    """What is printed and read has signs beyond ASCII, first of all the tables of a comparison."""
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(name, value)
    where = ["--exp", "2d", "--smoke", "--device", "cpu", "--out-dir", tmp_path]
    for command in ("train", "sample", "evaluate", "preflight"):
        assert process(command, *where).stdout
    methods = ["--compare.methods=[nsgf]", "--compare.seeds=2"]
    assert r"\xb1" in process("compare", *where, *methods).stdout


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "nsgf: interrupted\n"),
        (OSError(28, "No space left on device", "x.pt"), 2, "nsgf: error: cannot use x.pt: No "),
        (torch.cuda.OutOfMemoryError("Tried to allocate"), 2, "nsgf: error: the card's memory is"),
        (lambda: torch.empty(10**15), 2, "nsgf: error: the main memory is full ("),
        (lambda: np.empty(10**15), 2, "nsgf: error: the main memory is full ("),
        (RuntimeError("wrong"), 1, "Traceback"),
    ],
)
def test_errors_of_a_command_have_their_exit_code(error, code, told, monkeypatch, capsys):
    def fails(*_):
        if callable(error):
            error()
        raise error

    monkeypatch.setitem(ACTIONS, "train", fails)
    assert main(["train", "--exp", "2d"]) == code
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert text.startswith(told)
    assert text.count("\n") == 1 or code == 1


@pytest.mark.parametrize("name", ["torch", "yaml"])
def test_missing_package_is_named_in_one_line(name):
    code = f"import sys; sys.modules[{name!r}] = None; from nsgf.__main__ import main; exit(main())"
    words = [sys.executable, "-c", code, "train", "--exp", "2d"]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == f"nsgf: error: {name} is not installed; pip install -e .\n"


@pytest.mark.parametrize("words", ["Connection closed by peer", "Timed out waiting"])
def test_process_that_waits_for_one_that_is_gone_reports_no_bug(words, monkeypatch, capsys, launch):
    """Past mistake: A process that waited for an ended one reported a bug, and thirty lines of
    traceback hid the reason.
    """
    lost = RuntimeError(f"[/gloo/transport/tcp/pair.cc:561] {words}")
    monkeypatch.setitem(ACTIONS, "train", mock.Mock(side_effect=lost))
    launch()
    assert main(["train", "--exp", "2d", "--device=cpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nsgf: error (process 1): another process is gone or silent")
    assert error.count("\n") == 1


def test_preflight_says_no_by_its_exit_code_and_names_the_command_that_trains(monkeypatch, capsys):
    """The command has no flags of preflight alone, and the hours are those of the plan."""
    calls = []
    monkeypatch.setattr(
        "nsgf.commands.preflight.preflight", lambda *arguments: calls.append(arguments) or findings
    )
    words = ["--exp", "2d", "--lr=2e-4", "--session-hours=9", "--max-hours", "3"]
    machine = Finding("machine")
    for finding, line, code in (
        (Finding("ok data"), "ok data", 0),
        (Finding("data; use --data-root", is_problem=True), "NO data; use --data-root", 1),
    ):
        findings = [machine, finding, machine]
        assert main(["preflight", *words, "--out-dir", "my runs"]) == code
        assert capsys.readouterr().out == f"machine\n{line}\nmachine\n"
    experiment, hours, command = calls[0]
    assert (experiment.config.nsgf.lr, hours) == (2e-4, 9.0)
    assert command == "python -m nsgf train --exp 2d --lr=2e-4 --out-dir 'my runs'"
    monkeypatch.undo()
    assert main(["preflight", "--exp", "2d", "--session-hours=0"]) == 2
    assert "--session-hours = 0: must be > 0" in capsys.readouterr().err


def test_print_config_trains_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--exp", "cifar10", "--sinkhorn-batch=32", "--print-config"]) == 0
    assert "num_batches: 10000" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [([], "--resume"), (["--resume-phase=2"], "phase nsgf"), (["--resume-phase=3"], "['nsgf'")],
)
def test_run_is_not_trained_without_its_earlier_phases_or_a_flag(flags, words, tiny, capsys):
    handed = replace(tiny, phases=["nsgf", "nsf"], nsf=replace(tiny.nsf, source="nsgf"))
    assert main(["train", "--run", str(RunFolder.create(handed).path), *flags]) == 2
    assert words in capsys.readouterr().err


NARROW_OWN = {
    "images": ("--data.size=8", "--compare.methods=[nsgf++h,otcfm]"),
    "points": ("--model.mlp.width=8", "--compare.methods=[nsgf,icfm]"),
}


@pytest.mark.e2e
@pytest.mark.parametrize("exp", NARROW_OWN)
def test_own_data_are_trained_resumed_sampled_measured_and_compared(exp, tmp_path, nsgf, own_data):
    flags = ["--exp", exp, *own_data[exp], "--smoke", "--device=cpu", f"--out-dir={tmp_path}"]
    assert "ok data" in nsgf("preflight", *flags, *NARROW_OWN[exp])
    told = nsgf("train", *flags, *NARROW_OWN[exp])
    assert "data: " in told
    assert "no picture of samples" not in told
    run = only_run(tmp_path)
    assert "data: " not in nsgf("train", "--run", run, "--resume-phase", "1")
    nsgf("sample", "--run", run, "--num-samples", "200")
    (file,) = (run / "samples").glob("samples*.npz")
    drawn = np.load(file, allow_pickle=False)["x"]
    assert drawn.shape == (200, *((3,) if exp == "points" else (3, 8, 8)))
    nsgf("evaluate", "--run", run)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["w2"] > 0
    assert ("nearest_real" in metrics) is (exp == "images")
    assert "| floor" in nsgf("compare", *flags, *NARROW_OWN[exp])
