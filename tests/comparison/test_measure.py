"""Yardsticks of a user's own data."""

import pytest
import torch

from nsgf.comparison import measure
from nsgf.comparison.measure import Yardstick
from nsgf.data import Data
from nsgf.metrics import features
from tests.conftest import shipped
from tests.metrics.test_features import Pixels

CPU = torch.device("cpu")


@pytest.fixture
def compared(monkeypatch) -> list:
    """What exact W2 is asked for."""
    asked: list = []
    monkeypatch.setattr(measure, "w2", lambda x, y: asked.append((x, y)) or 1.0)
    return asked


@pytest.mark.parametrize("exp", ["points", "images"])
def test_floors_compare_halves_and_samples_are_as_many(exp, own_data, compared):
    config = shipped(exp, *own_data[exp], *["--evaluation.features=none"] * (exp == "images"))
    yardstick, data = Yardstick(config, CPU, print), Data(config.data, 3)
    assert yardstick.samples == data.count // 2
    yardstick.floor(seed=3, draw=0)
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
    floors = [yardstick.floor(*place)["imagenet_frechet"] for place in places[:3]]
    assert len(set(floors)) == 3
    points = Yardstick(shipped("2d"), CPU, print)
    assert list(points.floor_places([(3, 0), (4, 0)])) == [(3, 0), (4, 0)]


def test_points_are_compared_in_their_units(own_data, compared):
    config = shipped("points", *own_data["points"])
    data, samples = Data(config.data, 0), torch.randn(20, 3)
    values = Yardstick(config, CPU, print).measure(samples, seed=0, draw=1)
    (x, reals), (own, standardised) = compared
    assert torch.equal(own, samples)
    torch.testing.assert_close(data.in_units(standardised), reals)
    assert torch.equal(x, data.in_units(samples))
    assert torch.equal(reals, data.reference("compare", "1").sample(20))
    assert list(values) == Yardstick(config, CPU, print).names


def test_points_without_end_are_not_cut_short():
    assert Yardstick(shipped("2d"), CPU, print).samples == 4096
