"""Write the HTML page of a run. A page is one file with all its pictures."""

import base64
import json
import os
import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from nsgf.config.files import (
    CONFIGS,
    EXPERIMENTS,
    METHODS,
    Experiment,
    method_layers,
    read_experiment,
)
from nsgf.config.schema import Config
from nsgf.config.settings import build, drop_machine_settings, fixed_values, values
from nsgf.config.values import Place, expand_path, format_layer
from nsgf.data import Data, class_names
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.metrics.distances import nearest_images
from nsgf.metrics.measures import (
    describe,
    describe_columns,
    describe_limits,
    is_measure,
    name_of,
)
from nsgf.phases import PHASES, get_phases, load_sampler
from nsgf.plots.figures import Field, draw_curves, draw_entry_times, draw_fields, save_animation
from nsgf.plots.samples import compare_images, cut_panels, draw_rows, figure_defaults, save_figure
from nsgf.report import curves, render, trained_updates
from nsgf.run.folder import RunFolder, dump_config, phase_stem, results_folder
from nsgf.run.log import read_costs
from nsgf.samples import count_samples, draw_path, part_of_way
from nsgf.sampling.generate import generate
from nsgf.sampling.sampler import FlowSampler, NSGFSteps
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError, list_names, wrong_setting
from nsgf.system.files import Plain, ensure_writable, read_object, replacing
from nsgf.system.hardware import pick_device
from nsgf.system.output import format_bytes, show

BROAD = 700
"""Pictures wider than this many pixels are not shrunk to the width of a phone."""
NEIGHBOURS = 16


class Album:
    """The pictures of a page, and their files, perhaps also in another format."""

    def __init__(self, home: Path, kind: str, out: Place | None) -> None:
        """Prepare a page in the folder ``home``, with a copy at ``out`` if given. Figures go into
        ``home/report``, as PNG and as ``kind`` (png, svg or pdf). Raise UserError if files cannot
        be written there, or ``out`` does not end in .html."""
        self._pages = [home / "report.html"]
        if out is not None:
            copy = expand_path("out", out)
            if copy.suffix.lower() != ".html" or copy.is_dir():
                raise wrong_setting("out", out, "must end in .html, and be no folder")
            ensure_writable(copy.parent, "out")
            self._pages.insert(0, copy)
        self.folder = ensure_writable(home / "report")
        self._kinds = dict.fromkeys((kind, "png"))
        self.pictures: list[Plain] = []
        self.files: list[str] = []

    def draw(self, name: str, figure: Any, title: str, text: str) -> None:
        """Write a figure to ``NAME.png`` and ``NAME.KIND``, and add it to the page."""
        for kind in self._kinds:
            file = self.folder / f"{name}.{kind}"
            save_figure(figure, file)
            if kind != "png":
                self.files.append(str(file))
        self.add(file, title, text)  # the last kind: PNG
        if len(figure.axes) > 1:
            panels = [(_as_link(part, "png"), width) for part, width in cut_panels(figure)]
            self.pictures[-1] |= {"panels": panels, "is_broad": False}

    def add(self, file: Path, title: str, text: str) -> None:
        """Add an existing picture to the page."""
        source = _as_link(file.read_bytes(), file.suffix[1:])
        with Image.open(file) as image:
            is_broad = image.width > BROAD
        panels = [(source, 100)]
        self.pictures.append({"title": title, "text": text, "is_broad": is_broad, "panels": panels})
        self.files.append(str(file))

    def write_page(self, template: str, **values: Any) -> list[str]:
        """Write the page from a template, values escaped, paths shortened. Return all files: first
        the copy, if any, then the page."""
        # only below the user's home folder, since other paths may have somebody's name
        here = os.path.relpath(os.curdir, os.path.expanduser("~"))
        here = "" if here.startswith(os.pardir) else shlex.quote(here)
        made = f"{datetime.now():%Y-%m-%d %H:%M}"
        page = render(template, made=made, here=here, pictures=self.pictures, **values)
        for file in self._pages:
            with replacing(file) as stream:
                stream.write(page.encode(errors="replace"))
        return [*map(str, self._pages), *self.files]


def _as_link(content: bytes, kind: str) -> str:
    """Return a picture as a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def draw_samples(config: Config, run: RunFolder, album: Album, device: torch.device) -> float:
    """Draw the pictures that need networks and data. Return the network calls for each sample.
    Raise UserError if a checkpoint or the data are missing, or training has diverged."""
    data = Data(config.data, config.seed)
    sampler, _ = load_sampler(config, run, device)
    count = min(count_samples(config, data, device), config.sampling.batch_size)
    samples = generate(sampler, data.source("report"), count, device, path=count, progress=False)
    if not samples.finite:
        raise UserError("the samples are not finite: training has diverged")
    calls = f"{count} samples, {samples.nfe:g} network calls each."
    if data.images is not None:
        figure = compare_images(samples.x, data.reference("report").sample(count), "Samples")
        album.draw("samples", figure, "Samples beside real images", calls)
        some = samples.x[:NEIGHBOURS]
        nearest = nearest_images(some, data.images, flip=config.data.flip)
        figure = draw_rows(torch.cat([some, nearest]), ["sample", "nearest"])
        album.draw(
            "nearest",
            figure,
            "The nearest training images",
            "By the distance of all pixels: equal pairs would be copies.",
        )
    figure = draw_path(samples, config.data, data, "report")
    album.draw("way", figure, "The way of a batch", calls)
    in_plane = data.shape == (2,)
    if data.images is not None or in_plane:
        file = album.folder / "way.gif"
        path = [data.in_units(state) for state in samples.path]
        save_animation(replace(samples, path=path), file, data.axes)
        album.add(file, "The same, moving", "One picture for each state on the way.")
    if in_plane and (fields := velocity_fields(config, sampler, data, device)):
        album.draw(
            "field",
            draw_fields(fields, data.axes),
            "The learned velocity on top of the flow's",
            "Both at points of a flow that was not trained on, with their true lengths.",
        )
    if samples.tau is not None:
        figure = draw_entry_times(samples.tau)
        album.draw("tau", figure, "Where samples enter the straight flow", calls)
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
    shown = data.in_units(positions.cpu())
    fields = []
    for step in sorted({0, flow.steps // 2, flow.steps - 1}):
        here = positions[:, step]
        t = torch.full((len(here),), step / flow.steps, dtype=torch.float32, device=device)
        learned = network(here, t)
        end = data.in_units((here + learned).cpu())
        velocity = (shown[:, step + 1] - shown[:, step]) / time_step(flow.steps, flow.step_size)
        title = f"Step {step + 1} of {flow.steps}"
        fields.append((title, shown[:, step], end - shown[:, step], velocity))
    return fields


LOG_LINES = 400
"""Number of lines from the end of the log that a page shows."""
REPORTED = {
    ("mnist", "fid"): "3.8 at NFE 60",
    ("cifar10", "fid"): "5.55 at NFE 59",
    ("cifar10", "inception_score"): "8.86 at NFE 59",
}
"""The paper's results, by data set and measure."""


@figure_defaults()
def report_run(
    config: Config, run: RunFolder, kind: str = "png", out: Place | None = None
) -> list[str]:
    """Write ``report.html``, and its figures in ``report/``, into the run folder, or into
    ``OUT_DIR/RUN`` if the run does not lie directly in ``out_dir``.

    If ``kind`` is svg or pdf, also write each figure in that format; if ``out`` is given, also
    write the page to that file .html. Return the files: first the page, at ``out`` if given. Raise
    UserError if nothing is trained, or the files cannot be written."""
    phases = phase_rows(config, run)
    home = results_folder(config, run)
    album = Album(home, kind, out)
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
        titled = {PHASES[own].title: found[own] for own in config.phases if own in found}
        album.draw(
            "curves",
            draw_curves(titled),
            "Training",
            "Loss and gradient of each update that was logged.",
        )
    log = run.path / "log.txt"
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    metrics = read_object(home / "metrics.json") or read_object(run.path / "metrics.json")
    return album.write_page(
        "report/page.html.j2",
        title=f"{config.exp}: {run.path.name}",
        config=config,
        chosen=chosen_settings(config),
        phases=phases,
        calls=calls,
        classes=list_names(class_names(config.data)),
        missing=missing,
        measures=measure_rows(config, metrics),
        limits=describe_limits(metrics),
        metrics=metrics,
        described=json.dumps(metrics, indent=2, ensure_ascii=False),
        place=shlex.quote(os.path.relpath(run.path)),
        log=lines[-LOG_LINES:],
        settings=dump_config(drop_machine_settings(config)),
        versions=json.dumps(read_object(run.path / "versions.json"), indent=2),
    )


def chosen_settings(config: Config) -> str:
    """Return, as text, the settings of training and sampling that differ from the shipped files of
    experiment and method."""
    shipped = Experiment({}, {})
    if config.exp in EXPERIMENTS:
        shipped = read_experiment(CONFIGS / f"{config.exp}.yaml")
    below, own = method_layers(shipped, config.method if config.method in METHODS else None)
    recipe = values(build({**below, **own}))
    parts = {"seed", "model", "sampling", "train.precision"}
    for phase in get_phases(config.phases):
        parts |= {phase.name, *phase.reads}
    used = fixed_values(config, parts)
    changed = {key: value for key, value in used.items() if value != recipe[key]}
    return format_layer(changed) or "as in the recipe"


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
    """Return name, value, floor and the paper's value of each measure of ``nsgf evaluate``, and of
    the worst columns of points."""
    reported = {} if config.data.fake else REPORTED
    rows: list[tuple[str, ...]] = [
        (name_of(key), value, floor, reported.get((config.data.name, key), ""))
        for key, value, floor in describe(metrics)
        if is_measure(key) and isinstance(metrics[key], float)
    ]
    return rows + [(*texts, "") for texts in describe_columns(metrics)]
