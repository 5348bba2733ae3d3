"""Malicious image sets: nothing in them is executed, the end is one line."""

import gzip
import pickle
import struct

import numpy as np
import pytest

from nsgf.data import cifar
from nsgf.data.cifar import read_batch
from nsgf.system.errors import UserError
from tests.data.test_images import load, write_cifar10, write_mnist
from tests.run.test_hostile_files import (  # noqa: F401
    PICKLE,
    WEIGHTS,
    Malicious,
    _nothing_is_executed,
)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_cifar10_batches_of_every_protocol_are_read(protocol, tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(3, 3072), dtype=np.uint8)
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({"labels": [1] * 3, "data": pixels}, protocol=protocol))
    assert np.array_equal(read_batch(file), pixels.reshape(3, 3, 32, 32))


def test_cifar10_as_python_2_published_it(tmp_path):
    """Names of Python 2 and keys of bytes: written here by hand, byte for byte."""
    pixels = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8)
    raw = b"T" + struct.pack("<i", pixels.nbytes) + pixels.tobytes()
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
    dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    state = b"(K\x01(K\x02M\x00\x0ct" + dtype + b"\x89" + raw + b"tb"
    file = tmp_path / "batch"
    file.write_bytes(b"\x80\x02}(U\x04data" + array + state + b"u.")
    assert np.array_equal(read_batch(file), pixels.reshape(2, 3, 32, 32))


ROWS = np.zeros((2, 3072), np.uint8)
BATCHES = {
    "calls": PICKLE,
    "calls system": b"cos\nsystem\n(S'touch executed'\ntR.",
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "length": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "deep": b"\x80\x02" + b"(" * 10**5 + b".",
    "other type": pickle.dumps({"data": ROWS.astype(np.float64)}),
    "objects": pickle.dumps({"data": np.array([[Malicious()]], dtype=object)}),
    "columns first": pickle.dumps({"data": np.asfortranarray(np.ones((2, 3072), np.uint8))}),
    "other width": pickle.dumps({"data": np.zeros((2, 100), np.uint8)}),
    "no array": pickle.dumps({"data": [1, 2]}),
    "list": pickle.dumps([1, 2]),
    "empty": b"",
}


@pytest.mark.parametrize("kind", BATCHES)
def test_cifar10_batches_never_execute(kind, tmp_path):
    write_cifar10(tmp_path, np.zeros((10, 3, 32, 32), np.uint8))
    for name in ("data_batch_3", "batches.meta", "test_batch"):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(BATCHES[kind])
    for verify in (True, False):
        with pytest.raises(UserError, match=r"data\.root"):
            load("cifar10", tmp_path, verify=verify)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("other type", "data is no array of bytes in C order"),
        ("columns first", "data is no array of bytes in C order"),
        ("other width", r"data has shape \(2, 100\), not \(N, 3072\)"),
        ("no array", "data is no array$"),
    ],
)
def test_what_is_wrong_with_a_batch_is_said(kind, cause, tmp_path):
    (tmp_path / "batch").write_bytes(BATCHES[kind])
    with pytest.raises(ValueError, match=cause):
        read_batch(tmp_path / "batch")


@pytest.mark.parametrize(("name", "encoding"), [("decode", "latin1"), ("encode", "utf8")])
def test_pixels_are_decoded_in_one_way_alone(name, encoding):
    note = cifar._Note(name)
    note.arguments = ("\xff", encoding)
    with pytest.raises(ValueError, match=f"holds the result of {name}"):
        cifar._encoded(note)


def test_calls_beside_the_pixels_are_not_made_either(tmp_path):
    pixels = np.ones((10, 3, 32, 32), np.uint8)
    write_cifar10(tmp_path, pixels)
    content = {"data": pixels[:2].reshape(2, -1), "labels": Malicious()}
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(content))
    assert np.array_equal(load("cifar10", tmp_path, verify=False).numpy(), pixels)


def test_mnist_never_reads_pickles_of_old_torchvisions(tmp_path, monkeypatch):
    """torchvision prefers ``processed/training.pt``; old ones unpickle it."""
    pixels = np.random.default_rng(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
    write_mnist(tmp_path, pixels)
    (tmp_path / "MNIST" / "processed").mkdir()
    for name in ("training.pt", "test.pt"):
        (tmp_path / "MNIST" / "processed" / name).write_bytes(WEIGHTS["torch"])
    assert np.array_equal(load("mnist", tmp_path).numpy(), pixels[:, None])


PIXELS = bytes(6 * 784)
IDX = {
    "magic": struct.pack(">IIII", 1234, 6, 28, 28) + PIXELS,
    "size": struct.pack(">IIII", 2051, 2**32 - 1, 28, 28) + PIXELS,
    "sizes": struct.pack(">IIII", 2051, *[2**32 - 1] * 3) + PIXELS,
    "type": struct.pack(">IIII", 0x0E03, 6, 28, 28) + PIXELS,
    "dimensions": struct.pack(">IIII", 0x08FF, 6, 28, 28) + PIXELS,
    "none": struct.pack(">IIII", 2051, 0, 28, 28),
    "other shape": struct.pack(">IIII", 2051, 6, 14, 56) + PIXELS,
    "pickle": PICKLE,
    "compressed": gzip.compress(struct.pack(">IIII", 2051, 6, 28, 28) + PIXELS),
    "empty": b"",
}


@pytest.mark.parametrize("kind", IDX)
def test_mnist_of_absurd_headers_ends_in_one_line(kind, tmp_path):
    write_mnist(tmp_path, np.zeros((6, 28, 28), np.uint8))
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(IDX[kind])
    with pytest.raises(UserError, match=r"data\.root"):
        load("mnist", tmp_path)
