"""The line after the pool: how far its flows end from their targets."""

import math
import re
from types import SimpleNamespace

import pytest
import torch

from nsgf.config.schema import FlowConfig, PoolConfig, SinkhornConfig
from nsgf.data import RowSampler
from nsgf.method import run_flow, step_sizes
from nsgf.pool.ends import Ends, measure_ends, pool_ends
from nsgf.pool.settings import PoolSettings
from nsgf.pool.trajectories import TrajectoryPool
from nsgf.sinkhorn.batched import BatchedSolver

CENTRES = 3 * torch.randn(12, 2, generator=torch.Generator().manual_seed(1))


def clusters(n, std, seed):
    rng = torch.Generator().manual_seed(seed)
    return CENTRES[torch.arange(n) % 12] + std * torch.randn(n, 2, generator=rng)


def ends_of_flow(blur, std, first_blur=None):
    x = torch.randn(1, 1024, 2, generator=torch.Generator().manual_seed(0))
    targets = clusters(1024, std, seed=2)
    flow = BatchedSolver(blur, first_blur=first_blur)
    ends = run_flow(flow, x, targets[None], step_sizes(10, None))[0, :, -1]
    return ends, measure_ends(ends, targets, clusters(1024, std, seed=3))


@pytest.mark.parametrize("std", [0.1, 0.2])
def test_width_is_the_ratio_of_the_variances_of_narrow_clusters(std):
    ends, measured = ends_of_flow(0.5, std)
    variance = torch.cdist(ends, CENTRES).amin(1).square().mean() / (2 * std**2)
    assert measured.width == pytest.approx(float(variance), rel=0.15)
    assert measured.width > 1.4
    assert measured.energy > measured.floor


def test_the_remedy_helps():
    _, measured = ends_of_flow(0.5, 0.1)
    (blur,) = re.findall(r"try sinkhorn\.blur=(\S+)", measured.describe(0.5))
    assert float(blur) < 0.2
    for first_blur in (None, 0.5):
        _, measured = ends_of_flow(float(blur), 0.1, first_blur)
        assert "try" not in measured.describe(float(blur))
        assert measured.width == pytest.approx(1, abs=0.3)


def test_equal_targets_have_no_spread():
    measured = measure_ends(torch.randn(50, 2), torch.zeros(50, 2), torch.zeros(50, 2))
    assert math.isnan(measured.width)
    assert "try" not in measured.describe(0.5)


def test_narrow_ends_need_no_smaller_blur():
    assert "try" not in Ends(0.0, 0.0, 0.5).describe(0.5)


def settings(n=64, m=48, **flow):
    flow = {"schedule": "harmonic", **flow}
    sinkhorn = SinkhornConfig(batch_size=n, target_batch=m)
    return PoolSettings(sinkhorn, FlowConfig(**flow), PoolConfig(num_batches=4), (2,))


def pool_at(points, filled):
    return TrajectoryPool(torch.stack([0 * points, points], 1), 1.0, filled)


def test_only_finished_flows_are_compared_with_targets_of_the_same_flows():
    """The second half of the pool is not finished: its positions must not be looked at."""
    targets = 100.0 * torch.arange(4).repeat_interleave(150).unsqueeze(1).expand(-1, 2)
    targets = targets + clusters(600, 0.1, seed=4)
    sampler = SimpleNamespace(at=lambda positions: targets[list(positions)])
    ends = targets.view(4, 150, 2).repeat(1, 2, 1).flatten(0, 1).clone()
    ends[600:] = math.nan
    pool = pool_at(ends, 600)
    measured = pool_ends(settings(n=300, m=150), pool, sampler, sampler, None)
    assert measured.energy == pytest.approx(measured.floor)
    assert measured.width == pytest.approx(1)
    ends[:600] += 5
    assert pool_ends(settings(n=300, m=150), pool_at(ends, 600), sampler, sampler, None).energy > 1


@pytest.mark.parametrize(
    ("changed", "count"),
    [({"schedule": "constant"}, None), ({"kind": "energy"}, None), ({"m": 2}, None), ({}, 47)],
    ids=str,
)
def test_flows_that_do_not_arrive_or_are_few_are_not_measured(changed, count):
    """Past mistake: repeated rows of a small table were near neighbours of themselves, and the line
    suggested a blur of 2e-8."""
    sampler = RowSampler(clusters(100, 0.1, seed=0), 0)
    pool = pool_at(clusters(256, 0.1, seed=6), 256)
    assert pool_ends(settings(**changed), pool, sampler, sampler, count) is None


def test_few_of_many_targets_of_a_flow_are_drawn():
    drawn = []

    def at(positions):
        drawn.append(len(positions))
        return clusters(len(positions), 0.1, seed=positions.start)

    sampler = SimpleNamespace(at=at)
    pool = pool_at(clusters(256, 0.1, seed=6), 256)
    assert pool_ends(settings(m=20_000), pool, sampler, sampler, None)
    assert sum(drawn) == 2 * 256


def test_equal_targets_in_many_dimensions_have_no_spread():
    rows = torch.randn(10, 10, generator=torch.Generator().manual_seed(0)).repeat(30, 1)
    ends = torch.randn(300, 10, generator=torch.Generator().manual_seed(1))
    assert math.isnan(measure_ends(ends, rows, rows).width)


@pytest.mark.parametrize(("dim", "most"), [(64, 2048), (65, 512)])
def test_fewer_ends_of_wide_samples_are_measured(dim, most):
    drawn = []

    def at(positions):
        drawn.append(len(positions))
        return torch.randn(len(positions), dim)

    sampler = SimpleNamespace(at=at)
    sinkhorn = SinkhornConfig(batch_size=512)
    wide = PoolSettings(sinkhorn, FlowConfig(schedule="harmonic"), PoolConfig(), (dim,))
    assert pool_ends(wide, pool_at(torch.randn(2560, dim), 2560), sampler, sampler, None)
    assert sum(drawn) == 2 * most
