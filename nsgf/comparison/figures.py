"""The picture of the measures of a comparison."""

import math
from collections.abc import Mapping
from itertools import product
from statistics import mean, stdev
from typing import Any, NamedTuple

from nsgf.comparison import Rows
from nsgf.comparison.tables import (
    by_draw,
    by_seed,
    calls_of,
    cells_of,
    counts_of,
    methods_of,
    targets_of,
)
from nsgf.comparison.trials import FLOOR
from nsgf.config.files import TITLES, method_title
from nsgf.metrics.measures import is_better_higher, name_of, without_classes
from nsgf.plots.figures import choose_scale
from nsgf.plots.samples import new_figure

MARKERS = "osD^vP*X<>hp"


def draw_quality(rows: Rows) -> Any:
    """Draw the measures of a comparison against NFE. Each target has a row, and each measure has a
    column. Each method has a line, with bars for the standard deviations over seeds. The floor is a
    dashed line."""
    targets = targets_of(rows)
    metrics = without_classes(rows[0].values)
    figure = new_figure(3.9 * len(metrics), 3.0 * len(targets) + 0.4)
    axes = figure.subplots(len(targets), len(metrics), squeeze=False)
    for (target, metric), panel in zip(product(targets, metrics), axes.flat, strict=True):
        _draw_measure(panel, rows, target, metric)
        name = "" if len(targets) == 1 else f"{target}: "
        panel.set_title(name + name_of(metric), fontsize=11)
        panel.set_xlabel("network calls for each sample (NFE)")
    handles, names = axes[0][0].get_legend_handles_labels()
    columns = min(2 * len(metrics), len(names))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure


def _draw_measure(panel: Any, rows: Rows, target: str, metric: str) -> None:
    """Draw a measure of all methods for a target against NFE, and the floor."""
    cells = cells_of(rows)
    methods = methods_of(rows)
    colours = [*TITLES, *(method for method in methods if method not in TITLES)]
    finite: list[float] = []
    ticks = set()
    for number, method in enumerate(methods):
        line = _line_of({nfe: cells[target, nfe, method] for nfe in counts_of(rows)}, metric)
        colour = colours.index(method)
        method_name = method_title(method)
        if method_name.startswith("_"):  # matplotlib leaves names with _ out of a legend
            method_name = f" {method_name}"
        panel.errorbar(
            line.calls,
            line.means,
            line.spreads,
            label=method_name,
            color=f"C{colour}",
            linestyle="-" if colour < 10 else ":",  # matplotlib has ten colours
            marker=MARKERS[colour % len(MARKERS)],
            markersize=4,
            capsize=2 + number,  # different widths keep overlapping bars visible
        )
        ticks |= {round(calls, 1) for calls in line.calls}
        finite += filter(math.isfinite, line.means)
    if floors := by_seed(by_draw(cells[target, None, FLOOR], metric)):
        panel.axhline(mean(floors), color="0.3", linestyle="--", linewidth=1, label=FLOOR)
        finite.append(mean(floors))
    panel.set_xscale("log")
    panel.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    panel.minorticks_off()
    if not is_better_higher(metric):
        choose_scale(panel, finite)
    panel.grid(alpha=0.3)


class _Line(NamedTuple):
    """The line of a method in the picture of a measure, with a value for each NFE."""

    calls: list[float]
    """Mean number of network calls for each sample."""
    means: list[float]
    """Means over seeds. NaN leaves a gap where samples diverged."""
    spreads: list[float]
    """Standard deviations over seeds."""


def _line_of(cells: Mapping[int, Rows], metric: str) -> _Line:
    """Return the line of a method in the picture of a measure. ``cells``: rows of a method and a
    target by NFE."""
    line = _Line([], [], [])
    for nfe, cell in cells.items():
        values = by_seed(by_draw(cell, metric))
        is_finite = values and all(map(math.isfinite, values))
        line.calls.append(calls_of(cell, nfe))
        line.means.append(mean(values) if is_finite else math.nan)
        line.spreads.append(stdev(values) if is_finite and len(values) > 1 else 0.0)
    return line
