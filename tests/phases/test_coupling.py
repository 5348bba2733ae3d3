import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from nsgf.data import PointSampler
from nsgf.data.points import Gaussian
from nsgf.phases.coupling import Pairs
from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS, optimal_pairs
from nsgf.system.errors import UserError

CPU = torch.device("cpu")


def sampler(seed: int) -> PointSampler:
    return PointSampler(Gaussian((1, 2, 2)), seed)


def pairs(**options) -> Pairs:
    return Pairs(sampler(0), sampler(1), CPU, **options)


@pytest.mark.parametrize(("unit", "far"), [(1, 0), (1e-9, 0), (1e9, 0), (1, 1e8)])
def test_optimal_pairs_are_those_of_an_assignment_solver(unit, far):
    start, end = sampler(0).sample(40).double(), sampler(1).sample(40).double()
    start[7] += far
    end[3] += far
    matrix = torch.cdist(start.flatten(1), end.flatten(1)).square().numpy()
    best = linear_sum_assignment(matrix)[1]
    assert optimal_pairs(unit * start, unit * end).tolist() == best.tolist()


def test_pairs_of_large_groups_have_enough_iterations(monkeypatch):
    given = {}

    def solve(*_, **options):
        given.update(options)
        return np.eye(4), {"warning": None, "cost": 1.0}

    monkeypatch.setattr(ot, "emd", solve)
    optimal_pairs(torch.rand(4, 2), torch.rand(4, 2))
    assert given["numItermax"] == SIMPLEX_ITERATIONS


def test_points_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match=r"nsf\.coupling"):
        optimal_pairs(torch.full((4, 2), torch.nan), torch.zeros(4, 2))


def test_each_group_of_samples_is_paired_as_a_whole():
    start, end = pairs(group=32).at(range(64))
    assert torch.equal(start, sampler(0).at(range(64)))
    for first in (0, 32):
        part = range(first, first + 32)
        drawn = sampler(1).at(part)[optimal_pairs(sampler(0).at(part), sampler(1).at(part))]
        assert torch.equal(end[first : first + 32], drawn)


@pytest.mark.parametrize("group", [None, 16])
def test_pair_depends_only_on_its_position(group):
    """Whichever part of a group is asked for, and whatever was asked for before."""
    whole = pairs(group=group).at(range(64))
    other = pairs(group=group)
    for start, stop in ((50, 64), (0, 10), (10, 50)):
        for part, expected in zip(other.at(range(start, stop)), whole, strict=True):
            assert torch.equal(part, expected[start:stop])


def test_group_is_paired_only_once_for_successive_batches(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "nsgf.phases.coupling.optimal_pairs",
        lambda start, end: seen.append(len(start)) or torch.arange(len(start)),
    )
    visited = pairs(group=64)
    for first in range(0, 128, 16):
        visited.at(range(first, first + 16))
    assert seen == [64, 64]
