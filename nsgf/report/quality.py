"""The measures of a comparison against the number of network calls."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from nsgf.compare.results import FLOOR, Row
from nsgf.compare.tables import by_seed, columns_of, is_better_higher, methods_of, values
from nsgf.compare.trials import TITLES, method_title
from nsgf.plots.figures import choose_scale
from nsgf.plots.samples import new_figure

MARKERS = "osD^vP*X<>"
APART = 1.03
"""Factor between the positions of two methods at the same NFE, which keeps error bars apart."""


def draw_quality(rows: Sequence[Row]) -> Any:
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
    columns = min(2 * len(metrics), len(names))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure


def _draw_measure(panel: Any, rows: Sequence[Row], target: str, metric: str) -> None:
    """Draw one measure of one target; diverged samples leave a gap."""
    shown: list[float] = []
    methods, counts = methods_of(rows), list(dict.fromkeys(nfe for _, nfe in columns_of(rows)))
    known = list(TITLES)
    for number, method in enumerate(methods):
        cells = [by_seed(values(rows, metric, target, nfe, method)) for nfe in counts]
        found = [own if own and all(map(math.isfinite, own)) else [math.nan] for own in cells]
        means = [mean(own) for own in found]
        spreads = [stdev(own) if len(own) > 1 else 0.0 for own in found]
        place = known.index(method) if method in known else len(known) + number
        how = {"color": f"C{place}", "marker": MARKERS[place % len(MARKERS)], "markersize": 4}
        x = [nfe * APART ** (number - (len(methods) - 1) / 2) for nfe in counts]
        panel.errorbar(x, means, spreads, label=method_title(method), capsize=2, **how)
        shown += [value for value in means if math.isfinite(value)]
    if floors := by_seed(values(rows, metric, target, None, FLOOR)):
        panel.axhline(mean(floors), color="0.3", linestyle="--", linewidth=1, label=FLOOR)
        shown.append(mean(floors))
    panel.set_xscale("log")
    panel.set_xticks(counts, [str(nfe) for nfe in counts])
    panel.minorticks_off()
    if not is_better_higher(metric):
        choose_scale(panel, shown)
    panel.grid(alpha=0.3)
