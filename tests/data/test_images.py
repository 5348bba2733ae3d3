"""The shipped image sets: what is read, and that damaged or hostile files end in one line."""

import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS
from nsgf.data.images import IMAGE_SETS, to_bytes, to_unit_range
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.run.test_hostile_files import (  # noqa: F401
    PICKLE,
    WEIGHTS,
    Malicious,
    _nothing_is_executed,
)

GREY = np.random.default_rng(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
COLOUR = np.random.default_rng(0).integers(256, size=(10, 3, 32, 32), dtype=np.uint8)
DIGITS = np.array([5, 0, 4, 1, 9, 2], np.uint8)
CIFAR10_FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]


def images(name, root, download=False):
    return DATA_SETS[name].load(DataConfig(name=name, root=str(root), download=download), 0)


def labels(name, root, download=False):
    config = DataConfig(name=name, root=str(root), download=download)
    return DATA_SETS[name].labels(config, {"digits": 1797, "mnist": 6, "cifar10": 10}[name])


def idx(array):
    """An array as a file of MNIST."""
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A folder with a small MNIST."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, order in (("train", 1), ("t10k", -1)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(GREY[::order]))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(DIGITS[::order]))
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


@pytest.mark.parametrize("place", ["MNIST/raw", ".", "MNIST", "mnist", "{name}"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_mnist_is_read_from_any_of_its_files_and_nothing_is_written(
    place, is_compressed, mnist, tmp_path
):
    """Kaggle has dots in the names, and folders with the usual names; others keep the archives."""
    root = tmp_path / "own"
    for file in mnist.iterdir():
        content = gzip.compress(file.read_bytes()) if is_compressed else file.read_bytes()
        name = f"{file.name}.gz" if is_compressed else file.name.replace("-idx", ".idx")
        folder = root / place.format(name=name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        (root / file.name).mkdir()
    before = sorted(root.rglob("*"))
    assert np.array_equal(images("mnist", root, download=True).numpy(), GREY[:, None])
    assert labels("mnist", root, download=True).tolist() == [*DIGITS]
    assert sorted(root.rglob("*")) == before


def test_cifar10_is_read_batch_after_batch_and_test_images_from_other_files(
    mnist, cifar10, tmp_path
):
    pixels = images("cifar10", tmp_path)
    assert pixels.is_contiguous()
    assert np.array_equal(pixels.numpy(), COLOUR)
    assert labels("cifar10", tmp_path).tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    for name, expected in {"mnist": GREY[::-1, None], "cifar10": COLOUR[:2]}.items():
        config = DataConfig(name=name, root=str(tmp_path))
        assert np.array_equal(DATA_SETS[name].load(config, 0, held_out=True).numpy(), expected)
    assert DATA_SETS["digits"].load(DataConfig(name="digits"), 0, held_out=True) is None


@pytest.mark.parametrize("read", [images, labels])
@pytest.mark.parametrize("name", ["data_batch_5", "batches.meta"])
def test_cifar10_with_another_md5_sum_is_refused_and_never_unpickled(
    name, read, cifar10, tmp_path, monkeypatch
):
    """Nor replaced by a download.

    Past mistake: CIFAR-10 files with another md5 sum were unpickled, so a shared data set could
    run code.
    """
    monkeypatch.setattr(CIFAR10, "download", lambda _: pytest.fail("downloaded"))
    (cifar10 / name).write_bytes(pickle.dumps({"data": Malicious(), "labels": Malicious()}))
    with pytest.raises(UserError, match=r"^data\.root = .*exp=images"):
        read("cifar10", tmp_path, download=True)


def test_pickles_of_old_torchvisions_are_not_read(mnist, tmp_path):
    """torchvision prefers ``processed/training.pt``."""
    (tmp_path / "MNIST" / "processed").mkdir()
    for name in ("training.pt", "test.pt"):
        (tmp_path / "MNIST" / "processed" / name).write_bytes(WEIGHTS["torch"])
    assert np.array_equal(images("mnist", tmp_path).numpy(), GREY[:, None])
    (mnist / "train-images-idx3-ubyte").unlink()
    with pytest.raises(UserError, match=r"^data\.root = "):
        images("mnist", tmp_path)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("images-idx3", idx(GREY)[:-100]),  # truncated
        ("images-idx3", idx(GREY.reshape(6, 14, 56))),  # other shape
        ("images-idx3", PICKLE),  # pickle
        ("images-idx3", b""),  # empty
        ("labels-idx1", idx(2 * DIGITS)),  # no digit
        ("labels-idx1", idx(DIGITS[:5])),  # too few labels
    ],
)
def test_damaged_mnist_files_end_in_one_line(part, content, mnist, tmp_path):
    (mnist / f"train-{part}-ubyte").write_bytes(content)
    with pytest.raises(UserError, match=r"^data\.root = "):
        (images if part.startswith("images") else labels)("mnist", tmp_path)


@pytest.mark.parametrize(("name", "download"), [("mnist", True), ("cifar10", False)])
def test_missing_files_give_one_line_with_remedies(name, download, tmp_path, monkeypatch):
    def fetch(*_, **__):
        raise RuntimeError("no network")

    for module in ("cifar", "mnist"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", fetch)
    with pytest.raises(UserError, match=r"^data\.root = .*data\.fake=true") as caught:
        images(name, tmp_path, download)
    assert ("no network" in str(caught.value)) is download


def test_bytes_and_unit_range_are_inverse():
    levels = torch.arange(256, dtype=torch.uint8)
    unit = to_unit_range(levels)
    assert (float(unit.min()), float(unit.max())) == (-1.0, 1.0)
    assert torch.equal(to_bytes(unit), levels)
    assert to_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


@pytest.mark.parametrize("kind", IMAGE_SETS, ids=lambda kind: kind.name)
def test_fake_data_have_the_shape_of_the_real_set_and_follow_the_seed(kind, tmp_path):
    config = DataConfig(name=kind.name, root=str(tmp_path), fake=True)
    drawn = [load_data(config, seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0].images, drawn[1].images)
    assert not torch.equal(drawn[0].images, drawn[2].images)
    batch = drawn[0].target("x").sample(5)
    assert batch.shape == drawn[0].source("x").sample(5).shape == (5, *kind.shape)
