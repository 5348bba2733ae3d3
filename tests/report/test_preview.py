"""Pictures at the end of each phase."""

from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import PHASES
from nsgf.data import Data
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.phases.base import load_network
from nsgf.report.preview import count_samples, preview_samples
from nsgf.run import checkpoint
from tests.conftest import shipped, tiny_config

CPU = torch.device("cpu")


def with_pictures(config):
    return replace(
        config,
        train=replace(config.train, preview=True),
        sampling=replace(config.sampling, straight_steps=4),
    )


@pytest.fixture
def small(tiny):
    return with_pictures(tiny)


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """A run that showed its samples after each phase; never written to."""
    return train(with_pictures(tiny_config(tmp_path_factory.mktemp("runs"))))


@pytest.fixture
def data(tiny):
    return Data(tiny.data, tiny.seed)


def networks(config, run):
    return {phase: load_network(get_phase(phase), config, run, CPU).network for phase in PHASES}


def test_every_phase_leaves_its_picture(pictured):
    names = {f"phase{number}_{phase}.png" for number, phase in enumerate(PHASES, start=1)}
    assert {file.name for file in pictured.samples.iterdir()} == names
    assert "nsf: picture of samples, " in (pictured.path / "log.txt").read_text()


def test_previews_change_nothing_that_is_trained(pictured, tiny_run):
    """``tiny_run`` was trained without previews; weights, optimizers and losses agree."""
    for phase in PHASES:
        shown, without = (
            checkpoint.load(run.checkpoint_file(phase)) for run in (pictured, tiny_run)
        )
        for part in ("model", "ema", "optimizer", "step", "window"):
            torch.testing.assert_close(shown[part], without[part], rtol=0, atol=0)
    assert not tiny_run.samples.exists()


@pytest.mark.parametrize("source", ["prior", "nsgf"])
def test_phase_2_shows_the_whole_straight_flow_from_where_its_lines_start(small, data, source):
    config = replace(small, nsf=replace(small.nsf, source=source))
    run = train(replace(config, train=replace(config.train, preview=False)))
    trained = networks(config, run)
    x = data.source("preview").sample(2048)
    if source == "nsgf":
        x = preview_samples(config, run, get_phase("nsgf"), data, CPU)
    for step in range(4):
        x = x + trained["nsf"](x, torch.full((2048,), step / 4)) / 4
    torch.testing.assert_close(preview_samples(config, run, get_phase("nsf"), data, CPU), x)


def test_phases_1_and_3_show_algorithms_2_and_4(small, tiny_run, data):
    trained, x = networks(small, tiny_run), data.source("preview").sample(2048)
    for step in range(3):
        x = x + small.flow.eta * trained["nsgf"](x, torch.full((2048,), step / 3))
    first, last = (
        preview_samples(small, tiny_run, get_phase(phase), data, CPU)
        for phase in ("nsgf", "predictor")
    )
    torch.testing.assert_close(first, x)
    tau = trained["predictor"](x)
    for step in range(4):
        size = (1 - tau) / 4
        x = x + size[:, None] * trained["nsf"](x, tau + step * size)
    torch.testing.assert_close(last, x)


@pytest.mark.parametrize(
    ("wanted", "device", "count"),
    [(1000, "cpu", 16), (1000, "cuda", 64), (9, "cpu", 9), (9, "cuda", 9)],
)
def test_images_are_as_many_as_asked_but_few_on_a_cpu(wanted, device, count):
    config = shipped("digits", f"--sampling.num_samples={wanted}", "--fake-data")
    assert count_samples(config, Data(config.data, 0), torch.device(device)) == count


def test_picture_that_fails_is_one_line(small, monkeypatch):
    def broken(*_):
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr("nsgf.report.preview.save_preview", broken)
    run = train(small)
    log = (run.path / "log.txt").read_text()
    assert log.count("no picture of samples (no memory)") == 3
    assert all(run.checkpoint_file(phase).exists() for phase in PHASES)
