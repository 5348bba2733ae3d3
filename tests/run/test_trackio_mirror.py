"""The trackio mirror: against a stand-in with trackio's signatures, and trackio where it is."""

import inspect
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nsgf.config.schema import PHASES, Config, TrackingConfig
from nsgf.experiment import train

USED = ("init", "log", "finish")


class StandIn:
    """A module ``trackio`` that notes what it is asked for, and prints as that one does."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.ended = 0

    def init(
        self,
        project: str,
        name: str | None = None,
        group: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str = "never",
        embed: bool = True,
        auto_log_gpu: bool | None = None,
        auto_log_cpu: bool | None = None,
    ) -> None:
        print("* advice")
        assert (embed, auto_log_gpu, auto_log_cpu) == (False, False, False)
        self.begun.append(dict(project=project, name=name, config=config, resume=resume))

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((step, metrics))

    def Image(self, value: str, caption: str | None = None) -> str:
        return f"image {value}"

    def finish(self) -> None:
        print("* more advice")
        self.ended += 1


@pytest.fixture
def trackio(monkeypatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "trackio", module)
    monkeypatch.setattr("nsgf.run.mirrors.find_spec", lambda name: module)
    return module


def tracked(config: Config) -> Config:
    return replace(config, tracking=TrackingConfig(tracker="trackio", project="mine"))


def test_history_is_that_of_the_run_folder_over_each_phase_s_steps(tiny, trackio, capsys):
    config = tracked(tiny)
    run = train(replace(config, train=replace(config.train, preview=True)))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    for phase in PHASES:
        expected = [(one["step"], one["loss"]) for one in lines if one["phase"] == phase]
        key = f"{phase}/loss"
        assert [(step, row[key]) for step, row in trackio.logged if key in row] == expected
        [(step, row)] = [pair for pair in trackio.logged if f"{phase}/samples" in pair[1]]
        assert (step, row[f"{phase}/samples"][:6]) == (12, "image ")
    assert trackio.ended == 1
    said = capsys.readouterr().out
    assert "trackio: show it with: trackio show --project mine\n" in said
    assert "advice" not in said


def test_resumed_run_is_the_same_one(tiny, trackio):
    whole = tracked(tiny)
    run = train(replace(whole, phases=["nsgf"]))
    train(whole, run)
    first, second = trackio.begun
    assert (first["project"], first["name"], first["resume"]) == ("mine", run.path.name, "allow")
    assert second["name"] == first["name"]
    assert first["config"]["nsgf"]["iterations"] == 12


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("trackio") is None, reason="the extra `trackio` is not installed")
def test_trackio_itself_takes_what_it_is_given():
    """Its names and keywords are those of the stand-in."""
    import trackio as real

    for name in USED:
        taken = inspect.signature(getattr(real, name)).parameters
        assert set(inspect.signature(getattr(StandIn(), name)).parameters) <= set(taken)


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("trackio") is None, reason="the extra `trackio` is not installed")
def test_trackio_itself_keeps_a_run_on_this_machine(tiny, tmp_path, monkeypatch):
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "database")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "database")
    run = train(replace(tracked(tiny), phases=["nsgf"]))
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("mine", run.path.name)
    assert [row["step"] for row in rows if "nsgf/loss" in row] == [4, 8, 12]
    assert Path(tmp_path / "database").exists()
