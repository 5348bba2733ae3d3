"""The user's points, which are a table in a file. They are standardised for networks.

N: number of points; D: number of coordinates.
"""

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import SOURCE_FILE, STANDARD, DataConfig, DataFacts
from nsgf.data.points import Target
from nsgf.system.errors import (
    list_names,
    name_setting,
    one_line,
    suggest,
    wrong_setting,
)
from nsgf.user_data.files import (
    ARRAYS,
    LEAST,
    Inspection,
    check_same_data,
    data_path,
    load_arrays,
    number_classes,
    reading_source,
    saved_facts,
    split_rows,
)
from nsgf.user_data.tables import (
    PointTable,
    RawTable,
    close_columns,
    read_array,
    read_file,
    reason_of_cell,
    reason_of_label,
    rounded_columns,
    to_labels,
    to_numbers,
)

UNNAMED = re.compile(r"coordinate \d+")
"""Matches the name of a column without a title."""
LABELS = "labels"
"""Name of the array of classes in a .npz file."""
SUFFIXES = (*ARRAYS, ".csv", ".tsv", ".txt", ".parquet", ".xlsx")
FAR_SCALE = 10.0
"""If the standard deviations of source and target differ by more than this factor, a line asks
about the unit."""
LARGEST_VALUE = 1e150
"""Largest absolute value of a coordinate. With this limit, squares stay within float64. 1 /
LARGEST_VALUE is the smallest range of a column that is not constant."""
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
"""Advice for files that the program cannot read, by endings of their names."""


class TableSet(Target):
    """The points of a file. For networks, each coordinate has mean 0 and standard deviation 1."""

    name = "points"
    uses = frozenset({"path", "header", "columns", "label", "held_out", "key"})
    sources = (STANDARD, SOURCE_FILE)

    def __init__(
        self, facts: DataFacts, file: str | None = None, *, has_classes: bool = False
    ) -> None:
        """``has_classes`` says whether networks get the classes, if the facts contain classes."""
        has_first_row = Path(file or "").suffix.lower() not in (*ARRAYS, ".parquet")
        self.unread = frozenset() if has_first_row else frozenset({"header"})
        self.shape = tuple(facts.shape)
        self.axes = tuple(facts.names or ())
        if has_classes:
            self.class_names = tuple(facts.class_names or ())
            self.label_name = facts.label_name
        self._mean = facts.mean
        self._scale = facts.scale

    def read(self, config: DataConfig) -> PointTable:
        """Return the table of ``data.path``."""
        return read_table(config)

    def load(self, config: DataConfig, seed: int, *, held_out: bool = False) -> Tensor:
        values = torch.from_numpy(self.read(config).values)
        return values[split_rows(config, len(values))[held_out]]

    def labels(self, config: DataConfig, count: int, *, held_out: bool = False) -> Tensor:
        labels = self.read(config).labels
        assert labels is not None
        _, numbers = number_classes(labels, "points")
        return torch.from_numpy(numbers)[split_rows(config, len(numbers))[held_out]]

    @property
    def log_volume(self) -> float:
        return sum(map(math.log, self._scale or ()))

    def from_units(self, samples: Tensor) -> Tensor:
        """Standardise points of the file for networks.  (N, D) -> float32"""
        wide = samples.double()
        return ((wide - wide.new_tensor(self._mean)) / wide.new_tensor(self._scale)).float()

    def in_units(self, samples: Tensor) -> Tensor:
        """Return samples of networks in the units of the file.  (N, D) -> float64"""
        wide = samples.double()
        return wide * wide.new_tensor(self._scale) + wide.new_tensor(self._mean)


class SourceTable(TableSet):
    """The points of a source file, in the units of the target."""

    def read(self, config: DataConfig) -> PointTable:
        return read_matching(config, self.axes or (), self.label_name)


def inspect_points(config: DataConfig) -> Inspection:
    """Read the points of ``data.path``, and describe the training points. Raise UserError if
    float64 rounds away the differences within a column. Also raise the errors of :func:`read_table`
    and :func:`leave_out_constants`."""
    table = read_table(config)
    if not config.found:
        _refuse_rounded(config, table)
        table = leave_out_constants(config, table)
    count, dim = table.values.shape
    trained = split_rows(config, count)[0].numpy()
    rows = table.values[trained]
    # in columns of large numbers that differ little, subtract a value first, because float64 would
    # round their mean
    close = close_columns(rows)
    start = np.zeros(dim)
    start[close] = rows[0, close]
    columns = torch.from_numpy(rows - start)
    classes = classes_of_table(config, table)
    facts = DataFacts(
        samples=count,
        shape=[dim],
        checksum=_checksum(table),
        classes=len(classes),
        class_names=classes or None,
        label_name=table.label_name,
        names=table.names,
        mean=(columns.mean(0) + torch.from_numpy(start)).tolist(),
        scale=columns.std(0, correction=0).tolist(),
    )
    notes = [
        f"data: {count} points of {config.path}, {dim} coordinates: {list_names(table.names)}",
        *table.notes,
        *_notes_of_counters(table, trained),
    ]
    if classes:
        notes.append(f"data: {len(classes)} classes of {table.label_name}: {list_names(classes)}")
    if len(close):
        column = close[0]
        notes.append(
            f"data: {table.names[column]}: the values near {rows[0, column]:g} differ little for "
            "their size; if they were rounded before, subtract the smallest value from the "
            "original ones"
        )
    notes += _notes_of_far_values(table, rows)
    return facts, tuple(filter(None, notes))


def inspect_source_points(config: DataConfig) -> Inspection:
    """Read the points of the source, and compare them with the target. ``config`` is the section
    ``data`` with the facts about the target. Raise the errors of :func:`read_matching`."""
    target = saved_facts(config)
    names = target.names or []
    label_name = target.label_name if config.conditional else None
    with reading_source(config) as section:
        table = read_matching(section, names, label_name)
        classes = classes_of_table(section, table)
        if label_name and classes != target.class_names:
            raise wrong_setting(
                "data.path",
                section.path,
                f"classes {list_names(classes)}, must be those of the target "
                f"({list_names(target.class_names or ())}), or use "
                f"{suggest('data.conditional', 'false')}",
            )
        count = len(table.values)
        rows = torch.from_numpy(table.values)[split_rows(section, count)[0]]
    mean = rows.mean(0)
    scale = rows.std(0, correction=0)
    facts = DataFacts(
        samples=count,
        shape=target.shape,
        checksum=_checksum(table),
        classes=len(classes),
        class_names=classes or None,
        label_name=label_name,
        names=target.names,
        mean=mean.tolist(),
        scale=scale.tolist(),
    )
    unit = rows.new_tensor(target.scale)
    ways = (mean - rows.new_tensor(target.mean)).abs() / unit
    spreads = scale / unit
    notes = [
        f"source: {count} points of {config.source_path}; in units of the target, a mean is up to "
        f"{ways.max():.2g} away ({names[int(ways.argmax())]}), and standard deviations are "
        f"{spreads.min():.2g} to {spreads.max():.2g}",
        *table.notes,
    ]
    for column, spread in enumerate(spreads.tolist()):
        if not 1 / FAR_SCALE <= spread <= FAR_SCALE:
            notes.append(
                f"source: {names[column]}: the source spreads {spread:.2g} times as widely as the "
                "target; do both have the same unit?"
            )
            break
    return facts, tuple(notes)


def _refuse_rounded(config: DataConfig, table: PointTable) -> None:
    """Raise UserError if float64 rounds away the differences within a column."""
    if table.rounded:
        name = table.rounded[0]
        values = table.values[:, table.names.index(name)]
        raise wrong_setting(
            "data.path",
            config.path,
            f"{name}: numbers near {values[0]:g} that differ so little that float64 rounds "
            f"their differences; subtract the smallest value first, or {columns_hint()}",
        )


def _notes_of_counters(table: PointTable, trained: np.ndarray) -> list[str]:
    """Return a line about columns that contain the row numbers. If all columns contain them, return
    no line. ``trained`` has the numbers of the training rows."""
    rows = table.values[trained]
    candidates = np.flatnonzero(rows[-1] - rows[0] == trained[-1] - trained[0])
    ranges = np.ptp(rows[:, candidates] - trained[:, np.newaxis], axis=0)
    counters = {int(column) for column in candidates[ranges == 0]}
    if not counters or len(counters) == len(table.names):
        return []
    remaining = [name for column, name in enumerate(table.names) if column not in counters]
    verb = "counts" if len(counters) == 1 else "count"
    return [
        f"data: {list_names([table.names[column] for column in sorted(counters)])} {verb} the "
        "rows, perhaps an index; to leave it out say "
        f"{suggest('data.columns', repr(format_columns(remaining)))}"
    ]


def _notes_of_far_values(table: PointTable, rows: np.ndarray) -> list[str]:
    """Return a line about the first value of a table that is far from the middle of ``rows``, which
    are the training points."""
    values = table.values
    cut = len(rows) // 100 + 1
    middle = np.sort(rows, axis=0)[cut:-cut]
    far = np.argwhere(np.abs(values - np.median(rows, axis=0)) > 30 * middle.std(0))
    if not len(far):
        return []
    row, column = far[0]
    return [
        f"data: {table.names[column]}: {values[row, column]:g} in {table.locate(row + 1)} is far "
        "from the other values; a code for a missing value?"
    ]


def classes_of_table(config: DataConfig, table: PointTable) -> list[str]:
    """Return the sorted names of the classes in a table of ``data.path``. Return an empty list if
    the table has no classes. Raise UserError if a class has too few rows."""
    if table.labels is None:
        return []
    try:
        return number_classes(table.labels, "points")[0]
    except ValueError as error:
        reason = f"column {table.label_name}, the classes: {error}"
        raise wrong_setting("data.path", config.path, reason) from error


def _checksum(table: PointTable) -> str:
    """Return a checksum of the table's shape and values, and of its classes if it has classes. The
    checksum does not depend on the type of the file."""
    digest = hashlib.sha256(repr(table.values.shape).encode())
    digest.update(np.ascontiguousarray(table.values, "<f8").tobytes())
    if table.labels is not None:
        digest.update(repr(table.labels.tolist()).encode())
    return digest.hexdigest()[:12]


def read_table(config: DataConfig) -> PointTable:
    """Return the chosen columns of the points of ``data.path``. All values are finite. For a run
    that has begun, leave out constant columns. Raise UserError if the file is no table with enough
    points, if its classes cannot be used, or if the points have changed since the run began."""
    file = data_path(config)
    saved_names = saved_facts(config).names if config.found else None
    try:
        raw = open_table(config, file)
        label = find_label(config, raw)
        labels = None if label is None else read_classes(raw, label)
        columns = choose_columns(config, raw.names, saved_names, label)
        label_name = None if label is None else [*raw.names, LABELS][label]
        if columns is not None:
            raw = cut_columns(raw, columns)
        remedy = f"; or {columns_hint()}"
        if config.label is None:
            remedy += f", or the column of the classes with {suggest('data.label', 'C')}"
        values = finite_values(raw, remedy)
        rounded = rounded_columns(raw.cells, values)
    except Exception as error:  # numpy and pandas raise many types for damaged and foreign files
        raise wrong_setting("data.path", file, one_line(error)) from error
    notes = (raw.note,) if raw.note else ()
    rounded_names = [raw.names[column] for column in rounded]
    table = PointTable(values, raw.names, raw.locate, notes, rounded_names, labels, label_name)
    classes_of_table(config, table)
    if config.found:
        table = leave_out_constants(config, table)
        check_same_data(config, _checksum(table))
    return table


def read_matching(
    config: DataConfig, names: Sequence[str], label_name: str | None = None
) -> PointTable:
    """Return the columns ``names`` of the points of ``data.path``. All values are finite.
    ``label_name`` is the name of the column with the classes; None: without classes. Raise
    UserError if the file is no table with enough points, if a column is missing, if the classes
    cannot be used, or if the points have changed since the run began."""
    file = data_path(config)
    try:
        table = match_table(open_table(config, file), names, label_name, file.name)
        if label_name is not None and table.labels is None:
            raise ValueError(
                f"column {label_name}, the classes, is missing; add it, or use "
                f"{suggest('data.conditional', 'false')}"
            )
    except Exception as error:  # numpy and pandas raise many types for damaged and foreign files
        raise wrong_setting("data.path", file, one_line(error)) from error
    classes_of_table(config, table)
    if config.found:
        check_same_data(config, _checksum(table))
    return table


def match_table(
    raw: RawTable, names: Sequence[str], label_name: str | None, table_name: str
) -> PointTable:
    """Return the columns ``names`` of a table. All values are finite. If the table has the column
    ``label_name``, also return the classes in this column. A line about columns that are left out
    uses ``table_name``. Raise ValueError if a column is missing, or a cell cannot be used."""
    label = None
    # if the columns have no names, a table without classes may have a coordinate with the number
    # that the column of the classes has in the target, so compare the numbers of columns
    if label_name in raw.names and len(raw.names) > len(names):
        label = raw.names.index(label_name)
    elif label_name == LABELS and raw.labels is not None:
        label = len(raw.names)
    labels = None if label is None else read_classes(raw, label)
    if label is not None:
        raw = cut_columns(raw, [n for n in range(len(raw.names)) if n != label])
    raw, left_out = match_columns(raw, names)
    values = finite_values(raw)
    notes = [f"{table_name}: columns left out: {list_names(left_out)}"] if left_out else []
    return PointTable(
        values, [*names], raw.locate, tuple(notes), labels=labels, label_name=label_name
    )


def cut_columns(raw: RawTable, columns: list[int]) -> RawTable:
    """Return a table with only these columns, numbered from 0."""
    cells = raw.cells
    cells = cells[:, columns] if isinstance(cells, np.ndarray) else cells.iloc[:, columns]
    return raw._replace(cells=cells, names=[raw.names[column] for column in columns])


def find_label(config: DataConfig, raw: RawTable) -> int | None:
    """Return the number of the column ``data.label``, from 0; None: without classes. The number
    after the last column stands for the array ``labels``. Raise ValueError if the column does not
    exist. Also raise it if ``data.label`` is the name of one column and the number of another
    column."""
    key = config.label
    if key is None:
        return None
    numbers = [n for n, name in enumerate(raw.names) if key in (name, str(n + 1))]
    if key == LABELS and raw.labels is not None:
        numbers.append(len(raw.names))
    if len(numbers) != 1:
        raise ValueError(
            f"{name_setting('data.label', key)}: must be one column of {list_names(raw.names)}, by "
            "name or number, and not the name of one and the number of another"
        )
    return numbers[0]


def read_classes(raw: RawTable, label: int) -> np.ndarray:
    """Return the class of each row.  int64 or text, (N,)

    Args:
        label: number of the column, from :func:`find_label`.

    Raises:
        ValueError: a cell cannot name a class.
    """
    name = [*raw.names, LABELS][label]
    if label < len(raw.names):
        cells = cut_columns(raw, [label]).cells
    else:
        assert raw.labels is not None
        count = len(raw.cells)
        if raw.labels.size != count or len(raw.labels) != count:
            raise ValueError(f"{name}: {raw.labels.shape}, must be one for each of {count} points")
        cells = read_array(raw.labels.reshape(count, 1)).cells
    labels = to_labels(cells)
    if problem := reason_of_label(labels):
        row, reason = problem
        raise ValueError(f"{raw.locate(row + 1)}, {name}: {reason}")
    return labels


def match_columns(raw: RawTable, names: Sequence[str]) -> tuple[RawTable, list[str]]:
    """Return a table with the columns ``names`` of the target, and the names of the columns that
    are left out. Columns are matched by name. If the source or the target has no names of columns,
    columns are matched by number. Raise ValueError if a column is missing or occurs twice."""
    counts = Counter(raw.names)
    wrong = [name for name in names if counts[name] != 1]
    columns = [] if wrong else [raw.names.index(name) for name in names]
    if wrong:
        is_unnamed = any(all(map(UNNAMED.fullmatch, each)) for each in (raw.names, names))
        if not is_unnamed or len(raw.names) != len(names):
            verb = "occurs twice" if counts[wrong[0]] else "is missing"
            raise ValueError(
                f"column {wrong[0]} {verb}; must have the columns of the target, "
                f"{list_names(names)}, and has {list_names(raw.names)}"
            )
        columns = [*range(len(names))]
    chosen = {*columns}
    left_out = [name for column, name in enumerate(raw.names) if column not in chosen]
    return cut_columns(raw, columns), left_out


def open_table(config: DataConfig, file: Path, least: int = LEAST) -> RawTable:
    """Return the table of a file. It has at least ``least`` rows. A file that is no table of points
    may raise any type of error."""
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
    if is_array:
        points, labels = load_arrays(config)
        raw = read_array(points)._replace(labels=labels)
    else:
        raw = read_file(file, config.header)
    shape = raw.cells.shape
    if len(shape) != 2 or shape[0] < least or not shape[1]:
        raise ValueError(
            f"an array of shape {shape}, must be (N, D) with N >= {least}: a row for each "
            "point, a column for each coordinate"
        )
    return raw


def choose_columns(
    config: DataConfig,
    names: list[str],
    saved_names: list[str] | None,
    label: int | None = None,
) -> list[int] | None:
    """Return the numbers of the columns to use, from 0; None: all columns. Raise ValueError if
    ``data.columns`` does not fit the table.

    Args:
        saved_names: names of the columns with which a run began. Without ``data.columns``, these
            columns are used, because an earlier version of the program may have read fewer columns.
        label: number of the column with the classes; None: without classes. This column is never
            chosen.
    """
    if not config.columns:
        every = None if label is None else [n for n in range(len(names)) if n != label]
        if saved_names is None:
            return every
        saved_set = {*saved_names}
        same = [n for n, name in enumerate(names) if name in saved_set and n != label]
        return same if [names[number] for number in same] == saved_names else every
    (keys,) = csv.reader([config.columns], skipinitialspace=True)
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        for key in {name, str(number + 1)}:
            numbers.setdefault(key, []).append(number)
    chosen = [number for key in keys for number in numbers.get(key, ())]
    all_names = {*names}
    if len({*chosen}) != len(keys) or len({key in all_names for key in keys}) > 1:
        raise ValueError(
            f"{name_setting('data.columns', config.columns)}: must be different columns of "
            f"{list_names(names)}, all by name or all by number, and none may be the name of "
            "one and the number of another"
        )
    if label in chosen:
        raise ValueError(
            f"{name_setting('data.columns', config.columns)}: {names[label]} has the classes "
            "(data.label); leave it out"
        )
    return chosen


def format_columns(names: list[str]) -> str:
    """Return names of columns in the form of ``data.columns``."""
    text = StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def finite_values(raw: RawTable, remedy: str = "") -> np.ndarray:
    """Return the numbers of a table. If a cell is not finite, raise ValueError with its place, the
    reason and ``remedy``.  float64, (N, D)"""
    values = to_numbers(raw.cells)
    is_bad = ~(np.abs(values) <= LARGEST_VALUE)
    if not is_bad.any():
        return np.ascontiguousarray(values)
    row, column = np.unravel_index(is_bad.argmax(), values.shape)
    value = values[row, column]
    if np.isnan(value):
        cells = raw.cells
        is_array = isinstance(cells, np.ndarray)
        reason = reason_of_cell(cells[row, column] if is_array else cells.iat[row, column])
    else:
        reason = f"{value:g} must be between {-LARGEST_VALUE:g} and {LARGEST_VALUE:g}"
    if raw.hint and row == 0 and np.isnan(values[0]).all():
        reason += f"; {raw.hint}"
    raise ValueError(f"{raw.locate(int(row) + 1)}, {raw.names[column]}: {reason}{remedy}")


def columns_hint() -> str:
    """Return the advice to choose columns."""
    return f"name the columns to use with {suggest('data.columns', 'A,B')}"


def leave_out_constants(config: DataConfig, table: PointTable) -> PointTable:
    """Return a table without the columns that are constant on the training rows. Raise UserError if
    ``data.columns`` names a constant column, or if all columns are constant."""
    rows = table.values[split_rows(config, len(table.values))[0].numpy()]
    is_constant = np.ptp(rows, axis=0) < 1 / LARGEST_VALUE
    if not is_constant.any():
        return table
    constants = [table.names[column] for column in np.flatnonzero(is_constant)]
    what = f"{len(constants)} of {len(table.names)}: {list_names(constants)}"
    if config.columns or is_constant.all():
        raise wrong_setting(
            "data.path",
            config.path,
            f"constant columns (range below {1 / LARGEST_VALUE:g}), {what}; leave them out",
        )
    line = f"data: constant columns are left out, {what}"
    return table._replace(
        values=np.ascontiguousarray(table.values[:, ~is_constant]),
        names=[table.names[column] for column in np.flatnonzero(~is_constant)],
        notes=(*table.notes, line),
    )
