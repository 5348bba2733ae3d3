"""Pictures of a report that need the networks of a run.

Shapes: N samples, *shape one sample.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.data.images import to_unit_range
from nsgf.phases import load_sampler
from nsgf.plots.animation import save_way
from nsgf.plots.figures import Field, entry_figure, field_figure, neighbour_figure
from nsgf.plots.samples import save_figure, save_image_way, save_points
from nsgf.report.preview import count_samples
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import FlowSampler, NSGFSteps, Samples
from nsgf.sinkhorn import build_solver
from nsgf.sinkhorn.schedule import step_sizes, time_step
from nsgf.system.errors import UserError

NEIGHBOURS = 16
PART_VALUES = 2**24
"""Values of training images that are compared with samples at once."""


class Picture(NamedTuple):
    """A file that a report shows."""

    file: Path
    title: str
    text: str
    is_broad: bool = False
    """Whether a narrow screen scrolls it."""
    beside: tuple[Path, ...] = ()
    """Files of the same picture in another format."""

    @property
    def files(self) -> list[str]:
        """All files, the one that the page shows first."""
        return [str(file) for file in (self.file, *self.beside)]


class Album:
    """The folder of a report's pictures: PNG for the page, and another format if wanted."""

    def __init__(self, folder: Path, kind: str) -> None:
        """``kind``: png, svg or pdf."""
        self.folder, self._kinds = folder, dict.fromkeys(("png", kind))

    def add(self, name: str, title: str, text: str, save: Callable[[Path], None]) -> Picture:
        """Let ``save`` write ``NAME.png`` and ``NAME.KIND``."""
        files = [self.folder / f"{name}.{kind}" for kind in self._kinds]
        for file in files:
            save(file)
        return Picture(files[0], title, text, beside=tuple(files[1:]))


def drawn_pictures(
    config: Config, run: RunFolder, album: Album, device: torch.device
) -> Iterator[Picture]:
    """Draw all that the run's networks and data allow, one picture after another.

    Raises:
        UserError: there is no checkpoint, or the data are not there.
    """
    data = Data(config.data, config.seed)
    sampler, _ = load_sampler(config, run, device)
    count = min(count_samples(config, data, device), config.sampling.batch_size)
    noise = data.source("report").sample(count)
    samples = on_cpu(sampler(noise.to(device), keep_path=True))
    if not all(bool(state.isfinite().all()) for state in samples.path):
        raise UserError("the samples are not finite: training has diverged")
    shown, calls = samples.in_units(data), f"{count} samples, {samples.nfe:g} network calls each."
    if data.images is not None:
        yield from _image_pictures(samples, data.images, config.data.flip, album, calls)
    else:
        target, title = data.reference("report").sample(count), f"NFE {samples.nfe:g}"
        yield album.add(
            "way",
            "The way of a batch",
            calls,
            lambda file: save_points(shown.path, target, file, title, data.axes),
        )
    in_plane = samples.x.shape[1:] == (2,)
    if in_plane and (fields := velocity_fields(config, sampler, data, device)):
        yield album.add(
            "field",
            "The velocity that was learned, on the flow's",
            "Both at points of a Sinkhorn flow that was not trained on, in its own length.",
            lambda file: save_figure(field_figure(fields), file, bbox_inches="tight"),
        )
    if data.images is not None or in_plane:
        save_way(shown, album.folder / "way.gif", data.axes)
        yield Picture(album.folder / "way.gif", "The same, moving", "v: NSGF steps; u: straight.")
    if (tau := samples.tau) is not None:
        yield album.add(
            "tau",
            "Where samples enter the straight flow",
            calls,
            lambda file: save_figure(entry_figure(tau), file),
        )


def _image_pictures(
    samples: Samples, images: Tensor, flip: bool, album: Album, calls: str
) -> Iterator[Picture]:
    yield album.add("way", "The way of a batch", calls, lambda file: save_image_way(samples, file))
    x = samples.x[:NEIGHBOURS]
    nearest = nearest_images(x, images, flip=flip)
    yield album.add(
        "nearest",
        "The nearest training images",
        "By the distance of all pixels: equal pairs would be copies.",
        lambda file: save_figure(neighbour_figure(x, nearest), file),
    )


def on_cpu(samples: Samples) -> Samples:
    """Return the same samples in main memory."""
    path = [state.cpu() for state in samples.path]
    tau = None if samples.tau is None else samples.tau.cpu()
    return Samples(samples.x.cpu(), samples.nfe, tau, path, samples.marks)


def nearest_images(x: Tensor, images: Tensor, *, flip: bool = False) -> Tensor:
    """Return the nearest image of uint8 ``images`` (M, C, H, W) to each x (N, C, H, W) in [-1, 1],
    like x; with ``flip`` mirrored images count too."""
    flat, best = x.flatten(1), torch.full((len(x),), torch.inf)
    found = torch.zeros_like(x)
    for part in images.split(max(1, PART_VALUES // images[0].numel())):
        real = to_unit_range(part.cpu())
        real = torch.cat([real, real.flip(-1)]) if flip else real
        distance, index = torch.cdist(flat, real.flatten(1)).min(1)
        closer = distance < best
        found[closer], best[closer] = real[index[closer]], distance[closer]
    return found


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
    fields, length = [], time_step(flow)
    for step in sorted({0, flow.steps // 2, flow.steps - 1}):
        here, after = positions[:, step], positions[:, step + 1]
        t = torch.full((len(here),), step / flow.steps, device=device)
        learned, title = network(here, t), f"step {step + 1} of {flow.steps}"
        fields.append(
            Field(title, *(part.cpu() for part in (here, learned, (after - here) / length)))
        )
    return fields


def tried(pictures: Iterator[Picture], log: Callable[[str], None]) -> list[Picture]:
    """Return all pictures up to the first that cannot be drawn, and log why."""
    found: list[Picture] = []
    try:
        found.extend(pictures)
    except UserError as error:
        log(f"the rest of the pictures is left out: {error}")
    return found
