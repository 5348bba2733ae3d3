import pytest
import torch

from nsgf.data.points import POINT_SETS, moons
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


def test_single_moon_points_come_from_both_moons():
    """make_moons(1) alone would always give the same moon."""
    points = torch.cat([moons(1, make_generator(seed)) for seed in range(40)])
    assert (points[:, 1] > 0.5).any()
    assert (points[:, 1] < -1.5).any()
