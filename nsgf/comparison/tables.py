"""Write the files of a comparison: tables (means, differences, costs), settings and pictures."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import torch

from nsgf.comparison import COMPARISON_FILE, TABLE, Row, Rows, table_csv
from nsgf.comparison.trials import FLOOR, NOISE_ROW, Comparison
from nsgf.comparison.tuning import SEARCH, ranking, selecting_measure
from nsgf.config.files import method_title
from nsgf.metrics.measures import is_better_higher, name_of, without_classes
from nsgf.plots.samples import draw_table, figure_defaults, save_figure
from nsgf.report import render
from nsgf.run.folder import write_facts
from nsgf.sampling.sampler import Samples
from nsgf.system.files import write_text

LEGENDS = (
    # means and differences
    "Mean ± standard deviation over seeds; the value of a seed is the mean of its draws. With one "
    "seed the deviation is over draws; for floors of images it is over splits. Bold: the best "
    "mean of several seeds. A value below zero: an unbiased estimate may be slightly negative; the "
    "two sets cannot be told apart. Below: mean difference within the same seed and draw ± its "
    "standard error. Ahead or behind: by a t test at 5 %, which errs in one cell of twenty. With "
    "one seed it concerns that training run only. A dash: no measure, for example because the "
    "method needs more calls.",
    # costs
    "Training is the time of all networks of a method, with the pool, NSGF steps and pairs; 2-RF "
    "includes 1-RF. To compare at equal time, set compare.updates to the fourth column, in this "
    "order, with another out_dir.",
    # settings
    "Each combination of the settings of compare.tune that a method uses was trained once, with a "
    "seed and measured on a draw of the target that no other table uses. search.csv has all.",
)
IN_LATEX = str.maketrans(
    {
        "_": r"\_",
        "%": r"\%",
        "&": r"\&",
        "#": r"\#",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
        "±": r"$\pm$",
    }
)

POINTS = 2048
IMAGES = 36
"""Number of samples of each method in a picture of points, and in a picture of images."""

Cells = Mapping[tuple[str, int | None, str], list[Row]]
TextTable = list[list[str]]
"""Lines of cells. The first line is the header. The best mean of several seeds is written as
``**mean**``."""
Tables = tuple[list[TextTable], list[TextTable], list[TextTable]]
"""Three lists of tables. The first list has a table of means for each measure, and the second list
a table of differences for each measure. The third list has the table of costs, and after a search
the table of settings."""


def methods_of(rows: Rows) -> list[str]:
    """Return the methods in the order of the rows. Tables compare the first method with each
    further method."""
    return list(dict.fromkeys(row.method for row in rows if row.nfe is not None))


def targets_of(rows: Rows) -> list[str]:
    """Return the targets in the order of the rows."""
    return list(dict.fromkeys(row.target for row in rows))


def counts_of(rows: Rows) -> list[int]:
    """Return the requested numbers of network calls, in ascending order."""
    return sorted({row.nfe for row in rows if row.nfe is not None})


def has_seeds(rows: Rows) -> bool:
    """Return whether the methods were trained with several seeds. One seed is too few to rank
    methods, because another seed may change their order."""
    return len({row.seed for row in rows if row.nfe is not None}) > 1


def columns_of(rows: Rows) -> list[tuple[str, int]]:
    """Return (target, NFE) of each column, by ascending NFE, then by target."""
    return [(target, nfe) for nfe in counts_of(rows) for target in targets_of(rows)]


def cells_of(rows: Rows) -> Cells:
    """Return the rows that each cell of a table summarizes, by (target, NFE, method). A cell has
    one row for each seed and draw. For every other key, the list is empty."""
    cells = defaultdict(list)
    for row in rows:
        cells[row.target, row.nfe, row.method].append(row)
    return cells


def calls_of(cell: Rows, nfe: int) -> float:
    """Return the mean number of network calls per sample in a cell; ``nfe`` if the cell is
    empty."""
    return mean(row.calls for row in cell) if cell else nfe


def by_draw(cell: Rows, metric: str) -> dict[tuple[int, int], float]:
    """Return the values of a cell by seed and draw."""
    return {(row.seed, row.draw): row.values[metric] for row in cell}


def by_seed(values: Mapping[tuple[int, int], float]) -> list[float]:
    """Return the mean over the draws of each seed. For a single seed, return the draws themselves.
    Draws of one network share its errors, so they are not independent runs."""
    draws = defaultdict(list)
    for (seed, _), value in sorted(values.items()):
        draws[seed].append(value)
    return list(values.values()) if len(draws) < 2 else [*map(mean, draws.values())]


def measure_table(rows: Rows, metric: str) -> TextTable:
    """Return the means of a measure. Rows: methods, floors, and for images pure noise. Columns:
    targets and NFE."""
    methods = methods_of(rows)
    cells = cells_of(rows)
    references = [FLOOR, *{NOISE_ROW} & {row.method for row in rows}]
    best_of = max if is_better_higher(metric) else min
    is_ranked = has_seeds(rows)
    lines = {method: [method_title(method)] for method in methods + references}
    for target, nfe in columns_of(rows):
        values = {
            method: by_seed(by_draw(cells[target, nfe, method], metric)) for method in methods
        }
        means = [mean(seeds) for seeds in values.values() if seeds]
        best = best_of(filter(math.isfinite, means), default=None)
        draws = {(row.seed, row.draw) for row in rows if row.target == target and row.nfe}
        for method, seeds in values.items():
            text = spread(seeds)
            cell = cells[target, nfe, method]
            remarks = []
            if 0 < len(cell) < len(draws):
                remarks.append(f"{len(cell)} of {len(draws)} measures")
            calls = calls_of(cell, nfe)
            is_best = is_ranked and seeds and mean(seeds) == best
            if abs(calls - nfe) > 0.05:
                remarks.append(f"NFE {calls:.3g}")
            if remarks:
                text += f" ({', '.join(remarks)})"
            lines[method].append(f"**{text}**" if is_best else text)
        for name in references:
            lines[name].append(spread(by_seed(by_draw(cells[target, None, name], metric))))
    return [_head(name_of(metric), rows), *lines.values()]


def _head(title: str, rows: Rows) -> list[str]:
    return [title, *(f"{target}, NFE {nfe}" for target, nfe in columns_of(rows))]


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    if len(set(values)) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{mean(values):.3f} ± {stdev(values):.3f}"


def difference_table(rows: Rows, metric: str) -> TextTable:
    """Return the paired differences between the first method and each further method."""
    first, *rivals = methods_of(rows)
    cells = cells_of(rows)
    table = [_head(f"{method_title(first)} minus, {name_of(metric)}", rows)]
    for rival in rivals:
        table.append([method_title(rival)])
        for target, nfe in columns_of(rows):
            ours = by_draw(cells[target, nfe, first], metric)
            theirs = by_draw(cells[target, nfe, rival], metric)
            both = {key: ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())}
            table[-1].append(verdict(by_seed(both), metric))
    return table


def verdict(differences: Sequence[float], metric: str) -> str:
    """Return the mean difference, its standard error, and the result of a t test at 5 %."""
    from scipy.special import stdtrit  # import of scipy.stats takes a second

    if not differences:
        return "-"
    if not all(map(math.isfinite, differences)):
        return "diverged"
    middle = mean(differences)
    count = len(differences)
    if count < 2:
        return f"{middle:+.3f} (one measure)"
    error = stdev(differences) / count**0.5
    word = "ahead" if (middle > 0) == is_better_higher(metric) else "behind"
    if abs(middle) <= float(stdtrit(count - 1, 0.975)) * error:
        word = "level"
    return f"{middle:+.3f} ± {error:.3f} {word}"


def cost_table(rows: Rows) -> TextTable:
    """Return updates, mean training time and mean sampling times of each method."""
    counts = counts_of(rows)
    head = ["cost", "updates", "training, s", "updates in the time of the slowest"]
    table = [head + [f"sampling at NFE {nfe}, s" for nfe in counts]]
    rows_of = {method: [row for row in rows if row.method == method] for method in methods_of(rows)}
    times = {
        method: mean(seconds)
        for method, measured in rows_of.items()
        if (seconds := [row.train_seconds for row in measured if row.train_seconds])
    }
    for method, measured in rows_of.items():
        updates = measured[0].updates
        line = [method_title(method), str(updates), "-", "-"]
        if time := times.get(method):
            line[2:] = [f"{time:.0f}", f"{updates * max(times.values()) / time:.0f}"]
        for nfe in counts:
            seconds = [row.sample_seconds for row in measured if row.nfe == nfe]
            line.append(f"{mean(seconds):.2f}" if seconds else "-")
        table.append(line)
    return table


def search_table(rows: Rows, tried: Rows) -> TextTable:
    """Return the settings that the search selected, and the number of combinations that it tried.
    Rows: methods. Columns: targets."""
    ranked = ranking(tried)
    targets = targets_of(tried)
    measure = name_of(selecting_measure(tried[0]))
    table = [[f"settings, best by {measure}, seed {tried[0].seed}", *targets]]
    for method in methods_of(rows):
        table.append([method_title(method)])
        for target in targets:
            texts = ranked.get((target, method))
            table[-1].append(f"{texts[0]} (best of {len(texts)})" if texts else "not searched")
    return table


def all_tables(rows: Rows, tried: Rows = ()) -> Tables:
    """Return a table of means and a table of differences for each measure, then the table of costs.
    With the rows ``tried`` of a search, the table of selected settings follows."""
    metrics = without_classes(rows[0].values)
    means = [measure_table(rows, metric) for metric in metrics]
    differences = [difference_table(rows, metric) for metric in metrics]
    # for a single method, the table of differences is empty
    further = [cost_table(rows), *([search_table(rows, tried)] if tried else [])]
    return means, [table for table in differences if len(table) > 1], further


def tables_text(name: str, tables: Tables) -> str:
    """Return all tables as the text of ``table.md`` (Markdown) or ``table.tex`` (with booktabs)."""
    means, differences, further = tables
    return render(
        f"comparison/{name}.j2",
        means=means,
        differences=differences,
        others=further,
        legends=LEGENDS[: 1 + len(further)],
        cell=_latex_cell,
    )


def _latex_cell(text: str) -> str:
    """Return a cell for LaTeX; a hyphen before a number becomes a minus sign."""
    text = re.sub(r"^(\*\*)?-(?=\d)", r"\1$-$", text.translate(IN_LATEX))
    return "--" if text == "-" else re.sub(r"^\*\*(.*)\*\*$", r"\\textbf{\1}", text)


def write_report(comparison: Comparison, rows: Rows, tried: Rows = ()) -> list[Path]:
    """Write tables, settings and the rows ``tried`` of a search, and return the table files."""
    folder = comparison.folder
    write_facts(folder, comparison.config)
    write_text(folder / COMPARISON_FILE, comparison.settings_text)
    tables = all_tables(rows, tried)
    texts = {
        "table.md": tables_text("table.md", tables),
        TABLE: table_csv(rows),
        "table.tex": tables_text("table.tex", tables),
    }
    if tried:
        texts[SEARCH] = table_csv(tried)
    else:
        (folder / SEARCH).unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


@figure_defaults()
def save_pictures(comparison: Comparison, device: torch.device) -> list[Path]:
    """Draw ``TARGET.png`` for each target: paths and samples of all methods from the same noise,
    for the first seed. Return the files."""
    seed = comparison.config.seed
    all_trials = comparison.trials_of(comparison.functions) + comparison.trials
    files = []
    for target in dict.fromkeys(trial.target for trial in comparison.trials):
        trials = [
            trial
            for trial in all_trials
            if trial.target == target and trial.seed == seed and trial.nfe
        ]
        data = trials[0].experiment.load_data()
        count, what = (IMAGES, "noise") if data.is_images else (POINTS, "source")
        noise = data.source("picture").sample(count).to(device)
        drawn = dict[str, dict[int, Samples]]()
        for trial in trials:
            paths = drawn.setdefault(method_title(trial.label), {})
            for nfe in trial.nfe:
                samples = trial.sampler(nfe)(noise, keep_path=True)
                path = [data.in_units(state) for state in samples.path]
                paths[nfe] = replace(samples, x=path[-1], path=path)
        title = f"{target}, seed {seed}: {count} samples of each, from the same {what}"
        figure = draw_table(drawn, data.reference("picture").sample(count), title, data.axes)
        files.append(comparison.folder / f"{target}.png")
        save_figure(figure, files[-1], dpi=90)
    return files
