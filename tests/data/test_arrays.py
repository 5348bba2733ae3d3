"""Images and labels of a user's own file."""

import numpy as np
import pytest
import torch

from nsgf import UserError
from nsgf.cli.arguments import parse
from nsgf.data import Data, class_names
from nsgf.data.arrays import class_numbers, image_bytes

PIXELS = np.random.default_rng(0).integers(256, size=(40, 3, 12, 12), dtype=np.uint8)
LABELS = np.arange(40) % 3


def config_of(file, *flags, **arrays):
    np.savez(file, **arrays)
    return parse(["train", "--exp=images", f"--data.path={file}", *flags]).config


def test_arrays_are_trained_on_as_they_are(tmp_path):
    config = config_of(tmp_path / "own.npz", images=PIXELS)
    assert (config.data.size, config.data.found["classes"]) == (12, 0)
    assert torch.equal(Data(config.data, 0).images, torch.from_numpy(PIXELS))


def test_labels_become_classes(tmp_path):
    names = np.array(["cat", "ant", "dog"])[LABELS]
    config = config_of(tmp_path / "own.npz", "--data.conditional=true", images=PIXELS, labels=names)
    assert (config.data.found["classes"], config.nsf.coupling) == (3, "independent")
    assert class_names(config.data) == ("ant", "cat", "dog")
    sample = Data(config.data, 0).target_by_class("x").sample(3)
    of_ants = torch.from_numpy(PIXELS[LABELS == 1]).float() / 127.5 - 1
    assert (sample[0] == of_ants).flatten(1).all(1).any()


def test_images_keep_their_size(tmp_path):
    with pytest.raises(UserError, match=r"data\.size = 8: must be 12"):
        config_of(tmp_path / "own.npz", "--data.size=8", images=PIXELS)


def test_a_resumed_run_must_find_the_same_arrays(tmp_path):
    config = config_of(tmp_path / "own.npz", images=PIXELS, labels=LABELS)
    np.savez(tmp_path / "own.npz", images=PIXELS, labels=LABELS[::-1])
    with pytest.raises(UserError, match=r"data\.path .* other images"):
        Data(config.data, 0)


def test_floats_are_the_same_data_as_their_bytes():
    assert np.array_equal(image_bytes(PIXELS / 127.5 - 1), PIXELS)


@pytest.mark.parametrize(
    ("images", "what"),
    [
        (PIXELS[..., :9], "shape"),
        (PIXELS[:9], "N >= 16"),
        (PIXELS[:, :2], "C 1 or 3"),
        (PIXELS.astype(int), "int64"),
        (PIXELS / 255.0, r"0 to 1.*2 \* images - 1"),
        (PIXELS / 100.0 - 1, "-1 to 1.55"),
        (np.where(PIXELS == 7, np.nan, PIXELS / 127.5 - 1), "nan"),
    ],
)
def test_wrong_images_are_refused(images, what):
    with pytest.raises(ValueError, match=what):
        image_bytes(images)


@pytest.mark.parametrize(
    "labels",
    [LABELS[:39], LABELS / 2, LABELS * 2, LABELS - 1, np.zeros(40, int), np.arange(40) % 5],
)
def test_wrong_labels_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        class_numbers(labels, 40)


def test_a_file_of_something_else_is_named(tmp_path):
    with pytest.raises(UserError, match=r"data\.path = .*own\.npz: .*images"):
        config_of(tmp_path / "own.npz", x=PIXELS)
