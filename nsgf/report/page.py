"""The page about a run."""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nsgf.checks import check
from nsgf.config.files import drop_machine_settings
from nsgf.config.schema import Config
from nsgf.plots.figures import curve_figure
from nsgf.plots.samples import save_figure
from nsgf.report.drawing import Album, Picture, drawn_pictures, tried
from nsgf.report.html import data_uri, write_page
from nsgf.report.records import costs, curves, log_lines, remarks
from nsgf.run.checkpoint import good_header
from nsgf.run.folder import RunFolder, dump_config, phase_stem, results_folder, writable
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes, pick_device
from nsgf.system.json_reader import read_object
from nsgf.system.output import show

REPORTED = {
    ("mnist", "fid"): "3.8 at NFE 60",
    ("cifar10", "fid"): "5.55 at NFE 59",
    ("cifar10", "inception_score"): "8.86 at NFE 59",
}
"""Figures of the paper, by data set and measure."""
FLOORS = {"nearest_real": "nearest_real_among_real"}
"""Floors that are not called MEASURE_floor."""
DESCRIPTIONS = ("nfe", "guidance", "tau_mean", "tau_std", "classifier_accuracy")
"""Numbers that describe what was measured."""


class PhaseRow(NamedTuple):
    """A row of the table of phases."""

    name: str
    updates: str
    loss: str
    time: str
    memory: str


class Measure(NamedTuple):
    """A row of the table of measures."""

    name: str
    value: str
    floor: str
    reported: str


def report_run(config: Config, run: RunFolder, kind: str = "png") -> list[str]:
    """Write ``report.html`` and the figures that it shows, into ``report/`` of the run folder; as
    :func:`nsgf.report.samples.sample_run` elsewhere, where ``out_dir`` says so.

    Args:
        config: the run's settings with this command's on top.
        run: its folder.
        kind: png, or svg or pdf for files of that kind beside the PNGs that the page has.

    Returns:
        The files.

    Raises:
        UserError: nothing is trained, or the files cannot be written.
    """
    check(config)
    rows, home = phase_rows(config, run), results_folder(config, run)
    folder, left_out = writable(home / "report"), list[str]()
    shown = tried(_pictures(config, run, Album(folder, kind)), left_out.append)
    for line in left_out:
        show(f"report: {line}")
    measures = read_object(home / "metrics.json") or read_object(run.path / "metrics.json")
    lines = log_lines(run)
    file = write_page(
        home,
        "run",
        title=f"{config.exp}: {run.path.name}",
        smoke=config.smoke,
        phases=rows,
        pictures=[(picture, data_uri(picture.file)) for picture in shown],
        left_out=left_out,
        outdated=outdated(rows, measures),
        measures=measure_rows(config, measures),
        described=described(measures),
        commands=commands(run),
        remarks=remarks(lines),
        log=lines,
        config=dump_config(drop_machine_settings(config)),
        versions=json.dumps(read_object(run.path / "versions.json"), indent=2),
    )
    return [str(file), *(name for picture in shown for name in picture.files)]


def phase_rows(config: Config, run: RunFolder) -> list[PhaseRow]:
    """Return a row for each phase of the experiment.

    Raises:
        UserError: none has a checkpoint.
    """
    rows, taken, last = [], costs(run), {curve.phase: curve.loss[-1] for curve in curves(run)}
    trained = [phase for phase in config.phases if run.has_checkpoint(phase)]
    if not trained:
        raise UserError(f"{run.path}: nothing is trained yet, so there is nothing to report")
    for phase in config.phases:
        step = good_header(run.checkpoint_file(phase))["step"] if phase in trained else 0
        cost, loss = taken.get(phase), last.get(phase)
        rows.append(
            PhaseRow(
                phase,
                f"{step} of {getattr(config, phase).iterations}",
                "" if loss is None else f"{loss:.4g}",
                f"{cost.seconds:.0f} s" if cost else "",
                format_bytes(cost.peak_memory) if cost and cost.peak_memory else "",
            )
        )
    return rows


def _pictures(config: Config, run: RunFolder, album: Album) -> Iterator[Picture]:
    if found := curves(run):
        yield album.add(
            "curves",
            "Training",
            "Loss and gradient of each update that was logged.",
            lambda file: save_figure(curve_figure(found), file),
        )
    for phase in config.phases:
        file = run.samples / f"{phase_stem(phase)}.png"
        if file.exists():
            yield Picture(file, f"After phase {phase}", "From the same noise.")
    yield from drawn_pictures(config, run, album, pick_device(config.device))


def measure_rows(config: Config, metrics: dict[str, Any]) -> list[Measure]:
    """Return the measures of ``nsgf evaluate`` beside their floors and the paper's figures."""
    rows = []
    floors = {FLOORS.get(name, f"{name}_floor") for name in metrics}
    for name, value in metrics.items():
        if not isinstance(value, float) or name in floors or name.endswith(("_std", *DESCRIPTIONS)):
            continue
        floor = FLOORS.get(name, f"{name}_floor")
        reported = "" if config.data.fake else REPORTED.get((config.data.name, name), "")
        rows.append(Measure(name, _spread(metrics, name), _spread(metrics, floor), reported))
    return rows


def _spread(metrics: dict[str, Any], name: str) -> str:
    """Return a measure with its spread over repetitions; empty if it is missing or not finite."""
    value, spread = metrics.get(name), metrics.get(f"{name}_std")
    if not isinstance(value, float):
        return ""
    return f"{value:.4g}" + (f" ± {spread:.2g}" if isinstance(spread, float) and spread else "")


def outdated(rows: Sequence[PhaseRow], metrics: dict[str, Any]) -> str:
    """Return the updates that the measures belong to if the weights have others by now; else
    nothing."""
    now, then = {row.name: row.updates for row in rows}, metrics.get("updates")
    if not isinstance(then, dict) or all(now.get(phase) == done for phase, done in then.items()):
        return ""
    return ", ".join(f"{phase} {done}" for phase, done in then.items())


def described(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what was measured, and how."""
    told = []
    for name, value in metrics.items():
        is_measure = isinstance(value, float) and name not in DESCRIPTIONS
        if name == "versions" or is_measure:
            continue
        parts = value.items() if isinstance(value, dict) else [("", value)]
        told.append((name, ", ".join(f"{part} {words}".strip() for part, words in parts)))
    return told


def commands(run: RunFolder) -> list[str]:
    """Return commands that repeat the run and use it, from the folder that holds it."""
    place = shlex.quote(run.path.resolve().name)
    return [
        f"python -m nsgf train --config {place}/{run.config_file.name}",
        f"python -m nsgf train --run {place} --resume",
        f"python -m nsgf sample --run {place}",
        f"python -m nsgf evaluate --run {place}",
    ]
