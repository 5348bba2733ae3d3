"""The table of a comparison: means and spreads over seeds, as Markdown and CSV."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from nsgf.compare.measure import Measured
from nsgf.compare.trials import (
    METHODS,
    Target,
    Trial,
    asked_nfe,
    comparison_folder,
    named_target,
    trial_config,
)
from nsgf.config.schema import Config, MethodName
from nsgf.run.folder import write_text
from nsgf.system.errors import UserError, cause

LEGEND = (
    "Mean ± standard deviation over seeds, each the mean of its draws (over the draws where there "
    "is one seed); the best mean in bold. Below: the difference within the same seed and draw, ± "
    "its standard error; ahead or behind where a t test at 5 % says so, which one cell in twenty "
    "does by chance. With one seed it speaks of that training run alone. A dash alone: no measure, "
    "as where the method cannot do with so few calls."
)
COST_LEGEND = (
    "Training is the time of all of a method's networks, the pool, NSGF steps and pairs with it; "
    "2-RF counts 1-RF's. For a comparison at equal time give the fourth column, in this order, as "
    "--compare.updates [...] with another --out-dir."
)
CSV_COLUMNS = "target method seed draw nfe calls updates train_seconds sample_seconds"
HIGHER_IS_BETTER = {"precision", "recall"}


class Row(NamedTuple):
    """One measure of one trial; ``nfe`` None: the floor, samples of the target itself, where the
    method of the trial means nothing."""

    trial: Trial
    nfe: int | None
    draw: int
    updates: int
    train_seconds: float
    measured: Measured


Column = tuple[str, int]
"""Label of the target, and NFE."""


class Plan(NamedTuple):
    """What the tables show."""

    methods: Sequence[MethodName]
    """Their lines; differences are those of the first one to the others."""
    nfe: Sequence[int]
    measures: Mapping[tuple[MethodName, Column], int]
    """How many a cell is to have; none where it is missing, e.g. as the method cannot do with so
    few calls."""


def write_report(config: Config, rows: Sequence[Row]) -> list[Path]:
    """``table.md`` and ``table.csv`` in the comparison's folder."""
    folder = comparison_folder(config)
    files = [folder / "table.md", folder / "table.csv"]
    write_text(files[0], markdown(configured_plan(config, rows), rows))
    write_text(files[1], table_csv(rows))
    return files


def configured_plan(config: Config, rows: Sequence[Row]) -> Plan:
    """All that the comparison was asked for, on the targets of ``rows``."""
    compare = config.compare
    measures = {
        (method, (trial.target.label, nfe)): compare.seeds * compare.draws
        for trial in {row.trial.target: row.trial for row in rows}.values()
        for method in compare.methods
        for nfe in asked_nfe(trial_config(config, replace(trial, method=method)))
    }
    return Plan(compare.methods, compare.nfe, measures)


def markdown(plan: Plan, rows: Sequence[Row]) -> str:
    """All tables: one for each measure, the differences, and what it took."""
    parts = []
    for metric in rows[0].measured.values:
        parts += [_metric_table(plan, rows, metric), ""]
    parts += [LEGEND, ""]
    for metric in rows[0].measured.values:
        parts += [_differences(plan, rows, metric), ""]
    parts += [_costs(plan, rows), "", COST_LEGEND, ""]
    return "\n".join(parts)


def table_csv(rows: Sequence[Row]) -> str:
    """One line for each measure of each trial."""
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
    """What :func:`table_csv` wrote, with times as they are rounded there.

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
        except ValueError as error:
            raise UserError(f"{file}, line {number}: {error}") from error
    return rows


def _read_row(cells: Mapping[str, str]) -> Row:
    """
    Raises:
        ValueError: what stands in a cell is not what belongs there.
    """
    metrics = list(cells)[len(CSV_COLUMNS.split()) :]
    is_floor = cells["method"] == "floor"
    named = [method for method in METHODS if is_floor or method == cells["method"]]
    if not named:
        raise ValueError(
            f"method = {cells['method']}: must be floor or one of {', '.join(METHODS)}"
        )
    return Row(
        Trial(_target(cells["target"]), named[0], int(cells["seed"])),
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


def _target(label: str) -> Target:
    """
    Raises:
        ValueError: there is none of this label.
    """
    try:
        return named_target(label)
    except UserError as error:
        raise ValueError(f"target = {label}: there is none of this name") from error


def _metric_table(plan: Plan, rows: Sequence[Row], metric: str) -> str:
    """Methods down, targets and NFE across."""
    columns = _columns(plan, rows)
    lines = []
    best = {column: _best(plan, rows, metric, column) for column in columns}
    for method in plan.methods:
        cells = []
        for column in columns:
            values = _values(rows, metric, *column, method)
            text = spread(by_seed(values)) + _remark(plan, rows, method, column)
            cells.append(f"**{text}**" if best[column] == method else text)
        lines.append([METHODS[method].title, *cells])
    floors = [spread(by_seed(_values(rows, metric, target, None))) for target, _ in columns]
    return _table([metric, *_titles(columns)], [*lines, ["floor", *floors]])


def _remark(plan: Plan, rows: Sequence[Row], method: MethodName, column: Column) -> str:
    """Remarks on a trial: fewer measures than planned, another NFE than asked for."""
    own = [
        row
        for row in rows
        if (row.trial.method, row.trial.target.label, row.nfe) == (method, *column)
    ]
    planned = plan.measures.get((method, column), 0)
    if not planned:
        return ""
    remarks = []
    if len(own) < planned:
        remarks.append(counted(len(own), "measure"))
    taken = mean([row.measured.nfe for row in own] or [column[1]])
    if abs(taken - column[1]) > 0.05:
        remarks.append(f"NFE {taken:.3g}")
    return f" ({', '.join(remarks)})" if remarks else ""


def _differences(plan: Plan, rows: Sequence[Row], metric: str) -> str:
    """The first method against each other one, draw by draw: ahead, level or behind."""
    first, *others = plan.methods
    columns = _columns(plan, rows)
    lines = []
    for other in others:
        cells = []
        for column in columns:
            own = _values(rows, metric, *column, first)
            theirs = _values(rows, metric, *column, other)
            both = sorted(own.keys() & theirs.keys())
            differences = {place: own[place] - theirs[place] for place in both}
            cells.append(verdict(by_seed(differences), metric))
        lines.append([METHODS[other].title, *cells])
    return _table([f"{METHODS[first].title} minus, {metric}", *_titles(columns)], lines)


def verdict(differences: Sequence[float], metric: str) -> str:
    """Mean difference with its standard error; ahead or behind at the 5 % level of Student's t."""
    from scipy.stats import t as student_t  # half a second to import

    if not differences:
        return "-"
    if not all(map(math.isfinite, differences)):
        return "diverged"
    middle = mean(differences)
    if len(differences) < 2:
        return f"{middle:+.3f} (one measure)"
    error = stdev(differences) / len(differences) ** 0.5
    if abs(middle) <= float(student_t.ppf(0.975, len(differences) - 1)) * error:
        word = "level"
    else:
        word = "ahead" if (middle > 0) == _is_better_higher(metric) else "behind"
    return f"{middle:+.3f} ± {error:.3f} {word}"


def _costs(plan: Plan, rows: Sequence[Row]) -> str:
    """Updates, training time and sampling time, means over the trials that were timed."""
    counts = plan.nfe
    head = ["cost", "updates", "training, s", "updates in the time of the slowest"]
    head += [f"sampling at NFE {nfe}, s" for nfe in counts]
    measured = {
        method: own
        for method in plan.methods
        if (own := [row for row in rows if row.trial.method == method and row.nfe])
    }
    training = {
        method: mean(seconds)
        for method, own in measured.items()
        if (seconds := [row.train_seconds for row in own if row.train_seconds])
    }
    lines = []
    for method, own in measured.items():
        updates, texts = own[0].updates, ["-", "-"]
        if method in training:
            equal = updates * max(training.values()) / training[method]
            texts = [f"{training[method]:.0f}", f"{equal:.0f}"]
        for nfe in counts:
            times = [row.measured.sample_seconds for row in own if row.nfe == nfe]
            texts.append(f"{mean(times):.2f}" if times else "-")
        lines.append([METHODS[method].title, str(updates), *texts])
    return _table(head, lines)


def _columns(plan: Plan, rows: Sequence[Row]) -> list[Column]:
    targets = list(dict.fromkeys(row.trial.target.label for row in rows))
    return [(target, nfe) for nfe in plan.nfe for target in targets]


def _values(
    rows: Sequence[Row], metric: str, target: str, nfe: int | None, method: MethodName | None = None
) -> dict[tuple[int, int], float]:
    """By seed and draw; of the floor, which has no method, without one."""
    return {
        (row.trial.seed, row.draw): row.measured.values[metric]
        for row in rows
        if (row.trial.target.label, row.nfe) == (target, nfe) and method in (None, row.trial.method)
    }


def by_seed(values: Mapping[tuple[int, int], float]) -> list[float]:
    """A value for each seed, the mean of its draws; of a single seed its draws.

    Draws of one trained network share its errors: counted as if they were seeds, they would make
    differences look surer than they are.
    """
    seeds = sorted({seed for seed, _ in values})
    if len(seeds) < 2:
        return list(values.values())
    return [mean(value for (own, _), value in values.items() if own == seed) for seed in seeds]


def _best(plan: Plan, rows: Sequence[Row], metric: str, column: Column) -> MethodName | None:
    """None: no method is measured there."""
    pick: Callable[..., MethodName | None] = max if _is_better_higher(metric) else min
    means = {
        method: mean(values.values())
        for method in plan.methods
        if (values := _values(rows, metric, *column, method))
    }
    return pick(means, key=means.__getitem__, default=None)


def _is_better_higher(metric: str) -> bool:
    return any(metric.endswith(name) for name in HIGHER_IS_BETTER)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    if len(set(values)) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def counted(count: int, noun: str) -> str:
    """``1 seed``, ``5 seeds``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _titles(columns: Sequence[Column]) -> list[str]:
    return [f"{target}, {nfe}" for target, nfe in columns]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    every = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)
