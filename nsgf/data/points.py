"""The base class of all data sets, and the 2D sets, which have unlimited draws.

n: number of points; N: number of samples; D: number of coordinates; *shape: shape of one sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import STANDARD, DataConfig, Names, Shape


class Target:
    """The record of a data set. The rest of the package uses only this interface, not the names of
    data sets."""

    name: str
    """``data.name``."""
    shape: Shape
    """Shape of one sample."""
    uses: frozenset[str]
    """Settings of the section ``data`` that have an effect, besides ``name`` and ``source``."""
    sources: Names = (STANDARD,)
    """Allowed values of ``data.source``."""
    unread: frozenset[str] = frozenset()
    """Settings in ``uses`` that have no effect for this kind of file."""
    class_names: Names = ()
    """Names of the K classes that networks get as labels; empty: no labels."""
    label_name: str | None = None
    """Name of the column with the classes of points; None: no classes."""
    is_images: bool = False
    """Whether the samples are images; otherwise they are points."""
    axes: Names | None = None
    """Names of the coordinates of a user's points; None for every other data set."""
    mapped: Path | None = None
    """File that is mapped into memory. If the file becomes shorter, reading beyond its end kills
    the process."""

    @property
    def classes(self) -> int:
        """Number of classes K; 0: networks take no labels."""
        return len(self.class_names)

    def class_number(self, label: str | int | None) -> int | None:
        """Return the number of the class ``label``. ``label`` is the name of a class. If no class
        has a number as its name, ``label`` may also be a number. Return None if the class does not
        exist."""
        labels = [*self.class_names]
        if not any(map(str.isdecimal, labels)):
            labels += map(str, range(self.classes))
        # compare as texts, because YAML reads a name of digits as a number
        return labels.index(str(label)) % self.classes if str(label) in labels else None

    def load(self, config: DataConfig, seed: int, *, held_out: bool = False) -> Tensor | None:
        """Return the samples to train on, or the held-out samples, in the units of the data, (N,
        *shape). Return None for an unlimited set. ``seed``: for fake images. Raise UserError for
        missing or damaged files."""
        return None

    def labels(self, config: DataConfig, count: int, *, held_out: bool = False) -> Tensor:
        """Return the classes of the ``count`` samples of :meth:`load`, int64, (count,). Only sets
        with classes have this method."""
        raise NotImplementedError

    @property
    def log_volume(self) -> float:
        """Logarithm of the factor by which :meth:`in_units` enlarges volumes, without clamping."""
        return 0.0

    def from_units(self, samples: Tensor) -> Tensor:
        """Convert samples in the units of the data to the units of networks.  (N, *shape)"""
        return samples

    def in_units(self, samples: Tensor) -> Tensor:
        """Convert samples of networks to the units of the data, and clamp images to [-1, 1].
        (N, *shape)"""
        return samples


@dataclass(frozen=True)
class PointSet(Target):
    """A distribution of points."""

    name: str
    draw: Callable[[int, torch.Generator], Tensor]
    """(n, generator) -> n independent points, float32, (n, D)."""
    shape: Shape = (2,)
    uses: frozenset[str] = frozenset()
    sources: Names = (STANDARD, "8gaussians")
    log_density: Callable[[Tensor], Tensor] | None = None
    """Points (n, *shape) -> logarithm of the density, (n,); None: there is no formula."""


def gaussian(shape: Shape) -> PointSet:
    """Return the standard Gaussian mu0."""
    return PointSet(
        "gaussian",
        lambda n, generator: torch.randn((n, *shape), generator=generator, dtype=torch.float32),
        shape,
        log_density=log_normal,
    )


def log_normal(x: Tensor) -> Tensor:
    """Return the logarithm of the standard Gaussian's density.  (n, *shape) -> (n,)"""
    rows = x.flatten(1)
    return -(rows.square() + math.log(2 * math.pi)).sum(1) / 2


TIMES = PointSet(
    "times", lambda n, generator: torch.rand(n, generator=generator, dtype=torch.float32), ()
)
"""Times t ~ U[0, 1)."""
INDICES = PointSet(
    "indices", lambda n, generator: torch.randint(2**62, (n,), generator=generator), ()
)
"""Uniform integers in [0, 2^62), for use modulo any N. int64"""


EIGHT_WIDTH = 0.1**0.25
"""Standard deviation of each of the eight Gaussians."""


def eight_gaussians(n: int, generator: torch.Generator) -> Tensor:
    """Draw from torchcfm's eight Gaussians on a circle of radius 5.  (n, 2)

    Each Gaussian has variance sqrt(0.1) = 0.316 in every coordinate, because torchcfm 1.0.7
    computes the square root of the variance 0.1, and then uses this root as a covariance.
    """
    centre = circle_centres(torch.randint(8, (n,), generator=generator).float())
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float32)
    return centre + EIGHT_WIDTH * noise


def circle_centres(number: Tensor) -> Tensor:
    """Return the centres of the Gaussians with these numbers, 0 to 7.  (n,) -> (n, 2)"""
    angle = number * (math.pi / 4)
    return 5.0 * torch.stack([angle.cos(), angle.sin()], dim=1)


def log_eight_gaussians(x: Tensor) -> Tensor:
    """Return the logarithm of the density of :func:`eight_gaussians`.  (n, 2) -> (n,)"""
    centres = circle_centres(torch.arange(8, dtype=x.dtype, device=x.device))
    distances = (x.unsqueeze(1) - centres) / EIGHT_WIDTH  # (n, 8, 2)
    parts = -distances.square().sum(2) / 2
    return parts.logsumexp(1) - math.log(8 * 2 * math.pi * EIGHT_WIDTH**2)


def moons(n: int, generator: torch.Generator) -> Tensor:
    """Draw from torchcfm's two moons: half circles of radius 3, thickened along the diagonal.
    (n, 2)

    torchcfm 1.0.7 takes torchdyn's moons and maps them by 3x - 1. The noise of torchdyn's moons is
    a uniform number in [0, 0.2), which is added to both coordinates of a point.
    """
    angle = math.pi * torch.rand(n, generator=generator, dtype=torch.float32)
    arc = torch.stack([angle.cos(), angle.sin()], dim=1)
    is_lower = torch.randint(2, (n, 1), generator=generator) == 1
    points = torch.where(is_lower, arc.new_tensor([1.0, 0.5]) - arc, arc)
    noise = 0.2 * torch.rand(n, 1, generator=generator, dtype=torch.float32)
    return 3.0 * (points + noise) - 1.0


def scurve(n: int, generator: torch.Generator) -> Tensor:
    """Draw from scikit-learn's S curve with noise 0.05, seen from the side and scaled by 2.  (n,
    2)"""
    from sklearn.datasets import make_s_curve

    points, _ = make_s_curve(n, noise=0.05, random_state=_numpy_seed(generator))
    return torch.from_numpy(points[:, [0, 2]].astype(np.float32)) * 2.0


def checkerboard(n: int, generator: torch.Generator) -> Tensor:
    """Draw uniformly from the eight dark squares of side 2 of a board over [-4, 4]^2.  (n, 2)"""
    column = torch.randint(4, (n,), generator=generator)
    row = 2 * torch.randint(2, (n,), generator=generator) + column % 2
    corner = torch.stack([column, row], dim=1).float() * 2.0 - 4.0
    return corner + 2.0 * torch.rand(n, 2, generator=generator, dtype=torch.float32)


def _numpy_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=generator))


POINT_SETS = (
    PointSet("8gaussians", eight_gaussians, log_density=log_eight_gaussians),
    PointSet("moons", moons),
    PointSet("scurve", scurve),
    PointSet("checkerboard", checkerboard),
)
"""All 2D sets. To add a set, add a function above, a record here, and the name in
config/schema.py."""
