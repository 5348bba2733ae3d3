import math

import pytest
import torch

from nsgf.data.points import POINT_SETS, checkerboard, eight_gaussians, moons
from nsgf.system.seeding import make_generator


@pytest.mark.parametrize("law", POINT_SETS, ids=lambda law: law.name)
@pytest.mark.parametrize("n", [1, 257])
def test_any_number_of_points_follows_the_generator(law, n):
    one, again, other = (law.draw(n, make_generator(seed)) for seed in (1, 1, 2))
    assert one.shape == (n, 2)
    assert one.dtype == torch.float32
    assert one.isfinite().all()
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_eight_gaussians_lie_on_a_circle_of_radius_five():
    x = eight_gaussians(20_000, make_generator(0))
    mode = (torch.atan2(x[:, 1], x[:, 0]) / (math.pi / 4)).round().long() % 8
    counts = mode.bincount(minlength=8)
    assert counts.min() > 2200
    assert counts.max() < 2800
    centre = x[mode == 0].mean(0)
    torch.testing.assert_close(centre, torch.tensor([5.0, 0.0]), atol=0.05, rtol=0)
    assert abs(float(x[mode == 0].var(0).mean()) - 0.1) < 0.01


def test_single_moon_points_come_from_both_moons():
    """make_moons(1) alone would always give the same moon."""
    points = torch.cat([moons(1, make_generator(seed)) for seed in range(40)])
    assert (points[:, 1] > 0.5).any()
    assert (points[:, 1] < -1.5).any()


def test_checkerboard_fills_half_of_the_squares():
    x = checkerboard(8000, make_generator(0))
    assert x.abs().max() <= 4
    square = ((x + 4) / 2).floor().long()
    assert ((square[:, 0] + square[:, 1]) % 2 == 0).all()
    cells = (square[:, 0] * 4 + square[:, 1]).bincount(minlength=16)
    assert (cells > 0).sum() == 8
    assert cells[cells > 0].min() > 850
