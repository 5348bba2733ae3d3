"""A file of the user's own points, standardised for training.

Shapes: N points, D coordinates.
"""

import csv
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.own import LEAST, Found, Inspection, check_same_data, read_found
from nsgf.system.errors import UserError, one_line

SUFFIXES = (".npz", ".npy", ".csv")
SEPARATORS = ",;\t"
"""Of the values in a line; the most frequent one of the first line is taken."""
FLAT = 1e-12
"""Share of a column's largest value below which differences are rounding errors."""


@dataclass(frozen=True)
class TableSet:
    """The points of a file."""

    shape: tuple[int, ...]
    """(D,)."""
    name: str = "points"
    """``data.name``."""
    uses: frozenset[str] = frozenset({"path"})
    """Settings of the section ``data`` that have an effect, besides ``name``."""

    is_source = False


def inspect_points(config: DataConfig) -> Inspection:
    """Read the points of ``data.path`` and describe them.

    Raises:
        UserError: as :func:`read_table`.
    """
    values, names = read_table(Path(config.path or "").expanduser())
    rows, (count, dim) = torch.from_numpy(values), values.shape
    mean, scale = rows.mean(0).tolist(), rows.std(0, correction=0).tolist()
    found = Found(count, [dim], checksum(values), 0, list(names), mean, scale)
    return Inspection(found, (f"data: {count} points of {config.path}, {dim} coordinates",))


def table_set(config: DataConfig) -> TableSet:
    """Return the record of the points of ``data.path``, which follows from ``data.found``.

    Raises:
        UserError: ``data.found`` is empty or wrong.
    """
    return TableSet(tuple(read_found(config).shape))


def read_points(config: DataConfig) -> Tensor:
    """Return the points of ``data.path`` in the units of their file.  float64, (N, D)

    Raises:
        UserError: as :func:`read_table`, or they are not those that the run was begun with.
    """
    values, _ = read_table(Path(config.path or "").expanduser())
    check_same_data(config, checksum(values) == read_found(config).checksum)
    return torch.from_numpy(values)


def checksum(values: np.ndarray) -> str:
    """Return the checksum of shape and values, which does not depend on the type of the file."""
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return digest.hexdigest()[:12]


def standardised(config: DataConfig, points: Tensor) -> Tensor:
    """Return own points with mean 0 and standard deviation 1 in each coordinate, as networks see
    them.  (N, D), float64 -> float32
    """
    found = read_found(config)
    mean, scale = points.new_tensor(found.mean), points.new_tensor(found.scale)
    return ((points - mean) / scale).float()


def in_units(config: DataConfig, samples: Tensor, *, raw: bool = False) -> Tensor:
    """Return samples of networks in the units of the data.  (N, *shape)

    Own points are scaled back and become float64. Images are clamped to [-1, 1], unless ``raw``.
    """
    if samples.ndim == 4 and not raw:
        return samples.clamp(-1, 1)
    if config.name != "points":
        return samples
    found, wide = read_found(config), samples.double()
    return wide * wide.new_tensor(found.scale) + wide.new_tensor(found.mean)


def read_table(file: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the points of a file, float64, (N, D), and the names of their coordinates.

    Raises:
        UserError: there is no such file, it is of another type, holds anything but one table of
            finite numbers, or too few of them, or a coordinate is the same in all points.
    """
    if not file.is_file() or file.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"data.path = {file}: no such file ending in {', '.join(SUFFIXES)}; name one with "
            "--data.path FILE, or a folder of images with --exp images --data.path DIR"
        )
    try:
        is_text = file.suffix.lower() == ".csv"
        values, names = _read_csv(file) if is_text else (_read_array(file), ())
        _check_shape(values)
        names = names or tuple(f"coordinate {number + 1}" for number in range(values.shape[1]))
        _check_values(values, names)
    except UnicodeDecodeError as error:
        raise UserError(f"data.path = {file}: no text in UTF-8; save it anew") from error
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"data.path = {file}: {one_line(error)}") from error
    return values, names


def _read_csv(file: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the values, float64, (N, D), and the names in the first line, if it has no number.

    Raises:
        ValueError: a line has a text, nothing between two separators, or another number of values.
    """
    text = file.read_text(encoding="utf-8-sig").lstrip()
    first = text.partition("\n")[0]
    separator = max(SEPARATORS, key=first.count)
    (row,) = csv.reader([first], delimiter=separator)
    names = () if any(map(_is_number, row)) else tuple(map(one_line, row))
    body = text[len(first) :] if names else text
    if not body.strip():
        return np.empty((0, len(row) or 1)), names
    values = np.loadtxt(
        io.StringIO(body), delimiter=separator, quotechar='"', comments=None, ndmin=2
    )
    return values, names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_array(file: Path) -> np.ndarray:
    """Return the array of a file .npy, or the only one of a file .npz.  float64

    Raises:
        Exception: of many types: the file is damaged, or holds anything but one array of numbers.
    """
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            with content:
                (name,) = content.files
                content = content[name]
    except ValueError as error:  # numpy's own words advise to load pickles
        raise ValueError(
            "must hold one whole array of numbers; save the points with np.save('points.npy', x)"
        ) from error
    if content.dtype.kind not in "fiu":
        raise ValueError(f"an array of {content.dtype}, must be of real numbers")
    return np.ascontiguousarray(content, np.float64)


def _check_shape(values: np.ndarray) -> None:
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(
            f"an array of shape {values.shape}, must be (N, D): a row for each point, a column for "
            "each coordinate; use x[:, None] for points on a line"
        )
    if len(values) < LEAST:
        raise ValueError(f"{len(values)} points, must be at least {LEAST}")


def _check_values(values: np.ndarray, names: tuple[str, ...]) -> None:
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{len(wrong)} values are not finite, the first is {values[row, column]} in point "
            f"{row + 1}, {names[column]}; drop such rows, or write numbers for them"
        )
    largest = np.abs(values).max(0)
    if largest.max() > 1e100:
        raise ValueError(f"{largest.max():g}, must be at most 1e100; use another unit")
    flat = np.ptp(values, axis=0) <= FLAT * largest
    if flat.any():
        named = ", ".join(names[column] for column in np.flatnonzero(flat)[:10])
        raise ValueError(f"the same value everywhere in {named}; leave that column out")
