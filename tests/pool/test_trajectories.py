import pytest
import torch
from torch import Tensor

from nsgf.data import INDICES
from nsgf.pool import TrajectoryPool
from nsgf.system.errors import UserError


def indices(n: int) -> Tensor:
    return INDICES.draw(n, torch.Generator().manual_seed(0))


def counting_pool(dtype: torch.dtype = torch.float32) -> TrajectoryPool:
    """Particle f is at 100 f + t^2 at time t: positions, velocities and times can be read off."""
    pool = TrajectoryPool(torch.empty(6, 5, 1, dtype=dtype), 0.25)
    positions = 100.0 * torch.arange(6).view(-1, 1) + torch.arange(5.0) ** 2
    pool.append(positions[:2].unsqueeze(-1))
    pool.append(positions[2:].unsqueeze(-1))
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pairs_are_position_velocity_and_time(dtype):
    """All these positions are exact in float16 too."""
    batch = counting_pool(dtype).pairs(indices(2000))
    assert {part.dtype for part in batch} == {torch.float32}
    step = (batch.x.squeeze(1) % 100).sqrt()
    torch.testing.assert_close(batch.t, step / 4)
    torch.testing.assert_close(batch.v.squeeze(1), ((step + 1) ** 2 - step**2) / 0.25)
    assert set(step.long().tolist()) == {0, 1, 2, 3}
    assert set((batch.x.squeeze(1) // 100).long().tolist()) == set(range(6))


def test_indices_modulo_the_number_of_pairs_choose_them():
    pool = counting_pool()
    chosen = torch.tensor([0, 24, 5, 29, 23, 2**61 // 24 * 24])
    assert pool.pairs(chosen).x.squeeze(1).tolist() == [0, 0, 101, 101, 509, 0]
    assert pool.particles(chosen).tolist() == [0, 0, 1, 1, 5, 0]


def test_allocated_once_and_filled_in_place():
    """Neither filling nor sampling replaces or copies the storage."""
    positions = torch.empty(64, 3, 3)
    pool = TrajectoryPool(positions, 0.1)
    for _ in range(4):
        pool.append(torch.randn(16, 3, 3))
    pool.pairs(indices(8))
    assert pool._positions.data_ptr() == positions.data_ptr()
    assert len(pool) == 128


def test_incomplete_pool_is_refused():
    pool = TrajectoryPool(torch.empty(4, 3, 1), 0.1)
    pool.append(torch.zeros(3, 3, 1))
    with pytest.raises(ValueError, match="3 of 4"):
        pool.pairs(indices(1))
    pool.append(torch.zeros(1, 3, 1))
    assert len(pool.pairs(indices(1)).x) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 70_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_positions_that_cannot_be_stored_name_the_setting(value, dtype):
    pool = TrajectoryPool(torch.empty(1, 2, 1, dtype=dtype), 0.1)
    flows = torch.tensor([1.0, value]).view(1, 2, 1)
    if value == 70_000 and dtype == torch.float32:
        pool.append(flows)
        return
    with pytest.raises(UserError, match="pool.dtype" if value == 70_000 else "flow.eta"):
        pool.append(flows)


def test_float16_velocities_are_differences_in_float32():
    """Positions 1000 and 1000.5 are exact in float16; 0.5 / 1e-6 is only in float32."""
    pool = TrajectoryPool(torch.empty(1, 2, 1, dtype=torch.float16), 1e-6)
    pool.append(torch.tensor([1000.0, 1000.5]).view(1, 2, 1))
    v = pool.pairs(indices(1)).v
    torch.testing.assert_close(v, torch.full((1, 1), 0.5 / 1e-6))
