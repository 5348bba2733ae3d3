"""The tables of a comparison: means and spreads over seeds, differences, costs."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from nsgf.compare.rows import Row
from nsgf.compare.trials import Comparison, asked_nfe, method_title, possible_nfe

HIGHER_IS_BETTER = {"precision", "recall"}

Column = tuple[str, int]
"""Label of the target, and NFE."""


class Plan(NamedTuple):
    """What the tables show."""

    methods: Sequence[str]
    """Methods, a line each; the first one is compared with the others."""
    nfe: Sequence[int]
    measures: Mapping[tuple[str, Column], int]
    """Planned number of measures of a method and column; methods that need more calls have none."""


class Cell(NamedTuple):
    """One cell of a table."""

    text: str
    is_best: bool = False


class Table(NamedTuple):
    """A table whose first column holds titles; all lines are as long as ``head``."""

    head: list[str]
    lines: list[list[Cell]]
    foot: list[list[Cell]]
    """Lines below the methods, such as floors."""


def configured_plan(comparison: Comparison, rows: Sequence[Row]) -> Plan:
    """Return the plan of a whole comparison, on the targets of ``rows``."""
    compare = comparison.config.compare
    measures = {
        (method, (trial.target.label, nfe)): compare.seeds * compare.draws
        for trial in {row.trial.target: row.trial for row in rows}.values()
        for method, config in comparison.methods.items()
        for nfe in asked_nfe(config)
    }
    return Plan(list(comparison.methods), compare.nfe, measures)


def plan_of_rows(
    rows: Sequence[Row],
    methods: Sequence[str] | None = None,
    nfe: Sequence[int] | None = None,
) -> Plan:
    """Return the plan of all measures in ``rows``, or of some methods and NFE in this order. Every
    seed and draw of a target is expected of each method that is measured there."""
    measured = [row for row in rows if row.nfe is not None]
    places = {(row.trial.target.label, row.trial.seed, row.draw) for row in measured}
    count = Counter(label for label, _, _ in places)
    measures = {
        (row.trial.method, (row.trial.target.label, row.nfe)): count[row.trial.target.label]
        for row in measured
        if row.nfe is not None
    }
    if methods is None:
        methods = list(dict.fromkeys(row.trial.method for row in measured))
    if nfe is None:
        nfe = sorted({row.nfe for row in measured if row.nfe is not None})
    return Plan(methods, nfe, measures)


def measure_tables(plan: Plan, rows: Sequence[Row]) -> list[Table]:
    """Return a table for each measure: methods down, targets and NFE across, floors below."""
    return [_measure_table(plan, rows, metric) for metric in rows[0].measured.values]


def difference_tables(plan: Plan, rows: Sequence[Row]) -> list[Table]:
    """Return a table for each measure: the first method minus each other one, draw by draw."""
    if len(plan.methods) < 2:
        return []
    return [_differences(plan, rows, metric) for metric in rows[0].measured.values]


def _measure_table(plan: Plan, rows: Sequence[Row], metric: str) -> Table:
    columns = _columns(plan, rows)
    lines = []
    best = {column: _best(plan, rows, metric, column) for column in columns}
    for method in plan.methods:
        cells = [Cell(method_title(method))]
        for column in columns:
            found = values(rows, metric, *column, method)
            text = spread(by_seed(found)) + _remark(plan, rows, method, column)
            cells.append(Cell(text, is_best=best[column] == method))
        lines.append(cells)
    floors = [spread(by_seed(values(rows, metric, target, None))) for target, _ in columns]
    return Table([metric, *_titles(columns)], lines, [[Cell("floor"), *map(Cell, floors)]])


def _remark(plan: Plan, rows: Sequence[Row], method: str, column: Column) -> str:
    """Return remarks on a cell: fewer measures than planned, another NFE than requested."""
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


def _differences(plan: Plan, rows: Sequence[Row], metric: str) -> Table:
    first, *others = plan.methods
    columns = _columns(plan, rows)
    lines = []
    for other in others:
        cells = [Cell(method_title(other))]
        for column in columns:
            own = values(rows, metric, *column, first)
            theirs = values(rows, metric, *column, other)
            both = sorted(own.keys() & theirs.keys())
            differences = {place: own[place] - theirs[place] for place in both}
            cells.append(Cell(verdict(by_seed(differences), metric)))
        lines.append(cells)
    return Table([f"{method_title(first)} minus, {metric}", *_titles(columns)], lines, [])


def verdict(differences: Sequence[float], metric: str) -> str:
    """Return the mean difference, its standard error, and who is ahead by a t test at 5 %."""
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
        word = "ahead" if (middle > 0) == is_better_higher(metric) else "behind"
    return f"{middle:+.3f} ± {error:.3f} {word}"


def cost_table(plan: Plan, rows: Sequence[Row]) -> Table:
    """Return updates, training and sampling times, means over the trials that were timed."""
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
        lines.append([*map(Cell, (method_title(method), str(updates), *texts))])
    return Table(head, lines, [])


def _columns(plan: Plan, rows: Sequence[Row]) -> list[Column]:
    targets = list(dict.fromkeys(row.trial.target.label for row in rows))
    return [(target, nfe) for nfe in plan.nfe for target in targets]


def values(
    rows: Sequence[Row], metric: str, target: str, nfe: int | None, method: str | None = None
) -> dict[tuple[int, int], float]:
    """Return the values of a cell by seed and draw; of the floor without ``method``."""
    return {
        (row.trial.seed, row.draw): row.measured.values[metric]
        for row in rows
        if (row.trial.target.label, row.nfe) == (target, nfe) and method in (None, row.trial.method)
    }


def by_seed(found: Mapping[tuple[int, int], float]) -> list[float]:
    """Return the mean of each seed's draws, or the draws of a single seed.

    Draws of one trained network share its errors, so they do not count as independent runs.
    """
    seeds = sorted({seed for seed, _ in found})
    if len(seeds) < 2:
        return list(found.values())
    return [mean(value for (own, _), value in found.items() if own == seed) for seed in seeds]


def _best(plan: Plan, rows: Sequence[Row], metric: str, column: Column) -> str | None:
    """Return the method with the best mean; None if no method is measured."""
    pick: Callable[..., str | None] = max if is_better_higher(metric) else min
    means = {
        method: mean(found.values())
        for method in plan.methods
        if (found := values(rows, metric, *column, method))
    }
    return pick(means, key=means.__getitem__, default=None)


def is_better_higher(metric: str) -> bool:
    """Whether larger values of a measure are better."""
    return any(metric.endswith(name) for name in HIGHER_IS_BETTER)


def spread(found: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    if not all(map(math.isfinite, found)):
        return "diverged"
    if len(set(found)) < 2:
        return f"{found[0]:.3f}" if found else "-"
    return f"{mean(found):.3f} ± {stdev(found):.3f}"


def counted(count: int, noun: str) -> str:
    """Return ``1 seed`` or ``5 seeds``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _titles(columns: Sequence[Column]) -> list[str]:
    return [f"{target}, {nfe}" for target, nfe in columns]


def calls_of_methods(comparison: Comparison) -> list[str]:
    """Return the possible numbers of calls of each method, as ``NSGF++ takes 3 calls or more``."""
    return [_calls(comparison, method) for method in comparison.methods]


def empty_cells(comparison: Comparison) -> list[str]:
    """Return a line for each method that cannot be sampled with some of ``compare.nfe``. Those
    cells stay empty; a method with empty cells only is not trained."""
    lines = []
    for method, config in comparison.methods.items():
        possible = asked_nfe(config)
        empty = [str(nfe) for nfe in config.compare.nfe if nfe not in possible]
        if empty:
            end = f"no cell at NFE {', '.join(empty)}" if possible else "left out, not trained"
            lines.append(f"compare: {_calls(comparison, method)}: {end}")
    return lines


def _calls(comparison: Comparison, method: str) -> str:
    least, most = possible_nfe(comparison.methods[method])
    end = "or more" if most is None else "and no more"
    return f"{method_title(method)} takes {counted(least, 'call')} {end}"
