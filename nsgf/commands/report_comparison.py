"""``nsgf report --compare``: the page of a comparison, finished or not."""

import os
import shlex
from pathlib import Path

from nsgf.commands.report import changed_from_recipe
from nsgf.comparison import COMPARISON_FILE, TABLE, Row, read_rows
from nsgf.comparison.figures import draw_quality
from nsgf.comparison.tables import LEGENDS, all_tables, has_seeds, targets_of
from nsgf.comparison.trials import Comparison
from nsgf.comparison.tuning import SEARCH
from nsgf.config.files import method_title
from nsgf.config.layers import build, drop_machine_settings
from nsgf.config.values import Place
from nsgf.plots.samples import figure_defaults
from nsgf.report import progress_of
from nsgf.report.page import Album
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import read_object
from nsgf.user_data.files import shown_place


@figure_defaults()
def report_comparison(
    folder: Path, out_dir: str, kind: str = "png", out: Place | None = None
) -> list[str]:
    """Write ``report.html`` and ``report/`` into the folder of a comparison. If this folder does
    not lie directly in ``out_dir``, write them into ``OUT_DIR/NAME``.

    The measures come from ``table.csv``. Nothing is sampled or measured.

    ``kind`` and ``out``: see :func:`nsgf.commands.report.report_run`. Return the files. Raise
    UserError if the folder holds no comparison, nothing is measured yet, or the files cannot be
    written."""
    rows = measured_rows(folder)
    comparison = Comparison.stored(folder)
    search = folder / SEARCH
    targets = targets_of(rows)
    out_folder = results_folder(Path(out_dir).expanduser(), RunFolder(folder))
    album = Album(out_folder, kind, out)
    repeats = "training runs" if has_seeds(rows) else "draws of one training run"
    album.draw(
        "quality",
        draw_quality(rows),
        "At equal NFE",
        f"Means over {repeats} and their standard deviation; dashed: samples of the data.",
    )
    for name in targets:
        if Path(name).name == name and (folder / f"{name}.png").exists():
            album.add(folder / f"{name}.png", name, "First seed, none chosen.")
    shared = {name: drop_machine_settings(method) for name, method in comparison.methods.items()}
    settings = Comparison(drop_machine_settings(comparison.config), shared)
    return album.write_page(
        "comparison/page.html.j2",
        title=f"Comparison: {folder.resolve().name.removeprefix('compare-')}",
        config=comparison.config,
        targets=targets,
        data_place=shown_place(comparison.config.data.path),
        methods=[
            (method_title(name), changed_from_recipe(method))
            for name, method in comparison.methods.items()
        ],
        tables=all_tables(rows, read_rows(search) if search.exists() else ()),
        legends=LEGENDS,
        place=shlex.quote(os.path.relpath(folder)),
        runs=_describe_runs(folder),
        settings=settings.settings_text,
    )


def _describe_runs(folder: Path) -> list[tuple[str, str, str, str]]:
    """Return name, progress, commit and version of torch of each run of a comparison."""
    runs = []
    for file in sorted(folder.glob("*/*/config.yaml")):
        run = RunFolder(file.parent)
        versions = read_object(run.path / "versions.json")
        try:
            config = build(run.read_settings())
            progress = progress_of(run, config.phases, config.updates)
        except UserError as error:
            progress = f"cannot be read: {error}"
        name = str(file.parent.relative_to(folder))
        runs.append((name, progress, versions.get("commit", ""), versions.get("torch", "")))
    return runs


def measured_rows(folder: Path) -> list[Row]:
    """Return the measures of a comparison. Raise UserError if the folder has none."""
    check_links(folder)
    rows = read_rows(folder / TABLE) if (folder / COMPARISON_FILE).exists() else []
    if not any(row.nfe for row in rows):
        raise wrong_setting(
            "compare",
            folder,
            "must be a folder that nsgf compare wrote, e.g. runs/compare-2d, "
            "with at least one measured trial; for the page of a run use --run DIR",
        )
    return rows
