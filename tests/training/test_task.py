import pytest
import torch

from nsgf.training.task import Batch, squared_error


@pytest.mark.parametrize(("parts", "sizes"), [(1, [7]), (2, [4, 3]), (3, [3, 3, 1]), (9, [1] * 7)])
def test_batch_splits_into_parts(parts, sizes):
    x, t = torch.randn(7, 2), torch.rand(7)
    split = Batch((x, t), 2 * x).split(parts)
    assert [len(part.target) for part in split] == sizes
    assert torch.equal(torch.cat([part.inputs[0] for part in split]), x)
    assert torch.equal(torch.cat([part.inputs[1] for part in split]), t)
    assert torch.equal(torch.cat([part.target for part in split]), 2 * x)


def test_loss_is_the_mean_of_squares_unless_a_phase_says_otherwise():
    batch = Batch((torch.tensor([[1.0], [2.0]]),), torch.tensor([[0.0], [5.0]]))
    assert squared_error(lambda x: 2 * x, batch).item() == pytest.approx((2**2 + 1**2) / 2)
