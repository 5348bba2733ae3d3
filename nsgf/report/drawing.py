"""The pictures of a report.

Shapes: N samples, *shape one sample.
"""

import base64
import mimetypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from nsgf.config.schema import Config
from nsgf.data import Data, class_names
from nsgf.metrics.distances import nearest_images
from nsgf.phases import load_sampler
from nsgf.plots.figures import Field, draw_entry_times, draw_fields, save_animation
from nsgf.plots.samples import cut_panels, draw_rows, save_figure
from nsgf.run.folder import RunFolder
from nsgf.samples import count_samples, draw_path
from nsgf.sampling.sampler import FlowSampler, NSGFSteps
from nsgf.sinkhorn import build_solver
from nsgf.sinkhorn.base import step_sizes, time_step
from nsgf.system.errors import UserError
from nsgf.system.files import ensure_writable

BROAD = 700
"""Pixels above which a picture is not made as narrow as a telephone."""
NEIGHBOURS = 16


class Album:
    """The pictures of a page and their files, which may be of another format too."""

    def __init__(self, folder: Path, kind: str) -> None:
        """``folder`` is for drawn figures, PNG and ``kind``: png, svg or pdf. Raise UserError if
        the folder cannot be written."""
        self.folder, self._kinds = ensure_writable(folder), dict.fromkeys(("png", kind))
        self.pictures: list[dict[str, Any]] = []
        self.files: list[str] = []

    def draw(self, name: str, figure: Any, title: str, text: str) -> None:
        """Write a figure to ``NAME.png`` and ``NAME.KIND``, and add it."""
        for kind in self._kinds:
            save_figure(figure, self.folder / f"{name}.{kind}")
        self.add(self.folder / f"{name}.png", title, text)
        if len(figure.axes) > 1:
            panels = [(_as_link(part, "image/png"), width) for part, width in cut_panels(figure)]
            self.pictures[-1] |= {"panels": panels, "is_broad": False}
        self.files += [str(self.folder / f"{name}.{kind}") for kind in self._kinds if kind != "png"]

    def add(self, file: Path, title: str, text: str) -> None:
        """Add a picture that exists."""
        source = _as_link(file.read_bytes(), mimetypes.guess_type(file.name)[0])
        with Image.open(file) as image:
            picture = {"title": title, "text": text, "is_broad": image.width > BROAD}
        self.pictures.append(picture | {"panels": [(source, 100)]})
        self.files.append(str(file))


def _as_link(content: bytes, kind: str | None) -> str:
    """Return a picture as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def draw_samples(config: Config, run: RunFolder, album: Album, device: torch.device) -> None:
    """Draw the pictures that need the run's networks and data. Raise UserError if there is no
    checkpoint, the data are not there, or training has diverged."""
    data = Data(config.data, config.seed)
    sampler, _ = load_sampler(config, run, device)
    count = min(count_samples(config, data, device), config.sampling.batch_size)
    noise = data.source("report").sample(count).to(device)
    samples = sampler(noise, keep_path=True)
    path = [state.cpu() for state in samples.path]
    samples = replace(samples, x=path[-1], path=path)
    if not all(bool(state.isfinite().all()) for state in samples.path):
        raise UserError("the samples are not finite: training has diverged")
    calls = f"{count} samples, {samples.nfe:g} network calls each."
    figure = draw_path(samples, data, "report", class_names(config.data))
    album.draw("way", figure, "The way of a batch", calls)
    if data.images is not None:
        some = samples.x[:NEIGHBOURS]
        nearest = nearest_images(some, data.images, flip=config.data.flip)
        figure = draw_rows(torch.cat([some, nearest]), ["sample", "nearest"])
        text = "By the distance of all pixels: equal pairs would be copies."
        album.draw("nearest", figure, "The nearest training images", text)
    in_plane = samples.x.shape[1:] == (2,)
    if in_plane and (fields := velocity_fields(config, sampler, data, device)):
        text = "Both at points of a Sinkhorn flow that was not trained on, with their true lengths."
        album.draw("field", draw_fields(fields), "The learned velocity on top of the flow's", text)
    if data.images is not None or in_plane:
        file = album.folder / "way.gif"
        path = [data.in_units(state) for state in samples.path]
        save_animation(replace(samples, path=path), file, data.axes)
        album.add(file, "The same, moving", "One picture for each state on the way.")
    if samples.tau is not None:
        figure = draw_entry_times(samples.tau.cpu())
        album.draw("tau", figure, "Where samples enter the straight flow", calls)


def velocity_fields(
    config: Config, sampler: FlowSampler, data: Data, device: torch.device
) -> list[Field]:
    """Return the network's velocity beside the flow's at the first, a middle and the last step of a
    new Sinkhorn flow; none if the sampler has no NSGF steps."""
    network = next((leg.network for leg in sampler.legs if isinstance(leg, NSGFSteps)), None)
    if network is None:
        return []
    sinkhorn, flow = config.sinkhorn, config.flow
    x = data.source("report", "field").sample(sinkhorn.batch_size).to(device)
    y = data.target("report", "field").sample(sinkhorn.targets).to(device)
    positions = build_solver(sinkhorn).flows(x[None], y[None], step_sizes(flow))[0]
    fields = []
    for step in sorted({0, flow.steps // 2, flow.steps - 1}):
        here, after = positions[:, step], positions[:, step + 1]
        learned = network(here, torch.full((len(here),), step / flow.steps, device=device))
        velocity = (after - here) / time_step(flow)
        title = f"Step {step + 1} of {flow.steps}"
        fields.append((title, here.cpu(), learned.cpu(), velocity.cpu()))
    return fields
