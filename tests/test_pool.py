import re
from dataclasses import replace

import pytest
import torch

from nsgf.data import Data
from nsgf.errors import UserError
from nsgf.pool import TrajectoryPool, build_pool, check_memory, pool_bytes
from nsgf.sinkhorn import build_velocity_field, sinkhorn_flow
from tests.conftest import shipped


def counting_pool(flows: int = 6, steps: int = 4, eta: float = 0.25) -> TrajectoryPool:
    """Flow f is at 100 f + t^2 at time t, so positions, velocities and times can be read off."""
    pool = TrajectoryPool(flows, steps, (1,), eta)
    t = torch.arange(steps + 1.0)
    positions = 100.0 * torch.arange(flows).view(-1, 1) + t**2
    pool.append(positions[:2].unsqueeze(-1))
    pool.append(positions[2:].unsqueeze(-1))
    pool.finalize()
    return pool


def test_pairs_are_position_velocity_and_time():
    batch = counting_pool().sample(2000, torch.Generator().manual_seed(0))
    step = (batch.x.squeeze(1) % 100).sqrt()
    torch.testing.assert_close(batch.t, step / 4)
    torch.testing.assert_close(batch.v.squeeze(1), ((step + 1) ** 2 - step**2) / 0.25)
    assert set(step.long().tolist()) == {0, 1, 2, 3}
    assert set((batch.x.squeeze(1) // 100).long().tolist()) == set(range(6))


def test_all_pairs_are_equally_likely():
    x = counting_pool().sample(24_000, torch.Generator().manual_seed(0)).x.squeeze(1)
    counts = x.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert counts.min() > 850
    assert counts.max() < 1150


def test_sample_follows_its_generator():
    pool = counting_pool()
    first, again, other = (
        pool.sample(50, torch.Generator().manual_seed(seed)).x for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_allocated_once_and_filled_in_place():
    """Neither filling nor sampling replaces or copies the storage."""
    pool = TrajectoryPool(64, 2, (3,), 0.1)
    storage = pool._positions.data_ptr()
    for _ in range(4):
        pool.append(torch.randn(16, 3, 3))
    pool.finalize()
    pool.sample(8, torch.Generator())
    assert pool._positions.data_ptr() == storage
    assert pool.nbytes == 64 * 3 * 3 * 4
    assert len(pool) == 128


def test_incomplete_pool_is_refused():
    pool = TrajectoryPool(4, 2, (1,), 0.1)
    pool.append(torch.zeros(3, 3, 1))
    with pytest.raises(ValueError, match="3 of 4"):
        pool.finalize()
    pool.append(torch.zeros(1, 3, 1))
    with pytest.raises(ValueError, match="finalize"):
        pool.sample(1, torch.Generator())


@pytest.mark.parametrize("shape", [(5, 3, 1), (2, 4, 1), (2, 3, 2)])
def test_flows_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="do not fit"):
        TrajectoryPool(4, 2, (1,), 0.1).append(torch.zeros(shape))


def test_non_finite_flows_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        TrajectoryPool(1, 1, (1,), 0.1).append(torch.full((1, 2, 1), torch.nan))


@pytest.mark.parametrize("name", ["2d", "digits"])
def test_built_pool_holds_the_flows_of_its_samplers(name):
    config = shipped(name, "--pool-batches=3", "--sinkhorn-batch=8", "--steps=2")
    data = Data(config.data, 0)
    velocity = build_velocity_field(config.sinkhorn)
    pool = build_pool(config, data.source("p"), data.target("p"), velocity, torch.device("cpu"))
    assert pool.nbytes == pool_bytes(config, data.shape)
    source, target = data.source("p"), data.target("p")
    for batch in range(3):
        x, y = source.sample(8), target.sample(8)
        expected = sinkhorn_flow(x, y, velocity, 2, config.flow.eta)
        torch.testing.assert_close(pool._positions[8 * batch : 8 * batch + 8], expected)


@pytest.mark.parametrize("flags", [["--flow.eta=1e30"], ["--sinkhorn.blur=1e200"]])
def test_flows_that_fail_numerically_name_their_settings(flags):
    config = shipped("2d", "--pool-batches=1", "--sinkhorn-batch=8", *flags)
    data = Data(config.data, 0)
    velocity = build_velocity_field(config.sinkhorn)
    with pytest.raises(UserError, match=r"flow\.eta = .*sinkhorn\.blur = ") as caught:
        build_pool(config, data.source("p"), data.target("p"), velocity, torch.device("cpu"))
    assert "\n" not in str(caught.value)


def test_size_is_known_before_building():
    """The paper's CIFAR-10 pool: 2500 x 128 flows of 5 steps in float32."""
    config = shipped("cifar10")
    assert pool_bytes(config, (3, 32, 32)) == 2500 * 128 * 6 * 3072 * 4


def test_pool_that_does_not_fit_names_the_setting_that_does():
    config = shipped("cifar10")
    with pytest.raises(UserError, match=r"pool\.num_batches = 2500") as caught:
        check_memory(config, (3, 32, 32), available=10 * 10**9)
    fitting = int(re.search(r"--pool-batches (\d+) would", str(caught.value)).group(1))
    assert fitting > 500
    smaller = replace(config, pool=replace(config.pool, num_batches=fitting))
    assert "23,592,960,000 bytes (23.6 GB)" in str(caught.value)
    check_memory(smaller, (3, 32, 32), available=10 * 10**9)


def test_even_one_batch_may_be_too_much():
    with pytest.raises(UserError, match="--sinkhorn-batch"):
        check_memory(shipped("cifar10"), (3, 32, 32), available=10**6)
