"""Write the HTML page of a run. A page is one file with all its pictures."""

import json
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from nsgf.config.schema import Config
from nsgf.config.settings import drop_machine_settings
from nsgf.data import class_names
from nsgf.metrics.measures import describe, is_measure, name_of
from nsgf.phases import get_phase
from nsgf.plots.figures import draw_curves
from nsgf.plots.samples import figure_defaults
from nsgf.report.drawing import Album, draw_samples
from nsgf.report.progress import curves, log_lines, trained_updates
from nsgf.run.folder import RunFolder, dump_config, phase_stem, results_folder
from nsgf.run.log import read_costs
from nsgf.system.errors import UserError, list_names, shorten_paths
from nsgf.system.files import replacing
from nsgf.system.hardware import pick_device
from nsgf.system.json_reader import read_object
from nsgf.system.output import show
from nsgf.system.units import format_bytes

REPORTED = {
    ("mnist", "fid"): "3.8 at NFE 60",
    ("cifar10", "fid"): "5.55 at NFE 59",
    ("cifar10", "inception_score"): "8.86 at NFE 59",
}
"""Figures of the paper, by data set and measure."""


def write_page(folder: Path, template: Path, **values: Any) -> str:
    """Write ``report.html`` from a template, and return its path. Values are
    escaped, and absolute paths shortened."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: shorten_paths(value) if type(value) is str else value,
    )
    made = f"{datetime.now():%Y-%m-%d %H:%M}"
    page = engine.get_template(template.name).render(made=made, **values)
    with replacing(folder / "report.html") as stream:
        stream.write(page.encode(errors="replace"))
    return str(folder / "report.html")


@figure_defaults()
def report_run(config: Config, run: RunFolder, kind: str = "png") -> list[str]:
    """Write ``report.html`` and the figures that it shows, into ``report/`` of the run folder, or
    of ``OUT_DIR/RUN`` if ``out_dir`` is not the folder that holds the run.

    ``kind`` svg or pdf also writes each figure in that format. Return the files. Raise UserError if
    nothing is trained, or the files cannot be written."""
    phases, home = phase_rows(config, run), results_folder(config, run)
    album, missing = Album(home / "report", kind), ""
    try:
        _draw_pictures(config, run, album)
    except UserError as error:
        missing = f"other pictures are left out: {error}"
        show(f"report: {missing}")
    metrics = read_object(home / "metrics.json") or read_object(run.path / "metrics.json")
    file = write_page(
        home,
        Path(__file__).with_name("page.html.j2"),
        title=f"{config.exp}: {run.path.name}",
        config=config,
        phases=phases,
        classes=list_names(class_names(config.data)),
        pictures=album.pictures,
        missing=missing,
        measures=measure_rows(config, metrics),
        metrics=metrics,
        described=json.dumps(metrics, indent=2, ensure_ascii=False),
        place=shlex.quote(run.path.resolve().name),
        log=log_lines(run),
        settings=dump_config(drop_machine_settings(config)),
        versions=json.dumps(read_object(run.path / "versions.json"), indent=2),
    )
    return [file, *album.files]


def phase_rows(config: Config, run: RunFolder) -> list[tuple[str, ...]]:
    """Return name, updates, last loss, time and peak memory of each phase. Raise UserError if none
    has a checkpoint."""
    if not any(map(run.has_checkpoint, config.phases)):
        raise UserError(f"{run.path}: nothing is trained yet, so there is nothing to report")
    rows: list[tuple[str, ...]] = []
    costs, logged = read_costs(run.path), curves(run)
    for phase in config.phases:
        updates = f"{trained_updates(run, phase)} of {getattr(config, phase).iterations}"
        loss = f"{logged[phase][-1][1]:.4g}" if phase in logged else ""
        time = f"{costs[phase].seconds:.0f} s" if phase in costs else ""
        memory = format_bytes(costs[phase].peak_memory) if phase in costs else ""
        rows.append((f"{get_phase(phase).title} ({phase})", updates, loss, time, memory))
    return rows


def _draw_pictures(config: Config, run: RunFolder, album: Album) -> None:
    """Draw all that the run allows. Raise UserError at the first picture that is not possible."""
    if found := curves(run):
        text = "Loss and gradient of each update that was logged."
        titled = {get_phase(own).title: found[own] for own in config.phases if own in found}
        album.draw("curves", draw_curves(titled), "Training", text)
    for phase in config.phases:
        file = run.samples / f"{phase_stem(phase)}.png"
        if file.exists():
            title = f"Samples after training: {get_phase(phase).title}"
            album.add(file, title, "From the same noise.")
    draw_samples(config, run, album, pick_device(config.device))


def measure_rows(config: Config, metrics: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return name, value, floor and the paper's figure of each measure of ``nsgf evaluate``."""
    reported = {} if config.data.fake else REPORTED
    return [
        (name_of(key), value, floor, reported.get((config.data.name, key), ""))
        for key, value, floor in describe(metrics)
        if is_measure(key) and isinstance(metrics[key], float)
    ]
