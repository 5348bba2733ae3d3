"""The shipped image sets: what is read, and that damaged or hostile files end in one line."""

import gzip
import hashlib
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from nsgf.config.schema import DataConfig
from nsgf.data import Data, data_set
from nsgf.data.images import IMAGE_SETS, to_bytes, to_unit_range
from nsgf.system.errors import UserError
from tests.run.test_hostile_files import (  # noqa: F401
    PICKLE,
    WEIGHTS,
    Malicious,
    _nothing_is_executed,
)

GREY = np.random.default_rng(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(0).integers(256, size=(10, 3, 32, 32), dtype=np.uint8)
DIGITS = [5, 0, 4, 1, 9, 2]
CIFAR10_FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]


def section(name, root, **other) -> DataConfig:
    return DataConfig(name=name, root=str(root), download=False, **other)


def images(name, root) -> torch.Tensor:
    return data_set(name).images(section(name, root))


def labels(name, root) -> torch.Tensor:
    return data_set(name).labels(section(name, root))


@pytest.fixture
def mnist(tmp_path):
    """A folder with a small MNIST."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        header = struct.pack(">IIII", 2051, *GREY.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + GREY.tobytes())
        header = struct.pack(">II", 2049, len(GREY))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(DIGITS))
    return folder


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A folder with a small CIFAR-10, of which torchvision knows the md5 sums."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate(CIFAR10_FILES):
        rows = COLOUR[2 * number % 10 :][:2].reshape(2, -1)
        content = {"data": rows, "labels": [number, 9 - number], "label_names": ["x"] * 10}
        (folder / name).write_bytes(pickle.dumps(content))
    sums = [[n, hashlib.md5((folder / n).read_bytes()).hexdigest()] for n in CIFAR10_FILES]
    monkeypatch.setattr(CIFAR10, "train_list", sums[:5])
    monkeypatch.setattr(CIFAR10, "test_list", sums[5:6])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums[6][1]})
    return folder


def test_digits_use_the_whole_range_and_have_labels(tmp_path):
    pixels = images("digits", tmp_path)
    assert (pixels.shape, pixels.dtype) == ((1797, 1, 8, 8), torch.uint8)
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    assert labels("digits", tmp_path)[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_mnist_is_read_in_the_order_of_its_files(mnist, tmp_path):
    assert np.array_equal(images("mnist", tmp_path).numpy(), GREY[:, None])
    assert labels("mnist", tmp_path).tolist() == DIGITS


def test_cifar10_is_read_batch_after_batch(cifar10, tmp_path):
    pixels = images("cifar10", tmp_path)
    assert pixels.is_contiguous()
    assert np.array_equal(pixels.numpy(), COLOUR)
    assert labels("cifar10", tmp_path).tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]


@pytest.mark.parametrize("read", [images, labels])
@pytest.mark.parametrize("name", CIFAR10_FILES)
def test_cifar10_with_another_md5_sum_is_refused_and_never_unpickled(name, read, cifar10, tmp_path):
    (cifar10 / name).write_bytes(pickle.dumps({"data": Malicious(), "labels": Malicious()}))
    with pytest.raises(UserError, match=r"^data\.root = .*--exp images"):
        read("cifar10", tmp_path)


def test_cifar10_with_another_md5_sum_is_not_replaced_by_a_download(cifar10, tmp_path, monkeypatch):
    (cifar10 / "data_batch_1").write_bytes(b"own")
    fetched = []
    monkeypatch.setattr(CIFAR10, "download", lambda dataset: fetched.append(dataset))
    with pytest.raises(UserError, match="md5"):
        data_set("cifar10").images(DataConfig(name="cifar10", root=str(tmp_path), download=True))
    assert not fetched


def test_cifar10_has_the_published_sums():
    """Those that the sums above stand for: without them torchvision would unpickle anything."""
    for _, md5 in (*CIFAR10.train_list, *CIFAR10.test_list, (None, CIFAR10.meta["md5"])):
        assert len(md5) == 32


def test_mnist_never_reads_pickles_of_old_torchvisions(mnist, tmp_path):
    """torchvision prefers ``processed/training.pt``; old ones unpickle it."""
    (tmp_path / "MNIST" / "processed").mkdir()
    for name in ("training.pt", "test.pt"):
        (tmp_path / "MNIST" / "processed" / name).write_bytes(WEIGHTS["torch"])
    assert np.array_equal(images("mnist", tmp_path).numpy(), GREY[:, None])


PIXELS = bytes(6 * 784)
DAMAGED_IMAGES = {
    "truncated": struct.pack(">IIII", 2051, 6, 28, 28) + PIXELS[:-100],
    "magic": struct.pack(">IIII", 1234, 6, 28, 28) + PIXELS,
    "size": struct.pack(">IIII", 2051, 2**32 - 1, 28, 28) + PIXELS,
    "sizes": struct.pack(">IIII", 2051, *[2**32 - 1] * 3) + PIXELS,
    "type": struct.pack(">IIII", 0x0E03, 6, 28, 28) + PIXELS,
    "dimensions": struct.pack(">IIII", 0x08FF, 6, 28, 28) + PIXELS,
    "none": struct.pack(">IIII", 2051, 0, 28, 28),
    "other shape": struct.pack(">IIII", 2051, 6, 14, 56) + PIXELS,
    "pickle": PICKLE,
    "compressed": gzip.compress(struct.pack(">IIII", 2051, 6, 28, 28) + PIXELS),
    "web page": b"<html></html>",
    "empty": b"",
}
DAMAGED_LABELS = {
    "no digit": struct.pack(">II", 2049, 6) + bytes([5, 0, 10, 1, 9, 2]),
    "none": struct.pack(">II", 2049, 0),
    "pickle": PICKLE,
}


@pytest.mark.parametrize("kind", DAMAGED_IMAGES)
def test_damaged_mnist_images_end_in_one_line(kind, mnist, tmp_path):
    (mnist / "train-images-idx3-ubyte").write_bytes(DAMAGED_IMAGES[kind])
    with pytest.raises(UserError, match=r"^data\.root = "):
        images("mnist", tmp_path)


@pytest.mark.parametrize("kind", DAMAGED_LABELS)
def test_damaged_mnist_labels_end_in_one_line(kind, mnist, tmp_path):
    (mnist / "train-labels-idx1-ubyte").write_bytes(DAMAGED_LABELS[kind])
    with pytest.raises(UserError, match=r"^data\.root = "):
        labels("mnist", tmp_path)


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_files_give_one_line_with_remedies(name, download, tmp_path, monkeypatch):
    def fetch(*_, **__):
        raise RuntimeError("no network")

    for module in ("cifar", "mnist"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", fetch)
    for read in (data_set(name).images, data_set(name).labels):
        with pytest.raises(UserError) as caught:
            read(replace(section(name, tmp_path), download=download))
        message = str(caught.value)
        for part in (f"data.root = {tmp_path}", name, "--data.root", "--fake-data", "--exp images"):
            assert part in message
        assert ("--data.download" in message) is not download
        assert ("no network" in message) is download


def test_bytes_and_unit_range_are_inverse():
    levels = torch.arange(256, dtype=torch.uint8)
    unit = to_unit_range(levels)
    assert (float(unit.min()), float(unit.max())) == (-1.0, 1.0)
    assert torch.equal(to_bytes(unit), levels)
    assert to_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


@pytest.mark.parametrize("name", [one.name for one in IMAGE_SETS])
def test_fake_data_have_the_shape_of_the_real_set(name, tmp_path):
    data = Data(section(name, tmp_path, fake=True), seed=0)
    batch = data.target("x").sample(5)
    assert batch.shape == data.source("x").sample(5).shape == (5, *data_set(name).shape)


def test_fake_data_follow_only_from_the_seed():
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        drawn.append(Data(DataConfig(name="digits", fake=True), seed).images)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
