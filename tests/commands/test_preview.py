"""The picture of samples at the end of each phase."""

import platform
from dataclasses import replace

import pytest
import torch

from nsgf.commands.preview import preview_samples, preview_title
from nsgf.commands.train import train
from nsgf.config.layers import change
from nsgf.config.schema import OF_PHASES
from nsgf.experiment import Experiment
from nsgf.plots.samples import save_figure
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from tests.conftest import shipped

OF_METHOD = OF_PHASES[:3]


@pytest.fixture
def pictured_config(tiny):
    sampling = replace(tiny.sampling, straight_steps=4)
    return replace(tiny, train=replace(tiny.train, preview=True), sampling=sampling)


def test_every_phase_leaves_its_picture_and_trains_the_same(pictured_config, tiny_run):
    """``tiny_run`` was trained without previews; weights, optimizers and losses agree."""
    pictured = train(Experiment(pictured_config))
    names = {f"phase{number}_{phase}.png" for number, phase in enumerate(OF_METHOD, start=1)}
    assert {file.name for file in pictured.samples.iterdir()} == names
    assert "nsf: picture of samples, " in (pictured.path / "log.txt").read_text()

    for phase in OF_METHOD:
        shown, without = (
            checkpoint.load(run.checkpoint_file(phase)) for run in (pictured, tiny_run)
        )
        for part in ("model", "ema", "optimizer", "step", "window"):
            torch.testing.assert_close(shown[part], without[part], rtol=0, atol=0)
    assert not tiny_run.samples.exists()


def test_pictures_show_what_the_phases_so_far_draw(pictured_config, tiny_run):
    experiment = Experiment(pictured_config)
    data = experiment.load_data()
    for phase in OF_METHOD:
        sampler, _ = experiment.load_sampler(tiny_run, experiment.preview_method(phase))
        expected = sampler(data.source("preview").sample(2048)).x
        shown = preview_samples(experiment, tiny_run, phase, data)
        torch.testing.assert_close(shown, expected)


@pytest.mark.parametrize(
    ("flags", "phase", "words"),
    [
        (("--method=nsgf++h",), "nsgf", "continues from here"),
        (("--method=nsgf++h",), "nsf", ""),
        (("--method=nsgf",), "nsgf", ""),
        (("--method=onecall+",), "nsgf", ""),
    ],
)
def test_picture_of_an_early_phase_says_where_the_next_one_continues(flags, phase, words):
    text = preview_title(Experiment(shipped("digits", *flags)), phase)
    assert words in text if words else "\n" not in text


def test_title_names_the_method_and_one_of_several_phases():
    for flags, title in (
        ("2d/otcfm", "OT-CFM after training"),
        ("2d/nsgf++", "NSGF++ after training: time predictor"),
    ):
        config = shipped(flags)
        assert preview_title(Experiment(config), config.phases[-1]) == title


class Killed(BaseException):
    """Ends a process without any cleaning up."""


def kill(*_):
    raise Killed


def pictures(run):
    return {file.name: file.read_bytes() for file in run.samples.iterdir()}


@pytest.mark.parametrize("phase", range(3))
def test_picture_that_a_kill_prevented_is_drawn_by_the_next_session(
    phase, pictured_config, monkeypatch
):
    """As it would have been; weights and records do not change, nothing is left beside it.

    Past mistake: The torture test ran without previews. A kill between checkpoint and picture
    lost the picture for good.
    """
    whole = train(Experiment(pictured_config))
    run = RunFolder.create(pictured_config)
    actions = [save_figure] * phase + [kill]
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.commands.preview.save_figure", lambda *how: actions.pop(0)(*how))
        with pytest.raises(Killed):
            train(Experiment(pictured_config), run)
    assert len(pictures(run)) == phase
    left = f"phase{phase + 1}.png.{platform.node()}-{2**22 + 1}.partial"  # no process has this id
    (run.samples / left).touch()
    train(Experiment(pictured_config), run)
    assert pictures(run) == pictures(whole)
    metrics = [(one.path / "metrics.jsonl").read_bytes() for one in (run, whole)]
    assert metrics[0] == metrics[1]
    for name in OF_METHOD:
        ours, theirs = (checkpoint.load(one.checkpoint_file(name)) for one in (run, whole))
        torch.testing.assert_close(ours["ema"], theirs["ema"], rtol=0, atol=0)
    (run.path / "log.txt").unlink()
    train(Experiment(pictured_config), run)  # a picture that is there is not drawn again
    assert "picture of samples" not in (run.path / "log.txt").read_text()


def test_picture_of_fewer_updates_does_not_stay(pictured_config, monkeypatch):
    """Training went on, and was killed before the new picture."""
    config = replace(pictured_config, phases=["nsgf"])
    run, other = train(Experiment(config)), train(Experiment(config))
    earlier = pictures(run)
    longer = change(config, {"nsgf.iterations": 30})
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.commands.preview.save_figure", kill)
        with pytest.raises(Killed):
            train(Experiment(longer), run)
    assert pictures(run) == {}
    train(Experiment(longer), run)
    assert pictures(run) == pictures(train(Experiment(longer), other)) != earlier


def test_no_picture_of_a_run_without_previews_or_without_its_data(
    pictured_config, tiny, tiny_run, own_data
):
    train(Experiment(pictured_config), tiny_run)
    assert not tiny_run.samples.exists()
    run = train(Experiment(replace(pictured_config, phases=["nsgf"])))
    run.preview_file("nsgf").unlink()
    train(Experiment(replace(tiny, phases=["nsgf"])), run)
    assert pictures(run) == {}
    config = shipped("points", *own_data["points"], "--smoke", "--device=cpu", "--phases=[nsgf]")
    config = replace(config, out_dir=tiny.out_dir)
    run = train(Experiment(config))
    run.preview_file("nsgf").unlink()
    train(Experiment(change(config, {"data.path": "gone"})), run)
    assert "nsgf: no picture of samples (" in (run.path / "log.txt").read_text()


def test_picture_that_fails_is_one_line(pictured_config, monkeypatch):
    def broken(*_):
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr("nsgf.commands.preview.preview_samples", broken)
    run = train(Experiment(pictured_config))
    assert (run.path / "log.txt").read_text().count("no picture of samples (no memory)") == 3
    assert all(run.checkpoint_file(phase).exists() for phase in OF_METHOD)
