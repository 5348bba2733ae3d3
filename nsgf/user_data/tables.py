"""Tables of numbers in files and in memory. pandas reads them. It is imported only when it is
needed.

N: number of rows; D: number of columns.
"""

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from io import StringIO
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nsgf.system.errors import list_names, one_line, suggest

RawCells = Any
"""Cells of a table, (N, D): an array of numbers, or a pandas DataFrame of any types."""
FINE = 1e-6
"""Largest error of rounding to float64, as a fraction of a column's range."""
TEXT_LENGTH = 64
"""Largest number of characters that are stored for a cell that is not a number."""
MOST_LABEL = 2**53
"""Limit of the absolute value of a whole number that names a class. Below it, float64 is exact."""
ABOVE = re.compile(r"\s*\n|[^\S\n]*#[^\n]*\n")
"""Matches an empty line or a line with a comment."""
PIECE = re.compile(r'"[^"]*"|[^"\n]+')
"""Matches a part of a row. A quoted part may have several lines."""
QUOTED = re.compile(r'(^|[\t;,|])"[^"]*(?:""[^"]*)*"(?=[\t;,|]|$)')
"""Matches a quoted cell and the separator before it."""
SPACES = r"\s+"
"""Separator pattern for cells that are separated by spaces."""
DECIMAL_COMMA = re.compile(r"\s*-?\d+,\d+\s*")
"""Matches a number such as 1,05."""
MISSING = "missing; leave out rows with gaps"
REASONS = (
    (r"(nan|nat|none|<na>)?", MISSING),
    (r"-?\d+ days?\b.*", "a duration; convert it to a number, such as x.dt.total_seconds()"),
    (
        r".*(\d[-/]\d+[-/]\d|\d\.\d+\.\d{4}|\d:\d\d|\d\W*(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|"
        r"nov|dec)|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\W+\d).*",
        "a date or time; convert it to a number, such as seconds since the first",
    ),
    (r"\d{4}-\d\d|\d{4}Q[1-4]", "a date; convert it to a number, such as months since the first"),
    (
        r"[-+]?[\d.]+(e[-+]?\d+)?([ :]+[-+]?[\d.]+(e[-+]?\d+)?)+",
        "several numbers; separate cells by commas, semicolons, tabs or | (in a .txt by spaces)",
    ),
    (r"\(?[-+\de.]*[\d.]j\)?", "a complex number; make columns of x.real and x.imag"),
    (r"[\[{].*|\(.*[\])]", "several values in a cell; make a column for each number"),
    (r"[-+]?\d[-+\de.,' _]*", "no number; write 1234.5 for 1,234.5 or 1234,5"),
    (r"#.*", "text or a comment; comments may stand only above the table"),
    (r".*", "text; replace it by numbers, such as 0 and 1"),
)
"""Pattern of a cell's text, and reason why such a cell is no number, with advice. The first pattern
that matches applies."""


class RawTable(NamedTuple):
    """A table before its columns are chosen."""

    cells: RawCells
    names: list[str]
    """Names of the D columns."""
    locate: Callable[[int], str] = "row {}".format
    """Function that returns the place of a row in the file, from the number of the row (from 1)."""
    note: str = ""
    """Line for the user."""
    hint: str = ""
    """Advice for the case that the first row has no numbers."""
    labels: np.ndarray | None = None
    """Array ``labels`` beside the points of a .npz file; None: there is none."""


class PointTable(NamedTuple):
    """Columns of numbers."""

    values: np.ndarray
    """(N, D), all finite.  float64"""
    names: list[str]
    """Names of the D columns."""
    locate: Callable[[int], str] = "row {}".format
    """Function that returns the place of a row in the file, from the number of the row (from 1)."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""
    rounded: Sequence[str] = ()
    """Names of columns whose differences float64 rounds away."""
    labels: np.ndarray | None = None
    """Class of each row, (N,), int64 or texts; None: the rows have no classes."""
    label_name: str | None = None
    """Name of the column with the classes."""


def column_names(titles: Iterable[Any]) -> list[str]:
    """Return the names of columns, made from their titles. A title may be empty."""
    return [
        one_line(str(title)) or f"coordinate {number}" for number, title in enumerate(titles, 1)
    ]


def read_array(array: np.ndarray) -> RawTable:
    """Return the table of an array (N, D), or of an array of records (N,). Fields of records become
    columns. For an array of any other shape, the list of names is empty."""
    fields = array.dtype.names
    if array.ndim != (1 if fields else 2):
        return RawTable(array, [])
    if not fields and array.dtype.kind in "biuf":
        return RawTable(array, column_names([""] * array.shape[1]))
    import pandas as pd

    if not fields:
        frame = pd.DataFrame(_decoded(array))
        return RawTable(frame, column_names([""] * array.shape[1]))
    columns = {name: _decoded(array[name]) for name in fields}
    frame = pd.DataFrame(
        {name: column if column.ndim == 1 else [*column] for name, column in columns.items()}
    )
    return RawTable(frame, column_names(fields))


def _decoded(array: np.ndarray) -> np.ndarray:
    """Return an array in this machine's byte order, because pandas needs this order. Bytes become
    text."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array.astype(array.dtype.newbyteorder("="))


class _TextTable(NamedTuple):
    """The text of a table, without comments and empty lines above it."""

    text: str
    comment: str
    """Last comment above the table, or an empty text."""
    lines_above: int
    """Number of lines above the table."""
    first_row: str
    """First row of the table. It has several lines if a quoted cell has several lines."""

    @property
    def remedy(self) -> str:
        """Advice for rows that do not fit the first row."""
        return (
            f"if line {self.lines_above + 1} is a title, remove it; quote cells that contain a "
            "separator"
        )


def read_file(file: Path, header: bool | Literal["auto"]) -> RawTable:
    """Read a table from a file. A damaged file may raise any type of error.

    ``header``: whether the first row has names of columns. ``auto`` means true if a cell of the
    first row is not a number.
    """
    import pandas as pd

    suffix = file.suffix.lower()
    if suffix == ".parquet":
        frame, note = with_index(pd.read_parquet(file))
        return RawTable(frame, column_names(frame.columns), note=note)
    table = _cut_table(_read_text(file))
    sep = _find_separator(table.first_row, is_txt=suffix == ".txt")

    # find the names of the columns in the first row or in the last comment. There may be no names
    first = _first_cells(table, sep)
    if header == "auto":
        header = bool(np.isnan(pd.to_numeric(first, errors="coerce")).any())
    pattern = sep if sep == SPACES else re.escape(sep)
    titles = first if header else re.split(pattern, table.comment)
    names = column_names(titles if len(titles) == len(first) else [""] * len(first))
    what = (
        f"names: {list_names(first)}"
        if header
        else f"a point; if it has names: {suggest('data.header', 'true')}"
    )

    # the table
    _refuse_gaps(table, names[0])
    frame = _parse_rows(table, sep, has_names=header)
    if frame.shape[1] != len(first):
        raise ValueError(
            f"{len(first)} cells in the first row, {frame.shape[1]} in the second; {table.remedy}"
        )
    if not header and sep == "," and _has_decimal_commas(frame, table.text):
        raise ValueError("decimal commas in its only column; write 0.5 for 0,5")
    begin = table.lines_above + (table.first_row.count("\n") + 1 if header else 0)

    def locate(number: int) -> str:
        texts = frame[:number].select_dtypes(exclude="number")  # text may have several lines
        return f"line {begin + texts.to_csv(header=False).count(chr(10))}"

    hint = (
        f"if line {table.lines_above + 1} is a title, or line {begin + 1} has units, remove that "
        "line"
    )
    note = f"data: first row taken as {what}"
    return RawTable(frame, names, locate, note, hint if header else "")


def _read_text(file: Path) -> str:
    """Return the text of a file. For a .xlsx file, return the first sheet as text with tabs between
    cells. Raise ValueError if the text is not in UTF-8."""
    import pandas as pd

    if file.suffix.lower() == ".xlsx":
        sheet = pd.read_excel(file, header=None, dtype=str, na_filter=False)
        text = sheet.replace("\n", " ", regex=True).to_csv(sep="\t", header=False, index=False)
    else:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    if "\ufffd" in text:
        raise ValueError("is not in UTF-8; save it as UTF-8")
    return text


def _cut_table(text: str) -> _TextTable:
    """Return the table in the text of a file. Comments and empty lines may stand above it. Raise
    ValueError if the table has no rows."""
    begin = match_repeatedly(ABOVE, text)
    table = text[begin:].rstrip("\n")
    if not table:
        raise ValueError("has no rows")
    return _TextTable(
        text=table,
        comment=text[:begin].rstrip().rpartition("\n")[2].lstrip("# "),
        lines_above=text.count("\n", 0, begin),
        first_row=text[begin : match_repeatedly(PIECE, text, begin)],
    )


def _find_separator(row: str, *, is_txt: bool) -> str:
    """Return the separator between the cells of a row, which may be the pattern SPACES. Spaces may
    separate cells only in a .txt file."""
    bare = QUOTED.sub(r"\1", row)
    sep = "\t" if "\t" in bare else max(";,", key=bare.count)
    if ";" in bare and all(map(DECIMAL_COMMA.fullmatch, bare.split(";"))):
        return ";"
    if sep in bare:
        return sep
    if "|" in bare:
        return "|"
    return SPACES if is_txt else sep


def _first_cells(table: _TextTable, sep: str) -> list[str]:
    """Return the cells of the first row of a table."""
    if sep == SPACES:
        return [cell.strip('"') for cell in re.findall(r'"[^"]*"|\S+', table.first_row)]
    return next(csv.reader(StringIO(table.text), delimiter=sep))


def _refuse_gaps(table: _TextTable, column: str) -> None:
    """Raise ValueError if a line in the table is empty. ``column`` is the name of the first
    column."""
    gap = re.search(r"\n[^\S\n]*\n", table.text)
    if gap and table.text.count('"', 0, gap.end()) % 2 == 0:
        line = table.lines_above + table.text.count("\n", 0, gap.end())
        raise ValueError(
            f"line {line}, {column}: missing; remove rows that are empty; {table.remedy}"
        )


def _parse_rows(table: _TextTable, sep: str, *, has_names: bool) -> Any:
    """Return the rows of a table as a DataFrame, without the first row if it has names. Raise
    ValueError if there are no rows, or if rows have different lengths."""
    import pandas as pd

    exact: Any = {} if pd.__version__ >= "3.1" else {"float_precision": "round_trip"}
    try:
        return pd.read_csv(
            StringIO(table.text),
            sep=sep,
            header=None,
            skip_blank_lines=False,
            skiprows=int(has_names),
            low_memory=False,
            **exact,
        )
    except pd.errors.EmptyDataError as error:
        raise ValueError("has names but no rows") from error
    except pd.errors.ParserError as error:
        words = one_line(error).rpartition("C error: ")[2]
        words = re.sub(r"(?<=line )\d+", lambda line: str(table.lines_above + int(line[0])), words)
        raise ValueError(f"rows of different lengths: {words}; {table.remedy}") from error


def _has_decimal_commas(frame: Any, text: str) -> bool:
    """Whether the two columns of a table are in fact one column of numbers with decimal commas,
    such as 0,5."""
    is_whole = frame.shape[1] == 2 and all(kind.kind in "iu" for kind in frame.dtypes)
    return bool(is_whole and (frame[1] >= 0).all() and re.search(r"\b0\d|-0,", text))


def match_repeatedly(pattern: re.Pattern[str], text: str, begin: int = 0) -> int:
    """Match a pattern again and again, from the position ``begin`` of a text, and return the end of
    the last match. A pattern with a repeated group would need memory for each match."""
    while match := pattern.match(text, begin):
        begin = match.end()
    return begin


def with_index(frame: Any) -> tuple[Any, str]:
    """Return a DataFrame with the named levels of the index as its last columns, and a line for the
    user. pyarrow and polars show a DataFrame in this form. A level is left out if it has no name,
    if it repeats a column, or if some of its cells are not numbers."""
    import pandas as pd

    names = column_names(frame.columns)
    levels = {}
    other_levels = []
    for number, title in enumerate(frame.index.names):
        if title is None or not str(title).strip():
            continue
        (name,) = column_names([title])
        level = pd.DataFrame({name: frame.index.get_level_values(number)})
        values = to_numbers(level)
        if np.isnan(values).any():
            other_levels.append(name)
            continue
        same = to_numbers(frame.iloc[:, [n for n, other in enumerate(names) if other == name]])
        if (same == values).all(axis=0).any():
            continue
        while name in names or name in levels:
            name += " (index)"
        levels[name] = level.iloc[:, 0]
    if not levels and not other_levels:
        return frame, ""
    parts = []
    if levels:
        plain = frame.reset_index(drop=True).set_axis(names, axis=1)
        frame = pd.concat([plain, pd.DataFrame(levels)], axis=1)
        parts.append(f"columns from the index: {list_names([*levels])}")
    if other_levels:
        parts.append(
            f"index left out, because it has cells that are no numbers: {list_names(other_levels)}"
        )
    return frame, f"data: {'; '.join(parts)}"


def to_numbers(cells: RawCells) -> np.ndarray:
    """Return the values of cells, with NaN where a cell is not a number. float64, (N, D)"""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    is_number = _number_columns(cells)
    if is_number.all():  # convert all columns at once, because a table may have very many
        return cells.to_numpy(np.float64, na_value=np.nan)
    values = np.empty(cells.shape)
    values[:, is_number] = to_numbers(cells.loc[:, is_number])
    objects = cells.loc[:, ~is_number].astype(object).to_numpy()
    values[:, ~is_number] = _numbers_of_cells(objects.ravel()).reshape(objects.shape)
    return values


def to_labels(cells: RawCells) -> np.ndarray:
    """Return the class in each cell of one column. If all cells are whole numbers, the classes are
    whole numbers, else texts.  (N, 1) -> int64 or text, (N,)"""
    values = to_numbers(cells)[:, 0]
    if (np.abs(values) < MOST_LABEL).all() and (values == np.rint(values)).all():
        return values.astype(np.int64)
    column = cells[:, 0].tolist() if isinstance(cells, np.ndarray) else [*cells.iloc[:, 0]]
    return np.array([*map(text_of_cell, column)])


def reason_of_label(labels: np.ndarray) -> tuple[int, str] | None:
    """Return the number, from 0, of the first row whose cell cannot name a class, and the reason.
    Return None if all cells can name a class. ``labels`` comes from :func:`to_labels`."""
    if labels.dtype.kind == "i":
        return None
    names, rows = np.unique(labels, return_index=True)
    for row, name in sorted(zip(rows.tolist(), names.tolist(), strict=True)):
        if reason_of_cell(name) == MISSING:
            return row, MISSING
        if len(name) >= TEXT_LENGTH:
            return row, f"a class needs a name of fewer than {TEXT_LENGTH} characters"
    numbers = _numbers_of_cells(names)
    if np.isnan(numbers).any():
        return None
    is_bad = (numbers != np.rint(numbers)) | (np.abs(numbers) >= MOST_LABEL)
    row = int(rows[is_bad].min())
    return row, f"{labels[row]}: a class must be text or a whole number below {MOST_LABEL}"


def _number_columns(frame: Any) -> np.ndarray:
    """Return for each column whether its type allows only real numbers, true and false.  bool
    (D,)"""
    from pandas.api import types

    kinds = {
        kind: types.is_bool_dtype(kind)
        or (types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind))
        for kind in {*frame.dtypes}
    }
    return np.array([kinds[kind] for kind in frame.dtypes], dtype=bool)


def _numbers_of_cells(cells: np.ndarray) -> np.ndarray:
    """Return the numbers of objects, with NaN where a cell is not a number. The type is int64 or
    uint64 if all numbers are whole, otherwise float64.  (N,)"""
    import pandas as pd

    allowed = (Real, Decimal, str, np.bool_)
    numbers = [cell if isinstance(cell, allowed) else None for cell in cells]
    return pd.to_numeric(pd.Series(numbers, dtype=object), errors="coerce").to_numpy()


def rounded_columns(cells: RawCells, values: np.ndarray) -> list[int]:
    """Return the columns in which float64 rounds differences by more than the fraction FINE of the
    column's range. All numbers must be finite. An example is a column of whole numbers beyond 2^53
    that differ little."""
    columns = []
    for column in close_columns(values):
        part: Any = cells[:, column] if isinstance(cells, np.ndarray) else cells.iloc[:, column]
        if getattr(part.dtype, "kind", "O") in "fb":
            continue
        several = np.unique(part) if isinstance(cells, np.ndarray) else part.unique()
        exact = {
            Decimal(cell.item() if isinstance(cell, np.generic) else cell)
            for cell in several.tolist()
        }
        if len(exact) > 1 and any(Decimal(float(number)) != number for number in exact):
            columns.append(int(column))
    return columns


def close_columns(values: np.ndarray) -> np.ndarray:
    """Return the columns whose range has fewer than 1 / FINE steps of float64.  int64"""
    if not len(values):
        return np.empty(0, int)
    steps = np.spacing(np.abs(values).max(axis=0))
    return np.flatnonzero(steps > FINE * np.ptp(values, axis=0))


def reason_of_cell(cell: Any) -> str:
    """Return the reason why a cell is no number, and advice."""
    text = text_of_cell(cell)
    reason = next(
        reason
        for pattern, reason in REASONS
        if re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL)
    )
    return reason if reason == MISSING else f"'{one_line(text)}' is {reason}"


def text_of_cell(cell: Any) -> str:
    """Return the first characters of a cell's text. If a cell holds several values, return the
    number of values."""
    if hasattr(cell, "__len__") and not isinstance(cell, str | bytes):
        return f"[{len(cell)} values]"
    return str(cell).strip()[:TEXT_LENGTH]


def to_frame(data: Any) -> tuple[Any, str]:
    """Convert a table of pandas, polars or pyarrow to a DataFrame of pandas, in which the named
    levels of the index are columns. Also return a line for the user. Raise ValueError if ``data``
    is no table of these packages."""
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        if hasattr(data, "to_pandas"):
            data = data.to_pandas()
        elif hasattr(data, "__dataframe__"):
            data = pd.api.interchange.from_dataframe(data)
        else:
            raise ValueError(
                f"{type(data).__name__} is no DataFrame of pandas, polars or pyarrow; convert it "
                "to such a table (of polars: x.collect())"
            )
    return with_index(data)


def to_records(frame: Any) -> np.ndarray:
    """Return a pandas DataFrame as an array of records, with a field for each column, (N,). A field
    holds float64 or whole numbers. If some cells of a column are not numbers, the field holds the
    first characters of each cell as text."""
    columns = [
        _stored_column(frame.iloc[:, column], is_number)
        for column, is_number in enumerate(_number_columns(frame))
    ]
    names = column_names(frame.columns)
    kinds = [column.dtype for column in columns]
    records = np.empty(len(frame), dtype=[*zip(names, kinds, strict=True)])
    for name, column in zip(names, columns, strict=True):
        records[name] = column
    return records


def _stored_column(column: Any, is_number: bool) -> np.ndarray:
    """Return a column for :func:`to_records`.  (N,)"""
    if is_number:
        kind = getattr(column.dtype, "kind", "O")
        if kind in "iu" and not column.hasnans:
            return column.to_numpy("u8" if kind == "u" else "i8")
        return column.to_numpy(np.float64, na_value=np.nan)
    numbers = _numbers_of_cells(column.astype(object).to_numpy())
    if numbers.dtype.kind in "iu":
        return numbers
    values = numbers.astype(np.float64)
    is_finite = np.isfinite(values).all()
    if np.isnan(values).any() or (
        is_finite and rounded_columns(column.to_frame(), values[:, None])
    ):
        texts = [text_of_cell(cell) for cell in column.astype(object)]
        return np.array(texts, dtype=f"U{TEXT_LENGTH}")
    return values
