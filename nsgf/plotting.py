"""Pictures: sample grids, trajectories of images, scatter plots of points."""

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed or wanted

import matplotlib.pyplot as plt
import torch
from torch import Tensor

MAX_PATHS = 256
MIN_PIXELS = 600
"""Small images are enlarged until a picture has about this width."""


def save_grid(images: Tensor, file: Path, columns: int | None = None) -> None:
    """Images (N, C, H, W) in [-1, 1] as one PNG, nearly square unless ``columns`` is given."""
    from torchvision.utils import make_grid, save_image  # a second to import

    columns = columns or math.ceil(math.sqrt(len(images)))
    grid = make_grid(images.clamp(-1, 1), nrow=columns, value_range=(-1, 1), normalize=True)
    zoom = max(1, round(MIN_PIXELS / grid.shape[-1]))
    save_image(grid.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2), str(file))


def save_image_path(path: list[Tensor], file: Path, rows: int = 8) -> None:
    """One row per sample, one column per state along the way.

    Args:
        path: states, each (N, C, H, W) in [-1, 1].
        file: PNG to write.
        rows: samples shown.
    """
    rows = min(rows, len(path[0]))
    columns = torch.stack([state[:rows] for state in path], dim=1)
    save_grid(columns.flatten(0, 1), file, columns=len(path))


def save_point_path(path: list[Tensor], target: Tensor, file: Path, title: str) -> None:
    """Source, trajectories and samples beside the target, same axes.

    Args:
        path: states along the way, each (N, 2).
        target: samples of mu*, (M, 2).
        file: PNG to write.
        title: above the left panel.
    """
    states = torch.stack(path, dim=1).numpy()  # (N, steps + 1, 2)
    figure, (left, right) = _two_panels()
    for line in states[:MAX_PATHS]:
        left.plot(line[:, 0], line[:, 1], color="0.75", linewidth=0.5, zorder=1)
    left.scatter(*states[:, 0].T, s=3, color="tab:blue", label="source", zorder=2)
    left.scatter(*states[:, -1].T, s=3, color="tab:red", label="samples", zorder=3)
    left.legend(loc="upper right")
    _save_beside_target(figure, left, right, target, file, title)


def save_scatter(samples: Tensor, target: Tensor, file: Path, title: str) -> None:
    """Samples beside the target, same axes.

    Args:
        samples: (N, 2).
        target: samples of mu*, (M, 2).
        file: PNG to write.
        title: above the left panel.
    """
    figure, (left, right) = _two_panels()
    left.scatter(*samples.numpy().T, s=3, color="tab:red", label="samples")
    left.legend(loc="upper right")
    _save_beside_target(figure, left, right, target, file, title)


def _two_panels() -> Any:
    return plt.subplots(1, 2, figsize=(11, 5.5), sharex=True, sharey=True, layout="constrained")


def _save_beside_target(
    figure: Any, left: Any, right: Any, target: Tensor, file: Path, title: str
) -> None:
    left.set_title(title)
    right.scatter(*target.numpy().T, s=3, color="tab:green", label="target")
    right.set_title("target")
    right.legend(loc="upper right")
    left.set_aspect("equal")
    right.set_aspect("equal")
    figure.savefig(file, dpi=120, bbox_inches="tight")
    plt.close(figure)
