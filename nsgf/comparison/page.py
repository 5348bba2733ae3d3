"""The page about a comparison, finished or not."""

import math
import os
import shlex
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from nsgf.comparison import SETTINGS, TABLE, Row, Rows, read_rows
from nsgf.comparison.tables import (
    LEGENDS,
    all_tables,
    by_draw,
    by_seed,
    calls_of,
    cells_of,
    counts_of,
    methods_of,
    targets_of,
)
from nsgf.comparison.trials import FLOOR, TITLES, Comparison, method_title
from nsgf.comparison.tuning import SEARCH
from nsgf.config.schema import Config
from nsgf.config.settings import build, drop_machine_settings
from nsgf.config.values import Place
from nsgf.metrics.measures import is_better_higher, name_of, without_classes
from nsgf.plots.figures import choose_scale
from nsgf.plots.samples import figure_defaults, new_figure
from nsgf.report import progress_of
from nsgf.report.page import Album, chosen_settings
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import read_object

MARKERS = "osD^vP*X<>hp"


@figure_defaults()
def report_comparison(
    folder: Path, out_dir: str, kind: str = "png", out: Place | None = None
) -> list[str]:
    """Write ``report.html`` and ``report/`` into the folder of a comparison, or into
    ``OUT_DIR/NAME`` if that folder does not lie directly in ``out_dir``.

    The measures come from ``table.csv``; nothing is sampled or measured.

    ``kind`` and ``out``: see :func:`nsgf.report.page.report_run`. Return the files. Raise UserError
    if the folder holds no comparison, nothing is measured yet, or the files cannot be written."""
    rows = measured_rows(folder)
    comparison = Comparison.stored(folder)
    search = folder / SEARCH
    targets = targets_of(rows)
    home = results_folder(Config(out_dir=out_dir), RunFolder(folder))
    album = Album(home, kind, out)
    album.draw(
        "quality",
        draw_quality(rows),
        "At equal NFE",
        "Means over training runs and their standard deviation; dashed: samples of the data.",
    )
    for name in targets:
        if Path(name).name == name and (folder / f"{name}.png").exists():
            album.add(folder / f"{name}.png", name, "First seed, none chosen.")
    runs = []
    for place in (file.parent for file in sorted(folder.glob("*/*/config.yaml"))):
        made = read_object(place / "versions.json")
        try:
            done = progress_of(run := RunFolder(place), build(run.read_settings()))
        except UserError as error:
            done = f"cannot be read: {error}"
        name = str(place.relative_to(folder))
        runs.append((name, done, made.get("commit", ""), made.get("torch", "")))
    shared = {name: drop_machine_settings(own) for name, own in comparison.methods.items()}
    settings = Comparison(drop_machine_settings(comparison.config), shared)
    return album.write_page(
        "comparison/page.html.j2",
        title=f"Comparison: {folder.resolve().name.removeprefix('compare-')}",
        config=comparison.config,
        targets=targets,
        methods=[
            (method_title(name), chosen_settings(own)) for name, own in comparison.methods.items()
        ],
        tables=all_tables(rows, read_rows(search) if search.exists() else ()),
        legends=LEGENDS,
        place=shlex.quote(os.path.relpath(folder)),
        runs=runs,
        settings=settings.settings_text,
    )


def measured_rows(folder: Path) -> list[Row]:
    """Return the measures of a comparison. Raise UserError if the folder has none."""
    check_links(folder)
    rows = read_rows(folder / TABLE) if (folder / SETTINGS).exists() else []
    if not any(row.nfe for row in rows):
        raise wrong_setting(
            "compare",
            folder,
            "must be a folder that nsgf compare wrote, e.g. runs/compare-2d, "
            "with at least one measured trial; for the page of a run use --run DIR",
        )
    return rows


def draw_quality(rows: Rows) -> Any:
    """Draw the measures of a comparison against NFE: a row for each target, a column for each
    measure. Each method has a line with standard deviations over seeds; the floor is dashed."""
    targets = targets_of(rows)
    metrics = without_classes(rows[0].values)
    counts = counts_of(rows)
    cells = cells_of(rows)
    known = [*TITLES, *(method for method in methods_of(rows) if method not in TITLES)]
    figure = new_figure(3.9 * len(metrics), 3.0 * len(targets) + 0.4)
    axes = figure.subplots(len(targets), len(metrics), squeeze=False)
    for (target, metric), panel in zip(product(targets, metrics), axes.flat, strict=True):
        shown: list[float] = []
        ticks = set()
        for number, method in enumerate(methods_of(rows)):
            made = []
            means = []
            spreads = []
            for nfe in counts:
                cell = cells[target, nfe, method]
                found = by_seed(by_draw(cell, metric))
                made.append(calls_of(cell, nfe))
                # samples that diverged leave a gap
                is_known = found and all(map(math.isfinite, found))
                means.append(mean(found) if is_known else math.nan)
                spreads.append(stdev(found) if is_known and len(found) > 1 else 0.0)
            place = known.index(method)
            method_name = method_title(method)
            if method_name.startswith("_"):  # legends hide such names
                method_name = f" {method_name}"
            panel.errorbar(
                made,
                means,
                spreads,
                label=method_name,
                color=f"C{place}",
                linestyle="-" if place < 10 else ":",  # there are ten colours
                marker=MARKERS[place % len(MARKERS)],
                markersize=4,
                capsize=2 + number,  # so that bars at the same place stay visible
            )
            ticks |= {round(calls, 1) for calls in made}
            shown += filter(math.isfinite, means)
        if floors := by_seed(by_draw(cells[target, None, FLOOR], metric)):
            panel.axhline(mean(floors), color="0.3", linestyle="--", linewidth=1, label=FLOOR)
            shown.append(mean(floors))
        panel.set_xscale("log")
        panel.set_xticks(sorted(ticks), [f"{calls:g}" for calls in sorted(ticks)])
        panel.minorticks_off()
        if not is_better_higher(metric):
            choose_scale(panel, shown)
        panel.grid(alpha=0.3)
        name = "" if len(targets) == 1 else f"{target}: "
        panel.set_title(name + name_of(metric), fontsize=11)
        panel.set_xlabel("network calls for each sample (NFE)")
    handles, names = axes[0][0].get_legend_handles_labels()
    columns = min(2 * len(metrics), len(names))
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure
