"""CIFAR-10's batches, which are pickles, read without executing what a pickle can ask for.

A pickle names functions to call. Here none is ever called: each name becomes a :class:`_Note` of
what was asked, and the pixels are taken out of the notes about the one array of a batch.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

PIXELS = 3 * 32 * 32


class _Note:
    """What a pickle says about an object: what it would be made by and of, and its state."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __call__(self, *arguments: Any) -> "_Note":
        return _Note(self.name, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle._Unpickler):
    """The unpickler written in Python: a hostile index cannot make its memo a huge table."""

    def find_class(self, module: str, name: str) -> Any:
        return _Note(name)


def read_batch(file: Path) -> np.ndarray:
    """The images of a batch, ``data`` of its dictionary.  uint8, (N, 3, 32, 32)

    Raises:
        Exception: nearly any, if it is no such pickle.
    """
    content = _content(file)
    pixels = np.frombuffer(_array_bytes(content.get(b"data", content.get("data"))), np.uint8)
    return pixels.reshape(-1, 3, 32, 32)


def read_labels(file: Path) -> np.ndarray:
    """The labels of a batch, the list ``labels`` of its dictionary.  int64, (N,), in [0, 9]

    Raises:
        Exception: nearly any, if it is no such pickle.
    """
    content = _content(file)
    labels = content.get(b"labels", content.get("labels"))
    known = isinstance(labels, list) and all(type(one) is int and 0 <= one < 10 for one in labels)
    if not known:
        raise ValueError(f"{file}: labels are no list of whole numbers from 0 to 9")
    return np.array(labels, np.int64)


def _content(file: Path) -> dict[Any, Any]:
    content = _Reader(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no dictionary")
    return content


def _array_bytes(note: Any) -> bytes:
    """The bytes of an array of uint8, (N, PIXELS), in C order, by what a pickle says of it."""
    if not isinstance(note, _Note):
        raise ValueError("data is no array")
    if note.name == "_frombuffer":  # protocol 5
        raw, dtype, shape, order = note.arguments
        fortran = order != "C"
    elif note.name == "_reconstruct":
        _, shape, dtype, fortran, raw = note.state
    else:
        raise ValueError(f"data is made by {note.name}")
    if isinstance(raw, _Note):  # protocol 2 as Python 3 writes it
        raw = _encoded(raw)
    kind = dtype.arguments[0] if isinstance(dtype, _Note) and dtype.name == "dtype" else None
    if kind not in ("u1", b"u1") or fortran or not isinstance(raw, bytes | bytearray):
        raise ValueError("data is no array of bytes in C order")
    if len(shape) != 2 or shape[1] != PIXELS or len(raw) != shape[0] * PIXELS:
        raise ValueError(f"data has shape {shape}, not (N, {PIXELS})")
    return bytes(raw)


def _encoded(note: _Note) -> bytes:
    text, encoding = note.arguments
    if note.name != "encode" or encoding not in ("latin1", b"latin1"):
        raise ValueError(f"data holds the result of {note.name}")
    return str(text).encode("latin1")
