"""The measures of a comparison, a row each, and their file ``table.csv``."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nsgf.compare.measure import Measured
from nsgf.compare.trials import Trial, named_target
from nsgf.system.errors import UserError, cause

CSV_COLUMNS = "target method seed draw nfe calls updates train_seconds sample_seconds"


class Row(NamedTuple):
    """One measure of one trial. ``nfe`` is None for the floor, whose trial has any method."""

    trial: Trial
    nfe: int | None
    draw: int
    updates: int
    train_seconds: float
    measured: Measured


def table_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, a line each."""
    stream = io.StringIO()
    names = list(rows[0].measured.values)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS.split(), *names])
    for row in rows:
        trial, measured = row.trial, row.measured
        kind: list[object] = [trial.method, row.nfe, measured.nfe]
        if row.nfe is None:  # samples of the target itself, which no network was called for
            kind = ["floor", "", ""]
        head = [trial.target.label, kind[0], trial.seed, row.draw, *kind[1:], row.updates]
        seconds = [round(row.train_seconds, 1), round(measured.sample_seconds, 2)]
        writer.writerow([*head, *seconds, *(measured.values[name] for name in names)])
    return stream.getvalue()


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file that :func:`table_csv` wrote; times are rounded there.

    Raises:
        UserError: the file cannot be read or is no such table.
    """
    try:
        head, *lines = list(csv.reader(io.StringIO(file.read_text("utf-8")))) or [[]]
    except OSError as error:
        raise UserError(f"{file}: {cause(error)}") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file}: must be a table.csv of nsgf compare ({error})") from error
    columns = CSV_COLUMNS.split()
    if head[: len(columns)] != columns or head == columns:
        wanted = ",".join(columns)
        raise UserError(f"{file}: must be a table.csv of nsgf compare: {wanted} and measures")
    rows = []
    for number, cells in enumerate(lines, 2):
        try:
            if len(cells) != len(head):
                raise ValueError(f"{len(cells)} cells, but the head has {len(head)}")
            rows.append(_read_row(dict(zip(head, cells, strict=True))))
        except (ValueError, UserError) as error:
            raise UserError(f"{file}, line {number}: {error}") from error
    return rows


def has_places_of(rows: Sequence[Row], file: Path) -> bool:
    """Whether rows may replace a ``table.csv``: they have all its trials, NFE and draws, or there
    is no such file. A file that cannot be read is never replaced."""
    if not file.exists():
        return True
    try:
        return _places(read_rows(file)) <= _places(rows)
    except UserError:
        return False


def _places(rows: Sequence[Row]) -> set[tuple[object, ...]]:
    return {
        (row.trial.target, row.trial.method if row.nfe else None, row.trial.seed, row.nfe, row.draw)
        for row in rows
    }


def _read_row(cells: Mapping[str, str]) -> Row:
    """Return the row of a line; raise ValueError or UserError if a cell is wrong."""
    metrics = list(cells)[len(CSV_COLUMNS.split()) :]
    is_floor = cells["method"] == "floor"
    return Row(
        Trial(named_target(cells["target"]), cells["method"], int(cells["seed"])),
        None if is_floor else int(cells["nfe"]),
        int(cells["draw"]),
        int(cells["updates"]),
        float(cells["train_seconds"]),
        Measured(
            0.0 if is_floor else float(cells["calls"]),
            float(cells["sample_seconds"]),
            {name: float(cells[name]) for name in metrics},
        ),
    )
