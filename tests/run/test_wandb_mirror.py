"""The W&B mirror: against a stand-in that notes its calls, and once against W&B offline."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsgf.cli import main
from nsgf.config.schema import PEER_PHASES, PHASES, Config, TrackingConfig
from nsgf.experiment import train
from nsgf.run.folder import RunFolder, name_within
from nsgf.run.mirrors import open_mirror


def tracked(config: Config, mode: str) -> Config:
    return replace(config, tracking=TrackingConfig(tracker=mode))


class StandIn:
    """A module ``wandb`` that notes what it is asked for; ``failing`` modes raise."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.axes: dict[str, str | None] = {}
        self.exit_codes: list[int] = []
        self.forgotten = 0

    def setup(self, settings: Any) -> None:
        assert settings["silent"]

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def Image(self, file: str) -> str:
        return f"image {file}"

    def teardown(self) -> None:
        self.forgotten += 1

    def init(self, **settings: Any) -> Any:
        self.begun.append(settings)
        if settings["mode"] in self.failing:
            raise ConnectionError("no way\nout")
        url = "https://wandb.ai/x" if settings["mode"] == "online" else ""
        return SimpleNamespace(
            url=url,
            dir=f"{settings['dir']}/wandb/offline-run-1/files",
            log=self.logged.append,
            define_metric=lambda name, step_metric=None: self.axes.update({name: step_metric}),
            finish=lambda exit_code: self.exit_codes.append(exit_code),
        )


@pytest.fixture
def wandb(monkeypatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_resumed_run_is_the_same_wandb_run_with_its_settings(tiny, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "the-project")
    whole = tracked(tiny, "wandb")
    run = train(replace(whole, phases=["nsgf"]))
    train(whole, run)
    first, second = wandb.begun
    assert first["id"] == second["id"] == (run.path / "wandb_id.txt").read_text().strip()
    assert (first["name"], first["group"], first["project"]) == (run.path.name, "2d", "the-project")
    assert first["config"]["nsgf"]["iterations"] == 12
    assert first["dir"] == str(run.path)
    assert wandb.exit_codes == [0, 0]
    assert (run.path / "log.txt").read_text().count("W&B: https://wandb.ai/x") == 2


def test_history_is_that_of_metrics_jsonl_under_each_phase(tiny, wandb):
    config = tracked(tiny, "wandb-offline")
    run = train(replace(config, train=replace(config.train, preview=True)))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    for phase in PHASES:
        expected = [line for line in lines if line["phase"] == phase]
        rows = [row for row in wandb.logged if f"{phase}/loss" in row]
        for key in ("step", "loss", "grad_norm", "lr"):
            assert [row[f"{phase}/{key}"] for row in rows] == [line[key] for line in expected]
        shown = [row[f"{phase}/samples"] for row in wandb.logged if f"{phase}/samples" in row]
        assert len(shown) == 1
        assert shown[0].startswith("image ")
    for phase in (*PHASES, *PEER_PHASES):
        assert wandb.axes[f"{phase}/*"] == f"{phase}/step"
    assert not any("phase" in row for row in wandb.logged)


def test_runs_of_a_comparison_are_told_apart_by_their_targets(tiny, tmp_path):
    run = RunFolder(tmp_path / "runs" / "compare-2d" / "moons" / "nsgf-seed0")
    assert name_within(tiny, run) == "compare-2d/moons/nsgf-seed0"
    assert name_within(tiny, RunFolder(tmp_path / "copied")) == "copied"


def test_run_that_ends_by_an_error_is_a_failed_one(tiny, wandb, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    run = RunFolder.create(tracked(tiny, "wandb-offline"))
    monkeypatch.setattr("nsgf.training.loop.PhaseLoop.run", interrupted)
    argv = ["train", "--run", str(run.path), "--resume", "--tracker", "wandb-offline"]
    assert main(argv) == 130
    assert wandb.exit_codes == [1]


@pytest.mark.parametrize(
    ("mode", "failing", "line"),
    [
        ("wandb", ["online"], "W&B: not online (no way out), kept offline; upload it with: wandb"),
        ("wandb", ["online", "offline"], "W&B: not online (no way out), not used (no way out)"),
        ("wandb-offline", ["offline"], "W&B: not used (no way out)"),
    ],
)
def test_what_cannot_be_is_one_line(tiny, wandb, mode, failing, line):
    wandb.failing, said = failing, []
    run = RunFolder.create(tiny)
    mirror = open_mirror(tracked(tiny, mode), run, said.append)
    assert len(said) == 1
    assert said[0].startswith(line)
    assert (mirror is None) == ("offline" in failing)
    assert wandb.forgotten == (mode == "wandb")
    assert wandb.begun[0]["settings"]["init_timeout"] <= 15


def test_training_goes_on_without_wandb(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = train(tracked(replace(tiny, phases=["nsgf"]), "wandb"))
    assert (run.path / "log.txt").read_text().count("W&B: ") == 1
    assert run.checkpoint_file("nsgf").exists()


def test_run_that_is_not_tracked_says_nothing_of_it(tiny, wandb):
    run = train(replace(tiny, phases=["nsgf"]))
    assert "W&B" not in (run.path / "log.txt").read_text()
    assert wandb.begun == []
    assert not (run.path / "wandb_id.txt").exists()


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_settings_in_the_working_directory_choose_no_server(
    folder, tiny, wandb, tmp_path, monkeypatch
):
    """They may lie in a run folder that somebody else has made."""
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir()
    Path(folder, "settings").write_text("[default]\nbase_url = http://elsewhere.example\n")
    said: list[str] = []
    assert open_mirror(tracked(tiny, "wandb"), RunFolder.create(tiny), said.append) is None
    assert wandb.begun == []
    assert [line.partition(" may ")[0] for line in said] == [
        f"W&B: not used: {tmp_path / folder / 'settings'}"
    ]


@pytest.mark.e2e
def test_wandb_itself_reads_settings_in_no_other_place(tmp_path):
    """What stands in the run folder, and beside it, is not read: only what is refused here is."""
    runs = tmp_path / "runs"
    for place in (runs, runs / "run"):
        (place / "wandb").mkdir(parents=True)
        (place / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    code = (
        "import wandb; wandb.setup(settings=wandb.Settings(silent=True));"
        f"run = wandb.init(mode='offline', project='p', dir={str(runs / 'run')!r});"
        "print(run.settings.base_url); run.finish()"
    )
    for place, expected in ((runs / "run", True), (tmp_path, False)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
            env={**_environment(), "WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)},
        )
        assert ("http://127.0.0.1:9" in done.stdout) == expected


@pytest.mark.e2e
def test_wandb_itself_keeps_a_run_offline(tmp_path):
    command = [sys.executable, "-m", "nsgf", "train", "--exp", "2d", "--pool-batches", "2"]
    command += ["--device", "cpu", "--train-iters", "5", "--tracker", "wandb-offline"]
    done = subprocess.run(
        [*command, "--out-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**_environment(), "WANDB_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("W&B: kept offline")]
    [file] = Path(line.split("wandb sync ")[1]).glob("run-*.wandb")
    assert file.stat().st_size > 1000


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    return {**kept, "OMP_NUM_THREADS": "1"}
