"""The figures of a report. Functions whose names begin with draw return a matplotlib figure.

N: number of samples; C: channels; H x W: pixels.
"""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional

from nsgf.config.schema import Names
from nsgf.plots.samples import join_images, name_axes, new_figure, point_box
from nsgf.sampling.sampler import Samples
from nsgf.system.files import replacing

LARGE_RANGE = 5
"""Ratio of largest to smallest value above which an axis is logarithmic."""
FEW_POINTS = 50
"""Number of points below which a curve has markers, because a single point has no line."""
ARROWS = 128
"""Largest number of arrows of a field."""
FRAME = 250
PAUSE = 1500
"""Durations of a frame of an animation, and of the first and the last frame, in milliseconds."""
FRAMES = 40
"""Largest number of states of an animation."""
WIDTH = 480
"""Approximate width of an animation in pixels. Images are enlarged or reduced to this width."""
MAX_BYTES = 1_000_000
"""Size in bytes up to which an animation keeps all colours and frames."""

Curve = list[tuple[int, float, float]]
"""Step, loss and gradient norm of each logged update of a phase."""
Field = tuple[str, Tensor, Tensor, Tensor]
"""Title, points, velocities of the network and velocities of the flow at one time. All arrays are
(N, 2), in the units of the data."""


def draw_curves(curves: Mapping[str, Curve]) -> Any:
    """Draw loss and gradient norm over the updates, with a column for each title."""
    figure = new_figure(3.4 * len(curves), 5)
    axes = figure.subplots(2, len(curves), squeeze=False)
    for column, (title, curve) in zip(axes.T, curves.items(), strict=True):
        steps, losses, norms = zip(*curve, strict=True)
        marker = "." if len(steps) < FEW_POINTS else None
        for panel, values in zip(column, (losses, norms), strict=True):
            panel.plot(steps, values, linewidth=1, marker=marker, color="tab:blue")
            panel.grid(alpha=0.3)
            choose_scale(panel, values)
            panel.set(title=title, xlabel="updates")
        column[0].set_ylabel("loss")
        column[1].set_ylabel("norm of the gradient")
    return figure


def choose_scale(panel: Any, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, with plain numbers, if its values are positive and have a
    large range."""
    from matplotlib.ticker import LogLocator, NullLocator

    if values and min(values) > 0 and max(values) > LARGE_RANGE * min(values):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())


def draw_entry_times(tau: Tensor) -> Any:
    """Draw the distribution of the times tau (N,) at which samples enter the straight flow."""
    figure = new_figure(5, 2.8)
    panel = figure.subplots()
    panel.hist(tau.numpy(), bins=40, range=(0, 1), color="tab:blue")
    panel.axvline(tau.mean().item(), color="tab:red", label=f"mean {tau.mean():.3f}")
    panel.set(xlabel="tau: where on the straight flow a sample enters", ylabel="samples")
    panel.legend()
    return figure


def draw_fields(fields: Sequence[Field], axes: tuple[str, ...] | None) -> Any:
    """Draw the learned velocity and the velocity of the flow, one panel for each time. ``axes``:
    names of the coordinates."""
    figure = new_figure(4 * len(fields), 4.4)
    panels = figure.subplots(1, len(fields), squeeze=False, sharex=True, sharey=True)[0]
    for panel, (title, x, learned, sinkhorn) in zip(panels, fields, strict=True):
        _show_arrows(panel, x, sinkhorn, "0.6", "flow")
        _show_arrows(panel, x, learned, "tab:red", "network")
        panel.set_title(title)
        name_axes(panel, axes)
        panel.tick_params(labelleft=True)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _show_arrows(panel: Any, x: Tensor, velocity: Tensor, color: str, label: str = "") -> None:
    """Draw velocities (N, 2) as arrows from points x (N, 2), with lengths in units of the axes."""
    x = x[:ARROWS]
    velocity = velocity[:ARROWS]
    panel.quiver(
        *x.T.numpy(),
        *velocity.T.numpy(),
        color=color,
        label=label,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.003,
    )
    panel.update_datalim((x + velocity).numpy())
    panel.autoscale_view()


def save_animation(samples: Samples, file: Path, axes: Names | None = None) -> None:
    """Write an animation with a frame for each state of ``samples.path``. The file's suffix selects
    GIF or WebP.

    Images (N, C, H, W) form a grid. Points (N, D) are drawn by their first two coordinates; in the
    plane, arrows show the next step. ``axes``: names of the coordinates. If the file would be
    larger than MAX_BYTES, reduce the colours, then the frames.
    """
    from PIL import Image

    last = len(samples.path) - 1
    frames = []
    for state in [*range(0, last, math.ceil(last / FRAMES) or 1), last]:
        if samples.path[state].ndim == 4:
            figure = _draw_image_state(samples.path[state], samples.marks[state])
        else:
            figure = _draw_point_state(samples, state, axes)
        figure.savefig(stream := BytesIO(), format="png", dpi=100)
        frames.append(Image.open(stream).convert("RGB"))
    content = _encode_frames(frames, file.suffix[1:])
    with replacing(file) as target:
        target.write(content)


def _draw_image_state(x: Tensor, title: str) -> Any:
    """Draw images (N, C, H, W) as a frame of an animation. Small images are enlarged by a whole
    factor. Large images are reduced."""
    from matplotlib.figure import Figure

    columns = math.ceil(len(x) / max(1, math.isqrt(len(x) // 2)))
    if (smaller := WIDTH / columns / x.shape[3]) < 1:
        size = [max(1, int(side * smaller)) for side in x.shape[2:]]
        x = functional.interpolate(x, size, mode="area")
    grid = join_images(x, columns, WIDTH)
    figure = Figure((grid.shape[1] / 100, grid.shape[0] / 100 + 0.3), dpi=100)
    figure.figimage(grid, origin="upper")
    figure.suptitle(title, y=1 - 0.15 / figure.get_figheight(), va="center")
    return figure


def _draw_point_state(samples: Samples, state: int, axes: Names | None) -> Any:
    """Draw the points (N, D) of a state of ``samples.path`` as a frame of an animation. All frames
    have the same limits of the axes."""
    x = samples.path[state]
    low, high, shape = point_box(*samples.path)
    shape = 1.0 if axes else min(2.0, max(0.5, shape))
    figure = new_figure(5, 0.6 + 4.4 * shape)
    panel = figure.subplots()
    if state < len(samples.path) - 1 and x.shape[1] == 2:
        _show_arrows(panel, x, samples.path[state + 1] - x, "0.5")
    panel.scatter(*x[:, :2].T.numpy(), s=2, color="tab:red")
    panel.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    figure.suptitle(samples.marks[state])
    name_axes(panel, axes)
    if axes is None:
        panel.set(xticks=[], yticks=[])
    return figure


def _encode_frames(frames: list[Any], kind: str) -> bytes:
    """Return the frames, PIL images, as the content of a ``gif`` or ``webp`` file. Reduce colours
    and frames until the content is smaller than MAX_BYTES."""
    colors = 256
    while True:
        first, *following = (f.quantize(colors) if kind == "gif" else f for f in frames)
        first.save(
            stream := BytesIO(),
            kind,
            save_all=True,
            append_images=following,
            duration=[PAUSE, *[FRAME] * (len(frames) - 2), PAUSE][: len(frames)],
            loop=0,
        )
        if stream.tell() < MAX_BYTES or len(frames) < 3:
            return stream.getvalue()
        if kind == "gif" and colors > 16:
            colors //= 4
        else:
            frames = [*frames[:-1:2], frames[-1]]
