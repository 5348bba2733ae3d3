"""``nsgf compare``: compare NSGF with alternative methods on equal terms.

This module reads and writes measures. Each measure is a line of ``table.csv``, and of a second
file. For trained methods, the second file is ``measures.jsonl`` in the run folder of the trial. For
floors and for a caller's functions, it is ``floors.jsonl`` or ``functions.jsonl`` in the folder of
the target.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nsgf.system.errors import UserError, cause
from nsgf.system.files import append_text, read_lines, whole_number


class Row(NamedTuple):
    """One measure of one trial, a line of ``table.csv``."""

    target: str
    method: str
    """Name of the method; FLOOR for samples of the target itself."""
    seed: int
    draw: int
    nfe: int | None
    """Requested number of network calls for each sample; None for the floor."""
    calls: float
    """Actual number of network calls for each sample."""
    updates: int
    train_seconds: float
    sample_seconds: float
    values: Mapping[str, float]
    """Measures by name."""


Rows = Sequence[Row]
COMPARISON_FILE = "comparison.yaml"
TABLE = "table.csv"
"""Files in the folder of a comparison: the settings of the command, and the measures."""
TABLE_COLUMNS = Row._fields[:-1]
"""First columns of ``table.csv``. The remaining columns are measures."""
KINDS: list[Callable[[str], Any]] = [
    str,
    str,
    whole_number,
    whole_number,
    lambda text: whole_number(text) if text else None,
    lambda text: float(text or 0),
    whole_number,
    float,
    float,
]
"""Functions that read the values of TABLE_COLUMNS."""


def table_csv(rows: Rows) -> str:
    """Return the text of ``table.csv``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*TABLE_COLUMNS, *rows[0].values])
    writer.writerows([*facts, *values.values()] for *facts, values in rows)
    return stream.getvalue()


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a ``table.csv``. Raise UserError if the file has another format."""
    try:
        head, *lines = csv.reader(io.StringIO(file.read_text("utf-8")))
        names = head[len(TABLE_COLUMNS) :]
        if head != [*TABLE_COLUMNS, *names] or not names:
            raise ValueError(f"its columns must be {','.join(TABLE_COLUMNS)} and measures")
        rows = []
        for line in lines:
            facts = [kind(text) for kind, text in zip(KINDS, line, strict=False)]
            values = dict(zip(names, map(float, line[len(TABLE_COLUMNS) :]), strict=True))
            rows.append(Row._make([*facts, values]))
        return rows
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{file}: must be a table.csv of nsgf compare ({cause(error)})") from error


class Measured(NamedTuple):
    """The stored measures of one sampling of a trial, or of a floor."""

    calls: float
    seconds: float
    values: dict[str, float]


def read_measures(file: Path) -> dict[str, Measured]:
    """Return the measures in a file by key (:func:`nsgf.comparison.trials.measure_key`). Damaged
    lines are skipped. A later line adds to the values of an earlier line with the same key."""
    stored: dict[str, Measured] = {}
    lines = read_lines(file, key=dict, calls=float, seconds=float, values=dict)
    for key, calls, seconds, values in lines:
        finite = {name: math.inf if value is None else value for name, value in values.items()}
        if all(type(value) is float for value in finite.values()):
            text = json.dumps(key, sort_keys=True)
            before = stored[text].values if text in stored else {}
            stored[text] = Measured(calls, seconds, before | finite)
    return stored


def add_measure(file: Path, key: str, measured: Measured) -> None:
    """Append a line to a file of measures. A value that is not finite becomes null."""
    content = {"key": json.loads(key), **measured._asdict()}
    content["values"] = {
        name: value if math.isfinite(value) else None for name, value in measured.values.items()
    }
    line = json.dumps(content)
    file.parent.mkdir(parents=True, exist_ok=True)
    # end the incomplete line of a killed process
    if file.exists() and not file.read_bytes().endswith(b"\n"):
        line = f"\n{line}"
    append_text(file, f"{line}\n")
