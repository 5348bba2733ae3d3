"""Value and velocity of unusual clouds at small and large blurs: within 1 % of float64, or refused.

Blurs are in units of the diagonal of the box around both clouds.
"""

import pytest
import torch

from nsgf import UserError, sinkhorn_divergence, sinkhorn_velocity
from tests.sinkhorn import reference
from tests.sinkhorn.reference import relative_error

BLURS = [0.01, 0.03, 0.1, 0.3, 1.0, 9.0, 30.0]
LARGEST = 10.0
ALMOST_EQUAL = ["equal", "moved-by-a-thousandth", "moved-by-a-hundredth"]
"""Geometries with so small a velocity or value that rounding counts: errors may be absolute."""


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clusters(left, right, seed):
    """Two small clusters on a line, far apart."""
    points = 0.1 * noise(left + right, 2, seed=seed)
    points[:, 0] += torch.tensor([-5.0] * left + [5.0] * right)
    return points


def eight_clusters(n, seed):
    """A sample of eight Gaussians on a circle."""
    rng = torch.Generator().manual_seed(seed)
    angle = torch.randint(8, (n,), generator=rng) * (torch.pi / 4)
    return 5 * torch.stack([angle.cos(), angle.sin()], 1) + 0.3 * noise(n, 2, seed=10 + seed)


def geometries():
    x, y = noise(12, 2), noise(12, 2, seed=1)
    outlier = torch.cat([x[:11], torch.full((1, 2), 1000.0)])
    wide = noise(12, 784)
    thin = torch.tensor([1.0, 1e-4])
    signs = [noise(12, 64, seed=seed).sign() for seed in (0, 1)]
    return {
        "same-law": (x, y),
        "far-apart": (x, y + 100),
        "translated": (x, x + torch.tensor([1.5, -2.0])),
        "moved-by-a-hundredth": (x, x + 0.01 * y),
        "moved-by-a-thousandth": (x, x + 0.001 * y),
        "equal": (x, x),
        "single-points": (x[:1], y[:1]),
        "one-to-many": (x[:1], y),
        "many-to-one": (x, y[:1]),
        "few-to-many": (noise(3, 2), noise(40, 2, seed=1)),
        "repeated-particles": (x[:4].repeat(3, 1), y),
        "repeated-targets": (x, y[:2].repeat(6, 1)),
        "all-in-one-point": (torch.zeros_like(x), y),
        "one-dimension": (x[:, :1], y[:, :1]),
        "clusters": (clusters(6, 6, 2), clusters(6, 6, 3)),
        "clusters-of-other-sizes": (clusters(3, 9, 2), clusters(9, 3, 3)),
        "outlier": (outlier, y),
        "thin": (x * thin, y * thin),
        "scale-1e-20": (1e-20 * x, 1e-20 * (y + 0.5)),
        "scale-1e4": (1e4 * x, 1e4 * (y + 0.5)),
        "offset-1e9": (1e9 + 0.01 * x, 1e9 + 1 + 0.01 * y),
        "images": (wide, noise(12, 784, seed=1).tanh()),
        "heavy-tails": (x**3, y**3),
        "black-and-white": (signs[0], signs[1]),
    }


GEOMETRIES = geometries()


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("blur", BLURS)
@pytest.mark.filterwarnings("error")
def test_value_and_velocity_are_within_one_percent_or_refused(name, blur):
    x, y = GEOMETRIES[name]
    origin = y.mean(0)
    both = torch.cat([x, y]) - origin
    size = float((both.amax(0) - both.amin(0)).norm())
    if blur > LARGEST:
        for function in (sinkhorn_velocity, sinkhorn_divergence):
            with pytest.raises(UserError, match="blur"):
                function(x, y, blur * size)
        return
    v = sinkhorn_velocity(x, y, blur * size) / size
    value = float(sinkhorn_divergence(x, y, blur * size)) / size**2
    in_sizes = (x - origin) / size, (y - origin) / size
    exact_v, exact = reference.velocity_and_divergence(*in_sizes, blur)
    v_floor, floor = (3e-6, 3e-9) if name in ALMOST_EQUAL else (0.0, 0.0)
    assert (v - exact_v).norm() < 0.01 * exact_v.norm() + v_floor * len(x) ** 0.5
    assert abs(value - exact) < 0.01 * exact + floor


@pytest.mark.filterwarnings("error")
def test_two_samples_of_clusters_are_within_one_percent():
    """Their clusters have slightly different shares, which only many updates move.

    geomloss finds 29 % of the value of such samples with its default setting, 66 % with 0.9.
    """
    x, y = (eight_clusters(160, seed) for seed in (0, 1))
    exact_v, exact = reference.velocity_and_divergence(x, y, 0.5)
    assert relative_error(sinkhorn_velocity(x, y, 0.5), exact_v) < 0.01
    assert float(sinkhorn_divergence(x, y, 0.5)) == pytest.approx(exact, rel=0.01)
