"""The user's own data as every other part of the program sees them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig, FoundConfig
from nsgf.data import Data, Files, ImageSet, build_source, is_image_set, target_set
from nsgf.data.own import LOOKS, OWN_SETS
from nsgf.system.errors import UserError
from tests.data.own_files import own_points, write_images, write_points


def looked(name: str, place: Path, **other) -> DataConfig:
    """The section of a new run."""
    config = DataConfig(name=name, path=str(place), **other)
    found = LOOKS[name](config).found
    if name == "images":
        other |= {"size": found.shape[1], "color": "grey" if found.shape[0] == 1 else "rgb"}
    return DataConfig(name=name, path=str(place), found=found, **other)


def test_names_say_what_is_an_image_set():
    assert {name: is_image_set(name) for name in OWN_SETS} == {"images": True, "points": False}
    assert set(LOOKS) == set(OWN_SETS)


def test_images_are_a_set_as_the_shipped_ones(tmp_path):
    config = looked("images", write_images(tmp_path, 24, classes=2), size=8, flip=True)
    record, data = target_set(config), Data(config, seed=0)
    assert isinstance(record, ImageSet)
    assert (record.shape, record.classes) == ((3, 8, 8), 2)
    assert data.images.shape == (24, 3, 8, 8)
    assert record.labels(Files.of(config)).tolist() == [0] * 12 + [1] * 12
    batch = data.target("x").sample(30)
    assert batch.shape == build_source(config, 0, "x").sample(30).shape == (30, 3, 8, 8)
    assert torch.equal(data.reference("x").sample(30), batch)
    assert data.in_units(batch) is batch
    assert (data.count, data.axes) == (24, None)
    assert Data(replace(config, fake=True), seed=0).images.shape == (512, 3, 8, 8)


def test_images_without_classes_have_no_labels(tmp_path):
    config = looked("images", write_images(tmp_path, 20), size=8)
    with pytest.raises(UserError, match="has no labels"):
        target_set(config).labels(Files.of(config))


@pytest.mark.parametrize(("count", "epochs"), [(20, 30), (20_000, 20), (200_000, 4)])
def test_classifiers_of_small_sets_are_trained_for_more_epochs(count, epochs):
    found = FoundConfig(count, [1, 8, 8], 2, "x")
    record = target_set(DataConfig(name="images", path="x", size=8, color="grey", found=found))
    assert record.classifier_epochs == epochs


def test_points_are_standardised_for_networks_and_measured_in_their_units(tmp_path):
    config = looked("points", write_points(tmp_path / "x.npy"))
    data, points = Data(config, seed=0), torch.from_numpy(own_points())
    assert data.images is None
    assert (data.shape, data.count) == ((3,), 40)
    assert data.axes == ("coordinate 1", "coordinate 2", "coordinate 3")
    batch, real = data.target("x").sample(40), data.reference("x").sample(40)
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch.std(0, correction=0), torch.ones(3))
    torch.testing.assert_close(data.in_units(batch), real, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.sort(real.numpy(), 0), np.sort(points.numpy(), 0))
    assert data.source("x").sample(5).shape == (5, 3)


def test_what_nobody_has_looked_at_is_refused():
    for name in OWN_SETS:
        with pytest.raises(UserError, match=f"name the {name} to train on with --data.path"):
            Data(DataConfig(name=name, path="x"), seed=0)


@pytest.mark.parametrize("shape", [[3, 8], [3, 8, 9], [2, 8, 8], []])
def test_shapes_that_no_image_has_are_refused(shape):
    config = DataConfig(name="images", path="x", found=FoundConfig(20, shape, 0, "x"))
    with pytest.raises(UserError, match=r"data\.found\.shape = .* cannot be that of images"):
        target_set(config)
