"""Optimal pairs of two clouds."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from nsgf.sinkhorn import exact
from nsgf.sinkhorn.exact import (
    SIMPLEX_ITERATIONS,
    exact_plan,
    least_cost_pairs,
    optimal_pairs,
    squared_distances,
    w2,
)
from nsgf.system.errors import UserError


def dual_value(cost, index, tolerance):
    """Return sum f + sum g of potentials with f_i + g_j <= C_ij + tolerance, which no permutation
    costs less than. Shortest paths between columns give g: a cycle that lowers the cost of the
    permutation would have no shortest path."""
    cost = np.asarray(cost, dtype=float)
    pairs = cost[np.arange(len(cost)), index]
    step = np.empty_like(cost)  # from the column of row i to column j
    step[index] = cost - pairs[:, None]
    g = np.zeros(len(cost))
    for _ in range(len(cost) + 1):
        last, g = g, np.minimum(g, (g[:, None] + step).min(0))
        if (last - g).max() <= tolerance:
            break
    f = pairs - g[index]
    assert (cost - f[:, None] - g).min() >= -2 * tolerance, "a cycle lowers the cost"
    return f.sum() + g.sum()


def check_pairs(cost, rounding=1e-13):
    """Check that pairs are a permutation whose cost is that of the dual problem. An error of a cost
    is relative to the cost of the permutation, not to the largest cost."""
    cost = torch.as_tensor(cost, dtype=torch.float64)
    before = cost.clone()
    index = least_cost_pairs(cost).numpy()
    assert torch.equal(cost, before)
    assert sorted(index) == list(range(len(cost)))
    value = float(cost[np.arange(len(cost)), index].sum())
    # costs above this value belong to no better permutation
    near = cost.clamp_max(value) if value else cost
    tolerance = rounding * value
    dual = dual_value(near.numpy(), index, tolerance)
    assert abs(dual - value) <= 4 * len(cost) * tolerance
    return index


KINDS = {
    "cloud": lambda rng, n, dim: rng.normal(size=(n, dim)),
    "grid of ties": lambda rng, n, dim: rng.integers(0, 3, size=(n, dim)),
    "few values": lambda rng, n, dim: rng.normal(size=(2, dim))[rng.integers(2, size=n)],
    "one value": lambda rng, n, dim: np.ones((n, dim)),
    "clusters": lambda rng, n, dim: 1e6 * rng.integers(3, size=(n, 1)) + rng.normal(size=(n, dim)),
    "outliers": lambda rng, n, dim: 1e6 ** (rng.random((n, 1)) < 0.1) * rng.normal(size=(n, dim)),
    "on a line": lambda rng, n, dim: np.sort(rng.normal(size=(n, 1)), 0) * np.ones(dim),
}
"""Kinds of clouds (n, D) by name."""


@settings(max_examples=150, deadline=None)
@given(
    n=st.one_of(st.integers(1, 4), st.integers(5, 70)),
    dim=st.sampled_from([1, 2, 8]),
    kinds=st.tuples(*2 * [st.sampled_from([*KINDS])]),
    unit=st.sampled_from([1e-12, 1e-6, 1.0, 1e12]),
    seed=st.integers(0, 2**32 - 1),
)
@example(n=60, dim=2, kinds=("clusters", "clusters"), unit=1.0, seed=0)
@example(n=60, dim=2, kinds=("outliers", "outliers"), unit=1e12, seed=0)
@example(n=3, dim=1, kinds=("one value", "one value"), unit=1e-12, seed=0)
def test_pairs_cost_as_little_as_the_dual_problem_allows(n, dim, kinds, unit, seed):
    rng = np.random.default_rng(seed)
    x, y = (KINDS[kind](rng, n, dim) for kind in kinds)
    cost = unit * cdist(x, y, "sqeuclidean")
    index = check_pairs(cost)
    rows, columns = linear_sum_assignment(cost)
    assert cost[rows, index].sum() <= cost[rows, columns].sum() * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 40),
    largest=st.sampled_from([1, 2, 10, 10**6]),
    unit=st.sampled_from([1e-300, 1e-12, 1.0, 1e12, 1e290]),
    seed=st.integers(0, 2**32 - 1),
)
def test_pairs_of_any_costs_are_exact(n, largest, unit, seed):
    """Also where the costs are those of no points, and their squares overflow."""
    check_pairs(unit * np.random.default_rng(seed).integers(0, largest, (n, n), endpoint=True))


def test_pairs_of_a_thousand_integers_are_exact():
    cost = np.random.default_rng(0).integers(0, 1000, (1000, 1000))
    assert cost[np.arange(1000), check_pairs(cost)].sum() == cost[linear_sum_assignment(cost)].sum()


@pytest.mark.parametrize("size", [256, 700])
def test_pairs_of_clusters_in_the_plane_are_exact(size):
    """More rows than a block of the products."""
    rng = np.random.default_rng(0)
    angle = rng.integers(8, size=size) * np.pi / 4
    y = 5 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.5 * rng.normal(size=(size, 2))
    check_pairs(cdist(rng.normal(size=(size, 2)), y, "sqeuclidean"), rounding=1e-14)


@pytest.mark.parametrize("potential", [0.0, 1e3, -1e3, "random"])
def test_bad_potentials_do_not_change_the_cost(potential, monkeypatch):
    """A rough solve that fails costs time, and no exactness."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 60, 2, generator=generator, dtype=torch.float64)

    def bad(cost):
        noise = torch.randn(60, generator=generator, dtype=torch.float64)
        return 10 * noise if potential == "random" else torch.full((60,), potential).double()

    expected = optimal_pairs(x, y)
    monkeypatch.setattr(exact, "_rough_potential", bad)
    assert torch.equal(optimal_pairs(x, y), expected)


def test_potentials_leave_little_to_the_solver():
    """At the optimum, the reduced costs of the pairs are 0; here they are a tenth of those that the
    row minima alone leave."""
    x, y = torch.randn(2, 300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cost = squared_distances(x + 2, y, by_product=True)
    index = least_cost_pairs(cost)

    def left(reduced):
        reduced = reduced - reduced.amin(1, keepdim=True)
        return float((reduced - reduced.amin(0))[torch.arange(300), index].mean())

    assert left(cost - exact._rough_potential(cost)) < 0.1 * left(cost)


def test_plan_between_equal_sizes_is_that_of_the_simplex():
    rng = np.random.default_rng(0)
    cost = cdist(rng.normal(size=(30, 2)), rng.normal(size=(30, 2)), "sqeuclidean")
    plan, value = exact_plan(cost)
    assert plan == pytest.approx(ot.emd([], [], cost), abs=1e-15)
    assert value == pytest.approx((plan * cost).sum())


@pytest.mark.parametrize("far", [1e6, 1e9])
def test_pairs_within_clusters_far_apart_are_exact(far):
    """Rounding is relative to the largest cost, until costs that no optimal pair has are reduced.
    W2 computes each distance exactly, because a product has lost all digits."""
    x, y = torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = [optimal_pairs(x[part], y[part]) for part in (slice(30), slice(30, 40))]
    expected = torch.cat([near[0], near[1] + 30])
    least = float((x - y[expected]).square().sum(1).mean()) ** 0.5
    x[30:] += far
    y[30:] += far
    assert torch.equal(least_cost_pairs(squared_distances(x, y, by_product=False)), expected)
    assert w2(x, y) == pytest.approx(least, rel=1e-15 * far)


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_w2_between_almost_equal_clouds(noise):
    """A matrix product would leave nothing of such distances."""
    x = 1e3 * torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x.roll(7, 0)
    y[:, 0] += noise
    moved = float((y.roll(-7, 0) - x).square().sum(1).mean()) ** 0.5
    assert w2(x, y) == pytest.approx(moved, rel=1e-12, abs=0)


@pytest.mark.parametrize(("unit", "far"), [(1, 0), (1e-9, 0), (1e9, 0), (1, 1e8)])
def test_optimal_pairs_are_those_of_an_assignment_solver(unit, far):
    start, end = torch.randn(2, 40, 4, dtype=torch.float64)
    start[7] += far
    end[3] += far
    best = linear_sum_assignment(torch.cdist(start, end).square().numpy())[1]
    assert optimal_pairs(unit * start, unit * end).tolist() == best.tolist()


@pytest.mark.parametrize("shape", [(2,), (3, 4, 4)])
def test_optimal_pairs_do_not_depend_on_the_origin(shape):
    """Those of float64, after the rounding of the points at this offset."""
    generator = torch.Generator().manual_seed(0)
    start, end = 1e8 + torch.randn(2, 60, *shape, generator=generator, dtype=torch.float64)
    near = [(points - 1e8).flatten(1).numpy() for points in (start, end)]
    best = linear_sum_assignment(cdist(*near, "sqeuclidean"))[1]
    assert optimal_pairs(start, end).tolist() == best.tolist()


def test_plans_between_large_clouds_have_enough_iterations(monkeypatch):
    """Past mistake: POT's exact solver stops at 100,000 iterations with a warning, so plans of
    large clouds were not optimal.
    """
    options_seen = {}

    def solve(*_, **options):
        options_seen.update(options)
        return np.eye(4, 3), {"warning": None, "cost": 1.0}

    monkeypatch.setattr(ot, "emd", solve)
    exact_plan(np.ones((4, 3)))
    assert options_seen["numItermax"] == SIMPLEX_ITERATIONS


def test_points_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="not finite"):
        optimal_pairs(torch.full((4, 2), torch.nan), torch.zeros(4, 2))
