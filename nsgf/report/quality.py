"""The measures of a comparison against the number of network calls."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from nsgf.compare.results import FLOOR, Row
from nsgf.compare.tables import by_seed, columns_of, is_better_higher, methods_of, values
from nsgf.compare.trials import TITLES, method_title
from nsgf.plots.samples import new_figure

LARGE_RANGE = 5
"""Ratio of largest to smallest value above which an axis is logarithmic."""
MARKERS = "osD^vP*X<>"
APART = 1.03
"""Factor between the positions of two methods at the same NFE, which keeps error bars apart."""


def quality_figure(rows: Sequence[Row]) -> Any:
    """Draw the measures of a comparison against NFE: targets down, measures across, a line for
    each method with its standard deviation over seeds, the floor dashed."""
    targets, metrics = list(dict.fromkeys(row.target for row in rows)), list(rows[0].values)
    figure = new_figure(3.4 * len(metrics), 3.0 * len(targets) + 0.4)
    axes = figure.subplots(len(targets), len(metrics), squeeze=False)
    for target, panels in zip(targets, axes, strict=True):
        for metric, panel in zip(metrics, panels, strict=True):
            _draw_measure(panel, rows, target, metric)
            panel.set_title(metric if len(targets) == 1 else f"{target}: {metric}", fontsize=11)
            wanted = "higher" if is_better_higher(metric) else "lower"
            panel.set_ylabel(f"{wanted} is better")
    for panel in axes[-1]:
        panel.set_xlabel("NFE (network calls a sample)")
    handles, names = axes[0][0].get_legend_handles_labels()
    last_floor = sorted(zip(handles, names, strict=True), key=lambda pair: pair[1] == FLOOR)
    many = min(2 * len(metrics), len(names))
    figure.legend(*zip(*last_floor, strict=True), loc="outside lower center", ncols=many)
    return figure


def _draw_measure(panel: Any, rows: Sequence[Row], target: str, metric: str) -> None:
    """Draw one measure of one target; diverged samples leave a gap."""
    shown: list[float] = []
    methods, counts = methods_of(rows), list(dict.fromkeys(nfe for _, nfe in columns_of(rows)))
    for number, method in enumerate(methods):
        kept = [by_seed(values(rows, metric, target, nfe, method)) for nfe in counts]
        found = [own if own and all(map(math.isfinite, own)) else [math.nan] for own in kept]
        means = [mean(own) for own in found]
        spreads = [stdev(own) if len(own) > 1 else 0.0 for own in found]
        known = list(TITLES)
        place = known.index(method) if method in known else len(known) + number
        how = {
            "color": f"C{place}",
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4,
            "linewidth": 1.3,
        }
        aside = APART ** (number - (len(methods) - 1) / 2)
        x = [nfe * aside for nfe in counts]
        panel.errorbar(x, means, spreads, label=method_title(method), capsize=2, **how)
        shown += [value for value in means if math.isfinite(value)]
    if floors := by_seed(values(rows, metric, target, None, FLOOR)):
        panel.axhline(mean(floors), color="0.3", linestyle="--", linewidth=1, label=FLOOR)
        shown.append(mean(floors))
    panel.set_xscale("log")
    panel.set_xticks(counts, [str(nfe) for nfe in counts])
    panel.minorticks_off()
    is_wide = shown and min(shown) > 0 and max(shown) > LARGE_RANGE * min(shown)
    if is_wide and not is_better_higher(metric):
        _logarithmic(panel.yaxis, panel.set_yscale)
    panel.grid(alpha=0.3)


def _logarithmic(axis: Any, set_scale: Any) -> None:
    """A logarithmic axis with numbers as they are written, not as powers."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())
