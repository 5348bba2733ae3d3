"""The page about a comparison, finished or not."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nsgf.compare.report import SETTINGS, TABLE, settings_text
from nsgf.compare.results import Row, read_rows
from nsgf.compare.tables import (
    COST_LEGEND,
    LEGEND,
    cost_table,
    difference_tables,
    measure_tables,
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


class Missing(NamedTuple):
    """A trial that is not finished, in words."""

    method: str
    target: str
    seed: str
    measures: str
    updates: str


class Origin(NamedTuple):
    """Where a trial's networks come from, in words."""

    run: str
    updates: str
    commit: str
    machine: str
    torch: str


def report_comparison(folder: Path, out_dir: str, kind: str = "png") -> list[str]:
    """Write ``report.html`` and ``report/`` into the folder of a comparison; where ``out_dir`` is
    not the folder that holds it, to ``OUT_DIR/NAME``.

    What was measured is read from ``table.csv``; nothing is sampled or measured for it.

    Args:
        folder: what ``nsgf compare`` has written.
        kind: as of :func:`nsgf.report.page.report_run`, of the figure that is drawn here.

    Returns:
        The files.

    Raises:
        UserError: the folder is none of a comparison, nothing is measured yet, or the files cannot
            be written.
    """
    rows, comparison = measured_rows(folder), stored_comparison(folder)
    config = comparison.config if comparison else None
    home, left_out = results_folder(Config(out_dir=out_dir), RunFolder(folder)), list[str]()
    if config is None:
        left_out.append(
            f"{folder} has no {SETTINGS}, so its settings and what is missing are not known: "
            "the command that made it writes one when it is given again"
        )
    album = Album(writable(home / "report"), kind)
    quality = _quality(rows, album)
    shown = list(_samples(folder, rows, left_out))
    for line in left_out:
        show(f"report: {line}")
    file = write_page(
        home,
        "comparison",
        title=f"Comparison: {folder.resolve().name.removeprefix('compare-')}",
        smoke=bool(config and config.smoke),
        facts=facts(config, rows),
        missing=missing(folder, comparison, rows) if comparison else [],
        measures=measure_tables(rows),
        differences=difference_tables(rows),
        costs=cost_table(rows),
        legend=LEGEND,
        cost_legend=COST_LEGEND,
        reported=reported(config, rows),
        quality=(quality, data_uri(quality.file)),
        pictures=[(picture, data_uri(picture.file)) for picture in shown],
        left_out=left_out,
        commands=commands(folder, config),
        trials=origins(folder),
        config=settings_text(shareable(comparison)) if comparison else "",
        details=machines(folder),
    )
    return [str(file), *(name for picture in (quality, *shown) for name in picture.files)]


def measured_rows(folder: Path) -> list[Row]:
    """What a comparison has measured.

    Raises:
        UserError: the folder is none of a comparison, or nothing is measured yet.
    """
    if not folder.is_dir():
        raise UserError(f"compare = {folder}: no such folder")
    if (folder / "config.yaml").exists():
        raise UserError(f"compare = {folder}: is a run, whose page is written with --run DIR")
    check_links(folder)
    is_begun = any(folder.glob("*/*/config.yaml"))
    if not is_begun and not (folder / TABLE).exists():
        raise UserError(
            f"compare = {folder}: no comparison (it has no {TABLE}); must be a folder that nsgf "
            "compare has written, as runs/compare-2d"
        )
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


def shareable(comparison: Comparison) -> Comparison:
    """The comparison without what its settings say of the machine and its user."""
    methods = {name: drop_machine_settings(own) for name, own in comparison.methods.items()}
    return Comparison(drop_machine_settings(comparison.config), methods)


def facts(config: Config | None, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What was compared."""
    measured = [row for row in rows if row.nfe]
    fake = " (random images in its place)" if config and config.data.fake else ""
    targets = dict.fromkeys(row.target for row in measured)
    seeds = sorted({row.seed for row in measured})
    draws = len({row.draw for row in measured})
    told = {
        "data": ", ".join(targets) + fake,
        "methods": ", ".join(map(method_title, methods_of(rows))),
        "training runs of each": f"{len(seeds)}, seed{'s' * (len(seeds) > 1)} {_listed(seeds)}",
        "draws of each run": str(draws),
        "NFE": _listed(sorted({row.nfe for row in measured if row.nfe})),
        "updates": _listed(sorted({row.updates for row in measured})),
    }
    if config:
        told["samples of a measure"] = f"{config.evaluation.num_samples}, or as many as there are"
    return list(told.items())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def missing(folder: Path, comparison: Comparison, rows: Sequence[Row]) -> list[Missing]:
    """The trials of a comparison that have not all their measures."""
    done = {(row.target, row.method, row.seed, row.nfe, row.draw) for row in rows}
    lines = []
    for trial in comparison.trials():
        counts, draws = asked_nfe(comparison.methods[trial.method]), comparison.config.compare.draws
        wanted = {(*trial, nfe, draw) for nfe in counts for draw in range(draws)}
        if wanted <= done:
            continue
        lines.append(
            Missing(
                method_title(trial.method),
                trial.target,
                str(trial.seed),
                f"{len(wanted & done)} of {len(wanted)}",
                _progress(folder / comparison.trial_place(trial)),
            )
        )
    return lines


def _progress(folder: Path) -> str:
    run = RunFolder(folder)
    return updates_done(run) if run.config_file.exists() else "not begun"


def reported(config: Config | None, rows: Sequence[Row]) -> list[str]:
    """What the paper reports of the same data."""
    if config and config.data.fake:
        return []
    names = {row.target for row in rows}
    return [
        f"Reported by the paper on {name}: {measure} {value}."
        + (" None of the measures above is comparable with it." if measure not in own else "")
        for own in [rows[0].values]
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
            left_out.append(f"{label}: no picture of samples yet, which the comparison ends with")


def commands(folder: Path, config: Config | None) -> list[str]:
    """Commands that resume or repeat it and make this page, from the folder that holds it."""
    place = shlex.quote(folder.resolve().name)
    again = f"python -m nsgf compare --config {place}/{SETTINGS} --out-dir ."
    page = f"python -m nsgf report --compare {place}"
    return [f"{again}   # another --out-dir: all of it again", page] if config else [page]


def origins(folder: Path) -> list[Origin]:
    """A line for each trial that has begun."""
    lines = []
    for file in sorted(folder.glob("*/*/config.yaml")):
        run, versions = RunFolder(file.parent), read_object(file.parent / "versions.json")
        found = versions.get("machine")
        machine = found if isinstance(found, dict) else {}
        where = machine.get("cards") or f"CPU, {machine.get('cores', '?')} cores"
        lines.append(
            Origin(
                str(run.path.relative_to(folder)),
                updates_done(run),
                _short(str(versions.get("commit") or "")),
                ", ".join(map(str, where)) if isinstance(where, list) else str(where),
                str(versions.get("torch", "")),
            )
        )
    return lines


def _short(commit: str) -> str:
    number, dash, rest = commit.partition("-")
    return number[:10] + dash + rest


def machines(folder: Path) -> list[tuple[str, str]]:
    """All that is known of each machine, with the trials that it began."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*/*/versions.json")):
        text = json.dumps(read_object(file), indent=2)
        found.setdefault(text, []).append(str(file.parent.relative_to(folder)))
    return [(", ".join(runs), text) for text, runs in found.items()]
