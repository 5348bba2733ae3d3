"""Pictures: sample grids, trajectories of images, scatter plots of points.

Figures are made without pyplot, so that the caller's backend stays as it is.
"""

import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.run.folder import replacing
from nsgf.sampling.sampler import Samples

MAX_PATHS = 256
COLUMNS = 16
"""Largest number of states of a path side by side."""
FAR = 10
"""Multiple of the target's extent beyond which points are not drawn."""
BINS = 60
NAME = 40
"""Letters of a coordinate's name that are shown."""
MIN_PIXELS = 600
"""Small images are enlarged until a picture has about this width."""
MIN_LETTERS = 12
"""Smallest font size; a wide figure, which is shown smaller, has larger letters."""
INCH_OF_LETTERS = 120
"""Letters of font size 1 in an inch of a title."""


def save_grid(images: Tensor, file: Path, columns: int | None = None) -> None:
    """Write images (N, C, H, W) in [-1, 1] as one PNG, nearly square unless ``columns`` is
    given."""
    from torchvision.utils import make_grid, save_image  # a second to import

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.clamp(-1, 1), nrow=columns, value_range=(-1, 1), normalize=True)
    zoom = max(1, round(MIN_PIXELS / grid.shape[-1]))
    with replacing(file) as stream:
        save_image(grid.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2), stream, "png")


def save_beside(images: Tensor, real: Tensor, file: Path, title: str) -> None:
    """Write samples under ``title`` beside as many real images, each (N, C, H, W) in [-1, 1]."""
    figure = new_figure(8, 0.5 + 4 * images.shape[2] / images.shape[3])
    for panel, shown, words in zip(
        figure.subplots(1, 2), (images, real), (title, "real images"), strict=True
    ):
        show_grid(panel, shown)
        panel.set_title(words, fontsize=MIN_LETTERS)
        panel.set_frame_on(False)
    save_figure(figure, file, dpi=120)


def save_image_way(samples: Samples, file: Path, rows: int = 8) -> None:
    """Write a picture of the path, a row for each sample and a column for each state, (N, C, H, W)
    in [-1, 1]. There are at most COLUMNS columns. A line marks the beginning of the straight flow.
    """
    columns = _chosen(samples.marks)
    marks = [samples.marks[column] for column in columns]
    states = torch.stack([samples.path[column][:rows] for column in columns], dim=1)
    count, _, _, height, width = states.shape
    figure = new_figure(0.4 + 0.75 * len(columns), 0.5 + 0.75 * count * height / width)
    panel = figure.subplots()
    show_grid(panel, states.flatten(0, 1), len(columns))
    cell = width + 1
    panel.set_xticks([(number + 0.5) * cell for number in range(len(columns))], marks)
    panel.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for edge in _borders(marks):
        panel.axvline(edge * cell, color="tab:red", linewidth=2)
    panel.set_frame_on(False)
    save_figure(figure, file, dpi=120)


def _chosen(marks: Sequence[str]) -> list[int]:
    """Return the states that are shown: all if they fit, else every few of the last leg."""
    last = [number for number, mark in enumerate(marks) if mark[0] == marks[-1][0]]
    every = math.ceil(len(last) / max(1, COLUMNS - (len(marks) - len(last))))
    return [*range(last[0]), *reversed(last[::-1][::every])]


def _borders(marks: Sequence[str]) -> list[int]:
    """Return the columns at which a leg begins, except for the first leg."""
    return [number for number in range(2, len(marks)) if marks[number][0] != marks[number - 1][0]]


def save_points(
    path: list[Tensor], target: Tensor, file: Path, title: str, axes: tuple[str, ...] | None = None
) -> None:
    """Write source, trajectories and samples beside the target, with the same axes. Of points in
    more dimensions the first two are drawn; of points on a line the steps upwards, and histograms.

    Args:
        path: states along the way, each (N, D); of the samples alone where it has a single one.
        target: samples of mu*, (M, D).
        file: PNG to write.
        title: of the left panel.
        axes: names of the coordinates, which then may have different units; None: points in the
            plane.
    """
    figure, on_line = new_figure(11, 5.5), target.shape[1] == 1
    left, right = figure.subplots(1, 2, sharex=True, sharey=not on_line)
    states = torch.stack(_in_plane(path), dim=1).numpy()  # (N, steps + 1, 2)
    if len(path) > 1:
        _draw_lines(left, states[:MAX_PATHS])
        left.scatter(*states[:, 0].T, s=3, color="tab:blue", label="source", zorder=2)
    left.scatter(*states[:, -1].T, s=3, color="tab:red", label="samples", zorder=3)
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
    save_figure(figure, file, dpi=120, bbox_inches="tight")


def _in_plane(path: list[Tensor]) -> list[Tensor]:
    """Return states (N, D) as points (N, 2): the first two coordinates, or the only one and the
    number of the state."""
    if path[0].shape[1] > 1:
        return [state[:, :2] for state in path]
    return [
        torch.cat([state, torch.full_like(state, number)], 1) for number, state in enumerate(path)
    ]


def name_axes(panel: Any, axes: tuple[str, ...] | None) -> None:
    """Label named coordinates, which may have different units; others get the same scale."""
    if axes is None:
        panel.set_aspect("equal")
        return
    more = f" (of {len(axes)} coordinates)" if len(axes) > 2 else ""
    words = [f"{axes[0][:NAME]}{more}", *(name[:NAME] for name in axes[1:2])]
    for set_label, label in zip((panel.set_xlabel, panel.set_ylabel), words, strict=False):
        set_label(label, parse_math=False)  # a name may have dollars


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches."""
    from matplotlib.figure import Figure  # half a second to import

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Path, **how: Any) -> None:
    """Write a figure in the format of the file's suffix: .png, .svg or .pdf."""
    with replacing(file) as stream, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name in another script
        figure.savefig(stream, format=file.suffix[1:], **how)


def save_point_table(
    drawn: dict[str, dict[int, Samples]],
    target: Tensor,
    file: Path,
    axes: tuple[str, ...] | None = None,
    title: str = "",
) -> None:
    """Write a table of scatter plots: methods across; below each the path, then the samples at each
    NFE. The path is drawn at the smallest NFE that all methods have, or else at each one's
    smallest.

    Args:
        drawn: by method and NFE, with paths of (N, D) states; a method may lack some NFE.
        target: samples of mu*, (M, D), shown in a column of their own.
        file: PNG to write.
        axes: names of the coordinates, as of :func:`save_points`.
        title: above all.
    """
    counts, on_line = _all_nfe(drawn), target.shape[1] == 1
    common = next((nfe for nfe in counts if all(nfe in found for found in drawn.values())), None)
    rows, columns = len(counts) + 1, len(drawn) + 1
    drawn = {
        name: {nfe: _near(found, target) for nfe, found in samples.items()}
        for name, samples in drawn.items()
    }
    same_scale = axes is None and not on_line
    shape = _height_by_width(drawn, target) if same_scale else 1.0
    figure, letters = _titled_figure(title, 2.2 * columns, 0.6 + 2.2 * shape * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=not on_line, squeeze=False)
    for number, (name, samples) in enumerate(drawn.items()):
        panels[0][number].set_title(name, **letters)
        way = samples[min(samples) if common is None else common]
        _show_way(panels[0][number], _in_plane(way.path))
        for panel, nfe in zip(panels[1:, number], counts, strict=True):
            if nfe in samples:
                _show_points(panel, samples[nfe].x, target, "tab:red")
    panels[0][-1].set_title("target", **letters)
    _show_points(panels[0][-1], target, target, "tab:green")
    way_words = "way, least NFE" if common is None else f"way, NFE {common}"
    for panel, words in zip(panels[:, 0], [way_words, *map("NFE {}".format, counts)], strict=True):
        panel.set_ylabel(words, **letters)
    for panel in panels[1:, -1]:
        panel.set_axis_off()
    for panel in panels.flat:
        if same_scale:
            panel.set_aspect("equal")
    words = ", ".join(name[:NAME] for name in axes or ())[: 2 * NAME]
    for panel in panels[-1][:-1]:
        panel.set_xlabel(words, parse_math=False)
    save_figure(figure, file, dpi=80)


def _titled_figure(title: str, width: float, height: float) -> tuple[Any, dict[str, Any]]:
    """Return an empty figure of this height below its title, and the size of its letters."""
    size = max(MIN_LETTERS, width)
    lines = textwrap.wrap(title, int(INCH_OF_LETTERS * width / size))
    figure = new_figure(width, height + 0.2 * len(lines))
    figure.suptitle("\n".join(lines), fontsize=size)
    return figure, {"fontsize": size}


def _height_by_width(drawn: dict[str, dict[int, Samples]], target: Tensor) -> float:
    """Return height by width of the box around all points in their first two coordinates."""
    states = [state for found in drawn.values() for s in found.values() for state in s.path]
    points = torch.cat([*states, target])[:, :2]
    points = points[points.isfinite().all(1)]
    width, height = (points.amax(0) - points.amin(0)).tolist()
    return float(height / width)


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


def _all_nfe(drawn: dict[str, dict[int, Samples]]) -> list[int]:
    """Return the NFE that at least one method has, in ascending order."""
    return sorted({nfe for samples in drawn.values() for nfe in samples})


def _near(found: Samples, target: Tensor) -> Samples:
    """Return the samples on the CPU; those far from the target become nan, which is not drawn."""
    reach = FAR * float(target.abs().max())

    def near(x: Tensor) -> Tensor:
        x = x.cpu()
        return torch.where(x.abs().amax(1, keepdim=True) <= reach, x, torch.nan)

    return replace(found, x=near(found.x), path=[near(state) for state in found.path])


def _show_way(panel: Any, path: list[Tensor]) -> None:
    """Draw source, trajectories and samples of states (N, 2)."""
    states = torch.stack(path, dim=1).numpy()  # (N, steps + 1, 2)
    few = states[:MAX_PATHS]
    _draw_lines(panel, few)
    panel.scatter(*few[:, 0].T, s=2, color="tab:blue", zorder=2)
    panel.scatter(*few[:, -1].T, s=2, color="tab:red", zorder=3)


def _draw_lines(panel: Any, lines: Any) -> None:
    """Draw trajectories (N, states, 2) behind the points."""
    from matplotlib.collections import LineCollection  # a Line2D each takes ten times as long

    panel.add_collection(LineCollection(lines, colors="0.65", linewidths=0.4, zorder=1))


def save_image_table(
    drawn: dict[str, dict[int, Samples]], target: Tensor, file: Path, title: str = ""
) -> None:
    """Write a table of image grids: methods down, NFE across, real images in the last row.

    Args:
        drawn: by method and NFE, images (N, C, H, W) in [-1, 1]; a method may lack some NFE.
        target: real images, (M, C, H, W) in [-1, 1], shared among the columns.
        file: PNG to write.
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
    save_figure(figure, file, dpi=100)


def show_grid(panel: Any, images: Tensor, columns: int | None = None) -> None:
    """Draw images (N, C, H, W) in [-1, 1], nearly square unless ``columns`` is given."""
    from torchvision.utils import make_grid

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.cpu().clamp(-1, 1), nrow=columns, padding=1, pad_value=1.0)
    panel.imshow(((grid.permute(1, 2, 0) + 1) / 2).numpy())
    panel.set_xticks([])
    panel.set_yticks([])
