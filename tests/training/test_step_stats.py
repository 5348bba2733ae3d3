import math

import torch

from nsgf.training.step_stats import PendingStats, StepStats, describe_batch, mean_stats
from nsgf.training.task import Batch


def test_outcome_is_what_the_update_came_to():
    batch = Batch((torch.zeros(2, 3),), torch.zeros(2))
    outcome = PendingStats(7, batch, torch.tensor(0.5), torch.tensor(2.0))
    assert outcome.read() == StepStats(0.5, 2.0)
    assert (outcome.step, outcome.batch) == (7, batch)


def test_copy_is_awaited_where_nothing_says_when_it_arrives(monkeypatch):
    """Only cards have their event."""
    asked, to = [], torch.Tensor.to

    def spy(tensor, *args, **kwargs):
        asked.append(kwargs["non_blocking"])
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    PendingStats(1, Batch((torch.zeros(1),), torch.zeros(1)), torch.tensor(0.5), torch.tensor(2.0))
    assert asked == [False]


def test_only_finite_readings_are_finite():
    assert StepStats(1.0, 2.0).is_finite
    for bad in (math.nan, math.inf, -math.inf):
        assert not StepStats(bad, 1.0).is_finite
        assert not StepStats(1.0, bad).is_finite
    assert not StepStats(math.inf, -math.inf).is_finite


def test_description_gives_range_mean_spread_and_bad_values():
    x = torch.tensor([[1.0, 3.0], [math.nan, math.inf]])
    batch = Batch((x, torch.full((2,), math.nan)), torch.tensor([-1.0, 1.0]))
    assert describe_batch(batch) == (
        "input 1 1 to 3, mean 2, std 1, 2 values not finite; "
        "input 2 has no finite value among 2; "
        "target -1 to 1, mean 0, std 1"
    )


def test_means():
    assert mean_stats([StepStats(1.0, 2.0), StepStats(3.0, 6.0)]) == StepStats(2.0, 4.0)
