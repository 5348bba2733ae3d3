import pytest
import torch
from torch import Tensor

from nsgf.data import RandomIndices
from nsgf.pool import TrajectoryPool
from nsgf.system.errors import UserError


def indices(n: int, seed: int = 0) -> Tensor:
    return RandomIndices().draw(n, torch.Generator().manual_seed(seed))


def counting_pool(
    particles: int = 6, steps: int = 4, eta: float = 0.25, dtype: torch.dtype = torch.float32
) -> TrajectoryPool:
    """Particle f is at 100 f + t^2 at time t: positions, velocities and times can be read off."""
    pool = TrajectoryPool(particles, steps, (1,), eta, dtype=dtype)
    t = torch.arange(steps + 1.0)
    positions = 100.0 * torch.arange(particles).view(-1, 1) + t**2
    pool.append(positions[:2].unsqueeze(-1))
    pool.append(positions[2:].unsqueeze(-1))
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pairs_are_position_velocity_and_time(dtype):
    """All these positions are exact in float16 too."""
    batch = counting_pool(dtype=dtype).pairs(indices(2000))
    assert {part.dtype for part in batch} == {torch.float32}
    step = (batch.x.squeeze(1) % 100).sqrt()
    torch.testing.assert_close(batch.t, step / 4)
    torch.testing.assert_close(batch.v.squeeze(1), ((step + 1) ** 2 - step**2) / 0.25)
    assert set(step.long().tolist()) == {0, 1, 2, 3}
    assert set((batch.x.squeeze(1) // 100).long().tolist()) == set(range(6))


def test_all_pairs_are_equally_likely():
    x = counting_pool().pairs(indices(24_000)).x.squeeze(1)
    counts = x.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert counts.min() > 850
    assert counts.max() < 1150


def test_lots_choose_the_pairs():
    """24 pairs: indices that are equal modulo 24 fall on the same."""
    pool = counting_pool()
    chosen = torch.tensor([0, 24, 5, 29, 23, 2**61 // 24 * 24])
    x = pool.pairs(chosen).x.squeeze(1)
    assert x[0] == x[1] == x[5] == 0
    assert x[2] == x[3] == 101
    assert x[4] == 509


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2)])
def test_allocated_once_and_filled_in_place(dtype, size):
    """Neither filling nor sampling replaces or copies the storage."""
    pool = TrajectoryPool(64, 2, (3,), 0.1, dtype=dtype)
    storage = pool._positions.data_ptr()
    for _ in range(4):
        pool.append(torch.randn(16, 3, 3))
    pool.pairs(indices(8))
    assert pool._positions.data_ptr() == storage
    assert pool._positions.nbytes == 64 * 3 * 3 * size
    assert len(pool) == 128


def test_incomplete_pool_is_refused():
    pool = TrajectoryPool(4, 2, (1,), 0.1)
    pool.append(torch.zeros(3, 3, 1))
    with pytest.raises(ValueError, match="3 of 4"):
        pool.pairs(indices(1))
    pool.append(torch.zeros(1, 3, 1))
    assert len(pool.pairs(indices(1)).x) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_flows_are_refused(value):
    with pytest.raises(UserError, match=r"steps of 0\.1 left .* smaller flow\.eta"):
        TrajectoryPool(1, 1, (1,), 0.1).append(torch.full((1, 2, 1), value))


def test_positions_beyond_float16_are_refused():
    flows = torch.full((1, 2, 1), 70_000.0)
    TrajectoryPool(1, 1, (1,), 0.1).append(flows)
    with pytest.raises(UserError, match=r"pool\.dtype = float16: a position of 7e\+04"):
        TrajectoryPool(1, 1, (1,), 0.1, dtype=torch.float16).append(flows)


def test_float16_velocities_are_differences_in_float32():
    """Positions 1000 and 1000.5 are exact in float16; 0.5 / 1e-6 is only in float32."""
    pool = TrajectoryPool(1, 1, (1,), 1e-6, dtype=torch.float16)
    pool.append(torch.tensor([1000.0, 1000.5]).view(1, 2, 1))
    v = pool.pairs(indices(1)).v
    torch.testing.assert_close(v, torch.full((1, 1), 0.5 / 1e-6))
