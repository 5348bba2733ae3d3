"""The files of a comparison: tables of means, differences and costs, settings, and pictures."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

from nsgf.comparison.results import SETTINGS, TABLE, Row, table_csv
from nsgf.comparison.trials import FLOOR, NOISE_ROW, Comparison, method_title
from nsgf.data import Data
from nsgf.metrics.measures import is_better_higher, name_of, without_classes
from nsgf.plots.samples import draw_table, figure_defaults, save_figure
from nsgf.run.folder import write_facts
from nsgf.sampling.sampler import Samples
from nsgf.system.files import write_text

LEGEND = (
    "Mean ± standard deviation over seeds; the value of a seed is the mean of its draws. With one "
    "seed the deviation is over draws; for floors of images it is over splits. Bold: the best "
    "mean. Below: mean difference within the same seed and draw ± its standard error. Ahead or "
    "behind: by a t test at 5 %, which errs in one cell of twenty. With one seed it concerns that "
    "training run only. A dash: no measure, for example because the method needs more calls."
)
COST_LEGEND = (
    "Training is the time of all networks of a method, with the pool, NSGF steps and pairs; 2-RF "
    "includes 1-RF. To compare at equal time, set compare.updates to the fourth column, in this "
    "order, with another out_dir."
)
IN_LATEX = {ord(character): rf"\{character}" for character in "_%&#"}
IN_LATEX |= {ord("↓"): r"$\downarrow$", ord("↑"): r"$\uparrow$", ord("±"): r"$\pm$"}

POINTS, IMAGES = 2048, 36
"""Number of samples of each method in a picture, for points and for images."""

Table = list[list[str]]
"""Lines of cells. The first line is the header; the best mean is written ``**mean**``."""
Tables = tuple[list[Table], list[Table], Table]
"""Tables of means and of differences for each measure, and the table of costs."""


def methods_of(rows: Sequence[Row]) -> list[str]:
    """Return the methods in the order of the rows; tables compare the first one with the others."""
    return list(dict.fromkeys(row.method for row in rows if row.nfe is not None))


def columns_of(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return (target, NFE) of each column, by ascending NFE, then by target."""
    targets = dict.fromkeys(row.target for row in rows)
    counts = sorted({row.nfe for row in rows if row.nfe is not None})
    return [(target, nfe) for nfe in counts for target in targets]


def cell_of(rows: Sequence[Row], target: str, nfe: int | None, method: str) -> list[Row]:
    """Return the measures that a cell of a table summarizes, one for each seed and draw."""
    return [row for row in rows if row.method == method and row.nfe == nfe and row.target == target]


def values(
    rows: Sequence[Row], metric: str, target: str, nfe: int | None, method: str
) -> dict[tuple[int, int], float]:
    """Return the values of a cell by seed and draw."""
    cell = cell_of(rows, target, nfe, method)
    return {(row.seed, row.draw): row.values[metric] for row in cell}


def calls_of(rows: Sequence[Row], target: str, nfe: int, method: str) -> float:
    """Return the mean network calls for each sample of a cell; ``nfe`` if the cell is empty."""
    cell = cell_of(rows, target, nfe, method)
    return mean(row.calls for row in cell) if cell else nfe


def by_seed(found: Mapping[tuple[int, int], float]) -> list[float]:
    """Return the mean of each seed's draws; for one seed, return its draws. Draws of one network
    share its errors, so they are not independent runs."""
    draws: dict[int, list[float]] = {}
    for (seed, _), value in sorted(found.items()):
        draws.setdefault(seed, []).append(value)
    return list(found.values()) if len(draws) < 2 else [*map(mean, draws.values())]


def measure_table(rows: Sequence[Row], metric: str) -> Table:
    """Return the means of a measure. Rows: methods, floors, and for images pure noise. Columns:
    targets and NFE."""
    methods, sign = methods_of(rows), -1 if is_better_higher(metric) else 1
    others = [FLOOR, *{NOISE_ROW} & {row.method for row in rows}]
    titles = [*map(method_title, methods), *others]
    table = [_head(name_of(metric), rows), *([title] for title in titles)]
    for target, nfe in columns_of(rows):
        places = {(row.seed, row.draw) for row in rows if row.target == target and row.nfe}
        cells = [by_seed(values(rows, metric, target, nfe, method)) for method in methods]
        means = [sign * mean(own) if own else math.inf for own in cells]
        best = min(filter(math.isfinite, means), default=None)
        for line, method, own, value in zip(table[1:], methods, cells, means, strict=False):
            count, text = len(cell_of(rows, target, nfe, method)), spread(own)
            remarks = [f"{count} of {len(places)} measures"] if 0 < count < len(places) else []
            if abs((calls := calls_of(rows, target, nfe, method)) - nfe) > 0.05:
                remarks.append(f"NFE {calls:.3g}")
            text += f" ({', '.join(remarks)})" if remarks else ""
            line.append(f"**{text}**" if value == best else text)
        for line, name in zip(table[1 + len(methods) :], others, strict=True):
            line.append(spread(by_seed(values(rows, metric, target, None, name))))
    return table


def _head(title: str, rows: Sequence[Row]) -> list[str]:
    return [title, *(f"{target}, NFE {nfe}" for target, nfe in columns_of(rows))]


def spread(found: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    if not all(map(math.isfinite, found)):
        return "diverged"
    if len(set(found)) < 2:
        return f"{found[0]:.3f}" if found else "-"
    return f"{mean(found):.3f} ± {stdev(found):.3f}"


def difference_table(rows: Sequence[Row], metric: str) -> Table:
    """Return the paired differences between the first method and the others."""
    first, *others = methods_of(rows)
    table = [_head(f"{method_title(first)} minus, {name_of(metric)}", rows)]
    for other in others:
        table.append([method_title(other)])
        for column in columns_of(rows):
            own = values(rows, metric, *column, first)
            theirs = values(rows, metric, *column, other)
            both = sorted(own.keys() & theirs.keys())
            differences = {place: own[place] - theirs[place] for place in both}
            table[-1].append(verdict(by_seed(differences), metric))
    return table


def verdict(differences: Sequence[float], metric: str) -> str:
    """Return the mean difference, its standard error, and the result of a t test at 5 %."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    if not differences:
        return "-"
    if not all(map(math.isfinite, differences)):
        return "diverged"
    middle = mean(differences)
    if len(differences) < 2:
        return f"{middle:+.3f} (one measure)"
    error = stdev(differences) / len(differences) ** 0.5
    if abs(middle) <= float(stdtrit(len(differences) - 1, 0.975)) * error:
        word = "level"
    else:
        word = "ahead" if (middle > 0) == is_better_higher(metric) else "behind"
    return f"{middle:+.3f} ± {error:.3f} {word}"


def cost_table(rows: Sequence[Row]) -> Table:
    """Return updates, mean training time and mean sampling times of each method."""
    own = {method: [row for row in rows if row.method == method] for method in methods_of(rows)}
    counts = sorted({row.nfe for row in rows if row.nfe is not None})
    head = ["cost", "updates", "training, s", "updates in the time of the slowest"]
    table = [head + [f"sampling at NFE {nfe}, s" for nfe in counts]]
    timed: dict[str, float] = {}
    for method, found in own.items():
        if seconds := [row.train_seconds for row in found if row.train_seconds]:
            timed[method] = mean(seconds)
    for method, found in own.items():
        line = [method_title(method), str(found[0].updates), "-", "-"]
        if method in timed:
            equal = found[0].updates * max(timed.values()) / timed[method]
            line[2:] = [f"{timed[method]:.0f}", f"{equal:.0f}"]
        for nfe in counts:
            times = [row.sample_seconds for row in found if row.nfe == nfe]
            line.append(f"{mean(times):.2f}" if times else "-")
        table.append(line)
    return table


def all_tables(rows: Sequence[Row]) -> Tables:
    """Return a table of means and one of differences for each measure, and the table of costs."""
    metrics, is_single = without_classes(rows[0].values), len(methods_of(rows)) < 2
    differences = [difference_table(rows, metric) for metric in metrics if not is_single]
    return [measure_table(rows, metric) for metric in metrics], differences, cost_table(rows)


def markdown(tables: Tables) -> str:
    """Return all tables as Markdown."""
    measures, differences, costs = tables
    means, others = map(_markdown_table, measures), map(_markdown_table, [*differences, costs])
    return "\n\n".join([*means, LEGEND, *others, COST_LEGEND]) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def latex(tables: Tables) -> str:
    """Return all tables for LaTeX, each as a ``tabular`` that uses the package booktabs."""
    measures, differences, costs = tables
    texts = (r"\usepackage{booktabs}", LEGEND, COST_LEGEND)
    comments = [textwrap.indent(textwrap.fill(text, 98), "% ") for text in texts]
    return "\n\n".join([*comments, *map(_latex_table, [*measures, *differences, costs])]) + "\n"


def _latex_table(table: Table) -> str:
    head, *lines = [" & ".join(map(_latex_cell, cells)) + r" \\" for cells in table]
    names = [cells[0] for cells in table[1:]]
    if FLOOR in names:
        lines.insert(names.index(FLOOR), r"\midrule")
    begin = rf"\begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}"
    rules = [begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(rules)


def _latex_cell(text: str) -> str:
    """Return a cell for LaTeX; a hyphen before a number becomes a minus sign."""
    text = re.sub(r"^-(?=\d)", "$-$", text.translate(IN_LATEX))
    return "--" if text == "-" else re.sub(r"^\*\*(.*)\*\*$", r"\\textbf{\1}", text)


def write_report(comparison: Comparison, rows: Sequence[Row]) -> list[Path]:
    """Write the tables and the settings into the comparison's folder; return the table files."""
    folder = comparison.folder
    write_facts(folder, comparison.config)
    write_text(folder / SETTINGS, comparison.settings_text)
    tables = all_tables(rows)
    texts = {"table.md": markdown(tables), TABLE: table_csv(rows), "table.tex": latex(tables)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


@figure_defaults()
def save_pictures(comparison: Comparison, device: torch.device) -> list[Path]:
    """Draw ``TARGET.png`` for each target: paths and samples of all methods from the same noise,
    for the first seed. Return the files."""
    seed, files = comparison.config.seed, []
    every = [*comparison.function_trials, *comparison.trials]
    for target in dict.fromkeys(trial.target for trial in comparison.trials):
        trials = [one for one in every if (one.target, one.seed) == (target, seed) and one.nfe]
        data = Data(trials[0].config.data, seed)
        count, what = (POINTS, "source") if data.images is None else (IMAGES, "noise")
        noise = data.source("picture").sample(count).to(device)
        drawn: dict[str, dict[int, Samples]] = {trial.title: {} for trial in trials}
        for trial, nfe in ((one, nfe) for one in trials for nfe in one.nfe):
            samples = trial.sampler(nfe, device)(noise, keep_path=True)
            path = [data.in_units(state) for state in samples.path]
            drawn[trial.title][nfe] = replace(samples, x=path[-1], path=path)
        title = f"{target}, seed {seed}: {count} samples of each, from the same {what}"
        figure = draw_table(drawn, data.reference("picture").sample(count), title, data.axes)
        files.append(comparison.folder / f"{target}.png")
        save_figure(figure, files[-1], dpi=90)
    return files
