"""The W&B mirror with W&B itself in its offline mode: what is in the files that it keeps."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from nsgf.cli import main
from nsgf.config.schema import PEER_PHASES, PHASES, Config, TrackingConfig
from nsgf.experiment import train
from nsgf.run import wandb_mirror as wandb_run
from nsgf.run.folder import RunFolder
from nsgf.run.wandb_mirror import open_mirror
from tests.conftest import tiny_config

BLOCK = 32768
NOBODY = "http://127.0.0.1:1"
"""A W&B server that refuses every connection."""
KEY = "0" * 40


class Kept(NamedTuple):
    """An offline W&B folder, read back."""

    folder: Path
    records: list

    def kind(self, name: str) -> list:
        """The records of one kind, in their order."""
        found = [r for r in self.records if r.WhichOneof("record_type") == name]
        return [getattr(record, name) for record in found]

    def history(self) -> list[dict]:
        """What was logged, call by call."""
        return [
            {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row.item}
            for row in self.kind("history")
        ]


def kept_offline(run: Path) -> list[Kept]:
    """The offline W&B folders in a run folder, oldest first."""
    return [
        Kept(file.parent, list(read_records(file)))
        for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb"))
    ]


def read_records(file: Path) -> Iterator:
    """A .wandb file: after 7 bytes, records in LevelDB's log format (checksums are not looked at).

    A record is cut into parts where a block of 32,768 bytes ends; a part has a header of checksum
    (4 bytes), length (2) and kind (1: whole, 2: first, 3: middle, 4: last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(content):
        if BLOCK - position % BLOCK < 7:  # too short for a header: padding
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield Record.FromString(parts)
            parts = b""


def tracked(config: Config, mode: str) -> Config:
    return replace(
        config,
        tracking=TrackingConfig(wandb=mode, project="the-project"),
        train=replace(config.train, preview=True),
    )


@pytest.fixture(autouse=True)
def _nobodys_settings(tmp_path_factory, monkeypatch):
    """W&B as for a new user without a network."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(home))
    monkeypatch.setenv("WANDB_BASE_URL", NOBODY)
    monkeypatch.setattr(wandb_run, "getproxies", dict)


@pytest.fixture(scope="session")
def resumed_run(tmp_path_factory) -> Path:
    """A run tracked offline: phase 1, then resumed for phases 2 and 3. Never written to."""
    whole = tracked(tiny_config(tmp_path_factory.mktemp("tracked")), "offline")
    run = train(replace(whole, phases=["nsgf"]))
    time.sleep(1.1)  # W&B names its folders by the second
    return train(whole, run).path


def test_run_is_named_and_grouped_after_its_folder_with_its_settings(resumed_run):
    first = kept_offline(resumed_run)[0]
    (begun,) = first.kind("run")
    assert begun.display_name == resumed_run.name
    assert begun.run_group == "2d"
    assert begun.project == "the-project"
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["nsgf"]["iterations"] == 12
    assert settings["model"]["mlp"]["width"] == 16
    assert settings["seed"] == 0


def test_runs_of_a_comparison_are_told_apart_by_their_targets(tmp_path):
    config = tiny_config(tmp_path / "runs")
    run = RunFolder(tmp_path / "runs" / "compare-2d" / "moons" / "nsgf-seed0")
    assert wandb_run.run_name(config, run) == "compare-2d/moons/nsgf-seed0"
    assert wandb_run.run_name(config, RunFolder(tmp_path / "copied")) == "copied"


def test_resumed_run_is_the_same_wandb_run(resumed_run):
    first, second = kept_offline(resumed_run)
    ids = {kept.kind("run")[0].run_id for kept in (first, second)}
    assert ids == {(resumed_run / "wandb_id.txt").read_text().strip()}
    assert first.folder.name < second.folder.name


def test_history_is_that_of_metrics_jsonl_under_each_phase(resumed_run):
    rows = [row for kept in kept_offline(resumed_run) for row in kept.history()]
    lines = [json.loads(line) for line in (resumed_run / "metrics.jsonl").open()]
    assert [line["phase"] for line in lines] == [phase for phase in PHASES for _ in range(3)]
    for phase in PHASES:
        expected = [line for line in lines if line["phase"] == phase]
        logged = [row for row in rows if f"{phase}/loss" in row]
        for key in ("step", "loss", "grad_norm", "lr"):
            assert [row[f"{phase}/{key}"] for row in logged] == [line[key] for line in expected]
    assert not any("phase" in row for row in rows)


def test_every_phase_has_its_own_step_axis(resumed_run):
    for kept in kept_offline(resumed_run):
        axes = {axis.glob_name: axis.step_metric for axis in kept.kind("metric") if axis.glob_name}
        assert axes == {f"{phase}/*": f"{phase}/step" for phase in (*PHASES, *PEER_PHASES)}


def test_pictures_are_shown_at_the_last_step_of_each_phase(resumed_run):
    shown = {}
    for kept in kept_offline(resumed_run):
        for row in kept.history():
            for phase in PHASES:
                if f"{phase}/samples._type" in row:
                    assert row[f"{phase}/samples._type"] == "image-file"
                    assert row[f"{phase}/step"] == 12
                    shown[phase] = kept.folder / "files" / row[f"{phase}/samples.path"]
    assert list(shown) == list(PHASES)
    for number, phase in enumerate(PHASES, start=1):
        picture = resumed_run / f"samples/phase{number}_{phase}.png"
        assert shown[phase].read_bytes() == picture.read_bytes()


def test_finished_and_interrupted_runs_are_told_apart(resumed_run, tiny, monkeypatch, capsys):
    assert [kept.kind("exit")[0].exit_code for kept in kept_offline(resumed_run)] == [0, 0]

    def interrupted(*_):
        raise KeyboardInterrupt

    run = RunFolder.create(tracked(tiny, "offline"))
    monkeypatch.setitem(train.__globals__["TRAIN_PHASE"], "nsgf", interrupted)
    before = sys.exit, sys.excepthook
    assert main(["train", "--run", str(run.path), "--resume"]) == 130
    assert (sys.exit, sys.excepthook) == before
    assert kept_offline(run.path)[0].kind("exit")[0].exit_code == 1
    assert "interrupted" in capsys.readouterr().out


@pytest.fixture
def silent_server():
    """A W&B server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("key", "listening", "reason"),
    [
        (KEY, False, f"{NOBODY} cannot be reached: Connection refused"),
        (None, True, "No API key"),
        ("short", True, "40"),
        (KEY, True, "Failed to get"),
    ],
)
def test_online_run_that_cannot_be_is_kept_offline_in_one_line(
    tiny, monkeypatch, capfd, silent_server, key, listening, reason
):
    monkeypatch.setattr(wandb_run, "INIT_SECONDS", 1.0)
    if listening:
        monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    config, said = tracked(tiny, "online"), []
    run = RunFolder.create(config)
    mirror = open_mirror(config, run, said.append)
    mirror.record({"phase": "nsf", "step": 3, "loss": 0.5})
    mirror.close(False)
    (line,) = said
    assert line.startswith("W&B: not online (")
    assert reason in line
    assert "\n" not in line
    (kept,) = kept_offline(run.path)
    assert line.endswith(f"kept offline; upload it with: wandb sync {kept.folder}")
    assert kept.history()[0]["nsf/loss"] == 0.5
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_training_goes_on_without_wandb(tiny, monkeypatch, mode):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = train(tracked(replace(tiny, phases=["nsgf"]), mode))
    log = (run.path / "log.txt").read_text()
    assert log.count("W&B: ") == 1
    assert "not used (" in log
    assert run.checkpoint_file("nsgf").exists()


def test_run_that_is_not_tracked_says_nothing_of_it(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = train(replace(tiny, phases=["nsgf"]))
    assert "W&B" not in (run.path / "log.txt").read_text()


@pytest.mark.e2e
def test_run_that_is_not_tracked_does_not_import_wandb(tiny):
    run = RunFolder.create(replace(tiny, phases=["nsgf"]))
    code = (
        "import sys; from nsgf.cli import main; "
        f"code = main(['train', '--run', {str(run.path)!r}, '--resume']); "
        "sys.exit(code or 10 * ('wandb' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    assert run.checkpoint_file("nsgf").exists()
    assert not (run.path / "wandb").exists()
    assert not (run.path / "wandb_id.txt").exists()


def _start(folder: Path, *flags: str, **pipes) -> subprocess.Popen:
    command = [sys.executable, "-m", "nsgf", "train", "--exp", "2d", "--pool-batches", "2"]
    command += ["--device", "cpu", "--train.log_every", "5", "--out-dir", str(folder), *flags]
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)


@pytest.mark.e2e
def test_exit_codes_are_this_programs_own(tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    bad = ("--lr", "1e30", "--nsgf.clip_norm", "null", "--train-iters", "50")
    process = _start(tmp_path / "bad", "--wandb", "offline", *bad, **pipes)
    assert (
        "nsgf: error: nsgf: no finite update"
        in process.communicate(timeout=100)[1].splitlines()[-1]
    )
    assert process.returncode == 2

    process = _start(tmp_path / "long", "--wandb", "offline", **pipes)
    while not list((tmp_path / "long").glob("*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "stopped (SIGINT)" in out
    assert "--resume" in out.splitlines()[-1]


@pytest.mark.e2e
def test_nothing_is_asked_at_a_terminal_without_a_key(tmp_path, monkeypatch, silent_server):
    """With a terminal on all sides W&B would ask for a key and wait."""
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    ours, theirs = os.openpty()
    terminal = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": theirs}
    process = _start(tmp_path, "--train-iters", "5", "--wandb", "online", **terminal)
    out, _ = process.communicate(timeout=100)
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 0
    assert out.count("W&B: not online (No API key") == 1
