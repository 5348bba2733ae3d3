"""The velocity of generated samples: halves that are each other's second batch."""

import pytest
import torch

from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.sinkhorn.drift import Drift, mean_cost
from tests.sinkhorn.reference import plan


@pytest.fixture
def clouds():
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(12, 3, generator=generator)
    return made, 0.5 * torch.randn(16, 3, generator=generator) + 2


@pytest.mark.parametrize("targets", [12, 16])
def test_velocity_is_the_difference_of_two_maps(clouds, targets):
    made, real = clouds[0], clouds[1][:targets]
    images = made.view(1, 12, 3, 1), real.view(1, targets, 3, 1)
    v = Drift([0.3], 1e-6).velocity(*images).view(12, 3)
    blur = 0.3 * float((torch.cdist(made, real).square() / 2).mean().sqrt())
    (a, b), (ya, yb) = made.chunk(2), real.chunk(2)
    expected = [plan(a, ya, blur) @ ya.double() - plan(a, b, blur) @ b.double()]
    expected += [plan(b, yb, blur) @ yb.double() - plan(b, a, blur) @ a.double()]
    assert torch.allclose(v, torch.cat(expected).float(), atol=1e-4)


def test_velocities_of_several_blurs_are_averaged(clouds):
    made, real = (cloud.unsqueeze(0) for cloud in clouds)
    one, other = (Drift([blur], 1e-6).velocity(made, real) for blur in (0.2, 0.6))
    both = Drift([0.2, 0.6], 1e-6)
    assert torch.allclose(both.velocity(made, real), (one + other) / 2, atol=1e-5)
    assert [report.solves for report in both.reports] == [4, 4]


def test_odd_samples_and_single_points_stay():
    made, real = torch.randn(1, 7, 2), torch.randn(1, 7, 2) + 5
    v = Drift([1.0], 1e-6).velocity(made, real)[0]
    assert (v[:6].norm(dim=1) > 1).all()
    assert (v[6] == 0).all()
    assert not Drift([0.5], 1e-6).velocity(torch.ones(1, 4, 2), torch.ones(1, 4, 2)).any()


def test_samples_of_the_target_stay_on_average():
    """Where generated samples have the target's law, both maps make the same errors. The usual
    velocity, against the samples themselves, still draws all of them inwards."""
    generator = torch.Generator().manual_seed(1)
    made, real = torch.randn(2, 1, 1024, 8, generator=generator)
    v = Drift([1 / float(mean_cost(made, real).sqrt())], 1e-3).velocity(made, real)[0]
    outwards = (v * made[0]).sum(1).mean() / made[0].square().sum(1).mean()
    assert abs(float(outwards)) < 0.02
    usual = BatchedSolver(1.0).solve(made, real).velocity[0]
    assert float((usual * made[0]).sum(1).mean() / made[0].square().sum(1).mean()) < -0.05
