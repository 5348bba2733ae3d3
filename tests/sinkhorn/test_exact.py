"""Optimal pairs of two clouds."""

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from nsgf.sinkhorn.exact import SIMPLEX_ITERATIONS, optimal_pairs
from nsgf.system.errors import UserError


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


def test_pairs_of_large_groups_have_enough_iterations(monkeypatch):
    """Past mistake: POT's exact solver stops at 100,000 iterations with a warning, so pairs of
    large batches were not optimal.
    """
    given = {}

    def solve(*_, **options):
        given.update(options)
        return np.eye(4), {"warning": None, "cost": 1.0}

    monkeypatch.setattr(ot, "emd", solve)
    optimal_pairs(torch.rand(4, 2), torch.rand(4, 2))
    assert given["numItermax"] == SIMPLEX_ITERATIONS


def test_points_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="not finite"):
        optimal_pairs(torch.full((4, 2), torch.nan), torch.zeros(4, 2))
