"""Pictures: sample grids, trajectories of images, scatter plots of points.

Figures are made without pyplot, whose backend belongs to whoever imports this package.
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
"""States of a way that are shown side by side."""
FAR = 10
"""Extents of the target, beyond which a point is not drawn: it would leave no room for others."""
BINS = 60
NAME = 40
"""Letters of a coordinate's name that are shown."""
MIN_PIXELS = 600
"""Small images are enlarged until a picture has about this width."""
MIN_LETTERS = 12
"""Points of titles; as many as the inches of a wider figure, which is shown smaller."""
INCH_OF_LETTERS = 120
"""Letters of one point that an inch of a title holds."""


def save_grid(images: Tensor, file: Path, columns: int | None = None) -> None:
    """Images (N, C, H, W) in [-1, 1] as one PNG, nearly square unless ``columns`` is given."""
    from torchvision.utils import make_grid, save_image  # a second to import

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.clamp(-1, 1), nrow=columns, value_range=(-1, 1), normalize=True)
    zoom = max(1, round(MIN_PIXELS / grid.shape[-1]))
    with replacing(file) as stream:
        save_image(grid.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2), stream, "png")


def save_beside(images: Tensor, real: Tensor, file: Path, title: str) -> None:
    """Samples under ``title``, beside as many real images, each (N, C, H, W) in [-1, 1]."""
    figure = new_figure(8, 0.5 + 4 * images.shape[2] / images.shape[3])
    for panel, shown, words in zip(
        figure.subplots(1, 2), (images, real), (title, "real images"), strict=True
    ):
        show_grid(panel, shown)
        panel.set_title(words, fontsize=MIN_LETTERS)
        panel.set_frame_on(False)
    save_figure(figure, file, dpi=120)


def save_image_way(samples: Samples, file: Path, rows: int = 8) -> None:
    """One row per sample, one column per state of the path, each (N, C, H, W) in [-1, 1]: at most
    COLUMNS, of the straight flow not all. A line stands where the straight flow begins.
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
    """Which states are shown: all while there is room, else every few of the last leg's."""
    last = [number for number, mark in enumerate(marks) if mark[0] == marks[-1][0]]
    every = math.ceil(len(last) / max(1, COLUMNS - (len(marks) - len(last))))
    return [*range(last[0]), *reversed(last[::-1][::every])]


def _borders(marks: Sequence[str]) -> list[int]:
    """Columns with which another leg begins, but for the first leg."""
    return [number for number in range(2, len(marks)) if marks[number][0] != marks[number - 1][0]]


def save_points(
    path: list[Tensor], target: Tensor, file: Path, title: str, axes: tuple[str, ...] | None = None
) -> None:
    """Source, trajectories and samples beside the target, same axes: of points in space the first
    two coordinates, of points on a line the steps of the way upwards, and histograms.

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
        both = {"samples": path[-1][:, 0].numpy(), "target": target[:, 0].numpy()}
        _draw_histograms(right, both)
    else:
        right.scatter(*target[:, :2].numpy().T, s=3, color="tab:green", label="target")
    for panel, words in ((left, title), (right, "target")):
        panel.set_title(words)
        panel.legend(loc="upper right")
        name_axes(panel, axes)
    if on_line:
        left.set_ylabel("step")
        right.set_ylabel("share")
    save_figure(figure, file, dpi=120, bbox_inches="tight")


def _in_plane(path: list[Tensor]) -> list[Tensor]:
    """States (N, D) as points to draw, each (N, 2): the first two coordinates, or the only one and
    the number of the state."""
    if path[0].shape[1] > 1:
        return [state[:, :2] for state in path]
    return [
        torch.cat([state, torch.full_like(state, number)], 1) for number, state in enumerate(path)
    ]


def name_axes(panel: Any, axes: tuple[str, ...] | None) -> None:
    """Coordinates with names may have different units; others have the same scale."""
    if axes is None:
        panel.set_aspect("equal")
        return
    more = f" (of {len(axes)} coordinates)" if len(axes) > 2 else ""
    words = [f"{axes[0][:NAME]}{more}", *(name[:NAME] for name in axes[1:2])]
    for set_label, label in zip((panel.set_xlabel, panel.set_ylabel), words, strict=False):
        set_label(label, parse_math=False)  # a name may have dollars


def _draw_histograms(panel: Any, values: dict[str, Any]) -> None:
    """Of the finite values, with the bins of the last ones; y is their share."""
    bins = np.histogram_bin_edges(list(values.values())[-1], bins=BINS)
    colors = {"samples": "tab:red", "target": "tab:green"}
    for name, found in values.items():
        weights = np.full(len(found), 1 / len(found))
        how = {"histtype": "step", "color": colors[name], "label": name}
        panel.hist(found, bins=bins, weights=weights, **how)


def new_figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches."""
    from matplotlib.figure import Figure  # half a second to import

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Path, **how: Any) -> None:
    """As the file's suffix says: .png, .svg or .pdf."""
    with replacing(file) as stream, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name in another script
        figure.savefig(stream, format=file.suffix[1:], **how)


def save_point_table(
    drawn: dict[str, dict[str, Samples]],
    target: Tensor,
    file: Path,
    axes: tuple[str, ...] | None = None,
    title: str = "",
) -> None:
    """Methods across; down: the way at the first setting that all have, then the samples of each.

    Args:
        drawn: by column and row title, with paths of (N, D) states; one column has all rows, and
            one row all columns.
        target: samples of mu*, (M, D), shown in a column of their own.
        file: PNG to write.
        axes: names of the coordinates, as of :func:`save_points`.
        title: above all.
    """
    settings = _settings(drawn)
    common = next(title for title in settings if all(title in found for found in drawn.values()))
    rows, columns = len(settings) + 1, len(drawn) + 1
    drawn = {
        name: {title: _near(found, target) for title, found in samples.items()}
        for name, samples in drawn.items()
    }
    shape = 1.0 if axes else _height_by_width(drawn, target)
    width, on_line = 2.2 * columns, target.shape[1] == 1
    letters = {"fontsize": max(MIN_LETTERS, width)}
    figure = new_figure(width, 0.8 + 2.2 * shape * rows)
    figure.suptitle(title, **letters)
    panels = figure.subplots(rows, columns, sharex=True, sharey=not on_line, squeeze=False)
    for number, (name, samples) in enumerate(drawn.items()):
        panels[0][number].set_title(name, **letters)
        _show_way(panels[0][number], _in_plane(samples[common].path))
        for panel, setting in zip(panels[1:, number], settings, strict=True):
            if setting in samples:
                _show_points(panel, samples[setting].x, target, "tab:red")
    panels[0][-1].set_title("target", **letters)
    _show_points(panels[0][-1], target, target, "tab:green")
    for panel, words in zip(panels[:, 0], [f"way, {common}", *settings], strict=True):
        panel.set_ylabel(words, **letters)
    for panel in panels[1:, -1]:
        panel.set_axis_off()
    for panel in panels.flat:
        if axes is None:
            panel.set_aspect("equal")
    for panel in panels[-1][:-1]:
        panel.set_xlabel(
            ", ".join(name[:NAME] for name in axes or ())[: 2 * NAME], parse_math=False
        )
    save_figure(figure, file, dpi=80)


def _height_by_width(drawn: dict[str, dict[str, Samples]], target: Tensor) -> float:
    """Of all points of the plane."""
    states = [state for found in drawn.values() for s in found.values() for state in s.path]
    points = torch.cat([*states, target])
    points = points[points.isfinite().all(1)]
    width, height = (points.amax(0) - points.amin(0)).tolist()
    return float(height / width)


def _show_points(panel: Any, x: Tensor, target: Tensor, color: str) -> None:
    """Points (N, D) by their first two coordinates; on a line as a histogram."""
    if x.shape[1] > 1:
        panel.scatter(*x[:, :2].numpy().T, s=1, color=color)
    else:
        bins = np.histogram_bin_edges(target[:, 0].numpy(), bins=BINS)
        panel.hist(x[:, 0].numpy(), bins=bins, histtype="step", color=color)


def _settings(drawn: dict[str, dict[str, Samples]]) -> list[str]:
    """Titles of all settings, in their order, from the method that has them all."""
    fullest = max(drawn.values(), key=len)
    return list(fullest)


def _near(found: Samples, target: Tensor) -> Samples:
    """The samples on the CPU; those that ran away become nan, which is not drawn."""
    reach = FAR * float(target.abs().max())

    def near(x: Tensor) -> Tensor:
        x = x.cpu()
        return torch.where(x.abs().amax(1, keepdim=True) <= reach, x, torch.nan)

    return replace(found, x=near(found.x), path=[near(state) for state in found.path])


def _show_way(panel: Any, path: list[Tensor]) -> None:
    """Source, trajectories and samples; states (N, 2)."""
    states = torch.stack(path, dim=1).numpy()  # (N, steps + 1, 2)
    few = states[:MAX_PATHS]
    _draw_lines(panel, few)
    panel.scatter(*few[:, 0].T, s=2, color="tab:blue", zorder=2)
    panel.scatter(*few[:, -1].T, s=2, color="tab:red", zorder=3)


def _draw_lines(panel: Any, lines: Any) -> None:
    """Trajectories, (N, states, 2), behind the points."""
    from matplotlib.collections import LineCollection  # a Line2D each takes ten times as long

    panel.add_collection(LineCollection(lines, colors="0.65", linewidths=0.4, zorder=1))


def save_image_table(
    drawn: dict[str, dict[str, Samples]], target: Tensor, file: Path, title: str = ""
) -> None:
    """Methods down, settings across, a grid of samples in each place; real images below each.

    Args:
        drawn: by row and column title, images (N, C, H, W) in [-1, 1]; one row has all columns.
        target: real images, (M, C, H, W) in [-1, 1], shared among the columns.
        file: PNG to write.
        title: above all.
    """
    settings = _settings(drawn)
    width = 2.2 * len(settings)
    letters = {"fontsize": max(MIN_LETTERS, width)}
    fitting = int(INCH_OF_LETTERS * width / letters["fontsize"])
    lines = textwrap.wrap(title, max(10, fitting))
    figure = new_figure(width, 0.2 + 0.2 * len(lines) + 2.2 * (len(drawn) + 1))
    figure.suptitle("\n".join(lines), **letters)
    axes = figure.subplots(len(drawn) + 1, len(settings), squeeze=False)
    for panels, (name, samples) in zip(axes, drawn.items(), strict=False):
        panels[0].set_ylabel(name, **letters)
        for panel, setting in zip(panels, settings, strict=True):
            if setting in samples:
                show_grid(panel, samples[setting].x)
            else:
                panel.set(xticks=[], yticks=[], frame_on=False)
    axes[-1][0].set_ylabel("real", **letters)
    for panel, real in zip(axes[-1], target.tensor_split(len(settings)), strict=True):
        show_grid(panel, real)
    for panel, setting in zip(axes[0], settings, strict=True):
        panel.set_title(setting, **letters)
    save_figure(figure, file, dpi=100)


def show_grid(panel: Any, images: Tensor, columns: int | None = None) -> None:
    """Images (N, C, H, W) in [-1, 1], nearly square unless ``columns`` is given."""
    from torchvision.utils import make_grid

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.cpu().clamp(-1, 1), nrow=columns, padding=1, pad_value=1.0)
    panel.imshow(((grid.permute(1, 2, 0) + 1) / 2).numpy())
    panel.set_xticks([])
    panel.set_yticks([])
