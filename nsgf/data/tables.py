"""Tables of numbers in files and in memory. pandas reads them, and is imported only then."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib.recfunctions import unstructured_to_structured

from nsgf.system.errors import list_names, one_line, suggest


class Table(NamedTuple):
    """Columns of numbers."""

    values: np.ndarray
    """(N, D), NaN where a cell of the file is not a number."""
    names: list[str]
    """Names of the D columns."""
    place: Callable[[int], str] = "row {}".format
    """Function of a row's number (from 1) that returns its place in the file."""
    note: str = ""
    """Line for the user."""


def column_names(titles: Iterable[Any]) -> list[str]:
    """Return the names of columns from their titles, which may be empty."""
    return [one_line(str(it)) or f"coordinate {number}" for number, it in enumerate(titles, 1)]


def read_file(file: Path, header: bool | Literal["auto"]) -> Table:
    """Read a table from a file. Raise errors of many types if it is damaged.

    ``header``: whether the first row has names; auto: true if one of its cells is not a number.
    """
    import pandas as pd

    suffix = file.suffix.lower()
    if suffix == ".parquet":
        frame = pd.read_parquet(file)
        return Table(to_numbers(frame), column_names(frame.columns))
    if suffix == ".xlsx":
        sheet = pd.read_excel(file, header=None, dtype=str, na_filter=False)
        text = sheet.replace("\n", " ", regex=True).to_csv(sep="\t", header=False, index=False)
    else:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    if "\ufffd" in text:
        raise ValueError("is not in UTF-8; save it as UTF-8")

    # comments and empty lines may stand above the table
    above = re.match(r"([^\S\n]*(#.*)?\n)*", text)[0]  # type: ignore[index]
    table = text[len(above) :].rstrip("\n")
    top = above.count("\n")
    row = re.match(r'("[^"]*"|[^"\n])*', table)[0]  # type: ignore[index]
    bare = re.sub(r'(^|[\t;,])"([^"]|"")*"(?=[\t;,]|$)', r"\1", row)
    sep = "\t" if "\t" in bare else max(";,", key=bare.count)
    if sep not in bare and suffix == ".txt":
        sep = r"\s+"
    if re.fullmatch(r"(?=[\s\S]*(\b0\d|-0,))(-?\d+,\d+\s+)+", table + "\n"):  # such as 1,05
        raise ValueError("decimal commas in its only column; write 0.5 for 0,5")
    exact = {} if pd.__version__ >= "3.1" else {"float_precision": "round_trip"}
    read: Any = partial(pd.read_csv, sep=sep, header=None, skip_blank_lines=False, **exact)

    # names stand in the first row, in the last comment, or nowhere
    first = [*read(StringIO(table), nrows=1, dtype=str, na_filter=False).iloc[0]]
    if header == "auto":
        header = bool(np.isnan(pd.to_numeric(first, errors="coerce")).any())
    titles = first if header else re.split(sep, above.rstrip().rpartition("\n")[2].lstrip("# "))
    names = column_names(titles if len(titles) == len(first) else [""] * len(first))
    what = (
        f"names: {list_names(first)}"
        if header
        else f"a point; if it has names: {suggest('data.header', 'true')}"
    )

    # errors of pandas name the line
    frame = read(StringIO("\n" * top + table), skiprows=top + header, low_memory=False)
    if frame.shape[1] != len(first):
        raise ValueError(f"{len(first)} cells in the first row, {frame.shape[1]} in the second")

    begin = top + (row.count("\n") + 1 if header else 0)

    def place(number: int) -> str:
        texts = frame[:number].select_dtypes(exclude="number")  # may have cells of several lines
        return f"line {begin + texts.to_csv(header=False).count(chr(10))}"

    return Table(to_numbers(frame), names, place, f"data: first row taken as {what}")


def to_numbers(frame: Any) -> np.ndarray:
    """Return the values of a DataFrame, NaN where a cell is not a number.  float64"""
    import pandas as pd

    numbers = frame.astype(object).apply(pd.to_numeric, errors="coerce") * 1.0  # also booleans
    return numbers.to_numpy().astype(np.float64, casting="same_kind")


def to_records(data: Any) -> np.ndarray:
    """Convert a DataFrame of pandas, polars or pyarrow to an array whose fields are its columns,
    NaN where a cell is not a number.  float64, (N,)"""
    import pandas as pd

    read = pd.api.interchange.from_dataframe
    frame = data.to_pandas() if hasattr(data, "to_pandas") else read(data)
    return unstructured_to_structured(to_numbers(frame), names=column_names(frame.columns))
