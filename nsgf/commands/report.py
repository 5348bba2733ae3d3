"""``nsgf report``: the page of a run."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from nsgf.commands.preview import count_samples, preview_title, run_title
from nsgf.commands.sample import draw_path
from nsgf.config.files import (
    CONFIGS,
    EXPERIMENT_NAMES,
    METHOD_NAMES,
    Recipe,
    method_layers,
    read_recipe,
)
from nsgf.config.layers import build, drop_machine_settings, fixed_values, saved_values
from nsgf.config.schema import Config, DataConfig
from nsgf.config.values import Place, format_layer
from nsgf.data import Data
from nsgf.experiment import Experiment
from nsgf.method import run_flow, step_sizes, time_step
from nsgf.metrics.distances import nearest_images
from nsgf.metrics.measures import (
    describe,
    describe_columns,
    describe_limits,
    is_measure,
    name_of,
)
from nsgf.phases import PHASES, Method
from nsgf.phases.base import Phase
from nsgf.plots.figures import Field, draw_curves, draw_entry_times, draw_fields, save_animation
from nsgf.plots.samples import compare_images, draw_rows, figure_defaults, shown_name
from nsgf.pool.ends import ENDS
from nsgf.report import curves, trained_updates
from nsgf.report.page import Album
from nsgf.run.folder import RunFolder, dump_config, phase_stem, results_folder
from nsgf.run.log import read_costs
from nsgf.sampling.generate import generate
from nsgf.sampling.sampler import FlowSampler, NSGFSteps, Samples
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError, list_names
from nsgf.system.files import Plain, read_object
from nsgf.system.output import format_bytes, show
from nsgf.user_data.files import shown_place

SHOWN_NEIGHBOURS = 16
"""Number of samples that are shown beside their nearest training images."""


@dataclass
class Drawing:
    """The pictures of a page that need networks and data."""

    experiment: Experiment
    data: Data
    sampler: FlowSampler
    samples: Samples
    """Samples with their paths."""
    album: Album
    method: str
    """Title of the method."""

    @classmethod
    def of(cls, experiment: Experiment, run: RunFolder, album: Album) -> "Drawing":
        """Draw the samples of a run. Raise UserError if a checkpoint or the data are missing, or
        training has diverged."""
        data = experiment.load_data()
        sampler, _ = experiment.load_sampler(run)
        device = experiment.device
        sampling = experiment.config.sampling
        count = min(count_samples(data, sampling.num_samples, device), sampling.batch_size)
        source = data.source("report")
        samples = generate(sampler, source, count, device, path=count, progress=False)
        if not samples.finite:
            raise UserError("the samples are not finite: training has diverged")
        config = experiment.config
        method = run_title(config.method, config.phases)
        return cls(experiment, data, sampler, samples, album, method)

    def draw(self) -> None:
        """Add all pictures to the album."""
        data = self.data
        samples = self.samples
        album = self.album
        calls = f"{len(samples.x)} samples, {samples.nfe:g} network calls each."
        if data.images is not None:
            self._draw_images(data.images, calls)
        figure = draw_path(samples, self.experiment.target, data, "report", self.method)
        album.draw("way", figure, "The way of a batch", calls)
        in_plane = data.shape == (2,)
        if data.is_images or in_plane:
            file = album.folder / "way.gif"
            path = [data.in_units(state) for state in samples.path]
            save_animation(replace(samples, path=path), file, data.axes)
            album.add(file, "The same, moving", "One picture for each state on the way.")
        if in_plane and (fields := self._velocity_fields()):
            names = self.experiment.target.class_names
            points = f"points of class {names[self._field_class]}" if names else "points"
            album.draw(
                "field",
                draw_fields(fields, data.axes),
                "The learned velocity on top of the flow's",
                f"Both at {points} of a flow that was not trained on, with their true lengths.",
            )
        if samples.tau is not None:
            figure = draw_entry_times(samples.tau)
            album.draw("tau", figure, "Where samples enter the straight flow", calls)

    def _draw_images(self, images: Tensor, calls: str) -> None:
        """Add samples beside real images, and beside their nearest training images."""
        x = self.samples.x
        real = self.data.reference("report").sample(len(x))
        figure = compare_images(x, real, shown_name(self.method))
        self.album.draw("samples", figure, "Samples beside real images", calls)
        first = x[:SHOWN_NEIGHBOURS]
        nearest = nearest_images(first, images, flip=self.data.config.flip)
        figure = draw_rows(torch.cat([first, nearest]), ["sample", "nearest"])
        self.album.draw(
            "nearest",
            figure,
            "The nearest training images",
            "By the distance of all pixels: equal pairs would be copies.",
        )

    @property
    def _field_class(self) -> int:
        """Number of the class whose velocity fields are drawn: ``sampling.label``, or the first
        class."""
        experiment = self.experiment
        return experiment.target.class_number(experiment.config.sampling.label) or 0

    def _velocity_fields(self) -> list[Field]:
        """Return the velocities of the network and of a new flow, at the first, a middle and the
        last step. If there are classes, the velocities are those of one class. The list is empty if
        the sampler has no NSGF steps."""
        legs = self.sampler.legs
        network = next((leg.network for leg in legs if isinstance(leg, NSGFSteps)), None)
        if network is None:
            return []
        data = self.data
        device = self.experiment.device
        flow = self.experiment.config.flow
        sinkhorn = self.experiment.config.sinkhorn
        source = data.source("report", "field")
        target = data.target("report", "field")
        labels = []
        if data.classes:
            label = self._field_class
            target = data.of_class(label, "report", "field")
            if data.source_data:
                source = data.source_data.of_class(label, "report", "field")
            labels.append(torch.full((sinkhorn.batch_size,), label, device=device))
        x = source.sample(sinkhorn.batch_size).to(device)
        y = target.sample(sinkhorn.targets).to(device)
        etas = step_sizes(flow.steps, flow.step_size)
        positions = run_flow(build_flow(flow.kind, sinkhorn), x[None], y[None], etas)[0]
        in_units = data.in_units(positions.cpu())
        fields = []
        for step in sorted({0, flow.steps // 2, flow.steps - 1}):
            states = positions[:, step]
            t = torch.full((len(states),), step / flow.steps, dtype=torch.float32, device=device)
            end = data.in_units((states + network(states, t, *labels)).cpu())
            start = in_units[:, step]
            velocity = (in_units[:, step + 1] - start) / time_step(flow.steps, flow.step_size)
            fields.append((f"Step {step + 1} of {flow.steps}", start, end - start, velocity))
        return fields


LOG_LINES = 400
"""Number of last lines of the log that a page shows."""
REPORTED = {
    ("mnist", "fid"): "3.8 at NFE 60",
    ("cifar10", "fid"): "5.55 at NFE 59",
    ("cifar10", "inception_score"): "8.86 at NFE 59",
}
"""Results of the paper, by data set and measure."""


@figure_defaults()
def report_run(
    experiment: Experiment, run: RunFolder, kind: str = "png", out: Place | None = None
) -> list[str]:
    """Write ``report.html``, and the folder ``report/`` with its figures. They go into the run
    folder, or into ``OUT_DIR/RUN`` if the run does not lie directly in ``out_dir``.

    If ``kind`` is svg or pdf, also write each figure in that format. If there is an ``out``, a file
    .html, also write the page to this file. Return the files. The page is the first file. Raise
    UserError if nothing is trained, or the files cannot be written."""
    config = experiment.config
    phases = phase_rows(experiment.phases(), run)
    method = run_title(config.method, config.phases)
    data_place = shown_place(config.data.path)
    home = results_folder(config.out_path, run)
    album = Album(home, kind, out)
    missing = ""
    calls = "not known"
    drawn: Method | None = None
    try:
        drawing = Drawing.of(experiment, run, album)
        drawing.draw()
        drawn = experiment.trained_method(run.has_checkpoint)
        calls = f"{drawing.samples.nfe:g}"
    except UserError as error:
        missing = f"other pictures are left out: {error}"
        show(f"report: {missing}")
    for name in config.phases:
        file = run.samples / f"{phase_stem(name)}.png"
        if file.exists() and experiment.preview_method(name) != drawn:  # draw() drew its samples
            album.add(file, preview_title(experiment, name), "Samples from the same starts.")
    if logged := curves(run):
        titled = {PHASES[name].title: logged[name] for name in config.phases if name in logged}
        album.draw(
            "curves",
            draw_curves(titled),
            "Training",
            "Loss and gradient of each update that was logged.",
        )
    ends = run.pool / ENDS
    log = run.path / "log.txt"
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    metrics = read_object(home / "metrics.json") or read_object(run.path / "metrics.json")
    return album.write_page(
        "report/page.html.j2",
        title=f"{method} on {Path(data_place).name or config.data.name}: {run.path.name}",
        config=config,
        method=method,
        data_place=data_place,
        source_place=shown_place(config.data.source_path),
        unfinished=", ".join(
            f"{name} {done} of {count} updates"
            for name, count in zip(config.phases, config.updates, strict=True)
            if (done := trained_updates(run, name)) < count
        ),
        chosen=changed_from_recipe(config),
        phases=phases,
        ends=ends.read_text("utf-8", "replace") if ends.exists() else "",
        calls=calls,
        classes=list_names(experiment.target.class_names),
        missing=missing,
        measures=measure_rows(config.data, metrics),
        limits=describe_limits(metrics),
        metrics=metrics,
        described=json.dumps(metrics, indent=2, ensure_ascii=False),
        place=shlex.quote(os.path.relpath(run.path)),
        log=lines[-LOG_LINES:],
        settings=dump_config(drop_machine_settings(config)),
        versions=json.dumps(read_object(run.path / "versions.json"), indent=2),
    )


def changed_from_recipe(config: Config) -> str:
    """Return the settings of training and sampling that differ from the shipped files of experiment
    and method, as text."""
    shipped = Recipe({}, {})
    if config.exp in EXPERIMENT_NAMES:
        shipped = read_recipe(CONFIGS / f"{config.exp}.yaml")
    method = config.method if config.method in METHOD_NAMES else None
    method_settings, settings = method_layers(shipped, method)
    recipe = saved_values(build({**method_settings, **settings}))
    parts = {"seed", "model", "sampling", "train.precision"}
    for name in config.phases:  # by name, because the data of a comparison may be missing
        parts |= {name, *PHASES[name].reads}
    used = fixed_values(config, parts)
    changed = {key: value for key, value in used.items() if value != recipe[key]}
    return format_layer(changed) or "as in the recipe"


def phase_rows(phases: Sequence[Phase], run: RunFolder) -> list[tuple[str, ...]]:
    """Return name, updates, loss, time and memory of each phase. Raise UserError if no phase is
    trained."""
    if not any(run.has_checkpoint(phase.name) for phase in phases):
        raise UserError(f"{run.path}: nothing is trained yet, so there is nothing to report")
    rows = []
    costs = read_costs(run.path)
    logged = curves(run)
    for phase in phases:
        name = phase.name
        updates = f"{trained_updates(run, name)} of {phase.optim.iterations}"
        loss = f"{logged[name][-1][1]:.4g}" if name in logged else ""
        spent: tuple[str, ...] = ("", "")
        if cost := costs.get(name):
            spent = (f"{cost.seconds:.0f} s", format_bytes(cost.peak_memory))
        rows.append((f"{phase.title} ({name})", updates, loss, *spent))
    return rows


def measure_rows(data: DataConfig, metrics: Plain) -> list[tuple[str, ...]]:
    """Return name, value, floor and the paper's value of each measure of ``nsgf evaluate``. For
    points, the worst columns follow."""
    reported = {} if data.fake else REPORTED
    rows: list[tuple[str, ...]] = [
        (name_of(key), value, floor, reported.get((data.name, key), ""))
        for key, value, floor in describe(metrics)
        if is_measure(key) and isinstance(metrics[key], float)
    ]
    return rows + [(*texts, "") for texts in describe_columns(metrics)]
