"""Yardsticks of a user's own data."""

from dataclasses import replace

import pytest
import torch

from nsgf.data import Data
from nsgf.metrics import features, measures
from nsgf.metrics.yardstick import Yardstick
from tests.conftest import shipped
from tests.metrics.test_features import Pixels

CPU = torch.device("cpu")


@pytest.fixture
def compared(monkeypatch) -> list:
    """What exact W2 is asked for."""
    asked: list = []
    watched = [
        replace(one, compute=lambda x, y: asked.append((x, y)) or 1.0) if one.is_slow else one
        for one in measures.MEASURES
    ]
    monkeypatch.setattr(measures, "MEASURES", watched)
    return asked


@pytest.mark.parametrize("exp", ["points", "images"])
def test_floors_compare_halves_and_samples_are_as_many(exp, own_data, compared):
    config = shipped(exp, *own_data[exp], *["--evaluation.features=none"] * (exp == "images"))
    yardstick, data = Yardstick(config, CPU, print), Data(config.data, 3)
    assert yardstick.samples == data.count // 2
    yardstick.floor(yardstick.compared, seed=3, draw=0)
    (others, reals), *standardised = compared
    assert len(standardised) == (exp == "points")
    whole = torch.cat([reals, others]).flatten(1)
    assert len(whole.unique(dim=0)) == 2 * yardstick.samples
    assert torch.equal(reals, data.reference("compare", "0").sample(yardstick.samples))


def test_images_have_ten_floors_whatever_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "ImageNet", Pixels)
    yardstick = Yardstick(shipped("digits", "--out-dir", str(tmp_path)), CPU, lambda _: None)
    places = list(yardstick.floor_places([(3, 0), (4, 0)]))
    assert len(set(places)) == 10
    floors = [
        yardstick.floor(yardstick.compared, *place)["imagenet_frechet"] for place in places[:3]
    ]
    assert len(set(floors)) == 3
    points = Yardstick(shipped("2d"), CPU, print)
    assert list(points.floor_places([(3, 0), (4, 0)])) == [(3, 0), (4, 0)]
    assert points.samples == 4096  # points without end are not cut short


def test_points_are_compared_in_their_units(own_data, compared):
    config = shipped("points", *own_data["points"])
    data, samples = Data(config.data, 0), torch.randn(20, 3)
    yardstick = Yardstick(config, CPU, print)
    values = yardstick.measure(yardstick.compared, samples, seed=0, draw=1)
    (x, reals), (own, standardised) = compared
    assert torch.equal(own, samples)
    torch.testing.assert_close(data.in_units(standardised), reals)
    assert torch.equal(x, data.in_units(samples))
    assert torch.equal(reals, data.reference("compare", "1").sample(20))
    assert list(values) == measures.keys_of(yardstick.compared)
