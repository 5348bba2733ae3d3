"""A user's own data: a description of what is at ``data.path``, and standardised points of a file.

Shapes: N points, D coordinates.
"""

import csv
import hashlib
import math
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
import torch
from numpy.lib.recfunctions import structured_to_unstructured
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.config.values import read_value
from nsgf.data.points import Target
from nsgf.data.tables import Table, column_names, read_file
from nsgf.system.errors import (
    UserError,
    list_names,
    name_setting,
    one_line,
    suggest,
    wrong_setting,
)
from nsgf.system.seeding import make_generator

LEAST = 16
"""Smallest number of images or points that can be trained on."""
ARRAYS = (".npz", ".npy")
SUFFIXES = (*ARRAYS, ".csv", ".tsv", ".txt", ".parquet", ".xlsx")
LARGEST = 1e150
"""Largest absolute value of a coordinate, so that squares stay within float64. 1 / LARGEST is the
smallest range."""


class Found(NamedTuple):
    """What was found at ``data.path``, as saved in ``data.found``."""

    samples: int
    """Number of images or points."""
    shape: list[int]
    """Shape of one sample: (C, H, W), or (D,)."""
    checksum: str
    """Checksum of all images (names and contents), or of all points."""
    classes: int = 0
    """Number of classes of images; 0 if a class has too few images."""
    names: list[str] | None = None
    """Names of the D coordinates of points."""
    mean: list[float] | None = None
    """Mean of each coordinate, in the units of the file."""
    scale: list[float] | None = None
    """Standard deviation of each coordinate."""
    class_names: list[str] | None = None
    """Names of the classes."""
    broken: list[str] | None = None
    """Files that ``data.skip_broken`` leaves out."""


Inspection = tuple[Found, tuple[str, ...]]
"""Description of the data, and lines about it for the user."""


def read_found(config: DataConfig) -> Found:
    """Return what was found at ``data.path`` when the run began. Raise UserError if the description
    is missing or damaged."""
    if not config.found:
        raise wrong_setting("data.path", config.path, f"name the {config.name} to train on")
    kinds = get_type_hints(Found)
    axes = 3 if config.name == "images" else 1
    try:
        found = Found(**{key: read_value(key, kinds[key], it) for key, it in config.found.items()})
        columns = () if axes == 3 else (found.names, found.mean, found.scale)
        if (
            min(found.samples, *found.shape) > 0
            and len(found.shape) == axes
            and len(found.class_names or ()) == found.classes
            and all(len(part or ()) == found.shape[0] for part in columns)
        ):
            return found
    except (KeyError, TypeError, UserError):
        pass
    raise UserError(f"data.found: damaged, or does not describe {config.name}; train a new run")


def check_same_data(config: DataConfig, checksum: str) -> None:
    """Raise UserError unless ``data.path`` has the data that the run began with."""
    found = read_found(config)
    if checksum != found.checksum:
        raise wrong_setting(
            "data.path",
            config.path,
            f"holds other {config.name} than the run was begun with ({found.samples} of them, "
            f"checksum {found.checksum}); restore those and any labels, give their place, or train "
            "a new run",
        )


def data_path(config: DataConfig) -> Path:
    """Return ``data.path``. Raise UserError if it is null, as in exported runs, or is no .npz file
    although ``data.key`` is set."""
    if config.path is None:
        raise UserError(f"data.path = null: must say where the {config.name} are")
    path = Path(config.path).expanduser()
    if config.key and path.suffix.lower() != ".npz":
        raise wrong_setting("data.key", config.key, "is for files .npz")
    return path


class TableSet(Target):
    """The points of a file. For networks, each coordinate has mean 0 and standard deviation 1."""

    name = "points"
    uses = frozenset({"path", "header", "columns", "held_out", "key"})

    def __init__(self, found: Found) -> None:
        self.shape = tuple(found.shape)
        self.axes = tuple(found.names or ())
        self._mean = found.mean
        self._scale = found.scale

    def load(self, config: DataConfig, seed: int, *, held_out: bool = False) -> Tensor:
        values = torch.from_numpy(read_table(config).values)
        return values[split_rows(config, len(values))[held_out]]

    def from_units(self, samples: Tensor) -> Tensor:
        """Return points of the file, standardised for networks.  (N, D) -> float32"""
        wide = samples.double()
        return ((wide - wide.new_tensor(self._mean)) / wide.new_tensor(self._scale)).float()

    def in_units(self, samples: Tensor) -> Tensor:
        """Return samples of networks in the units of the file.  (N, D) -> float64"""
        wide = samples.double()
        return wide * wide.new_tensor(self._scale) + wide.new_tensor(self._mean)


def inspect_points(config: DataConfig) -> Inspection:
    """Read the points of ``data.path``, and describe those to train on. Raise UserError if a column
    is constant, and the errors of :func:`read_table`."""
    values, names, place, note = read_table(config)
    count, dim = values.shape
    trained = split_rows(config, count)[0].numpy()
    rows = values[trained]
    for name, width in zip(names, np.ptp(rows, axis=0), strict=True):
        if width < 1 / LARGEST:
            raise wrong_setting(
                "data.path", config.path, f"a range of {width:.3g} in {name}; leave that column out"
            )
    columns = torch.from_numpy(rows)
    found = Found(
        samples=count,
        shape=[dim],
        checksum=_checksum(values),
        names=names,
        mean=columns.mean(0).tolist(),
        scale=columns.std(0, correction=0).tolist(),
    )
    notes = [f"data: {count} points of {config.path}, {dim} coordinates: {list_names(names)}", note]
    if dim > 1 and not np.ptp(rows[:, 0] - trained):
        notes.append(
            f"data: {names[0]} counts the rows, perhaps an index; to leave it out say "
            f"{suggest('data.columns', repr(list_names(names[1:], dim)))}"
        )
    cut = len(rows) // 100 + 1
    middle = np.sort(rows, axis=0)[cut:-cut]
    far = np.argwhere(np.abs(values - np.median(rows, axis=0)) > 30 * middle.std(0))
    for row, column in far[:1]:
        notes.append(
            f"data: {names[column]}: {values[row, column]:g} in {place(row + 1)} is far from the "
            "other values; a code for a missing value?"
        )
    return found, tuple(filter(None, notes))


def split_rows(config: DataConfig, count: int) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the samples to train on, and of those that are held out, int64.
    Raise UserError if there are too few of either."""
    share = config.held_out
    held = round(share * count)
    if share and not LEAST <= held <= count - LEAST:
        raise UserError(
            f"data.held_out = {share:g}: {held} of {count} samples, must be {LEAST} or more and "
            f"leave {LEAST} for training"
        )
    order = torch.randperm(count, generator=make_generator(0, "held out"))
    return order[held:].sort().values, order[:held].sort().values


def _checksum(values: np.ndarray) -> str:
    """Return a checksum of shape and values. It does not depend on the type of the file."""
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return digest.hexdigest()[:12]


def read_table(config: DataConfig) -> Table:
    """Return the chosen columns of the points of ``data.path``, all finite. Raise UserError unless
    the file has one table with enough points, and the same points as when the run began."""
    file = data_path(config)
    suffix = file.suffix.lower()
    try:
        if not file.is_file() or suffix not in SUFFIXES:
            raise ValueError(
                f"no such file, or it does not end in {', '.join(SUFFIXES)}; save a table as .csv, "
                f"or name a folder of images with {suggest('exp', 'images')}"
            )
        # all columns
        if suffix in ARRAYS:
            array = load_arrays(config)[0]
            fields = array.dtype.names
            names = column_names(fields or [""] * math.prod(array.shape[1:]))
            array = structured_to_unstructured(array) if fields else array
            table = Table(array.astype(np.float64, casting="same_kind"), names)
        else:
            table = read_file(file, config.header)
        shape = table.values.shape
        if len(shape) != 2 or shape[0] < LEAST or not 0 < shape[1] == len(table.names):
            raise ValueError(
                f"an array of shape {shape}, must be (N, D) with N >= {LEAST}: a row for each "
                "point, a column for each coordinate"
            )
        # chosen columns
        names = table.names
        (wanted,) = csv.reader([config.columns or ""], skipinitialspace=True)
        chosen = [n for one in wanted for n, name in enumerate(names) if one in (name, str(n + 1))]
        if len({*chosen}) != len(wanted) or len({one in names for one in wanted}) > 1:
            raise ValueError(
                f"{name_setting('data.columns', config.columns)}: must be different columns of "
                f"{list_names(names)}, all by name or all by number, and none may be the name of "
                "one and the number of another"
            )
        if chosen:
            names = [names[number] for number in chosen]
        values = np.ascontiguousarray(table.values[:, chosen or slice(None)])
        for row, column in np.argwhere(~(np.abs(values) <= LARGEST)):
            raise ValueError(
                f"{table.place(row + 1)}, {names[column]}: missing, no number or more than "
                f"{LARGEST:g}; write 1234.5 for 1,234.5 or 1234,5, leave out rows with gaps, or "
                f"name the columns to use with {suggest('data.columns', 'A,B')}"
            )
    except Exception as error:  # numpy and pandas raise many types for damaged and foreign files
        raise wrong_setting("data.path", file, one_line(error)) from error
    if config.found:
        check_same_data(config, _checksum(values))
    return table._replace(values=values, names=names)


def load_arrays(config: DataConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """Return an array and its labels, if any. A .npy file is mapped into memory. From a .npz file,
    take the array ``data.key``, else the one with the name of the data, else the only one; and the
    labels whose name has the same prefix: ``labels``, or ``test_labels`` for ``test_images``. Raise
    errors of many types if the array is missing or damaged."""
    # torch takes only writable arrays: "c" never writes to the file
    content = np.load(data_path(config), mmap_mode="c", allow_pickle=False, max_header_size=2**20)
    if isinstance(content, np.ndarray):
        return content, None
    with content:
        wanted = config.key or (config.name if config.name in content else None)
        keys = [key for key in content.files if wanted in (None, key)]
        if len(keys) != 1:
            raise ValueError(
                f"say {suggest('data.key', 'NAME')}, one of {list_names(content.files)}"
            )
        beginning = keys[0][: keys[0].rfind("_") + 1]
        return content[keys[0]], content.get(f"{beginning}labels")
