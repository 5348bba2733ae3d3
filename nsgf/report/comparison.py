"""The page about a comparison, finished or not."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from nsgf.compare.report import SETTINGS, TABLE, settings_text
from nsgf.compare.results import Row, read_rows
from nsgf.compare.tables import COST_LEGEND, LEGEND, all_tables, methods_of
from nsgf.compare.trials import Comparison, method_title, possible_nfe
from nsgf.config.files import build, drop_machine_settings, merged, read_settings, with_method
from nsgf.config.schema import Config
from nsgf.report.drawing import Album
from nsgf.report.page import write_page
from nsgf.report.quality import draw_quality
from nsgf.report.records import updates_done
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.system.errors import UserError
from nsgf.system.json_reader import read_object
from nsgf.system.output import show


def report_comparison(folder: Path, out_dir: str, kind: str = "png") -> list[str]:
    """Write ``report.html`` and ``report/`` into the folder of a comparison, or into
    ``OUT_DIR/NAME`` if ``out_dir`` is not the folder that holds it.

    The measures are read from ``table.csv``; nothing is sampled or measured.

    Args:
        folder: the folder that ``nsgf compare`` has written.
        out_dir: where results go.
        kind: png, svg or pdf, as of :func:`nsgf.report.page.report_run`.

    Returns:
        The files.

    Raises:
        UserError: the folder holds no comparison, nothing is measured yet, or the files cannot be
            written.
    """
    rows, comparison = measured_rows(folder), stored_comparison(folder)
    config, targets = comparison.config, list(dict.fromkeys(row.target for row in rows))
    measures, differences, costs = all_tables(rows)
    home = results_folder(Config(out_dir=out_dir), RunFolder(folder))
    album, left_out = Album(home / "report", kind), []
    album.draw(
        "quality",
        draw_quality(rows),
        "At equal NFE",
        "Means over training runs with their standard deviation, at one NFE beside each other; "
        "dashed: what other samples of the data itself score.",
        is_broad=True,
    )
    for name in targets:
        if (folder / f"{name}.png").exists():
            album.add(folder / f"{name}.png", name, "First seed, none chosen.", is_broad=True)
        else:
            left_out.append(f"{name}: no picture of samples yet; a comparison ends with it")
            show(f"report: {left_out[-1]}")
    shared = {name: drop_machine_settings(own) for name, own in comparison.methods.items()}
    file = write_page(
        home,
        "comparison",
        title=f"Comparison: {folder.resolve().name.removeprefix('compare-')}",
        smoke=config.smoke,
        config=config,
        targets=targets,
        methods=[method_title(method) for method in methods_of(rows)],
        measures=measures,
        differences=differences,
        costs=costs,
        legend=LEGEND,
        cost_legend=COST_LEGEND,
        pictures=album.pictures,
        left_out=left_out,
        place=shlex.quote(folder.resolve().name),
        trials=trial_rows(folder, comparison, rows),
        settings=settings_text(Comparison(drop_machine_settings(config), shared)),
    )
    return [file, *album.files]


def measured_rows(folder: Path) -> list[Row]:
    """Return the measures of a comparison.

    Raises:
        UserError: the folder holds no comparison, or nothing is measured yet.
    """
    check_links(folder)
    rows = read_rows(folder / TABLE) if (folder / SETTINGS).exists() else []
    if not any(row.nfe for row in rows):
        raise UserError(
            f"compare = {folder}: must be a folder of nsgf compare, as runs/compare-2d, with a "
            "measured trial; the page of a run is written with --run DIR"
        )
    return rows


def stored_comparison(folder: Path) -> Comparison:
    """Return the comparison of the command that wrote the table.

    Raises:
        UserError: its settings cannot be read.
    """
    content = read_settings(folder / SETTINGS)
    names = content["compare"]["methods"]
    methods = [build(Config, merged(*with_method(content, name))) for name in names]
    return Comparison(methods[0], {method.method: method for method in methods})


def trial_rows(folder: Path, comparison: Comparison, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return run, measures, updates, commit, machine and version of torch of each trial."""
    done = {(row.target, row.method, row.seed, row.nfe, row.draw) for row in rows}
    draws, lines = range(comparison.config.compare.draws), list[tuple[str, ...]]()
    for trial in comparison.trials():
        counts = possible_nfe(comparison.methods[trial.method])
        wanted = {(*trial, nfe, draw) for nfe in counts for draw in draws}
        measures = f"{method_title(trial.method)}: {len(wanted & done)} of {len(wanted)}"
        place = comparison.trial_place(trial)
        run, versions = RunFolder(folder / place), read_object(folder / place / "versions.json")
        updates = updates_done(run) if run.config_file.exists() else "not begun"
        machine, commit = versions.get("machine"), str(versions.get("commit") or "")[:10]
        parts = machine.items() if isinstance(machine, dict) else ()
        where = ", ".join(f"{name} {value}" for name, value in parts if value)
        torch = str(versions.get("torch", ""))
        lines.append((str(place), measures, updates, commit, where, torch))
    return lines
