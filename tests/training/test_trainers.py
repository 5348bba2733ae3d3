import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from nsgf.config import NSFConfig
from nsgf.data import ImageSampler, PointSampler
from nsgf.data.points import Gaussian
from nsgf.pool import TrajectoryPool
from nsgf.training.trainers import (
    NSFTrainer,
    NSGFTrainer,
    StraightLine,
    TimePredictorTrainer,
    optimal_pairs,
)

CPU = torch.device("cpu")


class Constant(PointSampler):
    """A sampler whose every sample is one value."""

    def __init__(self, value: float) -> None:
        super().__init__(Gaussian((2,)), 0)
        self.value = value

    def sample(self, n):
        return 0 * super().sample(n) + self.value


class Spy(nn.Module):
    """Returns a fixed answer and keeps what it was asked."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer, self.asked = answer, []

    def forward(self, *inputs):
        self.asked.append(inputs)
        return self.answer(*inputs)


def line(source=None, target=None, **config) -> StraightLine:
    return StraightLine(
        source or Constant(-1.0), target or Constant(3.0), NSFConfig(**config), None, 0, CPU
    )


def test_points_lie_on_the_line_from_source_to_target():
    start, end, t, x = line().sample(4000)
    assert (start == -1).all()
    assert (end == 3).all()
    torch.testing.assert_close(x, (-1 + 4 * t).unsqueeze(1).expand(-1, 2))
    assert t.min() >= 0
    assert t.max() <= 1
    counts = torch.histc(t, 10, 0, 1)
    assert counts.min() > 320
    assert counts.max() < 480


def test_straight_velocity_is_target_minus_source():
    model = Spy(lambda x, t: torch.full_like(x, 4.0))
    trainer = NSFTrainer(model, line())
    assert float(trainer.loss(32)) == 0.0
    x, t = model.asked[0]
    torch.testing.assert_close(x, (-1 + 4 * t).unsqueeze(1).expand(-1, 2))


def test_reversed_straight_velocity_is_wrong():
    trainer = NSFTrainer(Spy(lambda x, t: torch.full_like(x, -4.0)), line())
    assert float(trainer.loss(32)) == 64.0


def test_time_predictor_regresses_the_time():
    exact = TimePredictorTrainer(Spy(lambda x: (x[:, 0] + 1) / 4), line())
    assert float(exact.loss(64)) < 1e-12
    reversed_time = TimePredictorTrainer(Spy(lambda x: 1 - (x[:, 0] + 1) / 4), line())
    assert float(reversed_time.loss(64)) > 0.1


def test_nsgf_regresses_the_velocity_of_the_pool():
    pool = TrajectoryPool(10, 2, (2,), eta=0.5)
    pool.append(torch.tensor([0.0, 1.0, 3.0]).view(1, 3, 1).expand(10, 3, 2))
    pool.finalize()
    # v = 2 at (0, t = 0) and 4 at (1, t = 1/2)
    exact = Spy(lambda x, t: 2 + 2 * x + 0 * t.view(-1, 1))
    assert float(NSGFTrainer(exact, pool, 0, CPU).loss(64)) < 1e-12
    by_time = Spy(lambda x, t: (2 + 4 * t).unsqueeze(1).expand_as(x))
    assert float(NSGFTrainer(by_time, pool, 0, CPU).loss(64)) < 1e-12


def test_loss_is_a_mean_over_samples_and_coordinates():
    trainer = NSFTrainer(Spy(lambda x, t: torch.full_like(x, 5.0)), line())
    assert float(trainer.loss(7)) == 1.0


def test_line_can_start_from_the_nsgf_output():
    moved = StraightLine(
        Constant(0.0), Constant(3.0), NSFConfig(source="nsgf"), lambda x: x + 7, 0, CPU
    )
    start, _, t, x = moved.sample(16)
    assert (start == 7).all()
    torch.testing.assert_close(x[:, 0], 7 - 4 * t)


@pytest.mark.parametrize(("source", "transport"), [("nsgf", None), ("prior", lambda x: x)])
def test_source_and_transport_must_agree(source, transport):
    with pytest.raises(ValueError, match=r"nsf\.source"):
        StraightLine(Constant(0.0), Constant(1.0), NSFConfig(source=source), transport, 0, CPU)


def test_optimal_pairs_is_the_cheapest_permutation():
    torch.manual_seed(0)
    a, b = torch.randn(40, 1, 2, 2), torch.randn(40, 1, 2, 2)
    index = optimal_pairs(a, b)
    assert sorted(index.tolist()) == list(range(40))
    cost = torch.cdist(a.flatten(1), b.flatten(1)).square()
    rows, columns = linear_sum_assignment(cost.numpy())
    torch.testing.assert_close(cost[range(40), index].sum(), cost[rows, columns].sum())


def test_optimal_coupling_pairs_the_batch():
    def sampler(seed):
        return PointSampler(Gaussian((2,)), seed)

    def cost(coupling):
        start, end, *_ = line(sampler(0), sampler(1), coupling=coupling).sample(64)
        return (start - end).square().sum(1).mean(), end

    (independent, end), (optimal, paired) = cost("independent"), cost("ot")
    assert optimal < 0.3 * independent
    assert sorted(end.tolist()) == sorted(paired.tolist())


def test_random_state_continues_every_stream():
    images = torch.randint(256, (50, 1, 2, 2), dtype=torch.uint8)

    def make():
        return line(PointSampler(Gaussian((1, 2, 2)), 0), ImageSampler(images, 1, flip=True))

    first, second = make(), make()
    first.sample(30)
    second.set_random_state(first.random_state())
    for a, b in zip(first.sample(30), second.sample(30), strict=True):
        assert torch.equal(a, b)


def test_batch_size_may_change_between_calls():
    images = torch.randint(256, (50, 1, 2, 2), dtype=torch.uint8)
    both = line(PointSampler(Gaussian((1, 2, 2)), 0), ImageSampler(images, 1))
    assert [len(both.sample(n)[3]) for n in (256, 128, 7)] == [256, 128, 7]
