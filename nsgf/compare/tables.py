"""The tables of a comparison: means and spreads over seeds, differences, costs."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from nsgf.compare.results import FLOOR, Row
from nsgf.compare.trials import method_title

HIGHER_IS_BETTER = ("precision", "recall")
"""Ends of the names of measures."""
LEGEND = (
    "Mean ± standard deviation over seeds, each the mean of its draws (over the draws where there "
    "is one seed); the best mean in bold. Below: the mean difference within the same seed and "
    "draw ± its standard error; ahead or behind by a t test at 5 %, which happens by chance in one "
    "cell of twenty. With one seed the test concerns that training run only. A dash: no measure, "
    "for example because the method needs more calls."
)
COST_LEGEND = (
    "Training is the time of all of a method's networks, with the pool, NSGF steps and pairs; 2-RF "
    "includes 1-RF. For a comparison at equal time pass the fourth column, in this order, to "
    "--compare.updates [...] with another --out-dir."
)
IN_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$"}
)
"""LaTeX's special characters, escaped."""

Column = tuple[str, int]
"""Target and NFE."""
Table = list[list[str]]
"""Cells line by line, the first line being the head; the best mean is written ``**mean**``."""


def methods_of(rows: Sequence[Row]) -> list[str]:
    """Methods in the order of the rows; tables compare the first one with the others."""
    return list(dict.fromkeys(row.method for row in rows if row.method != FLOOR))


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """NFE in ascending order, and for each the targets in the order of the rows."""
    targets = list(dict.fromkeys(row.target for row in rows))
    counts = sorted({row.nfe for row in rows if row.nfe is not None})
    return [(target, nfe) for nfe in counts for target in targets]


def measure_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each measure: methods down, targets and NFE across, the floor below."""
    return [_measure_table(rows, metric) for metric in rows[0].values]


def difference_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each measure: the first method minus each other one, draw by draw."""
    if len(methods_of(rows)) < 2:
        return []
    return [_difference_table(rows, metric) for metric in rows[0].values]


def _measure_table(rows: Sequence[Row], metric: str) -> Table:
    columns, methods = columns_of(rows), methods_of(rows)
    table = [_head(metric, columns), *([method_title(method)] for method in methods)]
    floors = [FLOOR]
    for column in columns:
        found = {method: values(rows, metric, *column, method) for method in methods}
        best = _best(metric, found)
        for method, line in zip(methods, table[1:], strict=True):
            text = spread(by_seed(found[method])) + _remark(rows, method, column)
            line.append(f"**{text}**" if method == best else text)
        floors.append(spread(by_seed(values(rows, metric, column[0], None, FLOOR))))
    return [*table, floors]


def _best(metric: str, found: Mapping[str, Mapping[tuple[int, int], float]]) -> str | None:
    """Return the method with the best mean; None if no method has a finite one."""
    sign = -1 if is_better_higher(metric) else 1
    means = {method: sign * mean(own.values()) for method, own in found.items() if own}
    finite = {method: value for method, value in means.items() if math.isfinite(value)}
    return min(finite, key=finite.__getitem__, default=None)


def _remark(rows: Sequence[Row], method: str, column: Column) -> str:
    """Return remarks on a cell: fewer measures than planned, another NFE than requested."""
    target, nfe = column
    own = [row for row in rows if (row.target, row.nfe, row.method) == (target, nfe, method)]
    if not own:
        return ""
    remarks = []
    places = {(row.seed, row.draw) for row in rows if row.target == target and row.nfe}
    if len(own) < len(places):
        remarks.append(counted(len(own), "measure"))
    calls = mean(row.calls for row in own)
    if abs(calls - nfe) > 0.05:
        remarks.append(f"NFE {calls:.3g}")
    return f" ({', '.join(remarks)})" if remarks else ""


def _difference_table(rows: Sequence[Row], metric: str) -> Table:
    first, *others = methods_of(rows)
    columns = columns_of(rows)
    table = [_head(f"{method_title(first)} minus, {metric}", columns)]
    for other in others:
        line = [method_title(other)]
        for column in columns:
            own = values(rows, metric, *column, first)
            theirs = values(rows, metric, *column, other)
            both = sorted(own.keys() & theirs.keys())
            differences = {place: own[place] - theirs[place] for place in both}
            line.append(verdict(by_seed(differences), metric))
        table.append(line)
    return table


def _head(title: str, columns: Sequence[Column]) -> list[str]:
    return [title, *(f"{target}, {nfe}" for target, nfe in columns)]


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


def cost_table(rows: Sequence[Row]) -> Table:
    """Return updates, training and sampling times, means over the trials that were timed."""
    counts = sorted({row.nfe for row in rows if row.nfe is not None})
    measured = {
        method: [row for row in rows if row.method == method] for method in methods_of(rows)
    }
    training = {
        method: mean(seconds)
        for method, own in measured.items()
        if (seconds := [row.train_seconds for row in own if row.train_seconds])
    }
    table = [["cost", "updates", "training, s", "updates in the time of the slowest"]]
    table[0] += [f"sampling at NFE {nfe}, s" for nfe in counts]
    for method, own in measured.items():
        updates, line = own[0].updates, [method_title(method)]
        line.append(str(updates))
        if method in training:
            equal = updates * max(training.values()) / training[method]
            line += [f"{training[method]:.0f}", f"{equal:.0f}"]
        else:
            line += ["-", "-"]
        for nfe in counts:
            times = [row.sample_seconds for row in own if row.nfe == nfe]
            line.append(f"{mean(times):.2f}" if times else "-")
        table.append(line)
    return table


def values(
    rows: Sequence[Row], metric: str, target: str, nfe: int | None, method: str
) -> dict[tuple[int, int], float]:
    """Return the values of a cell by seed and draw."""
    place = (target, nfe, method)
    return {
        (row.seed, row.draw): row.values[metric]
        for row in rows
        if (row.target, row.nfe, row.method) == place
    }


def by_seed(found: Mapping[tuple[int, int], float]) -> list[float]:
    """Return the mean of each seed's draws, or the draws of a single seed.

    Draws of one trained network share its errors, so they do not count as independent runs.
    """
    seeds = sorted({seed for seed, _ in found})
    if len(seeds) < 2:
        return list(found.values())
    return [mean(value for (own, _), value in found.items() if own == seed) for seed in seeds]


def is_better_higher(metric: str) -> bool:
    """Whether larger values of a measure are better."""
    return metric.endswith(HIGHER_IS_BETTER)


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


def markdown(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown: a table for each measure, differences, costs."""
    parts = [
        *map(_markdown_table, measure_tables(rows)),
        LEGEND,
        *map(_markdown_table, difference_tables(rows)),
        _markdown_table(cost_table(rows)),
        COST_LEGEND,
    ]
    return "\n\n".join(parts) + "\n"


def latex(rows: Sequence[Row]) -> str:
    """Return the same tables for LaTeX with the package booktabs, a ``tabular`` each."""
    parts = [
        r"% \usepackage{booktabs}",
        _comment(LEGEND),
        *map(_latex_table, [*measure_tables(rows), *difference_tables(rows)]),
        _comment(COST_LEGEND),
        _latex_table(cost_table(rows)),
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    head, *lines = table
    every = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _latex_table(table: Table) -> str:
    head, *lines = [" & ".join(map(_latex_cell, cells)) + r" \\" for cells in table]
    if table[-1][0] == FLOOR:
        lines.insert(-1, r"\midrule")
    begin = rf"\begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}"
    rules = [begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(rules)


def _latex_cell(text: str) -> str:
    """Return a cell for LaTeX; a minus sign before a number is typeset as one."""
    if text == "-":
        return "--"
    text = re.sub(r"^-(?=\d)", "$-$", text.translate(IN_LATEX))
    return re.sub(r"^\*\*(.*)\*\*$", r"\\textbf{\1}", text)


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="% ", subsequent_indent="% ")
