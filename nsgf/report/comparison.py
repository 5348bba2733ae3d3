"""The page about a comparison, finished or not."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsgf.compare.report import SETTINGS, TABLE, settings_text
from nsgf.compare.results import Row, read_rows
from nsgf.compare.tables import (
    COST_LEGEND,
    LEGEND,
    all_tables,
    methods_of,
)
from nsgf.compare.trials import Comparison, asked_nfe, method_title
from nsgf.config.files import build, drop_machine_settings, merged, read_settings, with_method
from nsgf.config.schema import Config
from nsgf.plots.samples import save_figure
from nsgf.report.drawing import Album, Picture
from nsgf.report.html import data_uri, write_page
from nsgf.report.listing import updates_done
from nsgf.report.page import REPORTED
from nsgf.report.quality import quality_figure
from nsgf.run.folder import RunFolder, check_links, results_folder, writable
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
    config = comparison.config if comparison else None
    measures, differences, costs = all_tables(rows)
    home, left_out = results_folder(Config(out_dir=out_dir), RunFolder(folder)), list[str]()
    if config is None:
        left_out.append(
            f"{folder} has no {SETTINGS} of its settings; give the command that made it again"
        )
    quality = _quality(rows, Album(writable(home / "report"), kind))
    shown = list(_samples(folder, rows, left_out))
    for line in left_out:
        show(f"report: {line}")
    file = write_page(
        home,
        "comparison",
        title=f"Comparison: {folder.resolve().name.removeprefix('compare-')}",
        smoke=bool(config and config.smoke),
        facts=_facts(config, rows),
        missing=missing_trials(folder, comparison, rows) if comparison else [],
        measures=measures,
        differences=differences,
        costs=costs,
        legend=LEGEND,
        cost_legend=COST_LEGEND,
        reported=reported_figures(config, rows),
        quality=(quality, data_uri(quality.file)),
        pictures=[(picture, data_uri(picture.file)) for picture in shown],
        left_out=left_out,
        commands=_commands(folder, config),
        trials=trial_origins(folder),
        config=settings_text(_shareable(comparison)) if comparison else "",
    )
    return [str(file), *(name for picture in (quality, *shown) for name in picture.files)]


def measured_rows(folder: Path) -> list[Row]:
    """Return the measures of a comparison.

    Raises:
        UserError: the folder holds no comparison, or nothing is measured yet.
    """
    is_begun = any(folder.glob("*/*/config.yaml"))
    if (folder / "config.yaml").exists() or not (is_begun or (folder / TABLE).exists()):
        raise UserError(
            f"compare = {folder}: must be a folder that nsgf compare has written, as "
            "runs/compare-2d; the page of a run is written with --run DIR"
        )
    check_links(folder)
    rows = read_rows(folder / TABLE) if (folder / TABLE).exists() else []
    if not any(row.nfe for row in rows):
        raise UserError(f"compare = {folder}: nothing is measured yet, so there is nothing to show")
    return rows


def stored_comparison(folder: Path) -> Comparison | None:
    """Return the comparison of the command that wrote the table; None for an earlier version's.

    Raises:
        UserError: its settings cannot be read.
    """
    if not (folder / SETTINGS).exists():
        return None
    content = read_settings(folder / SETTINGS)
    if "methods" not in content:
        return None
    names = content["compare"]["methods"]
    methods = [build(Config, merged(*with_method(content, name))) for name in names]
    own = build(Config, merged(*with_method(content, names[0])))
    return Comparison(own, {method.method: method for method in methods})


def _shareable(comparison: Comparison) -> Comparison:
    """Return the comparison without settings that describe the machine and its user."""
    methods = {name: drop_machine_settings(own) for name, own in comparison.methods.items()}
    return Comparison(drop_machine_settings(comparison.config), methods)


def _facts(config: Config | None, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what was compared, as names and values."""
    measured = [row for row in rows if row.nfe]
    fake = " (random images in its place)" if config and config.data.fake else ""
    targets = dict.fromkeys(row.target for row in measured)
    seeds = sorted({row.seed for row in measured})
    told = {
        "data": ", ".join(targets) + fake,
        "methods": ", ".join(map(method_title, methods_of(rows))),
        "seeds": ", ".join(map(str, seeds)),
        "draws of each run": str(len({row.draw for row in measured})),
        "NFE": ", ".join(map(str, sorted({row.nfe for row in measured if row.nfe}))),
        "updates": ", ".join(map(str, sorted({row.updates for row in measured}))),
    }
    if config:
        told["samples of a measure"] = f"{config.evaluation.num_samples}, or as many as there are"
    return list(told.items())


def missing_trials(
    folder: Path, comparison: Comparison, rows: Sequence[Row]
) -> list[tuple[str, ...]]:
    """Return method, target, seed, measures and updates of each trial that is not finished."""
    done = {(row.target, row.method, row.seed, row.nfe, row.draw) for row in rows}
    lines: list[tuple[str, ...]] = []
    for trial in comparison.trials():
        counts, draws = asked_nfe(comparison.methods[trial.method]), comparison.config.compare.draws
        wanted = {(*trial, nfe, draw) for nfe in counts for draw in range(draws)}
        if wanted <= done:
            continue
        run = RunFolder(folder / comparison.trial_place(trial))
        updates = updates_done(run) if run.config_file.exists() else "not begun"
        measures = f"{len(wanted & done)} of {len(wanted)}"
        title, target = method_title(trial.method), trial.target
        lines.append((title, target, str(trial.seed), measures, updates))
    return lines


def reported_figures(config: Config | None, rows: Sequence[Row]) -> list[str]:
    """Return what the paper reports about the same data, a sentence each."""
    if config and config.data.fake:
        return []
    names, measured = {row.target for row in rows}, rows[0].values
    return [
        f"Reported by the paper on {name}: {measure} {value}."
        + (" None of the measures above is comparable with it." if measure not in measured else "")
        for (name, measure), value in REPORTED.items()
        if name in names
    ]


def _quality(rows: Sequence[Row], album: Album) -> Picture:
    drawn = album.add(
        "quality",
        "At equal NFE",
        "Means over training runs with their standard deviation, at one NFE beside each other; "
        "dashed: what other samples of the data itself score.",
        lambda file: save_figure(quality_figure(rows), file, dpi=150),
    )
    return drawn._replace(is_broad=True)


def _samples(folder: Path, rows: Sequence[Row], left_out: list[str]) -> Iterator[Picture]:
    for label in dict.fromkeys(row.target for row in rows):
        file = folder / f"{label}.png"
        if file.exists():
            yield Picture(file, label, "First seed, none chosen.", is_broad=True)
        else:
            left_out.append(f"{label}: no picture of samples yet; a comparison ends with it")


def _commands(folder: Path, config: Config | None) -> list[str]:
    """Return the commands that resume the comparison and write this page, from its parent."""
    place = shlex.quote(folder.resolve().name)
    again = f"python -m nsgf compare --config {place}/{SETTINGS} --out-dir ."
    page = f"python -m nsgf report --compare {place}"
    return [f"{again}   # another --out-dir: all of it again", page] if config else [page]


def trial_origins(folder: Path) -> list[tuple[str, ...]]:
    """Return run, updates, commit, machine and torch of each trial that has begun."""
    lines: list[tuple[str, ...]] = []
    for file in sorted(folder.glob("*/*/config.yaml")):
        run, versions = RunFolder(file.parent), read_object(file.parent / "versions.json")
        found = versions.get("machine")
        machine = found if isinstance(found, dict) else {}
        where = machine.get("cards") or f"CPU, {machine.get('cores', '?')} cores"
        where = ", ".join(map(str, where)) if isinstance(where, list) else str(where)
        commit, torch = str(versions.get("commit") or "")[:10], str(versions.get("torch", ""))
        place = str(run.path.relative_to(folder))
        lines.append((place, updates_done(run), commit, where, torch))
    return lines
