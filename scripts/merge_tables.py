"""The tables of `nsgf compare` out of the table.csv files that several machines or days have left.

    python scripts/merge_tables.py runs/*/compare-digits/table.csv
    python scripts/merge_tables.py docs/results/2d.csv --nfe 10 --first otcfm
    python scripts/merge_tables.py docs/results/digits.csv --figure docs/results/digits_nfe.png

Each file may bring seeds, draws, methods, targets or NFE of its own. Refused is what does not
belong into one table: a measure that is there already, other measures, updates or floors.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from bench_common import finish

from nsgf.compare.report import latex, markdown
from nsgf.compare.rows import Row, read_rows
from nsgf.compare.tables import plan_of_rows
from nsgf.config.schema import MethodName
from nsgf.data import is_image_set
from nsgf.report.quality import quality_figure
from nsgf.sampling.plots import save_figure
from nsgf.system.errors import UserError

ROUNDING = 1e-6
"""Floors that differ by more, relatively, are of another classifier, other data or other numbers of
samples."""
KINDS = (".png", ".svg", ".pdf")
Choice = TypeVar("Choice", int, MethodName)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("tables", nargs="+", type=Path, metavar="CSV")
    parser.add_argument("--methods", nargs="+", help="lines of the tables (default: all)")
    parser.add_argument("--nfe", nargs="+", type=int, help="columns (default: all)")
    parser.add_argument("--first", metavar="METHOD", help="compared with the others, on top")
    parser.add_argument("--latex", action="store_true", help="tables for LaTeX, with booktabs")
    figure = "also draw the measures against NFE: a .png, .svg or .pdf"
    parser.add_argument("--figure", type=Path, metavar="FILE", help=figure)
    own = parser.parse_args()
    if own.figure and own.figure.suffix not in KINDS:
        raise UserError(f"--figure {own.figure}: must end in {', '.join(KINDS)}")
    found = [(file, row) for file in own.tables for row in read_rows(file)]
    check_agreement(found)
    rows = [row for _, row in found]
    methods = _chosen("--methods", own.methods, [row.trial.method for row in rows if row.nfe])
    if own.first is not None:
        first = _chosen("--first", [own.first], methods)
        methods = list(dict.fromkeys([*first, *methods]))
    counts = _chosen("--nfe", own.nfe, sorted(row.nfe for row in rows if row.nfe))
    shown = [row for row in rows if row.trial.method in methods and row.nfe in counts]
    if not shown:
        raise UserError("nothing to show: no measure of these methods with so many calls")
    places = {_place(row) for row in shown}
    floors = [row for row in rows if row.nfe is None and _place(row) in places]
    plan, rows = plan_of_rows(shown, methods, counts), [*shown, *floors]
    print((latex if own.latex else markdown)(plan, rows), end="")
    if own.figure:
        save_figure(quality_figure(plan, rows), own.figure, dpi=150)


def check_agreement(found: Iterable[tuple[Path, Row]]) -> None:
    """
    Args:
        found: rows, each with the file that it is from.

    Raises:
        UserError: they cannot stand in one table.
    """
    earlier: dict[object, tuple[Path, Row]] = {}
    for file, row in found:
        other, first = earlier.setdefault("first", (file, row))
        if row.measured.values.keys() != first.measured.values.keys():
            raise UserError(f"{other} and {file}: must have the same measures")
        if row.nfe is None:
            _check_floor(file, row, *earlier.setdefault(_yardstick(row), (file, row)))
            continue
        target, method, seed = row.trial.target.label, row.trial.method, row.trial.seed
        other, first = earlier.setdefault((target, method), (file, row))
        if row.updates != first.updates:
            raise UserError(
                f"{other} and {file}: {first.updates} and {row.updates} updates of {method} on "
                f"{target}; must be the same number"
            )
        cell = (target, method, seed, row.draw, row.nfe)
        if cell in earlier:
            raise UserError(
                f"{earlier[cell][0]} and {file}: {target}, {method}, seed {seed}, draw {row.draw}, "
                f"NFE {row.nfe} is in both; must be in one"
            )
        earlier[cell] = file, row


def _check_floor(file: Path, row: Row, other: Path, first: Row) -> None:
    for name, value in row.measured.values.items():
        known = first.measured.values[name]
        if not math.isclose(value, known, rel_tol=ROUNDING):
            raise UserError(
                f"{other} and {file}: the floors of {', '.join(map(str, _yardstick(row)))} have "
                f"{name} {known:.9g} and {value:.9g}, of another classifier, other data or another "
                "number of samples: not comparable"
            )


def _yardstick(row: Row) -> tuple[str, ...]:
    """What a floor belongs to: of images all seeds and draws have the same one."""
    label, seed, draw = _place(row)
    if is_image_set(row.trial.target.name):
        return (label,)
    return label, f"seed {seed}", f"draw {draw}"


def _place(row: Row) -> tuple[str, int, int]:
    return row.trial.target.label, row.trial.seed, row.draw


def _chosen(flag: str, asked: Sequence[object] | None, known: Iterable[Choice]) -> list[Choice]:
    """Those of ``known`` that are asked for, in that order; all of them where none are.

    Raises:
        UserError: one is not known.
    """
    every = {str(item): item for item in known}
    if asked is None:
        return list(every.values())
    for name in map(str, asked):
        if name not in every:
            raise UserError(f"{flag} {name}: must be among {', '.join(every)}")
    return [every[name] for name in dict.fromkeys(map(str, asked))]


if __name__ == "__main__":
    finish(main)
