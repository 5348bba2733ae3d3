"""The measures of a comparison: lines of ``table.csv``, each also in a file of the same form in the
run folder of its trial, or for a floor in the folder of its target."""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from nsgf.comparison.trials import at_nfe
from nsgf.config.schema import Config
from nsgf.system.errors import UserError, cause
from nsgf.system.json_reader import whole_number

FORMAT = 3
"""Raised when a measure of the same name is computed in another way."""


class Row(NamedTuple):
    """One measure of one trial, a line of ``table.csv``."""

    target: str
    method: str
    """FLOOR: samples of the target itself."""
    seed: int
    draw: int
    nfe: int | None
    """Network calls for each sample that were asked for; None for the floor."""
    calls: float
    """Network calls for each sample that were made."""
    updates: int
    train_seconds: float
    sample_seconds: float
    values: Mapping[str, float]
    """Measures by name."""


COLUMNS = Row._fields[:-1]
"""First columns of ``table.csv``; the others are measures."""


def table_csv(rows: Sequence[Row]) -> str:
    """Return the text of ``table.csv``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*COLUMNS, *rows[0].values])
    writer.writerows([*facts, *values.values()] for *facts, values in rows)
    return stream.getvalue()


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a ``table.csv``. Raise UserError if the file is no such table."""
    try:
        head, *lines = csv.reader(io.StringIO(file.read_text("utf-8")))
        names = head[len(COLUMNS) :]
        if head != [*COLUMNS, *names] or not names:
            raise ValueError(f"its columns must be {','.join(COLUMNS)} and measures")
        return [_read_row(cells, names) for cells in lines]
    except OSError as error:
        raise UserError(f"{file}: {cause(error)}") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file}: must be a table.csv of nsgf compare ({error})") from error


def _read_row(cells: list[str], names: list[str]) -> Row:
    target, method, seed, draw, nfe, calls, updates, training, sampling, *found = cells
    values = {name: float(text) for name, text in zip(names, found, strict=True)}
    calls_asked = whole_number(nfe) if nfe else None
    place = (target, method, whole_number(seed), whole_number(draw), calls_asked)
    spent = (float(calls or 0), whole_number(updates), float(training), float(sampling))
    return Row(*place, *spent, values)


def measure_file(folder: Path, method: str, config: Config, nfe: int, draw: int) -> Path:
    """Return the file of a trial's measure in its run folder. Its name depends on all settings
    except for those of training, which all measures in the folder share."""
    sampling = asdict(replace(at_nfe(config, nfe).sampling, num_samples=1))
    del sampling["label"], sampling["guidance"]  # classes are not compared
    updates = [getattr(config, phase).iterations for phase in config.phases]
    own = [FORMAT, method, nfe, updates, config.train.precision, sampling]
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    return counted_file(folder, f"measure-{digest[:16]}", config, draw)


def counted_file(folder: Path, name: str, config: Config, draw: int) -> Path:
    """Return the file of a measure, with seed, draw and numbers of samples in its name."""
    counts = (config.evaluation.num_samples, config.evaluation.w2_samples)
    return folder / f"{name}-{'-'.join(map(str, (config.seed, draw, *counts)))}.csv"


def read_measure(file: Path, names: Sequence[str] | None = None) -> Row | None:
    """Return the measure in a file; None if there is none, or one of other ``names``."""
    try:
        (row,) = read_rows(file)
    except (UserError, ValueError):  # there is no file, or it is damaged
        return None
    return row if names is None or list(row.values) == names else None
