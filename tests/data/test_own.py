"""The user's own data as every other part of the program sees them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import INSPECTORS, OWN_SETS, Data, ImageSet, is_image_set, target_set
from nsgf.system.errors import UserError
from tests.data.own_files import own_points, write_images, write_points


def inspected(name: str, place: Path, **other) -> DataConfig:
    """The section of a new run."""
    config = DataConfig(name=name, path=str(place), **other)
    found = INSPECTORS[name](config).found
    if name == "images":
        other["size"] = found.shape[1]
    return DataConfig(name=name, path=str(place), found=found._asdict(), **other)


def test_images_are_a_set_as_the_shipped_ones(tmp_path):
    config = inspected("images", write_images(tmp_path, 24, classes=2), size=8, flip=True)
    record, data = target_set(config), Data(config, seed=0)
    assert is_image_set("images")
    assert isinstance(record, ImageSet)
    assert (record.shape, record.classes) == ((3, 8, 8), 2)
    assert data.images.shape == (24, 3, 8, 8)
    assert record.labels(config).tolist() == [0] * 12 + [1] * 12
    batch = data.target("x").sample(30)
    assert batch.shape == data.source("x").sample(30).shape == (30, 3, 8, 8)
    assert torch.equal(data.reference("x").sample(30), batch)
    assert data.in_units(batch) is batch
    assert (data.count, data.axes) == (24, None)


def test_images_without_classes_have_no_labels(tmp_path):
    config = inspected("images", write_images(tmp_path, 20), size=8)
    with pytest.raises(UserError, match="no labels"):
        target_set(config).labels(config)


@pytest.mark.parametrize(("count", "epochs"), [(20, 30), (20_000, 20), (200_000, 4)])
def test_classifiers_of_small_sets_are_trained_for_more_epochs(count, epochs):
    found = {"samples": count, "shape": [1, 8, 8], "checksum": "x", "classes": 2}
    record = target_set(DataConfig(name="images", path="x", size=8, found=found))
    assert record.classifier_epochs == epochs


def test_points_are_standardised_for_networks_and_measured_in_their_units(tmp_path):
    config = inspected("points", write_points(tmp_path / "x.npy"))
    data = Data(config, seed=0)
    assert not is_image_set("points")
    assert data.images is None
    assert (data.shape, data.count) == ((3,), 40)
    assert data.axes == ("coordinate 1", "coordinate 2", "coordinate 3")
    batch, real = data.target("x").sample(40), data.reference("x").sample(40)
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.std(0, correction=0), torch.ones(3))
    back = data.in_units(batch)
    assert back.dtype == torch.float64
    torch.testing.assert_close(back, real, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.sort(real.numpy(), 0), np.sort(own_points(), 0))
    assert data.source("x").sample(5).shape == (5, 3)


def test_large_numbers_keep_their_differences(tmp_path):
    """Seconds since 1970: float32 has steps of 128 there."""
    np.save(tmp_path / "x.npy", 1.7e9 + np.arange(100.0)[:, None])
    data = Data(inspected("points", tmp_path / "x.npy"), seed=0)
    back, real = data.in_units(data.target("x").sample(100)), data.reference("x").sample(100)
    assert float((back - real).abs().max()) < 1e-3


@pytest.mark.parametrize("name", OWN_SETS)
def test_data_that_were_not_inspected_are_refused(name):
    with pytest.raises(UserError, match=rf"data\.path = x: .*{name}"):
        Data(DataConfig(name=name, path="x"), seed=0)


@pytest.mark.parametrize(
    "change",
    [
        *({"shape": shape} for shape in ([3, 8], [3, 8, 9], [2, 8, 8], [], "8", [0, 8, 8])),
        *({"samples": samples} for samples in (0, "20", None, True)),
        *({"classes": -1}, {"classes": 2.5}, {"unknown": 1}),
    ],
)
def test_images_that_cannot_have_been_found_are_refused(change):
    found = {"samples": 20, "shape": [3, 8, 8], "checksum": "x", **change}
    with pytest.raises(UserError, match=r"data\.found"):
        target_set(DataConfig(name="images", path="x", size=8, found=found))


@pytest.mark.parametrize("key", ["names", "mean", "scale"])
@pytest.mark.parametrize("value", [None, [1.0]])
def test_columns_that_cannot_have_been_found_are_refused(key, value, tmp_path):
    config = inspected("points", write_points(tmp_path / "x.npy"))
    with pytest.raises(UserError, match=r"data\.found"):
        target_set(replace(config, found={**config.found, key: value}))
