"""The figures of a report. Each function returns a matplotlib figure.

Shapes: N samples, C channels, H x W pixels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsgf.plots.samples import new_figure, show_grid

ARROWS = 256
"""Largest number of arrows of a field."""


class Curve(NamedTuple):
    """Loss and gradient norm of a phase; the three lists have the same length."""

    phase: str
    steps: list[int]
    loss: list[float]
    grad_norm: list[float]


class Field(NamedTuple):
    """Velocities at the same points and time."""

    title: str
    x: Tensor
    """(N, 2)"""
    learned: Tensor
    """Velocities of the network, (N, 2)."""
    sinkhorn: Tensor
    """Velocities of the Sinkhorn flow, (N, 2)."""


def curve_figure(curves: Sequence[Curve]) -> Any:
    """Draw loss and gradient norm over the updates, a column for each phase."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    figure = new_figure(3.2 * len(curves) + 0.6, 4.4)
    axes = figure.subplots(2, len(curves), squeeze=False, sharex="col")
    for column, curve in zip(axes.T, curves, strict=True):
        for panel, values in zip(column, (curve.loss, curve.grad_norm), strict=True):
            panel.plot(curve.steps, values, linewidth=1, color="tab:blue")
            panel.grid(alpha=0.3)
            if min(values) > 0:
                panel.set_yscale("log")
                plain, none = StrMethodFormatter("{x:g}"), NullFormatter()
                panel.yaxis.set_major_formatter(plain)
                # within a decade no power of ten has a label of its own
                panel.yaxis.set_minor_formatter(plain if max(values) < 10 * min(values) else none)
        column[0].set_title(curve.phase)
        column[1].set_xlabel("updates")
    axes[0][0].set_ylabel("loss (mean square)")
    axes[1][0].set_ylabel("norm of the gradient")
    return figure


def entry_figure(tau: Tensor) -> Any:
    """Draw the distribution of the times tau (N,) at which samples enter the straight flow."""
    figure = new_figure(5, 2.8)
    panel = figure.subplots()
    panel.hist(tau.numpy(), bins=40, range=(0, 1), color="tab:blue")
    panel.axvline(float(tau.mean()), color="tab:red", label=f"mean {float(tau.mean()):.3f}")
    panel.set(xlabel="tau: where on the straight flow a sample enters", ylabel="samples")
    panel.legend()
    return figure


def neighbour_figure(samples: Tensor, nearest: Tensor) -> Any:
    """Draw samples above their nearest training images, both (N, C, H, W) in [-1, 1]."""
    count, _, height, width = samples.shape
    figure = new_figure(0.9 + 0.7 * count, 0.5 + 1.4 * height / width)
    panel = figure.subplots()
    show_grid(panel, torch.cat([samples, nearest]), count)
    cell = height + 1
    panel.set_yticks([cell / 2, 1.5 * cell], ["sample", "nearest"])
    panel.tick_params(length=0)
    panel.set_frame_on(False)
    return figure


def field_figure(fields: Sequence[Field]) -> Any:
    """Draw the learned velocity on top of the Sinkhorn flow's."""
    figure = new_figure(4 * len(fields), 4.4)
    axes = figure.subplots(1, len(fields), squeeze=False, sharex=True, sharey=True)[0]
    for panel, (title, x, learned, sinkhorn) in zip(axes, fields, strict=True):
        for velocity, color, name in (
            (sinkhorn, "0.6", "Sinkhorn flow"),
            (learned, "tab:red", "network"),
        ):
            arrows = (*x[:ARROWS].T.numpy(), *velocity[:ARROWS].T.numpy())
            # in units of the axes, so that lengths of both compare
            how = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.003}
            panel.quiver(*arrows, color=color, label=name, **how)
        panel.set_title(title)
        panel.set_aspect("equal")
        panel.margins(0.15)
    axes[0].legend(loc="upper right")
    return figure
