"""Pictures of samples: grids, paths of images, scatter plots of points, tables of methods.

Figures are made without pyplot, so that the caller's backend stays as it is.

Shapes: N samples, D coordinates, C channels, H x W pixels.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.run.folder import replacing
from nsgf.sampling.sampler import Samples

MAX_PATHS = 256
ROWS, COLUMNS = 8, 16
"""Largest numbers of samples and of states of a path of images."""
BINS = 60
NAME_LENGTH = 40
"""Characters of a coordinate's name that are shown."""
MIN_PIXELS = 600
"""Small images are enlarged until a picture has about this width."""
MIN_LETTERS = 12
"""Smallest font size; a wide figure, which is shown smaller, has larger letters."""

Drawn = dict[str, dict[int, Samples]]
"""Samples by method and NFE; a method may lack some NFE."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches."""
    from matplotlib.figure import Figure  # half a second to import

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Path, dpi: int = 120) -> None:
    """Write a figure in the format of the file's suffix: .png, .svg or .pdf."""
    with replacing(file) as stream, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name in another script
        # equal axes, and the title of a narrow table, overflow a constrained layout
        figure.savefig(stream, format=file.suffix[1:], dpi=dpi, bbox_inches="tight")


def save_grid(images: Tensor, file: Path, columns: int | None = None) -> None:
    """Write images (N, C, H, W) in [-1, 1] as one PNG, nearly square unless ``columns`` is
    given."""
    from torchvision.utils import make_grid, save_image  # a second to import

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.clamp(-1, 1), nrow=columns, value_range=(-1, 1), normalize=True)
    zoom = max(1, round(MIN_PIXELS / grid.shape[-1]))
    with replacing(file) as stream:
        save_image(grid.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2), stream, "png")


def show_grid(panel: Any, images: Tensor, columns: int | None = None) -> None:
    """Draw images (N, C, H, W) in [-1, 1], nearly square unless ``columns`` is given."""
    from torchvision.utils import make_grid

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.cpu().clamp(-1, 1), nrow=columns, padding=1, pad_value=1.0)
    panel.imshow(((grid.permute(1, 2, 0) + 1) / 2).numpy())
    panel.set(xticks=[], yticks=[], frame_on=False)


def compare_images(images: Tensor, real: Tensor, title: str) -> Any:
    """Draw samples under ``title`` beside real images, each (N, C, H, W) in [-1, 1]."""
    figure = new_figure(8, 0.5 + 4 * images.shape[2] / images.shape[3])
    left, right = figure.subplots(1, 2)
    show_grid(left, images)
    left.set_title(title)
    show_grid(right, real)
    right.set_title("real images")
    return figure


def draw_image_path(samples: Samples) -> Any:
    """Draw the path, a row for each sample and a column for each state, (N, C, H, W) in [-1, 1], at
    most ROWS and COLUMNS of them. A line marks the beginning of the straight flow."""
    columns = chosen_states(samples.marks)
    marks = [samples.marks[column] for column in columns]
    states = torch.stack([samples.path[column][:ROWS] for column in columns], dim=1)
    count, _, _, height, width = states.shape
    figure = new_figure(0.4 + 0.75 * len(columns), 0.5 + 0.75 * count * height / width)
    panel, cell = figure.subplots(), width + 1
    show_grid(panel, states.flatten(0, 1), len(columns))
    panel.set_xticks([(number + 0.5) * cell for number in range(len(columns))], marks)
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for number in range(2, len(marks)):
        if marks[number][0] != marks[number - 1][0]:
            panel.axvline(number * cell, color="tab:red", linewidth=2)
    return figure


def chosen_states(marks: Sequence[str]) -> list[int]:
    """Return the states that are shown: all if they fit, else every few of the last leg."""
    last = [number for number, mark in enumerate(marks) if mark[0] == marks[-1][0]]
    every = math.ceil(len(last) / max(1, COLUMNS - (len(marks) - len(last))))
    return [*range(last[0]), *reversed(last[::-1][::every])]


def draw_points(
    path: list[Tensor], target: Tensor, title: str, axes: tuple[str, ...] | None = None
) -> Any:
    """Draw source, path and samples beside the target, with the same axes. Of points with more
    coordinates the first two are drawn; of points on a line the steps upwards, and histograms.

    Args:
        path: states along the way, each (N, D); only the samples where it has a single one.
        target: samples of mu*, (M, D).
        title: of the left panel.
        axes: names of the coordinates, which then may have different units; None: points in the
            plane.
    """
    figure, on_line = new_figure(11, 5.5), target.shape[1] == 1
    left, right = figure.subplots(1, 2, sharex=True, sharey=not on_line)
    _show_path(left, path)
    if on_line:
        _show_points(right, path[-1], target, "tab:red", "samples")
    _show_points(right, target, target, "tab:green", "target")
    for panel, words in ((left, title), (right, "target")):
        panel.set_title(words)
        panel.legend(loc="upper right")
        if axes or not on_line:
            name_axes(panel, axes)
    if on_line:
        left.set_ylabel("step")
        right.set_ylabel("share")
    return figure


def name_axes(panel: Any, axes: tuple[str, ...] | None) -> None:
    """Label named coordinates, which may have different units; others get the same scale."""
    if axes is None:
        panel.set_aspect("equal")
        return
    more = f" (of {len(axes)} coordinates)" if len(axes) > 2 else ""
    panel.set_xlabel(axes[0][:NAME_LENGTH] + more, parse_math=False)  # a name may have dollars
    panel.set_ylabel("".join(axes[1:2])[:NAME_LENGTH], parse_math=False)


def point_box(*points: Tensor) -> tuple[list[float], list[float]]:
    """Return the lower left and the upper right corner of the box around the first two coordinates
    of points (N, D), without the outermost thousandth, with a margin."""
    values = torch.cat(points)[:, :2]
    low, high = (values.quantile(part, dim=0) for part in (0.001, 0.999))
    margin = 0.05 * (high - low)
    return (low - margin).tolist(), (high + margin).tolist()


def draw_point_table(
    drawn: Drawn, target: Tensor, title: str, axes: tuple[str, ...] | None = None
) -> Any:
    """Draw a table of scatter plots: methods across; below each the path at its smallest NFE, then
    the samples at each NFE. Panels show the box around the source and the target.

    Args:
        drawn: samples with paths of (N, D) states.
        target: samples of mu*, (M, D), shown in a column of their own.
        title: above all.
        axes: names of the coordinates, as of :func:`draw_points`.
    """
    counts, on_line = _all_nfe(drawn), target.shape[1] == 1
    paths = {name: samples[min(samples)].path for name, samples in drawn.items()}
    low, high = point_box(target.cpu(), next(iter(paths.values()))[0].cpu().to(target))
    same_scale = axes is None and not on_line
    shape = (high[1] - low[1]) / (high[0] - low[0]) if same_scale else 1.0
    rows, columns = len(counts) + 1, len(drawn) + 1
    figure, letters = _titled_figure(title, 2.2 * columns, 0.6 + 2.2 * shape * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=not on_line, squeeze=False)
    panels[0][0].set_xlim(low[0], high[0])
    if not on_line:
        panels[0][0].set_ylim(low[1], high[1])
    for number, (name, samples) in enumerate(drawn.items()):
        panels[0][number].set_title(name, **letters)
        _show_path(panels[0][number], [state[:MAX_PATHS].cpu() for state in paths[name]])
        for panel, nfe in zip(panels[1:, number], counts, strict=True):
            if nfe in samples:
                _show_points(panel, samples[nfe].x.cpu(), target, "tab:red")
    panels[0][-1].set_title("target", **letters)
    _show_points(panels[0][-1], target, target, "tab:green")
    row_names = ["path, least NFE", *(f"NFE {nfe}" for nfe in counts)]
    for panel, words in zip(panels[:, 0], row_names, strict=True):
        panel.set_ylabel(words, **letters)
    for panel in panels[1:, -1]:
        panel.set_axis_off()
    for panel in panels.flat if same_scale else ():
        panel.set_aspect("equal")
    return figure


def draw_image_table(drawn: Drawn, target: Tensor, title: str) -> Any:
    """Draw a table of image grids: methods down, NFE across, real images in the last row.

    Args:
        drawn: images (N, C, H, W) in [-1, 1].
        target: real images, (M, C, H, W) in [-1, 1], shared among the columns.
        title: above all.
    """
    counts, rows = _all_nfe(drawn), len(drawn) + 1
    figure, letters = _titled_figure(title, 2.2 * len(counts), 0.2 + 2.2 * rows)
    axes = figure.subplots(rows, len(counts), squeeze=False)
    for panels, (name, samples) in zip(axes, drawn.items(), strict=False):
        panels[0].set_ylabel(name, **letters)
        for panel, nfe in zip(panels, counts, strict=True):
            if nfe in samples:
                show_grid(panel, samples[nfe].x)
            else:
                panel.set(xticks=[], yticks=[], frame_on=False)
    axes[-1][0].set_ylabel("real", **letters)
    for column, nfe, real in zip(axes.T, counts, target.tensor_split(len(counts)), strict=True):
        column[0].set_title(f"NFE {nfe}", **letters)
        show_grid(column[-1], real)
    return figure


def _titled_figure(title: str, width: float, height: float) -> tuple[Any, dict[str, Any]]:
    """Return an empty figure of this height below its title, and the size of its letters."""
    figure, letters = new_figure(width, height + 0.3), {"fontsize": max(MIN_LETTERS, width)}
    figure.suptitle(title, **letters)
    return figure, letters


def _all_nfe(drawn: Drawn) -> list[int]:
    """Return the NFE that at least one method has, in ascending order."""
    return sorted({nfe for samples in drawn.values() for nfe in samples})


def _show_path(panel: Any, path: list[Tensor]) -> None:
    """Draw source, lines and samples of states (N, D); only the samples of a single state. Points
    on a line are drawn above the number of their state."""
    from matplotlib.collections import LineCollection  # a Line2D each takes ten times as long

    if path[0].shape[1] == 1:
        path = [torch.cat([x, torch.full_like(x, step)], 1) for step, x in enumerate(path)]
    states = torch.stack(path, dim=1)[..., :2].numpy()  # (N, states, 2)
    if len(path) > 1:
        lines = LineCollection(list(states[:MAX_PATHS]), colors="0.65", linewidths=0.4, zorder=1)
        panel.add_collection(lines)
        panel.scatter(*states[:, 0].T, s=3, color="tab:blue", label="source", zorder=2)
    panel.scatter(*states[:, -1].T, s=3, color="tab:red", label="samples", zorder=3)


def _show_points(panel: Any, x: Tensor, target: Tensor, color: str, label: str = "") -> None:
    """Draw points (N, D) by their first two coordinates, larger if they have a label; of points on
    a line the share in each of the target's bins."""
    how = {"color": color, "label": label}
    if x.shape[1] > 1:
        panel.scatter(*x[:, :2].numpy().T, s=3 if label else 1, **how)
    else:
        bins = np.histogram_bin_edges(target[:, 0].numpy(), bins=BINS)
        weights = np.full(len(x), 1 / len(x))
        panel.hist(x[:, 0].numpy(), bins=bins, weights=weights, histtype="step", **how)
