"""Pictures of samples: grids, paths of images, scatter plots of points, tables of methods.

Figures are made without pyplot, so that the caller's backend stays as it is.

N: number of samples; D: number of coordinates; C: channels; H x W: pixels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf.config.schema import Names
from nsgf.data.images import to_bytes, to_colour
from nsgf.sampling.sampler import Samples
from nsgf.system.files import replacing
from nsgf.system.process import FIGURES

MAX_PATHS = 256
PATH_ROWS = 8
PATH_STATES = 16
"""Largest numbers of samples, and of states of a sample, in a picture of the paths of images."""
BINS = 60
DPI = 120
"""Pixels per inch of a figure."""
FADED = 0.2
"""Opacity of the source, behind the samples."""
NAME_LENGTH = 40
"""Largest number of characters of a coordinate's name that are shown."""
BOX = "\N{WHITE SQUARE}"
MIN_PIXELS = 600
"""Approximate width in pixels to which a picture of small images is enlarged."""
MIN_LETTERS = 12
"""Smallest font size. Wide figures have larger letters, because pages reduce wide figures."""


@contextmanager
def figure_defaults() -> Iterator[None]:
    """Use matplotlib's defaults in place of a user's matplotlibrc or a caller's style. Only one
    thread at a time can do this, because matplotlib has one style for the whole process."""
    import matplotlib

    with FIGURES, matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches."""
    from matplotlib.figure import Figure  # the import takes half a second

    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def save_figure(figure: Any, file: Path, dpi: int = DPI) -> None:
    """Write a figure in the format of the file's suffix: .png, .svg or .pdf."""
    with replacing(file) as stream:
        # equal axes and the title of a narrow table do not fit a constrained layout
        figure.savefig(stream, format=file.suffix[1:], dpi=dpi, bbox_inches="tight")


def cut_panels(figure: Any) -> list[tuple[bytes, float]]:
    """Return each panel and legend of a figure as a PNG, with its width in % of the figure's
    width."""
    from PIL import Image

    parts = []
    figure.savefig(figure_file := BytesIO(), format="png", dpi=figure.dpi)
    with Image.open(figure_file) as picture:
        for part in [*figure.axes, *figure.legends]:
            bounds = part.get_tightbbox().padded(4)
            box = (bounds.x0, picture.height - bounds.y1, bounds.x1, picture.height - bounds.y0)
            picture.crop(tuple(map(round, box))).save(stream := BytesIO(), "png")
            parts.append((stream.getvalue(), 100 * bounds.width / picture.width))
    return parts


def save_grid(images: Tensor, file: Path) -> None:
    """Write a nearly square grid of images (N, C, H, W) in [-1, 1] as a PNG."""
    with replacing(file) as stream:
        draw_notebook_image(images).save(stream, "png")


def to_pictures(images: Tensor) -> Iterator[Any]:
    """Yield images (N, C, H, W) in [-1, 1] as PIL images. If images have 2 or 4 channels, leave out
    the last channel."""
    from PIL import Image

    # Pillow would read the last channel as transparency
    images = images[:, : 1 if images.shape[1] < 3 else 3]
    for image in to_bytes(images).permute(0, 2, 3, 1).numpy():
        yield Image.fromarray(image.squeeze())


@figure_defaults()
def draw_notebook_image(samples: Tensor, axes: Names | None = None) -> Any:
    """Return a PIL image: a nearly square grid of images (N, C, H, W) in [-1, 1], or a plot of
    points (N, D), whose coordinates have the names ``axes``."""
    from PIL import Image

    if samples.ndim == 4:
        return Image.fromarray(join_images(samples, width=MIN_PIXELS))
    figure = draw_points([samples], None, "Samples", axes)
    figure.savefig(stream := BytesIO(), format="png", bbox_inches="tight")
    return Image.open(stream)


def show_grid(panel: Any, images: Tensor, columns: int | None = None) -> None:
    """Draw a grid of images (N, C, H, W) in [-1, 1], nearly square unless ``columns`` is given."""
    panel.imshow(join_images(images, columns))
    panel.set(xticks=[], yticks=[], frame_on=False)


def join_images(images: Tensor, columns: int | None = None, width: int = 0) -> Any:
    """Return a grid of images (N, C, H, W) in [-1, 1], with white lines between them, as bytes
    (H', W', 3). A smaller grid is enlarged by a whole factor to about ``width`` pixels."""
    from torchvision.utils import make_grid

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(to_colour(images.cpu()), columns, padding=1, pad_value=1.0)
    grid = to_bytes(grid).permute(1, 2, 0)
    zoom = max(1, round(width / grid.shape[1]))
    return grid.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1).numpy()


def draw_rows(images: Tensor, names: Sequence[str]) -> Any:
    """Draw images (N, C, H, W) in [-1, 1] in rows, one row for each name. The name stands beside
    the row."""
    columns = len(images) // len(names)
    height, width = images.shape[2:]
    figure = new_figure(0.7 * columns, 0.7 * len(names) * height / width)
    panel = figure.subplots()
    show_grid(panel, images, columns)
    show_names(panel, names, height)
    return figure


def show_names(panel: Any, names: Sequence[str], height: int) -> None:
    """Write a name beside each row of a grid of images that are ``height`` pixels high."""
    panel.set_yticks(
        [(row + 0.5) * (height + 1) for row in range(len(names))],
        [*map(shown_name, names)],
        fontsize=MIN_LETTERS,
        parse_math=False,
    )
    panel.tick_params(left=False)


def compare_images(images: Tensor, real: Tensor, title: str) -> Any:
    """Draw samples under ``title`` beside real images, each (N, C, H, W) in [-1, 1]."""
    figure = new_figure(8, 0.5 + 4 * images.shape[2] / images.shape[3])
    left, right = figure.subplots(1, 2)
    show_grid(left, images)
    show_grid(right, real)
    left.set_title(title, parse_math=False)
    right.set_title("Real images")
    return figure


def words_of_calls(nfe: float) -> str:
    """Return a number of network calls in words: ``10 network calls``."""
    return f"{nfe:g} network call{'' if nfe == 1 else 's'}"


def draw_image_path(samples: Samples, names: Sequence[str] = ()) -> Any:
    """Draw the paths of images, at most PATH_ROWS samples and PATH_STATES states (N, C, H, W) in
    [-1, 1]. The names of the legs stand above the path. A line marks the beginning of the last leg.
    ``names``: names of classes, which stand beside their samples."""
    columns = chosen_states(samples.marks)
    marks = [samples.marks[column] for column in columns]
    states = torch.stack([samples.path[column][:PATH_ROWS] for column in columns], dim=1)
    count, _, _, height, width = states.shape
    inches = 0.4 + 0.75 * len(columns)
    figure = new_figure(inches, 0.7 + 0.75 * count * height / width)
    panel = figure.subplots()
    cell = width + 1
    show_grid(panel, states.flatten(0, 1), len(columns))
    steps = [mark.rpartition(" ")[2] for mark in marks]
    panel.set_xticks([(number + 0.5) * cell for number in range(1, len(steps))], steps[1:])
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    begin = 0
    for name, leg in groupby(map(leg_of, marks)):
        end = begin + len([*leg])
        panel.annotate(
            name,
            ((begin + end) / 2 * cell, 0),
            (0, 20),
            ha="center",
            textcoords="offset points",
            fontsize=min(18, max(MIN_LETTERS, 1.7 * inches)),
        )
        begin = end
    if samples.labels is not None and names:
        show_names(panel, [names[label] for label in samples.labels[:count].tolist()], height)
    if (first := last_leg(marks)) > 1:
        panel.axvline(first * cell, color="tab:red", linewidth=2)
    return figure


def leg_of(mark: str) -> str:
    """Return the leg of a state's mark: ``straight flow`` of ``straight flow 3/10``."""
    return mark.rpartition(" ")[0] or mark


def last_leg(marks: Sequence[str]) -> int:
    """Return the index of the first state of the last leg."""
    return next((n for n, mark in enumerate(marks) if leg_of(mark) == leg_of(marks[-1])), 0)


def chosen_states(marks: Sequence[str]) -> list[int]:
    """Return the indices of states to draw. If not all states fit, some states of the last leg are
    left out."""
    first = last_leg(marks)
    count = len(marks)
    every = math.ceil((count - first) / max(1, PATH_STATES - first))
    return [*range(first), *range(count - 1, first - 1, -every)[::-1]]


def draw_points(
    path: list[Tensor],
    target: Tensor | None,
    title: str,
    axes: Names | None = None,
    marks: Sequence[str] = (),
) -> Any:
    """Draw source, path and samples beside the target, with the same axes. Points with more than
    two coordinates are drawn by the first two. 1D points are drawn as paths over the steps, and as
    histograms.

    Args:
        path: states from the source to the samples, each (N, D); or only the samples.
        target: samples of mu*, (M, D); None: without them.
        title: title of the left panel.
        axes: names of the coordinates, which may have different units; None: points in the plane.
        marks: leg and step of each state, to show where the last leg begins.
    """
    # panels
    framed = path[-1] if target is None else target
    on_line = framed.shape[1] == 1
    shape = 1.0
    if axes is None and not on_line:
        *_, shape = point_box(framed, path[0].to(framed))
        shape = min(1.0, max(0.3, shape))
    count = 2 if on_line or target is not None else 1
    figure = new_figure(5.5 * count, min(5.5, 1.6 + 5 * shape))
    panels = figure.subplots(1, count, sharex=True, sharey=not on_line, squeeze=False)[0]
    left = panels[0]
    right = panels[-1]
    # points
    _show_path(left, path, marks)
    if on_line:
        _show_samples(right, path[-1], framed, "tab:red", "samples")
    if target is not None:
        _show_samples(right, target, target, "tab:green", "target")
    # titles, axes and legends
    right.set_title("Samples" if target is None else "Target")
    left.set_title(title, parse_math=False)
    legend: dict[str, Any] = {}
    for panel in panels:
        panel.tick_params(labelleft=True)
        if axes or not on_line:
            name_axes(panel, axes)
        handles, labels = panel.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    if len(legend) > 1:
        how: dict[str, Any] = {"loc": "outside lower center", "ncols": 4, "markerscale": 3}
        figure.legend(legend.values(), legend.keys(), **how)
    if on_line:
        left.set_ylabel("step")
        right.set_ylabel("share")
    return figure


def name_axes(panel: Any, axes: Sequence[str] | None) -> None:
    """Write the names of the coordinates. ``axes`` None: give both axes the same scale instead."""
    if axes is None:
        panel.set_aspect("equal")
        return
    more = f" (of {len(axes)} coordinates)" if len(axes) > 2 else ""
    # a $ in a name begins no formula
    panel.set_xlabel(shown_name(axes[0]) + more, parse_math=False)
    panel.set_ylabel(shown_name("".join(axes[1:2])), parse_math=False)


def shown_name(name: str) -> str:
    """Return the first NAME_LENGTH characters of a user's name. A box replaces each character that
    the font lacks. (Matplotlib would also draw a box, but with a warning.)"""
    from matplotlib.font_manager import findfont, get_font

    letters = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(c if ord(c) in letters else BOX for c in name[:NAME_LENGTH])


def point_box(*points: Tensor) -> tuple[list[float], list[float], float]:
    """Return the lower left and the upper right corner of the box around the first two coordinates
    of points (N, D), and the box's height divided by its width. The outermost thousandth of the
    points is left out, and a margin is added."""
    values = torch.cat(points)[:, :2]
    low, high = (values.quantile(part, dim=0) for part in (0.001, 0.999))
    size = high - low
    shape = float(size[-1] / size[0].clamp_min(1e-9))
    return (low - 0.05 * size).tolist(), (high + 0.05 * size).tolist(), shape


def draw_table(
    drawn: Mapping[str, Mapping[int, Samples]],
    target: Tensor,
    title: str,
    axes: Names | None = None,
) -> Any:
    """Draw a table of samples, with a column for each method and a row for each NFE. The target (M,
    *shape) stands at the right. For points, the first row has the paths at the smallest NFE.

    Args:
        drawn: samples by method and NFE: images (N, C, H, W) in [-1, 1], or points with paths.
        target, title, axes: see :func:`draw_points`.
    """
    # choose the rows, and the range of the axes
    counts = sorted({nfe for samples in drawn.values() for nfe in samples})
    is_image = target.ndim == 4
    on_line = target.shape[1:] == (1,)
    same_scale = axes is None and not on_line
    shape = 1.0
    names = [*map(words_of_calls, counts)]
    if not is_image:
        names.insert(0, "Paths")
        first = next(sampled for samples in drawn.values() for sampled in samples.values())
        low, high, extent = point_box(target.cpu(), first.path[0].cpu().to(target))
        shape = extent if same_scale else 1.0
    # panels
    width = 2.2 * (len(drawn) + 1)
    figure = new_figure(width, 0.9 + 2.2 * shape * len(names))
    letters = {"fontsize": max(MIN_LETTERS, width)}
    figure.suptitle(title, **letters)
    panels = figure.subplots(
        len(names),
        len(drawn) + 1,
        sharex=True,
        sharey=not on_line,
        squeeze=False,
        subplot_kw={"aspect": "equal" if same_scale else "auto"},
    )
    # samples
    for column, (name, samples) in zip(panels.T, drawn.items(), strict=False):
        column[0].set_title(name, **letters)
        if not is_image:
            _show_path(column[0], [x[:MAX_PATHS].cpu() for x in samples[min(samples)].path])
        _show_counts(column[-len(counts) :], counts, samples, target)
    panels[0][-1].set_title("Target", **letters)
    for row, text in zip(panels, names, strict=True):
        row[0].set_ylabel(text, **letters)
        _show_samples(row[-1], target, target, "tab:green")
    # axes
    if axes:
        name_axes(figure.axes[-1], axes)
        figure.axes[-1].yaxis.set_label_position("right")
    if not is_image:
        panels[0][0].set_xlim(low[0], high[0])
        if not on_line:
            panels[0][0].set_ylim(low[1], high[1])
    return figure


def _show_counts(
    panels: Sequence[Any], counts: Sequence[int], samples: Mapping[int, Samples], target: Tensor
) -> None:
    """Draw the samples of a method, with a panel for each NFE in ``counts``."""
    for panel, nfe in zip(panels, counts, strict=True):
        if nfe in samples:
            _show_samples(panel, samples[nfe].x.cpu(), target, "tab:red")
        else:
            panel.text(0.5, 0.5, "not possible", ha="center", transform=panel.transAxes)


def _show_path(panel: Any, path: list[Tensor], marks: Sequence[str] = ()) -> None:
    """Draw source, paths and samples from states (N, D), or only the samples from a single state.
    With ``marks``, the paths of the last leg have another colour. The second axis of 1D points is
    the number of the state."""
    # ten times as fast as one Line2D for each path
    from matplotlib.collections import LineCollection

    if path[0].shape[1] == 1:
        path = [torch.cat([x, torch.full_like(x, step)], 1) for step, x in enumerate(path)]
    states = torch.stack(path, dim=1)[..., :2].numpy()  # (N, states, 2)
    if len(path) > 1:
        lines = states[:MAX_PATHS]
        first = last_leg(marks)
        last = first - 1 if first > 1 else len(path) - 1
        how: dict[str, Any] = {"linewidths": 0.4, "zorder": 1}
        panel.add_collection(LineCollection(list(lines[:, : last + 1]), colors="0.65", **how))
        panel.scatter(*states[:, 0].T, s=3, color="tab:blue", alpha=FADED, label="source", zorder=0)
        if last < len(path) - 1:
            how |= {"label": f"the {leg_of(marks[-1])} takes over", "linewidths": 0.8}
            panel.add_collection(LineCollection(list(lines[:, last:]), colors="tab:orange", **how))
    panel.scatter(*states[:, -1].T, s=3, color="tab:red", label="samples", zorder=3)


def _show_samples(panel: Any, x: Tensor, target: Tensor, color: str, label: str = "") -> None:
    """Draw images (N, C, H, W) as a grid, points (N, D) by their first two coordinates, and 1D
    points as a histogram over the range of the target. Points with a label are larger."""
    how: dict[str, Any] = {"color": color, "label": label}
    if x.ndim == 4:
        show_grid(panel, x)
    elif x.shape[1] > 1:
        panel.scatter(*x[:, :2].numpy().T, s=3 if label else 1, **how)
    else:
        how["range"] = (float(target.min()), float(target.max()))
        shares = torch.full_like(x, 1 / len(x)).numpy()
        panel.hist(x.numpy(), bins=BINS, weights=shares, histtype="step", **how)
