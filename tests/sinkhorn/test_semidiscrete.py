import math

import ot
import pytest
import torch

from nsgf.sinkhorn.semidiscrete import BATCH, Semidiscrete, Shares


def draws(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))


def learned(points: torch.Tensor, steps: int = 400) -> Semidiscrete:
    dual = Semidiscrete(points, steps)
    gap = dual.gap(draws(BATCH, 0))
    for step in range(steps):
        dual.climb(dual.wins(draws(BATCH, step)), gap)
    return dual


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    """200 points, half of them in a corner."""
    return torch.cat([0.5 * draws(100, 10_000) + 1, draws(100, 20_000)])


@pytest.fixture(scope="module")
def dual(cloud) -> Semidiscrete:
    return learned(cloud)


def test_each_point_wins_its_part(dual, cloud):
    """Without potentials those at the rim take what is beyond them."""
    fresh = draws(20_000, 99_999)
    unlearned = Semidiscrete(cloud, 1)
    assert unlearned.shares(unlearned.wins(fresh)).error > 1
    shares = dual.shares(dual.average_wins(fresh))
    assert shares.error < 0.35
    assert shares.largest < 2.5


@pytest.mark.parametrize("count", [4, 16])
def test_few_points_win_their_part(count):
    """Each wins many of a step's draws, and would be thrown to and fro by as many steps."""
    few = learned(draws(count, 20_000))
    assert few.shares(few.average_wins(draws(20_000, 99_999))).error < 0.1


def test_partners_cost_what_exact_transport_costs(dual, cloud):
    """Among 2,000 draws and the same points, each with mass for 50 of them."""
    x = draws(2000, 77_777)
    cost = 0.5 * (dual.partners(x) - x).square().sum(1).mean()
    matrix = 0.5 * torch.cdist(x.double(), cloud.double()).square()
    assert float(cost) == pytest.approx(ot.emd2([], [], matrix.numpy()), rel=0.06)
    nearest = matrix.min(1).values.mean()
    assert float(cost) > 1.5 * float(nearest)  # else anything near would do


def test_partners_are_the_points_that_win(cloud):
    """argmax of g_j - |x - y_j|^2 / 2, over more draws than are compared at once."""
    dual, x = Semidiscrete(cloud, 1), draws(BATCH + 7, 1)
    dual.average = torch.linspace(0, 5, len(cloud))
    index = (dual.average - 0.5 * torch.cdist(x, cloud).square()).argmax(1)
    assert torch.equal(dual.partners(x), cloud[index])


def test_partners_have_the_shape_of_a_sample():
    images = torch.randn(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    assert Semidiscrete(images, 1).partners(images[:3] + 0.01).equal(images[:3])


def test_gap_is_that_between_the_two_nearest():
    line = torch.tensor([[0.0], [3.0], [10.0]])
    assert Semidiscrete(line, 1).gap(torch.tensor([[1.0], [9.0]])) == pytest.approx(
        ((4 - 1) / 2 + (36 - 1) / 2) / 2
    )


def test_average_is_that_of_the_second_half():
    dual, wins = Semidiscrete(torch.zeros(2, 1), 4), torch.tensor([3.0, 1.0])
    seen = []
    for _ in range(4):
        dual.climb(wins, gap=1.0)
        seen.append(dual.potential.clone())
    torch.testing.assert_close(dual.average, (seen[2] + seen[3]) / 2)
    assert dual.is_learned


def test_shares_without_chance():
    """Wins that vary as chance lets them have no error, however few they are."""
    even = torch.distributions.Poisson(torch.full((50_000,), 3.0)).sample()
    shares = Semidiscrete(torch.zeros(50_000, 1), 1).shares(even)
    assert shares.error < 0.1
    assert shares.winless == pytest.approx(math.exp(-3), rel=0.1)
    uneven = torch.tensor([0.0, 200.0] * 500)
    found = Semidiscrete(torch.zeros(1000, 1), 1).shares(uneven)
    assert found.error == pytest.approx(1.0, abs=0.01)
    assert (found.winless, found.largest) == (0.5, 2.0)


def test_shares_in_words():
    assert Shares(4000, 1000, 0.031, 2.4, 0.27).text() == (
        "error of a point's mass 27 %; of 4000 draws 3.1 % of the points win none (1.8 % by chance "
        "alone), one wins 2.4 times its part"
    )
