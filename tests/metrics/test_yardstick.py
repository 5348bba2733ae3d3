"""Yardsticks of a user's own data.

Past mistake: The measures of `evaluate` and of `compare` were written twice, and a new measure
reached one of them.
"""

from dataclasses import replace

import pytest
import torch

from nsgf.commands import evaluate
from nsgf.metrics import measures
from nsgf.metrics.yardstick import TUNE, Yardstick
from nsgf.user_data import load_data
from tests.conftest import CPU, shipped
from tests.metrics.test_features import Pixels
from tests.user_data.user_files import write_images, write_points


def new_yardstick(config, log=print):
    """The yardstick of an experiment."""
    data = load_data(config.data, config.seed)
    return Yardstick(data, config.evaluation, config.out_path, CPU, log)


@pytest.fixture
def compared(monkeypatch):
    """What exact W2 is asked for."""
    asked = []
    watched = [
        replace(one, compute=lambda x, y: asked.append((x, y)) or 1.0) if one.is_slow else one
        for one in measures.MEASURES
    ]
    monkeypatch.setattr(measures, "MEASURES", watched)
    return asked


@pytest.mark.parametrize("exp", ["points", "images"])
def test_floors_compare_halves_and_samples_are_as_many(exp, own_data, compared):
    """Past mistake: The floor compared two batches of one stream across the end of an epoch. Both
    had images in common, so the floor was too low.
    """
    config = shipped(exp, *own_data[exp], *["--evaluation.features=none"] * (exp == "images"))
    yardstick, data = new_yardstick(config), load_data(config.data, 3)
    assert yardstick.samples == data.count // 2
    yardstick.measure(yardstick.compared, None, seed=3, draw=0)
    (others, reals), *standardised = compared
    assert len(standardised) == (exp == "points")
    assert len(torch.cat([reals, others]).flatten(1).unique(dim=0)) == 2 * yardstick.samples
    assert torch.equal(reals, data.reference("compare", "0").sample(yardstick.samples))


@pytest.mark.parametrize("exp", ["points", "images"])
def test_a_held_out_part_is_what_samples_and_training_data_are_compared_with(
    exp, compared, tmp_path
):
    """Past mistake: Images were clamped where they are written, not where they leave the network.
    W2 used values outside of [-1, 1], which no written sample has.
    """
    place = tmp_path / "x.npy"
    place = write_points(place) if exp == "points" else write_images(tmp_path / "x", 40)
    flags = (f"--data.path={place}", "--data.held_out=0.4")
    config = shipped(exp, *flags, *["--evaluation.features=none"] * (exp == "images"))
    yardstick, data = new_yardstick(config), load_data(config.data, 0)
    assert yardstick.samples == 16
    samples = torch.randn(16, *data.shape)
    yardstick.measure(yardstick.compared, samples, seed=0, draw=0)
    yardstick.measure(yardstick.compared, None, seed=0, draw=0)
    evaluate.distances(yardstick, [samples], config.seed)
    rows = {
        part: {tuple(row) for row in one.reference("x").sample(one.count).flatten(1).tolist()}
        for part, one in (("trained", data), ("held out", data.measured()))
    }
    kind = data.reference("x").sample(1).dtype
    compared[:] = [pair for pair in compared if pair[1].dtype == kind]  # not standardised
    assert len(compared) == 4
    for x, real in compared:
        assert exp == "points" or x.abs().max() <= 1
        assert {tuple(row) for row in real.flatten(1).tolist()} == rows["held out"]
        own = {tuple(row) for row in x.flatten(1).tolist()}
        assert own < rows["trained"] or torch.equal(x, data.in_units(samples))
    assert sum(torch.equal(x, data.in_units(samples)) for x, _ in compared) == 2


def test_images_have_ten_floors(tmp_path, monkeypatch):
    monkeypatch.setattr("nsgf.metrics.yardstick.ImageNet", Pixels)
    images = new_yardstick(shipped("digits", "--out-dir", str(tmp_path)), lambda _: None)
    assert images.network.splits == 10
    floors = [images.measure(images.compared, None, 0, split) for split in range(3)]
    assert len({floor["imagenet_frechet"] for floor in floors}) == 3
    points = new_yardstick(shipped("2d"))
    assert points.samples == 4096  # points without end are not cut short


def test_settings_are_selected_by_what_is_trained_on(tmp_path, compared):
    """Never by the held-out part, which tables use."""
    flags = (f"--data.path={write_points(tmp_path / 'x.npy')}", "--data.held_out=0.4")
    config = shipped("points", *flags)
    yardstick, data = new_yardstick(config), load_data(config.data, 0)
    yardstick.measure(yardstick.compared, torch.randn(16, *data.shape), 0, 0, TUNE)
    trained = {tuple(row) for row in data.user_points.tolist()}
    assert {tuple(row) for row in compared[0][1].tolist()} <= trained
