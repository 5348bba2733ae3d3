"""The trackio mirror: against a stand-in with trackio's signatures, and trackio where it is."""

import inspect
import json
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nsgf.config.schema import PHASES, Config, TrackingConfig
from nsgf.experiment import train
from nsgf.run.folder import RunFolder
from nsgf.run.trackio_mirror import run_name
from nsgf.system.errors import UserError

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
    assert (first["project"], first["resume"]) == ("mine", "allow")
    assert re.fullmatch(re.escape(run.path.name) + "-[0-9a-f]{8}", first["name"])
    assert second["name"] == first["name"]
    assert first["config"]["nsgf"]["iterations"] == 12


def test_trials_of_two_comparisons_are_two_runs(tiny, tmp_path):
    """They have the same way from their --out-dir, which trackio does not know."""
    names = []
    for place in ("one", "other"):
        config = replace(tiny, out_dir=str(tmp_path / place))
        run = RunFolder.prepare(tmp_path / place / "compare" / "moons" / "nsgf-seed0")
        names.append(run_name(config, run))
        assert names[-1].startswith("compare-moons-nsgf-seed0-")
        assert run_name(config, run) == names[-1]
    assert names[0] != names[1]


def test_file_that_holds_no_name_is_not_used(tiny_run, tiny):
    for text in ("", "../elsewhere", ".."):
        (tiny_run.path / "trackio_name.txt").write_text(text)
        with pytest.raises(UserError, match="holds no name of a trackio run; remove it"):
            run_name(tiny, tiny_run)


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
    config = replace(tracked(tiny), phases=["nsgf"])
    run = train(config)
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("mine", run_name(config, run))
    assert [row["step"] for row in rows if "nsgf/loss" in row] == [4, 8, 12]
    assert Path(tmp_path / "database").exists()
