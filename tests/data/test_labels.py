import pickle
import struct

import numpy as np
import pytest
import torch

from nsgf.data import Files, data_set
from nsgf.data.cifar import read_labels
from nsgf.system.errors import UserError
from tests.data.test_hostile_images import BATCHES
from tests.data.test_images import write_cifar10, write_mnist
from tests.run.test_hostile_files import Malicious, _nothing_is_executed  # noqa: F401


def load(name, root, *, verify=True):
    return data_set(name).labels(Files(root, verify=verify, download=False))


def write_batch(root, number: int, content: dict) -> None:
    (root / "cifar-10-batches-py" / f"data_batch_{number}").write_bytes(pickle.dumps(content))


def test_digits_are_labelled_in_the_published_order(tmp_path):
    labels = load("digits", tmp_path)
    assert labels.dtype == torch.int64
    assert labels.shape == (1797,)
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_mnist_labels_come_in_the_order_of_the_file(tmp_path):
    write_mnist(tmp_path, np.zeros((6, 28, 28), np.uint8))
    file = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    file.write_bytes(struct.pack(">II", 2049, 6) + bytes([5, 0, 4, 1, 9, 2]))
    assert load("mnist", tmp_path).tolist() == [5, 0, 4, 1, 9, 2]
    file.write_bytes(struct.pack(">II", 2049, 6) + bytes([5, 0, 10, 1, 9, 2]))
    with pytest.raises(UserError, match=r"data\.root = .*0 to 9"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("key", ["labels", b"labels"])
def test_cifar10_labels_come_batch_after_batch(key, tmp_path):
    write_cifar10(tmp_path, np.zeros((10, 3, 32, 32), np.uint8))
    for number in range(1, 6):
        write_batch(tmp_path, number, {key: [number, 9 - number]})
    assert load("cifar10", tmp_path, verify=False).tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    with pytest.raises(UserError, match=r"--data\.verify false"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_files_give_the_line_that_images_give(name, tmp_path):
    with pytest.raises(UserError, match=r"data\.root = .*--data-root") as caught:
        load(name, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "labels", [None, 3, [1.0], [True], ["1"], [10], [-1], [2**70], [[1]], [Malicious()]]
)
def test_odd_labels_are_refused(labels, tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({"labels": labels}))
    with pytest.raises(ValueError, match="labels are"):
        read_labels(file)


@pytest.mark.parametrize("kind", BATCHES)
def test_labels_never_execute(kind, tmp_path):
    write_cifar10(tmp_path, np.zeros((10, 3, 32, 32), np.uint8))
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(BATCHES[kind])
    for verify in (True, False):
        with pytest.raises(UserError, match=r"data\.root"):
            load("cifar10", tmp_path, verify=verify)
