"""A user's own data: what is found at ``data.path``, and points of a file, standardised.

Shapes: N points, D coordinates.
"""

import csv
import hashlib
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, NamedTuple, get_type_hints

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.config.values import read_value
from nsgf.system.errors import UserError, list_names, name_setting, one_line, suggest
from nsgf.system.seeding import make_generator

LEAST = 16
"""Smallest number of images or points that can be trained on."""
SUFFIXES = (".npz", ".npy", ".csv")
SEPARATORS = ",;\t"
"""Allowed separators; the one that cuts the first row into most cells is used."""
LARGEST = 1e150
"""Largest absolute value of a coordinate; its inverse is the smallest range. Squares stay in
float64."""


class Found(NamedTuple):
    """What was found at ``data.path``, as saved in ``data.found``."""

    samples: int
    """Number of images or points."""
    shape: list[int]
    """Shape of one sample: (C, H, W), or (D,)."""
    checksum: str
    """Checksum of the names and contents of all images, or of all points."""
    classes: int = 0
    """Number of classes of images; 0 if there are too few images of one."""
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
Table = tuple[np.ndarray, tuple[str, ...], Sequence[int]]
"""Values of the chosen columns, float64, (N, D), the names of these, and the number of each row:
its line in a .csv; in an array it counts from 1."""


def read_found(config: DataConfig) -> Found:
    """Return what was found at ``data.path`` when the run was begun; raise UserError if nothing
    was, or the description is damaged."""
    if not config.found:
        raise UserError(f"data.path = {config.path}: name the {config.name} to train on")
    kinds, axes = get_type_hints(Found), 3 if config.name == "images" else 1
    try:
        found = Found(**{key: read_value(key, kinds[key], it) for key, it in config.found.items()})
        columns = () if axes == 3 else (found.names, found.mean, found.scale)
        if (
            min(found.samples, *found.shape) > 0
            and len(found.shape) == axes
            and found.classes in range(min(found.samples, 2**16) + 1)  # their names fit into memory
            and len(found.class_names or range(found.classes)) == found.classes
            and all(len(part or ()) == found.shape[0] for part in columns)
        ):
            return found
    except (KeyError, TypeError, UserError):
        pass
    raise UserError(f"data.found: damaged, or does not describe {config.name}; train a new run")


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
    """Return ``data.path``. Raise UserError if it is null, as in exported runs, or has no keys."""
    if config.path is None:
        raise UserError(f"data.path = null: must say where the {config.name} are")
    path = Path(config.path).expanduser()
    if config.key and path.suffix.lower() != ".npz":
        raise UserError(f"{name_setting('data.key', config.key)}: is for files .npz")
    return path


@dataclass(frozen=True)
class TableSet:
    """The points of a file. Networks see them with mean 0 and standard deviation 1 in each
    coordinate."""

    found: Found
    name: ClassVar[str] = "points"
    """``data.name``."""
    uses: ClassVar[frozenset[str]] = frozenset({"path", "columns", "held_out", "key"})
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
    notes = [f"data: {count} points of {config.path}, {dim} coordinates: {list_names(names)}"]
    has_no_names = data_path(config).suffix == ".csv" and names[0] == _unnamed(0)
    if has_no_names and dim > 1 and not (values % 1).any():
        what = "if its first row holds names, give them letters; a decimal comma must be a point"
        notes.append(f"data: whole numbers without names; {what}")
    steps = values - np.arange(count)[:, None]  # of a column that counts, 0 or 1 everywhere
    counts = (steps == 0).all(0) | (steps == 1).all(0)
    indices = [
        name for i, name in enumerate(names) if counts[i] and name in (names[0], _unnamed(i))
    ]
    if others := [name for name in names if name not in indices[:1]]:
        columns = suggest("data.columns", f"'{list_names(others, dim)}'")
        notes += [
            f"data: {name} counts the rows, perhaps an index; to leave it out say {columns}"
            for name in indices[:1]
        ]
    return found, tuple(notes)


def read_points(config: DataConfig) -> Tensor:
    """Return the points of ``data.path`` in the units of their file, float64, (N, D); raise
    UserError as :func:`read_table`, or if they are not those that the run was begun with."""
    values, _ = read_table(config)
    check_same_data(config, _checksum(values))
    return torch.from_numpy(values)


def split_rows(config: DataConfig, count: int) -> tuple[Tensor, Tensor]:
    """Return which of ``count`` samples are trained on, and which are held out, int64, each in
    order; raise UserError if either are too few."""
    share = config.held_out
    held = round(share * count)
    if share and not LEAST <= held <= count - LEAST:
        what = f"{held} of {count} samples, must be {LEAST} or more and leave {LEAST} for training"
        raise UserError(f"data.held_out = {share:g}: {what}")
    order = torch.randperm(count, generator=make_generator(0, "held out"))
    return order[held:].sort().values, order[:held].sort().values


def _checksum(values: np.ndarray) -> str:
    """Return the checksum of shape and values, which does not depend on the type of the file."""
    digest = hashlib.sha256(repr(values.shape).encode())
    digest.update(np.ascontiguousarray(values, "<f8").tobytes())
    return digest.hexdigest()[:12]


def read_table(config: DataConfig) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the points of ``data.path``, float64, (N, D), and the names of their coordinates.
    Raise UserError unless the file has one table with enough points, finite and not constant."""
    file = data_path(config)
    suffix = file.suffix.lower()
    try:
        if not file.is_file() or suffix not in SUFFIXES:
            raise ValueError(
                f"{f'ends in {suffix!r}' if file.is_file() else 'no such file'}, must be a file "
                f"ending in {', '.join(SUFFIXES)}; save a table as .csv, or name a folder of "
                f"images with {suggest('exp', 'images')}"
            )
        values, names, lines = (_read_csv if suffix == ".csv" else _read_array)(config)
        if values.ndim != 2 or len(values) < LEAST or not values.shape[1]:
            raise ValueError(
                f"an array of shape {values.shape}, must be (N, D) with N >= {LEAST}: a row for "
                "each point, a column for each coordinate"
            )
        for row, column in np.argwhere(~(np.abs(values) <= LARGEST)):
            raise ValueError(
                f"{values[row, column]} in row {lines[row]}, {names[column]}: must be finite, at "
                f"most {LARGEST:g}; leave out rows with missing values"
            )
        for name, width in zip(names, np.ptp(values, axis=0), strict=True):
            if width < 1 / LARGEST:
                what = "leave that column out" if width == 0 else "use another unit"
                raise ValueError(f"a range of {width:.3g} in {name}; {what}")
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


def _read_csv(config: DataConfig) -> Table:
    """Read a table with names in a first row, in a comment above, or without names; raise
    ValueError for anything else."""
    text = data_path(config).read_text(encoding="utf-8-sig")
    table = re.sub(r"\A([^\S\n]*(#.*)?\n)*", "", text)
    above = text[: len(text) - len(table)]  # comments and empty lines
    separator = max(
        SEPARATORS, key=lambda it: len(next(csv.reader(StringIO(table), delimiter=it), ""))
    )
    reader, skipped = csv.reader(StringIO(table), delimiter=separator), above.count("\n")
    rows = ((skipped + reader.line_num, row) for row in reader if any(map(str.strip, row)))
    begin = [*islice(rows, 2)]
    if len(begin) < 2:
        raise ValueError(f"no rows, must be at least {LEAST}")
    texts = table.split()
    is_pairs = all(re.fullmatch(r"-?\d+,\d+", text) for text in texts)
    if is_pairs and any(re.match(r"-0,|-?\d+,0\d", text) for text in texts):  # -0 and 05
        raise ValueError("decimal commas in its only column; write 0.5 for 0,5")
    (top, first), (_, second) = begin
    has_names = _is_header(first, second)
    comments = [line.lstrip("# ") for line in above.split("\n") if line.strip()]
    titles = first if has_names else next(csv.reader(comments[-1:], delimiter=separator), [])
    titles = titles if len(titles) == len(first) else [""] * len(first)
    names = [one_line(name) or _unnamed(n) for n, name in enumerate(titles)]
    chosen, values, lines = _choose(config.columns, names), array("d"), array("q")
    hint = f"numbers have a decimal point: 0.5; {suggest('data.columns', 'A,B')} leaves columns out"
    for line, cells in chain(begin[has_names:], rows):
        if len(cells) != len(names):
            counts = f"{len(cells)} cells, but row {top} has {len(names)}"
            raise ValueError(f"row {line}: {counts}; {hint}")
        try:
            values.extend([float(cells[n]) for n in chosen])
        except ValueError:
            bad = next(n for n in chosen if not _is_number(cells[n]))
            what = f"row {line}, {names[bad]}: {cells[bad]!r} is no number"
            raise ValueError(f"{what}; {hint}") from None
        lines.append(line)
    whole = np.array(values).reshape(-1, len(chosen))
    return whole, tuple(names[n] for n in chosen), lines


def _is_header(row: list[str], below: list[str]) -> bool:
    """Whether the first row holds names: it has fewer numbers than the second, or it counts, as
    pandas does without names, above an index or above numbers with a point."""
    names = [name for name in row if name]
    if names and all(map(str.isdecimal, names)):
        first, count = int(names[0]), len(names)
        is_count = names == [str(first + n) for n in range(count)] and (count > 1 or first == 0)
        has_point = not any(map(str.isdecimal, below[-count:]))
        return is_count and (has_point or not row[0])
    numbers = [sum(_is_number(cell or "0") for cell in cells) for cells in (row, below)]
    return numbers[0] < numbers[1] or not numbers[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def load_arrays(config: DataConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the array of a file .npy, which stays there, or of a .npz the array ``data.key``, else
    the one that is named as the data, else the only one; and the labels whose name begins as its
    name: ``labels``, or ``test_labels`` of ``test_images``. Raise errors of many types if it is
    missing or damaged."""
    # torch takes only writable arrays: "c" never writes to the file
    content = np.load(data_path(config), mmap_mode="c", allow_pickle=False)
    if isinstance(content, np.ndarray):
        return content, None
    with content:
        wanted = config.key or (config.name if config.name in content else None)
        keys = [key for key in content.files if wanted in (None, key)]
        if len(keys) != 1:
            known = list_names(content.files)
            raise ValueError(f"say {suggest('data.key', 'NAME')}, one of {known}")
        beginning = keys[0][: keys[0].rfind("_") + 1]
        return content[keys[0]], content.get(f"{beginning}labels")


def _read_array(config: DataConfig) -> Table:
    """Read a table of numbers from :func:`load_arrays`."""
    values = load_arrays(config)[0].astype(np.float64, casting="same_kind")
    if values.ndim != 2:
        return values, (), ()
    chosen = _choose(config.columns, [_unnamed(number) for number in range(values.shape[1])])
    names, rows = tuple(map(_unnamed, chosen)), range(1, len(values) + 1)
    return np.ascontiguousarray(values[:, chosen]), names, rows
