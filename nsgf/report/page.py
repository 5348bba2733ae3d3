"""Write the HTML page of a run. A page is one file with all its pictures."""

import base64
import json
import mimetypes
import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from nsgf.config.schema import Config
from nsgf.config.settings import drop_machine_settings
from nsgf.data import Data, class_names
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.metrics.distances import nearest_images
from nsgf.metrics.measures import describe, is_measure, name_of
from nsgf.phases import PHASES, load_sampler
from nsgf.plots.figures import Field, draw_curves, draw_entry_times, draw_fields, save_animation
from nsgf.plots.samples import compare_images, cut_panels, draw_rows, figure_defaults, save_figure
from nsgf.report import curves, render, trained_updates
from nsgf.run.folder import RunFolder, dump_config, phase_stem, results_folder
from nsgf.run.log import read_costs
from nsgf.samples import count_samples, draw_path, part_of_way
from nsgf.sampling.generate import generate
from nsgf.sampling.sampler import FlowSampler, NSGFSteps
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError, list_names
from nsgf.system.files import Plain, ensure_writable, read_object, replacing
from nsgf.system.hardware import pick_device
from nsgf.system.output import format_bytes, show

BROAD = 700
"""Pictures wider than this many pixels are not shrunk to the width of a phone."""
NEIGHBOURS = 16


class Album:
    """The pictures of a page, and their files, perhaps also in another format."""

    def __init__(self, folder: Path, kind: str) -> None:
        """``folder``: for figures, which are written as PNG and as ``kind`` (png, svg or pdf).
        Raise UserError if the folder cannot be written."""
        self.folder = ensure_writable(folder)
        self._kinds = dict.fromkeys(("png", kind))
        self.pictures: list[Plain] = []
        self.files: list[str] = []

    def draw(self, name: str, figure: Any, title: str, text: str) -> None:
        """Write a figure to ``NAME.png`` and ``NAME.KIND``, and add it to the page."""
        for kind in self._kinds:
            save_figure(figure, self.folder / f"{name}.{kind}")
        self.add(self.folder / f"{name}.png", title, text)
        if len(figure.axes) > 1:
            panels = [(_as_link(part, "image/png"), width) for part, width in cut_panels(figure)]
            self.pictures[-1] |= {"panels": panels, "is_broad": False}
        self.files += [str(self.folder / f"{name}.{kind}") for kind in self._kinds if kind != "png"]

    def add(self, file: Path, title: str, text: str) -> None:
        """Add an existing picture to the page."""
        source = _as_link(file.read_bytes(), mimetypes.guess_type(file.name)[0])
        with Image.open(file) as image:
            picture = {"title": title, "text": text, "is_broad": image.width > BROAD}
        self.pictures.append(picture | {"panels": [(source, 100)]})
        self.files.append(str(file))


def _as_link(content: bytes, kind: str | None) -> str:
    """Return a picture as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def draw_samples(config: Config, run: RunFolder, album: Album, device: torch.device) -> float:
    """Draw the pictures that need networks and data. Return the network calls for each sample.
    Raise UserError if a checkpoint or the data are missing, or training has diverged."""
    data = Data(config.data, config.seed)
    sampler, _ = load_sampler(config, run, device)
    count = min(count_samples(config, data, device), config.sampling.batch_size)
    source = data.source("report")
    samples = generate(sampler, source, count, device, path=count, progress=False)
    if not all(bool(state.isfinite().all()) for state in samples.path):
        raise UserError("the samples are not finite: training has diverged")
    calls = f"{count} samples, {samples.nfe:g} network calls each."
    if data.images is not None:
        figure = compare_images(samples.x, data.reference("report").sample(count), "Samples")
        album.draw("samples", figure, "Samples beside real images", calls)
    figure = draw_path(samples, config.data, data, "report")
    album.draw("way", figure, "The way of a batch", calls)
    in_plane = data.shape == (2,)
    if data.images is not None or in_plane:
        file = album.folder / "way.gif"
        path = [data.in_units(state) for state in samples.path]
        save_animation(replace(samples, path=path), file, data.axes)
        album.add(file, "The same, moving", "One picture for each state on the way.")
    if data.images is not None:
        some = samples.x[:NEIGHBOURS]
        nearest = nearest_images(some, data.images, flip=config.data.flip)
        figure = draw_rows(torch.cat([some, nearest]), ["sample", "nearest"])
        text = "By the distance of all pixels: equal pairs would be copies."
        album.draw("nearest", figure, "The nearest training images", text)
    if in_plane and (fields := velocity_fields(config, sampler, data, device)):
        text = "Both at points of a flow that was not trained on, with their true lengths."
        album.draw("field", draw_fields(fields), "The learned velocity on top of the flow's", text)
    if samples.tau is not None:
        album.draw(
            "tau", draw_entry_times(samples.tau), "Where samples enter the straight flow", calls
        )
    return samples.nfe


def velocity_fields(
    config: Config, sampler: FlowSampler, data: Data, device: torch.device
) -> list[Field]:
    """Return the velocities of the network and of the flow at the first, a middle and the last step
    of a new flow; an empty list if the sampler has no NSGF steps."""
    network = next((leg.network for leg in sampler.legs if isinstance(leg, NSGFSteps)), None)
    if network is None:
        return []
    flow = config.flow
    x = data.source("report", "field").sample(config.sinkhorn.batch_size).to(device)
    y = data.target("report", "field").sample(config.sinkhorn.targets).to(device)
    etas = step_sizes(flow.steps, flow.step_size)
    positions = run_flow(build_flow(config), x[None], y[None], etas)[0]
    fields = []
    for step in sorted({0, flow.steps // 2, flow.steps - 1}):
        here, after = positions[:, step], positions[:, step + 1]
        learned = network(here, torch.full((len(here),), step / flow.steps, device=device))
        velocity = (after - here) / time_step(flow.steps, flow.step_size)
        title = f"Step {step + 1} of {flow.steps}"
        fields.append((title, here.cpu(), learned.cpu(), velocity.cpu()))
    return fields


LOG_LINES = 400
"""Number of lines from the end of the log that a page shows."""
REPORTED = {
    ("mnist", "fid"): "3.8 at NFE 60",
    ("cifar10", "fid"): "5.55 at NFE 59",
    ("cifar10", "inception_score"): "8.86 at NFE 59",
}
"""The paper's results, by data set and measure."""


def write_page(folder: Path, template: Path, **values: Any) -> str:
    """Write ``report.html`` from a template, values escaped, paths shortened. Return its path."""
    page = render(template, made=f"{datetime.now():%Y-%m-%d %H:%M}", **values)
    with replacing(folder / "report.html") as stream:
        stream.write(page.encode(errors="replace"))
    return str(folder / "report.html")


@figure_defaults()
def report_run(config: Config, run: RunFolder, kind: str = "png") -> list[str]:
    """Write ``report.html``, and its figures in ``report/``, into the run folder, or into
    ``OUT_DIR/RUN`` if the run does not lie directly in ``out_dir``.

    If ``kind`` is svg or pdf, also write each figure in that format. Return the files. Raise
    UserError if nothing is trained, or the files cannot be written."""
    phases = phase_rows(config, run)
    home = results_folder(config, run)
    album = Album(home / "report", kind)
    missing = ""
    calls = "not known"
    try:
        calls = f"{draw_samples(config, run, album, pick_device(config.device)):g}"
    except UserError as error:
        missing = f"other pictures are left out: {error}"
        show(f"report: {missing}")
    for name in config.phases:
        file = run.samples / f"{phase_stem(name)}.png"
        phase = PHASES[name]
        if file.exists():
            title = f"Samples after training: {phase.title}{part_of_way(config, phase)}"
            album.add(file, title, "From the same noise.")
    if found := curves(run):
        text = "Loss and gradient of each update that was logged."
        titled = {PHASES[own].title: found[own] for own in config.phases if own in found}
        album.draw("curves", draw_curves(titled), "Training", text)
    log = run.path / "log.txt"
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    metrics = read_object(home / "metrics.json") or read_object(run.path / "metrics.json")
    page = write_page(
        home,
        Path(__file__).with_name("page.html.j2"),
        title=f"{config.exp}: {run.path.name}",
        config=config,
        phases=phases,
        calls=calls,
        classes=list_names(class_names(config.data)),
        pictures=album.pictures,
        missing=missing,
        measures=measure_rows(config, metrics),
        metrics=metrics,
        described=json.dumps(metrics, indent=2, ensure_ascii=False),
        place=shlex.quote(run.path.resolve().name),
        log=lines[-LOG_LINES:],
        settings=dump_config(drop_machine_settings(config)),
        versions=json.dumps(read_object(run.path / "versions.json"), indent=2),
    )
    return [page, *album.files]


def phase_rows(config: Config, run: RunFolder) -> list[tuple[str, ...]]:
    """Return name, updates, loss, time and memory of each phase; UserError if none is trained."""
    if not any(map(run.has_checkpoint, config.phases)):
        raise UserError(f"{run.path}: nothing is trained yet, so there is nothing to report")
    rows = []
    costs = read_costs(run.path)
    logged = curves(run)
    for phase in config.phases:
        name = f"{PHASES[phase].title} ({phase})"
        updates = f"{trained_updates(run, phase)} of {getattr(config, phase).iterations}"
        loss = f"{logged[phase][-1][1]:.4g}" if phase in logged else ""
        spent: tuple[str, ...] = ("", "")
        if cost := costs.get(phase):
            spent = (f"{cost.seconds:.0f} s", format_bytes(cost.peak_memory))
        rows.append((name, updates, loss, *spent))
    return rows


def measure_rows(config: Config, metrics: Plain) -> list[tuple[str, ...]]:
    """Return name, value, floor and the paper's value of each measure of ``nsgf evaluate``."""
    reported = {} if config.data.fake else REPORTED
    return [
        (name_of(key), value, floor, reported.get((config.data.name, key), ""))
        for key, value, floor in describe(metrics)
        if is_measure(key) and isinstance(metrics[key], float)
    ]
