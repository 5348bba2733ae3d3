"""The path of samples as an animated GIF.

Shapes: N samples, C channels, H x W pixels.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.plots.samples import name_axes, new_figure, show_grid
from nsgf.run.folder import replacing
from nsgf.sampling.sampler import Samples

FRAME, PAUSE = 250, 1500
"""Milliseconds that a state is shown, and the first and the last one."""
FRAMES = 40
"""Largest number of states that are shown."""
ARROWS = 400


def save_way(samples: Samples, file: Path, axes: tuple[str, ...] | None = None) -> None:
    """Write an animation with a frame for each state of ``samples.path``: images (N, C, H, W), or
    points (N, 2) with the arrows of the next step. ``axes``: as of
    :func:`nsgf.plots.samples.save_points`."""
    from PIL import Image

    last = len(samples.path) - 1
    every = math.ceil(last / FRAMES) if last else 1
    chosen = [*range(0, last, every), last]
    draw = partial(_points, axes) if samples.x.ndim == 2 else _images
    frames = [Image.fromarray(_rgb(draw(samples, state))) for state in chosen]
    times = [PAUSE, *[FRAME] * (len(frames) - 2), PAUSE][: len(frames)]
    with replacing(file) as stream:
        frames[0].save(
            stream, "gif", save_all=True, append_images=frames[1:], duration=times, loop=0
        )


def _rgb(figure: Any) -> np.ndarray:
    """Return the pixels of a figure, uint8, (H, W, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _images(samples: Samples, state: int) -> Any:
    x = samples.path[state]
    rows = max(1, math.isqrt(len(x) // 2))
    columns = math.ceil(len(x) / rows)
    figure = new_figure(4.5, 0.4 + 4.5 * rows * x.shape[2] / (columns * x.shape[3]))
    panel = figure.subplots()
    show_grid(panel, x, columns)
    panel.set_title(samples.marks[state])
    panel.set_frame_on(False)
    return figure


def _points(axes: tuple[str, ...] | None, samples: Samples, state: int) -> Any:
    x = samples.path[state]
    low, high = _reach(samples.path)
    shape = 1.0 if axes else (high[1] - low[1]) / max(high[0] - low[0], 1e-9)
    figure = new_figure(5, 0.6 + 4.4 * min(2.0, max(0.5, shape)))
    panel = figure.subplots()
    if state + 1 < len(samples.path):
        step = samples.path[state + 1] - x
        arrows = (*x[:ARROWS].T.numpy(), *step[:ARROWS].T.numpy())
        how = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.002}
        panel.quiver(*arrows, color="0.5", **how)
    panel.scatter(*x.T.numpy(), s=2, color="tab:red")
    panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), title=samples.marks[state])
    name_axes(panel, axes)
    return figure


def _reach(path: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Return the corners of the box around all states, without the outermost thousandth."""
    points = torch.cat(list(path))
    low, high = (points.quantile(part, dim=0) for part in (0.001, 0.999))
    margin = 0.05 * (high - low)
    return (low - margin).tolist(), (high + margin).tolist()
