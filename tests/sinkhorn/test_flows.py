"""The flow of the energy distance: closed forms, and the gradient of its definition."""

import pytest
import torch

from nsgf.method import run_flow
from nsgf.sinkhorn import BatchedSolver, EnergyFlow, GeomlossSolver


def velocity(x, y):
    """Velocities of one flow."""
    return EnergyFlow().velocity(x[None], y[None])[0]


def energy_distance(x, y):
    def mean(a, b):
        return (a[:, None] - b).square().sum(2).clamp_min(1e-60).sqrt().mean()

    return mean(x, y) - mean(x, x) / 2 - mean(y, y) / 2


def test_velocity_is_the_gradient_of_the_energy_distance():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator, dtype=torch.float64).requires_grad_()
    y = torch.randn(20, 3, generator=generator, dtype=torch.float64) + 1
    energy_distance(x, y).backward()
    torch.testing.assert_close(velocity(x.detach(), y), -30 * x.grad)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("flow", [EnergyFlow(), BatchedSolver(0.5), GeomlossSolver(0.5, 0.9)])
def test_flows_do_not_depend_on_the_origin(flow, offset, kind):
    """Of particles and targets that have the rounding of this offset: the velocity is that of
    float64 at the origin, and the positions of a flow are only rounded.

    Past mistake: Only the default flow subtracted the mean. The energy flow was 4 % wrong at an
    offset of 1e5, geomloss 90 % at 1e4.
    """
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(1, 40, 2, generator=generator, dtype=torch.float64) + offset).to(kind)
    y = (torch.randn(1, 50, 2, generator=generator, dtype=torch.float64) + offset + 1).to(kind)
    near = (x.double() - offset, y.double() - offset)
    expected = flow.velocity(*near).double()
    torch.testing.assert_close(flow.velocity(x, y).double(), expected, rtol=0, atol=1e-5)
    etas = [0.2] * 5
    positions = run_flow(flow, x, y, etas).double() - offset
    rounding = torch.finfo(torch.float32).eps * offset
    expected = run_flow(flow, *near, etas).double()
    torch.testing.assert_close(positions, expected, rtol=0, atol=rounding + 1e-5)


@pytest.mark.parametrize("distance", [0.1, 7.0])
def test_single_particle_moves_at_speed_one(distance):
    """Towards its only target, however far this is; at the target it rests."""
    target = torch.tensor([[3.0, 4.0]])
    v = velocity(target * (1 - distance / 5), target)
    torch.testing.assert_close(v, torch.tensor([[0.6, 0.8]]))
    assert not velocity(target, target).any()


def test_particles_on_a_line_spread():
    """Targets are far to the right: 1 from them, and 1/3 of the sum of signs to each other."""
    x = torch.tensor([[0.0], [1.0], [5.0]])
    y = torch.tensor([[90.0], [91.0]])
    torch.testing.assert_close(velocity(x, y), torch.tensor([[1 / 3], [1.0], [5 / 3]]))


def test_flow_decreases_the_energy_distance():
    """Of images, in a single call that counts no transport problem."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 64, 1, 2, 1, generator=generator)
    y = 0.5 * torch.randn(1, 80, 1, 2, 1, generator=generator) + 3
    flow = EnergyFlow()
    positions = run_flow(flow, x, y, [0.1] * 100)[0].flatten(2)
    found = [float(energy_distance(positions[:, t], y[0].flatten(1))) for t in (0, 10, 30, 100)]
    assert found[0] > 1.5 * found[1] > 1.5 * found[2] > 1.5 * found[3]
    assert found[3] < 0.05 * found[0]
    assert flow.report.solves == 0
