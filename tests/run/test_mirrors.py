"""Trackers: which one is opened, what a missing package says, and what a failure costs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsgf.cli import main
from nsgf.config.files import build, read_settings
from nsgf.config.schema import Config, TrackingConfig
from nsgf.experiment import train
from nsgf.run import mirrors
from nsgf.run.folder import RunFolder, at_home
from nsgf.run.mirrors import open_mirror
from nsgf.system.errors import UserError


def tracked(config: Config, tracker: str) -> Config:
    return replace(config, tracking=TrackingConfig(tracker=tracker))


def test_package_that_is_missing_is_said_before_anything_is_written(tiny, monkeypatch):
    monkeypatch.setattr(mirrors, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"tracking\.tracker = tensorboard: needs tensorboard; pip"):
        train(tracked(tiny, "tensorboard"))
    assert not Path(tiny.out_dir).exists()


def test_run_that_goes_on_does_without_a_package_that_nobody_asks_for_now(
    tiny, monkeypatch, capsys
):
    """Its settings may come from another machine; a flag of this command is another matter."""
    run = train(replace(tiny, phases=["nsgf"]))
    run.write_config(tracked(tiny, "tensorboard"))
    monkeypatch.setattr(mirrors, "find_spec", lambda package: None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    argv = ["train", "--run", str(run.path), "--resume"]
    assert main([*argv, "--tracker", "tensorboard"]) == 2
    assert "tracking.tracker = tensorboard: needs tensorboard" in capsys.readouterr().err
    assert main(argv) == 0
    said = (run.path / "log.txt").read_text()
    assert said.count("tensorboard: not used") == 1
    assert "nsf: done" in said
    assert build(Config, read_settings(run.config_file)).tracking.tracker == "tensorboard"


def test_package_that_cannot_be_loaded_is_one_line(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said: list[str] = []
    assert open_mirror(tracked(tiny, "tensorboard"), RunFolder.create(tiny), said.append) is None
    [line] = said
    assert line.startswith("tensorboard: not used (import of torch.utils.tensorboard halted")


class Failing:
    """A tracker that fails at its first record, and at closing."""

    def __init__(self) -> None:
        self.asked = self.closed = 0

    def record(self, values: dict) -> None:
        self.asked += 1
        raise ConnectionError("gone")

    def picture(self, name: str, file: Path) -> None:
        raise AssertionError("asked again")

    def close(self, failed: bool) -> None:
        self.closed += 1
        raise ConnectionError("still gone")


def test_tracker_that_fails_while_training_ends_no_run(tiny, monkeypatch):
    mirror = Failing()
    monkeypatch.setattr("nsgf.experiment.open_mirror", lambda *_: mirror)
    run = train(replace(tiny, phases=["nsgf"], train=replace(tiny.train, preview=True)))
    assert (mirror.asked, mirror.closed) == (1, 1)
    said = (run.path / "log.txt").read_text()
    assert said.count("tracking: nothing is mirrored from here on (gone)") == 1
    assert "nsgf: done" in said


def test_only_files_in_the_run_folder_are_gone_on_with_unasked(tiny):
    run = RunFolder(Path(tiny.out_dir) / "2d-1")
    for name, expected in (("wandb", "none"), ("tensorboard", "tensorboard")):
        config = tracked(tiny, name)
        assert at_home(config, run, set()).tracking.tracker == expected
        assert at_home(config, run, {"tracking.tracker"}).tracking.tracker == name
