"""A user's own data: what is found at ``data.path``, and points of a file, standardised.

Shapes: N points, D coordinates.
"""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.system.errors import UserError, list_names, name_setting, one_line, suggest

LEAST = 16
"""Smallest number of images or points that can be trained on."""
SUFFIXES = (".npz", ".npy", ".csv")
SEPARATORS = ",;\t"
"""Allowed separators; the most frequent one in the first line is used."""


class Found(NamedTuple):
    """What was found at ``data.path``, as saved in ``data.found``."""

    samples: int
    """Number of images or points."""
    shape: list[int]
    """Shape of one sample: (C, H, W), or (D,)."""
    checksum: str
    """Checksum of the names and contents of all images, or of all points."""
    classes: int = 0
    """Number of classes of images; 0 if there are too few images of one for a classifier."""
    names: list[str] | None = None
    """Names of the D coordinates of points."""
    mean: list[float] | None = None
    """Mean of each coordinate, in the units of the file."""
    scale: list[float] | None = None
    """Standard deviation of each coordinate."""
    class_names: list[str] | None = None
    """Names of the classes, which runs of earlier versions do not have."""
    broken: list[str] | None = None
    """Files that are left out, with ``data.skip_broken``."""


Inspection = tuple[Found, tuple[str, ...]]
"""Description of the data, and lines about it for the user."""


def read_found(config: DataConfig) -> Found:
    """Return what was found at ``data.path`` when the run was begun; raise UserError if nothing
    was, or the description is damaged."""
    if not config.found:
        raise UserError(f"data.path = {config.path}: name the {config.name} to train on")
    try:
        found = Found(**config.found)
        if _is_possible(found, axes=3 if config.name == "images" else 1):
            return found
    except TypeError:
        pass
    raise UserError(f"data.found: damaged, or does not describe {config.name}; train a new run")


def _is_possible(found: Found, axes: int) -> bool:
    """Whether types and sizes are possible; raise TypeError for some that are not."""
    lists = (found.names, found.class_names, found.broken)
    texts = [found.checksum, *(text for part in lists for text in part or ())]
    numbers = [*(found.mean or ()), *(found.scale or ())]
    columns = () if axes == 3 else (found.names, found.mean, found.scale)
    return (
        all(type(size) is int and size > 0 for size in (found.samples, *found.shape))
        and len(found.shape) == axes
        and found.classes in range(min(found.samples, 2**16) + 1)  # their names fit into memory
        and len(found.class_names or range(found.classes)) == found.classes
        and {str} >= {*map(type, texts)}
        and {int, float} >= {*map(type, numbers)}
        and all(len(part or ()) == found.shape[0] for part in columns)
    )


def check_same_data(config: DataConfig, checksum: str) -> None:
    """Raise UserError unless ``data.path`` holds the data that the run was begun with."""
    found = read_found(config)
    if checksum != found.checksum:
        raise UserError(
            f"{name_setting('data.path', config.path)}: holds other {config.name} than the run "
            f"was begun with ({found.samples} of them, checksum {found.checksum}); restore those, "
            "give their place, or train a new run"
        )


def data_path(config: DataConfig) -> Path:
    """Return ``data.path``. Raise UserError if it is null, as in exported runs."""
    if config.path is None:
        raise UserError(f"data.path = null: must say where the {config.name} are")
    return Path(config.path).expanduser()


@dataclass(frozen=True)
class TableSet:
    """The points of a file. Networks see them with mean 0 and standard deviation 1 in each
    coordinate."""

    found: Found
    name: ClassVar[str] = "points"
    """``data.name``."""
    uses: ClassVar[frozenset[str]] = frozenset({"path", "columns", "key"})
    """Settings of the section ``data`` that have an effect, besides ``name``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(D,)."""
        return tuple(self.found.shape)

    def standardised(self, points: Tensor) -> Tensor:
        """Return points of the file as networks see them.  (N, D), float64 -> float32"""
        mean, scale = points.new_tensor(self.found.mean), points.new_tensor(self.found.scale)
        return ((points - mean) / scale).float()

    def in_units(self, samples: Tensor) -> Tensor:
        """Return samples of networks in the units of the file.  (N, D) -> float64"""
        wide = samples.double()
        return wide * wide.new_tensor(self.found.scale) + wide.new_tensor(self.found.mean)


def inspect_points(config: DataConfig) -> Inspection:
    """Read the points of ``data.path`` and describe them; errors as for :func:`read_table`."""
    values, names = read_table(config)
    rows, (count, dim) = torch.from_numpy(values), values.shape
    mean, scale = rows.mean(0).tolist(), rows.std(0, correction=0).tolist()
    found = Found(count, [dim], _checksum(values), 0, list(names), mean, scale)
    note = f"data: {count} points of {config.path}, {dim} coordinates: {list_names(names)}"
    steps = values - np.arange(count)[:, None]  # of a column that counts, 0 or 1 everywhere
    counts = (steps == 0).all(0) | (steps == 1).all(0)
    is_index = [counts[i] and (i == 0 or name == _unnamed(i)) for i, name in enumerate(names)]
    others = [name for name, index in zip(names, is_index, strict=True) if not index]
    if len(others) in (0, dim):
        return found, (note,)
    columns = suggest("data.columns", f"'{list_names(others, dim)}'")
    index = names[is_index.index(True)]
    return found, (
        note,
        f"data: {index} counts the rows, perhaps an index; to leave it out say {columns}",
    )


def read_points(config: DataConfig) -> Tensor:
    """Return the points of ``data.path`` in the units of their file, float64, (N, D); raise
    UserError as :func:`read_table`, or if they are not those that the run was begun with."""
    values, _ = read_table(config)
    check_same_data(config, _checksum(values))
    return torch.from_numpy(values)


def _checksum(values: np.ndarray) -> str:
    """Return the checksum of shape and values, which does not depend on the type of the file."""
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return digest.hexdigest()[:12]


def read_table(config: DataConfig) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the points of ``data.path``, float64, (N, D), and the names of their coordinates;
    raise UserError unless it is a file with one table of enough finite numbers that vary."""
    file = data_path(config)
    if not file.is_file() or file.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{name_setting('data.path', file)}: no such file ending in {', '.join(SUFFIXES)}; "
            f"name one, or a folder of images with {suggest('exp', 'images')}"
        )
    try:
        if config.key and file.suffix.lower() != ".npz":
            raise ValueError("data.key is for files .npz")
        read = _read_csv if file.suffix.lower() == ".csv" else _read_array
        values, names = read(file, config)
        if values.ndim != 2 or len(values) < LEAST or not values.shape[1]:
            raise ValueError(
                f"an array of shape {values.shape}, must be (N, D) with N >= {LEAST}: a row for "
                "each point, a column for each coordinate"
            )
        wrong = np.argwhere(~np.isfinite(values))
        if len(wrong):
            row, column = wrong[0]
            raise ValueError(f"{values[row, column]} in point {row + 1}, {names[column]}")
        flat = np.flatnonzero(np.ptp(values, axis=0) == 0)
        if len(flat):
            raise ValueError(f"one value everywhere in {names[flat[0]]}; leave that column out")
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"{name_setting('data.path', file)}: {one_line(error)}") from error
    return values, names


def _unnamed(number: int) -> str:
    return f"coordinate {number + 1}"


def _choose(columns: str | None, names: Sequence[str]) -> list[int]:
    """Return the indices of the chosen columns, each given by its name or number; None: all."""
    (wanted,) = csv.reader([columns or ""], skipinitialspace=True)
    places = {str(number + 1): number for number in range(len(names))}
    places |= {name: number for number, name in enumerate(names)}
    for name in wanted:
        if name not in places or names.count(name) > 1:
            raise ValueError(f"data.columns: {name} must be one column of {list_names(names)}")
    return [places[name] for name in wanted] or list(range(len(names)))


def _read_csv(file: Path, config: DataConfig) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the values of the columns, float64, (N, D), and their names in the first line, if it
    has fewer numbers than the second, or none; raise ValueError for anything else."""
    lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if len(lines) < LEAST:
        raise ValueError(f"{len(lines)} lines, must be at least {LEAST} points")
    separator = max(SEPARATORS, key=lines[0].count)
    row, below = csv.reader(lines[:2], delimiter=separator)
    for number, cells in enumerate(csv.reader(lines, delimiter=separator), 1):
        if len(cells) != len(row):
            raise ValueError(f"row {number} has {len(cells)} cells, row 1 has {len(row)}")
    first, second = (sum(_is_number(cell or "0") for cell in line) for line in (row, below))
    has_names = first < second or not first
    names = [(has_names and one_line(name)) or _unnamed(n) for n, name in enumerate(row)]
    chosen = _choose(config.columns, names)
    how: dict[str, Any] = {"delimiter": separator, "quotechar": '"', "comments": None, "ndmin": 2}
    try:
        values = np.loadtxt(lines[has_names:], usecols=chosen if config.columns else None, **how)
    except ValueError as error:
        columns = suggest("data.columns", "A,B")
        hint = f"Numbers have a decimal point: 0.5; {columns} leaves columns out"
        raise ValueError(f"{error} {hint}") from error
    return values, tuple(names[number] for number in chosen)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_array(file: Path, config: DataConfig) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the array of a file .npy, or the only one of a file .npz or ``data.key``, float64, and
    names of its columns; raise errors of many types for anything else."""
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, np.ndarray):
        with content:
            names = [name for name in content.files if config.key in (None, name)]
            if len(names) != 1:
                raise ValueError(
                    f"say {suggest('data.key', 'NAME')}, one of {list_names(content.files)}"
                )
            content = content[names[0]]
    values = np.ascontiguousarray(content.astype(np.float64, casting="same_kind"))
    if values.ndim != 2:
        return values, ()
    chosen = _choose(config.columns, [_unnamed(number) for number in range(values.shape[1])])
    return np.ascontiguousarray(values[:, chosen]), tuple(map(_unnamed, chosen))
