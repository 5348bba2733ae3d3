"""The limit blur -> 0 against enumeration, POT, and Sinkhorn at a small blur."""

import itertools

import ot
import pytest
import torch

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn.batched import BatchedSolver
from tests.sinkhorn.reference_solvers import AssignmentSolver

velocity = AssignmentSolver(SinkhornConfig()).velocity


def clouds(n: int):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn((n, 2), generator=generator),
        torch.rand((n, 2), generator=generator) * 4 + 1,
    )


def test_no_permutation_is_cheaper():
    x, y = clouds(6)
    cost = min(
        float((y[list(order)] - x).square().sum()) for order in itertools.permutations(range(6))
    )
    v = velocity(x, y)
    assert float(v.square().sum()) == pytest.approx(cost, rel=1e-5)
    arrived = torch.cdist(x + v, y).argmin(1)
    assert sorted(arrived.tolist()) == list(range(6))
    torch.testing.assert_close(x + v, y[arrived])


def test_cost_is_the_squared_wasserstein_distance():
    x, y = clouds(200)
    expected = ot.emd2([], [], ot.dist(x.double().numpy(), y.double().numpy()))
    assert float(velocity(x, y).square().sum(1).mean()) == pytest.approx(expected, rel=1e-5)


def test_equal_clouds_rest():
    x, _ = clouds(50)
    assert velocity(x, x[torch.randperm(50)]).abs().max() < 1e-6


def test_sinkhorn_tends_to_it():
    x, y = clouds(24)
    limit = velocity(x, y)
    distances = []
    for blur in (0.5, 0.1, 0.02):
        v = BatchedSolver(SinkhornConfig(blur=blur), max_iterations=20_000).velocity(x, y)
        distances.append(float((v - limit).norm() / limit.norm()))
    assert distances[0] > 2 * distances[1] > 4 * distances[2]
    assert distances[2] < 0.01
