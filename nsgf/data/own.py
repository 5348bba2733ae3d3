"""A user's own data: a description of what is at ``data.path``, and standardised points of a file.

Shapes: N points, D coordinates.
"""

import csv
import hashlib
from io import StringIO
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.config.values import read_value
from nsgf.data.points import Target
from nsgf.data.tables import (
    RawTable,
    Table,
    close_columns,
    read_array,
    read_file,
    reason_of_cell,
    rounded_columns,
    to_numbers,
)
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
REMEDIES = {
    "unpack it": ".zip .gz .bz2 .xz .zst .7z .tar .tgz .rar",
    "for pictures name their folder, with {images}": (
        ".jpg .jpeg .png .bmp .gif .tif .tiff .webp .ppm .pgm .jp2 .avif"
    ),
    "read it with pandas, and save the table as .csv": (
        ".xls .xlsm .ods .feather .arrow .orc .json .jsonl .dta .sav .sas7bdat .pkl .pickle .html"
    ),
    "read its array with scipy.io.loadmat, and save it with numpy.save": ".mat",
    "read its array with h5py, and save it with numpy.save": ".h5 .hdf5 .hdf .nc",
    "read it with anndata, and save x.X or x.obsm['X_pca'] with numpy.save": ".h5ad .loom",
    "read its tensor with torch.load, and save it with numpy.save": ".pt .pth .safetensors",
}
"""What to do with files of other kinds, by their endings."""


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

    def __init__(self, found: Found, file: str | None = None) -> None:
        has_first_row = Path(file or "").suffix.lower() not in (*ARRAYS, ".parquet")
        self.unread = frozenset() if has_first_row else frozenset({"header"})
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
    """Read the points of ``data.path``, and describe those to train on. Raise UserError if float64
    rounds away the differences of a column, and the errors of :func:`read_table` and
    :func:`leave_out_constants`."""
    table = read_table(config)
    if not config.found:
        for name in table.rounded[:1]:
            values = table.values[:, table.names.index(name)]
            raise wrong_setting(
                "data.path",
                config.path,
                f"{name}: numbers near {values[0]:g} that differ so little that float64 rounds "
                f"their differences; subtract the smallest value first, or {columns_hint()}",
            )
        table = leave_out_constants(config, table)
    values, names, place, read_notes, _ = table
    count, dim = values.shape
    trained = split_rows(config, count)[0].numpy()
    rows = values[trained]
    # subtract large numbers first, whose mean float64 would round
    close = close_columns(rows)
    start = np.zeros(dim)
    start[close] = rows[0, close]
    columns = torch.from_numpy(rows - start)
    found = Found(
        samples=count,
        shape=[dim],
        checksum=_checksum(values),
        names=names,
        mean=(columns.mean(0) + torch.from_numpy(start)).tolist(),
        scale=columns.std(0, correction=0).tolist(),
    )
    notes = [f"data: {count} points of {config.path}, {dim} coordinates: {list_names(names)}"]
    notes += read_notes
    candidates = np.flatnonzero(rows[-1] - rows[0] == trained[-1] - trained[0])
    ranges = np.ptp(rows[:, candidates] - trained[:, np.newaxis], axis=0)
    counters = {int(column) for column in candidates[ranges == 0]}
    if counters and len(counters) < dim:
        remaining = [name for column, name in enumerate(names) if column not in counters]
        verb = "counts" if len(counters) == 1 else "count"
        notes.append(
            f"data: {list_names([names[column] for column in sorted(counters)])} {verb} the rows, "
            f"perhaps an index; to leave it out say "
            f"{suggest('data.columns', repr(format_columns(remaining)))}"
        )
    for column in close[:1]:
        notes.append(
            f"data: {names[column]}: the values near {rows[0, column]:g} differ little for their "
            "size; if they were rounded before, subtract the smallest value from the original ones"
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
    """Return the chosen columns of the points of ``data.path``, all finite; for a run that has
    begun, without constant columns. Raise UserError unless the file has one table with enough
    points, and the same points as when the run began."""
    file = data_path(config)
    known = read_found(config).names if config.found else None
    try:
        raw = open_table(config, file)
        columns = choose_columns(config, raw.names, known)
        if columns is not None:
            cells = raw.cells
            cells = cells[:, columns] if isinstance(cells, np.ndarray) else cells.iloc[:, columns]
            raw = raw._replace(cells=cells, names=[raw.names[column] for column in columns])
        values = finite_values(raw)
        rounded = rounded_columns(raw.cells, values)
    except Exception as error:  # numpy and pandas raise many types for damaged and foreign files
        raise wrong_setting("data.path", file, one_line(error)) from error
    notes = (raw.note,) if raw.note else ()
    table = Table(values, raw.names, raw.place, notes, [raw.names[column] for column in rounded])
    if config.found:
        table = leave_out_constants(config, table)
        check_same_data(config, _checksum(table.values))
    return table


def open_table(config: DataConfig, file: Path) -> RawTable:
    """Return the table of a file. Raise errors of many types if the file is no table of points."""
    suffix = file.suffix.lower()
    if not file.is_file():
        what = "is a folder, not a file" if file.is_dir() else "no such file"
        raise ValueError(
            f"{what}; save a table as .csv, or name a folder of images with "
            f"{suggest('exp', 'images')}"
        )
    if suffix not in SUFFIXES:
        remedy = next((text for text, kinds in REMEDIES.items() if suffix in kinds.split()), None)
        remedy = (remedy or "save the table as .csv").format(images=suggest("exp", "images"))
        raise ValueError(
            f"the file exists, but its name does not end in {', '.join(SUFFIXES)}; {remedy}"
        )
    is_array = suffix in ARRAYS
    raw = read_array(load_arrays(config)[0]) if is_array else read_file(file, config.header)
    shape = raw.cells.shape
    if len(shape) != 2 or shape[0] < LEAST or not shape[1]:
        raise ValueError(
            f"an array of shape {shape}, must be (N, D) with N >= {LEAST}: a row for each "
            "point, a column for each coordinate"
        )
    return raw


def choose_columns(
    config: DataConfig, names: list[str], known: list[str] | None
) -> list[int] | None:
    """Return the numbers of the columns to use, from 0; None: all. Raise ValueError if
    ``data.columns`` does not fit.

    ``known``: names of the columns that a run began with, which are preferred if there is no
    ``data.columns``: a file may have more columns than an earlier version of the program read."""
    if not config.columns:
        if known is None:
            return None
        known_names = {*known}
        same = [number for number, name in enumerate(names) if name in known_names]
        return same if [names[number] for number in same] == known else None
    (wanted,) = csv.reader([config.columns], skipinitialspace=True)
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        for key in {name, str(number + 1)}:
            numbers.setdefault(key, []).append(number)
    chosen = [number for key in wanted for number in numbers.get(key, ())]
    all_names = {*names}
    if len({*chosen}) != len(wanted) or len({key in all_names for key in wanted}) > 1:
        raise ValueError(
            f"{name_setting('data.columns', config.columns)}: must be different columns of "
            f"{list_names(names)}, all by name or all by number, and none may be the name of "
            "one and the number of another"
        )
    return chosen


def format_columns(names: list[str]) -> str:
    """Return names of columns as ``data.columns`` takes them."""
    text = StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def finite_values(raw: RawTable) -> np.ndarray:
    """Return the numbers of a table. Raise ValueError, with place and reason, if a cell is not
    finite.  float64, (N, D)"""
    values = to_numbers(raw.cells)
    is_bad = ~(np.abs(values) <= LARGEST)
    if not is_bad.any():
        return np.ascontiguousarray(values)
    row, column = np.unravel_index(is_bad.argmax(), values.shape)
    value = values[row, column]
    if np.isnan(value):
        cells = raw.cells
        is_array = isinstance(cells, np.ndarray)
        reason = reason_of_cell(cells[row, column] if is_array else cells.iat[row, column])
    else:
        reason = f"{value:g} must be between {-LARGEST:g} and {LARGEST:g}"
    if raw.hint and row == 0 and np.isnan(values[0]).all():
        reason += f"; {raw.hint}"
    raise ValueError(
        f"{raw.place(int(row) + 1)}, {raw.names[column]}: {reason}; or {columns_hint()}"
    )


def columns_hint() -> str:
    """Return the advice to choose columns."""
    return f"name the columns to use with {suggest('data.columns', 'A,B')}"


def leave_out_constants(config: DataConfig, table: Table) -> Table:
    """Return a table without columns that are constant on the rows to train on. Raise UserError if
    ``data.columns`` names such a column, or if all are constant."""
    rows = table.values[split_rows(config, len(table.values))[0].numpy()]
    is_constant = np.ptp(rows, axis=0) < 1 / LARGEST
    if not is_constant.any():
        return table
    constants = [table.names[column] for column in np.flatnonzero(is_constant)]
    what = f"{len(constants)} of {len(table.names)}: {list_names(constants)}"
    if config.columns or is_constant.all():
        raise wrong_setting(
            "data.path",
            config.path,
            f"constant columns (range below {1 / LARGEST:g}), {what}; leave them out",
        )
    line = f"data: constant columns are left out, {what}"
    return table._replace(
        values=np.ascontiguousarray(table.values[:, ~is_constant]),
        names=[table.names[column] for column in np.flatnonzero(~is_constant)],
        notes=(*table.notes, line),
    )


def load_arrays(config: DataConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """Return an array and its labels, if any. A .npy file is mapped into memory. From a .npz file,
    take the array ``data.key``, else the one with the name of the data, else the only one; and the
    labels whose name has the same prefix: ``labels``, or ``test_labels`` for ``test_images``. Raise
    errors of many types if the array is missing or damaged."""
    # torch takes only writable arrays: "c" never writes to the file
    file = data_path(config)
    try:
        content = np.load(file, mmap_mode="c", allow_pickle=False, max_header_size=2**20)
    except ValueError as error:
        raise _loading_error(error) from error
    if isinstance(content, np.ndarray):
        return content, None
    with content:
        if {"format", "shape", "data"} <= {*content.files}:
            raise ValueError(
                "a sparse matrix of scipy; save scipy.sparse.load_npz(FILE).toarray() with "
                "numpy.save"
            )
        wanted = config.key or (config.name if config.name in content else None)
        keys = [key for key in content.files if wanted in (None, key)]
        if len(keys) != 1:
            raise ValueError(
                f"say {suggest('data.key', 'NAME')}, one of {list_names(content.files)}"
            )
        beginning = keys[0][: keys[0].rfind("_") + 1]
        try:
            return content[keys[0]], content.get(f"{beginning}labels")
        except ValueError as error:
            raise _loading_error(error) from error


def _loading_error(error: ValueError) -> ValueError:
    """Return an error with a remedy for arrays that numpy refuses to load, or numpy's error."""
    text = str(error).lower()
    if "object" in text:
        return ValueError(
            "its array holds Python objects, which are not loaded because they could run code; "
            "save numbers, such as x.astype(float)"
        )
    if "header info length" in text:
        return ValueError("records have too many fields; use an array (N, D), as of x.to_numpy()")
    return error
