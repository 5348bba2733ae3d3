"""A file of the user's own points, standardised for training.

Shapes: N points, D coordinates.
"""

import array
import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig, FoundConfig
from nsgf.data.found import LEAST, Seen, refuse_others
from nsgf.system.errors import UserError, one_line

OBJECTS = "no whole file of numpy's, or one of objects; save numbers"
"""In place of numpy's own words, which advise to load pickles."""
SUFFIXES = (".npz", ".npy", ".csv")
FLAT = 1e-12
"""A column whose values differ by less than this share of the largest one is constant: what is left
is rounding."""


@dataclass(frozen=True)
class Table:
    """Points in the units of their file, and how they are standardised: to mean 0 and standard
    deviation 1 in each coordinate."""

    values: np.ndarray
    """float64, (N, D)."""
    names: tuple[str, ...]
    """Of the coordinates."""
    mean: Tensor
    """float64, (D,)."""
    scale: Tensor
    """Standard deviations, float64, (D,), all > 0."""

    def standardised(self) -> Tensor:
        """All points as networks see them.  float32, (N, D)"""
        return ((torch.from_numpy(self.values) - self.mean) / self.scale).float()

    @property
    def checksum(self) -> str:
        """Of shape and values, whichever type of file they come from."""
        digest = hashlib.sha256(repr(self.values.shape).encode())
        digest.update(np.ascontiguousarray(self.values, "<f8").tobytes())
        return digest.hexdigest()[:12]


def look_at_points(config: DataConfig) -> Seen:
    """Read the points of ``data.path`` and say what they are.

    Raises:
        UserError: as :func:`read_table`.
    """
    table = read_table(Path(config.path or "").expanduser())
    count, dim = table.values.shape
    mean, scale = table.mean.tolist(), table.scale.tolist()
    found = FoundConfig(count, [dim], 0, table.checksum, list(table.names), mean, scale)
    return Seen(found, (f"data: {count} points of {config.path}, {dim} coordinates",))


def read_points(config: DataConfig) -> Table:
    """The points of ``data.path``, as ``data.found`` says they are.

    Raises:
        UserError: as :func:`read_table`, or they are not those that the run was begun with.
    """
    table = read_table(Path(config.path or "").expanduser())
    refuse_others(config, table.checksum == config.found.checksum)
    return table


def read_table(file: Path) -> Table:
    """Points of a file.

    Raises:
        UserError: there is no such file, it is of another type, holds anything but one table of
            finite numbers, or too few of them, or a coordinate is the same in all points.
    """
    what = _no_file(file)
    if what:
        raise UserError(f"data.path = {file}: {what}; name a file with --data.path FILE")
    try:
        if file.suffix.lower() == ".csv":
            values, names = _read_csv(file)
        else:
            values, names = _read_array(file), ()
        _refuse_shape(values)
        names = names or tuple(f"coordinate {number + 1}" for number in range(values.shape[1]))
        _refuse_values(values, names)
    except UnicodeDecodeError as error:
        raise UserError(f"data.path = {file}: no text in UTF-8; save it anew") from error
    except Exception as error:  # numpy raises many types for damaged and foreign files
        raise UserError(f"data.path = {file}: {one_line(error)}") from error
    rows = torch.from_numpy(values)
    return Table(values, names, rows.mean(0), rows.std(0, correction=0))


def _no_file(file: Path) -> str | None:
    """Why a path cannot be read as points; None: it may be."""
    if file.is_dir():
        return "is a folder; images are --exp images"
    if not file.is_file():
        return "no such file"
    if file.suffix.lower() not in SUFFIXES:
        return f"must end in {', '.join(SUFFIXES)}"
    return None


def _read_csv(file: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Values, float64, (N, D), and the names in the first line, if no number is among them.

    Raises:
        ValueError: a line has a text, nothing between two commas, or another number of values.
    """
    values, width, names = array.array("d"), 0, tuple[str, ...]()
    with file.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream)
        for row in lines:
            if not row:
                continue
            if not width:
                width = len(row)
                if not any(map(_is_number, row)):
                    names = tuple(map(one_line, row))
                    continue
            if len(row) != width:
                raise ValueError(
                    f"line {lines.line_num} has {len(row)} values, the first one {width}; all rows "
                    "must have the same columns, separated by commas"
                )
            try:
                values.extend(map(float, row))
            except ValueError:
                column, wrong = next((i, w) for i, w in enumerate(row) if not _is_number(w))
                said = repr(wrong[:50]) if wrong.strip() else "nothing"
                raise ValueError(
                    f"line {lines.line_num}, column {column + 1} has {said}, must be a number; "
                    "drop such rows or columns, or write numbers for them"
                ) from None
    return np.array(values, np.float64).reshape(-1, max(width, 1)), names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_array(file: Path) -> np.ndarray:
    """The array of a file .npy, or the only one of a file .npz.  float64

    Raises:
        Exception: nearly any: the file is damaged, holds several arrays, or other than numbers.
    """
    names = ["the array"]
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            with content:
                names = content.files
                content = np.asarray(content[names[0]]) if len(names) == 1 else None
    except ValueError as error:
        raise ValueError(OBJECTS) from error
    if content is None:
        raise ValueError(
            f"has {len(names)} arrays ({', '.join(names)[:200]}), must have one; save the points "
            "alone, np.save('points.npy', array)"
        )
    if content.dtype.kind not in "fiu":
        raise ValueError(f"an array of {content.dtype}, must be of real numbers")
    return np.ascontiguousarray(content, np.float64)


def _refuse_shape(values: np.ndarray) -> None:
    if values.ndim != 2 or not values.shape[1]:
        hint = "; say x[:, None] for points on a line" if values.ndim == 1 else ""
        raise ValueError(
            f"an array of shape {values.shape}, must be (N, D): a row for each point, a column for "
            f"each coordinate{hint}"
        )
    if len(values) < LEAST:
        raise ValueError(f"{len(values)} points, must be at least {LEAST}")


def _refuse_values(values: np.ndarray, names: tuple[str, ...]) -> None:
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
