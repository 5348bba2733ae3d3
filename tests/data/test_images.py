import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from nsgf.config.schema import DataConfig
from nsgf.data import Data, Files, data_set
from nsgf.data.images import IMAGE_SETS, to_bytes, to_unit_range
from nsgf.system.errors import UserError
from tests.data.own_files import write_images


def write_mnist(root, images: np.ndarray) -> None:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        header = struct.pack(">IIII", 2051, *images.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = struct.pack(">II", 2049, len(images)) + bytes(len(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def write_cifar10(root, images: np.ndarray) -> None:
    """``images`` (5 n, 3, 32, 32) in the five batches of torchvision's layout."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)]
    parts = np.split(images.reshape(len(images), -1), 5)
    for name, part in zip([*names, "test_batch"], [*parts, parts[0]], strict=True):
        (folder / name).write_bytes(pickle.dumps({"data": part, "labels": [0] * len(part)}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["x"] * 10}))


def load(name, root, *, verify=True):
    return data_set(name).images(Files(root, verify=verify, download=False))


def test_digits_are_bundled_and_use_the_whole_range(tmp_path):
    images = load("digits", tmp_path)
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == torch.uint8
    assert (int(images.min()), int(images.max())) == (0, 255)


def test_mnist_reads_torchvision_files(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
    write_mnist(tmp_path, pixels)
    assert np.array_equal(load("mnist", tmp_path).numpy(), pixels[:, None])


def test_cifar10_with_other_sums_needs_verify_false(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(10, 3, 32, 32), dtype=np.uint8)
    write_cifar10(tmp_path, pixels)
    with pytest.raises(UserError, match=r"--data\.verify false"):
        load("cifar10", tmp_path)
    assert np.array_equal(load("cifar10", tmp_path, verify=False).numpy(), pixels)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_files_give_one_line_with_remedies(name, tmp_path):
    with pytest.raises(UserError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path), name, "--data-root", "--fake-data"):
        assert part in message


@pytest.mark.parametrize("content", [b"", b"<html>", pickle.dumps([1, 2]), pickle.dumps({})])
def test_damaged_cifar10_ends_in_one_line(tmp_path, content):
    write_cifar10(tmp_path, np.zeros((10, 3, 32, 32), np.uint8))
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(UserError, match=r"data\.root"):
        load("cifar10", tmp_path, verify=False)


def test_mnist_that_is_a_web_page_is_refused(tmp_path):
    write_mnist(tmp_path, np.zeros((6, 28, 28), np.uint8))
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"<html></html>")
    with pytest.raises(UserError, match=r"data\.root"):
        load("mnist", tmp_path)


def test_truncated_mnist_is_refused(tmp_path):
    write_mnist(tmp_path, np.zeros((6, 28, 28), np.uint8))
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"data\.root"):
        load("mnist", tmp_path)


def test_bytes_and_unit_range_are_inverse():
    levels = torch.arange(256, dtype=torch.uint8)
    unit = to_unit_range(levels)
    assert (float(unit.min()), float(unit.max())) == (-1.0, 1.0)
    assert torch.equal(to_bytes(unit), levels)
    assert to_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


@pytest.mark.parametrize("name", [one.name for one in IMAGE_SETS])
def test_fake_data_has_the_shape_of_the_real_set(name, tmp_path):
    data = Data(DataConfig(name=name, fake=True, root=str(tmp_path)), seed=0)
    batch = data.target("x").sample(5)
    assert batch.shape == (5, *data_set(name).shape)
    assert data.source("x").sample(5).shape == batch.shape


def test_streams_of_one_data_set_are_independent():
    data = Data(DataConfig(name="digits"), seed=0)
    assert torch.equal(data.target("a").sample(9), data.target("a").sample(9))
    assert not torch.equal(data.target("a").sample(9), data.target("b").sample(9))
    assert not torch.equal(data.source("a").sample(9), data.source("b").sample(9))


def test_source_can_be_eight_gaussians():
    data = Data(DataConfig(name="moons", source="8gaussians"), seed=0)
    radius = data.source("x").sample(500).norm(dim=1)
    assert abs(float(radius.mean()) - 5) < 0.1


@pytest.mark.parametrize(
    ("name", "files", "offers"),
    [
        ("mnist", "torchvision's mnist files", ("download", "data-root", "fake-data")),
        (
            "cifar10",
            "torchvision's cifar10 files",
            ("download", "verify", "data-root", "fake-data"),
        ),
    ],
)
def test_missing_files_are_named_with_what_can_be_done(tmp_path, name, files, offers):
    config = DataConfig(name=name, root=str(tmp_path), download=False)
    with pytest.raises(UserError) as caught:
        Data(config, 0)
    text = str(caught.value)
    assert text.startswith(f"data.root = {tmp_path}: no usable {name} (")
    assert f"); put {files} there, or " in text
    for word in ("download", "verify", "data-root", "fake-data"):
        assert (word in text) == (word in offers)
    allowed = Files.of(replace(config, download=True, verify=False))
    text = data_set(name)._unusable(allowed, ValueError("x"))
    assert "--data.download" not in text
    assert "--data.verify" not in text


def test_a_folder_of_images_in_place_of_a_shipped_set_gets_a_hint(tmp_path):
    for name, is_offered in (("empty", False), ("images", True)):
        (tmp_path / name).mkdir()
        if is_offered:
            write_images(tmp_path / name, 1)
        with pytest.raises(UserError) as refusal:
            load("mnist", tmp_path / name)
        hint = "train on the images there with --exp images --data.path DIR"
        assert (hint in str(refusal.value)) is is_offered
