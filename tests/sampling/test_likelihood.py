"""Densities of velocities with closed forms, bits per dimension, and the densities of sources."""

import math
from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import Config, FlowConfig, SamplingConfig
from nsgf.data import DATA_SETS, Target, gaussian
from nsgf.models import AffineStartNetwork
from nsgf.sampling.likelihood import bits_per_dim, has_density, log_prob, summarise
from nsgf.sampling.sampler import (
    AffineStart,
    EntryTimes,
    FlowSampler,
    InferenceNetwork,
    NSGFSteps,
    OneCall,
    ResidualCall,
    StraightFlow,
)
from nsgf.system.errors import UserError
from nsgf.user_data import find_target
from tests.conftest import CPU, shipped


class Space(Target):
    """Samples of one shape."""

    def __init__(self, *shape, names=()):
        self.shape = shape
        self.class_names = names


CONSTANT = FlowConfig(steps=4, eta=0.15)


def sampler_of(target, *legs, flow=CONSTANT, **sampling):
    config = Config(flow=flow, sampling=SamplingConfig(batch_size=64, **sampling))
    made = [kind(network, config.sampling, flow, target.classes) for kind, network in legs]
    return FlowSampler(made, target)


class Gaussian:
    """The Gaussian N(mean, root^2) with a root that is not diagonal."""

    def __init__(self, dim, seed=0):
        random = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(dim, dim, generator=random)).Q
        self.root = (basis * torch.linspace(0.4, 2.0, dim)) @ basis.T
        self.mean = torch.randn(dim, generator=random)
        self.law = torch.distributions.MultivariateNormal(
            self.mean.double(), (self.root @ self.root.T).double()
        )

    def velocity(self, x, t):
        """The straight flow from a standard Gaussian, exactly: X_t = (1 - t + t root) X_0 + t m."""
        map_ = (1 - t[0]) * torch.eye(len(self.mean)) + t[0] * self.root
        start = torch.linalg.solve(map_, x - t[0] * self.mean, left=False)
        return start @ (self.root - torch.eye(len(self.mean))) + self.mean

    def draw(self, n):
        return (torch.randn(n, len(self.mean)) @ self.root + self.mean).float()


def decay(rate):
    """dx/dt = rate (1 + t) x, so x(1) = x(0) exp(1.5 rate)."""
    return lambda x, t: rate * (1 + t.view(-1, 1)) * x


def estimate(sampler, x, labels=None, **how):
    law = gaussian(sampler.target.shape)
    return summarise(*log_prob(sampler, law, x, labels, CPU, **how))


def check_gaussian(found, x, law, dim):
    """Exact in few dimensions; else within the stated errors, which are neither 0 nor too wide."""
    difference = found.value - law.log_prob(x.double())
    assert found.value.dtype == found.error.dtype == torch.float64
    if dim <= 16:
        assert difference.abs().max() < 1e-3
        assert (found.error == 0).all()
    else:
        assert 0.7 < (difference / found.error).square().mean().sqrt() < 2
        assert found.error.max() < 1


@pytest.mark.parametrize("dim", [3, 16, 32])
def test_density_of_a_straight_flow_is_that_of_its_gaussian(dim):
    end = Gaussian(dim)
    sampler = sampler_of(Space(dim), (StraightFlow, end.velocity))
    x = end.draw(150)
    check_gaussian(estimate(sampler, x), x, end.law, dim)


@pytest.mark.parametrize("dim", [3, 32])
@pytest.mark.parametrize(("schedule", "length"), [("constant", 4 * 0.15), ("harmonic", 1.0)])
def test_density_on_the_clock_of_nsgf(schedule, length, dim):
    """The ODE is dx/ds = L v(x, s), with L = T eta or 1."""
    end = Gaussian(dim)
    flow = FlowConfig(steps=4, eta=0.15, schedule=schedule)
    network = lambda x, t: end.velocity(x, t) / length  # noqa: E731
    sampler = sampler_of(Space(dim), (NSGFSteps, network), flow=flow)
    x = end.draw(150)
    check_gaussian(estimate(sampler, x), x, end.law, dim)


@pytest.mark.parametrize("tau", [None, 0.5])
@pytest.mark.parametrize("dim", [3, 32])
def test_density_of_a_hand_over_follows_both_legs(dim, tau):
    """NSGF's leg ends in a Gaussian; the straight flow scales it, from tau on."""
    middle = Gaussian(dim)
    first = NSGFSteps, lambda x, t: middle.velocity(x, t) / 0.6
    second = StraightFlow, decay(-0.4)
    start = tau or 0.0
    factor = math.exp(-0.4 * (1.5 - start - start**2 / 2))
    x = factor * middle.draw(150)
    law = torch.distributions.MultivariateNormal(
        factor * middle.law.mean, factor**2 * middle.law.covariance_matrix
    )
    check_gaussian(estimate(sampler_of(Space(dim), first, second, tau=tau), x), x, law, dim)


@pytest.mark.parametrize("dim", [3, 32])
def test_density_after_an_affine_start(dim):
    end = Gaussian(dim)
    network = AffineStartNetwork(torch.nn.Identity(), (dim,))
    network.set_map(end.mean.double(), (end.root @ end.root.T).double(), 1.0)
    network.network.forward = lambda x, t: decay(0.3)(x, t)
    wrapped = InferenceNetwork(network, "fp32")
    sampler = sampler_of(Space(dim), (AffineStart, wrapped), (StraightFlow, wrapped))
    factor = math.exp(1.5 * 0.3)
    law = torch.distributions.MultivariateNormal(
        factor * end.law.mean, factor**2 * end.law.covariance_matrix
    )
    x = factor * end.draw(100)
    difference = estimate(sampler, x).value - law.log_prob(x.double())
    assert difference.abs().max() < 1e-3  # a multiple of I, so that signs are exact
    network.matrix[:, 0] = network.matrix[:, 1]
    with pytest.raises(UserError, match="fewer dimensions"):
        estimate(sampler, x)


def test_estimates_with_more_probes_are_closer():
    end = Gaussian(40)
    sampler = sampler_of(Space(40), (StraightFlow, end.velocity))
    x = end.draw(60)
    few, many = (estimate(sampler, x, probes=count, steps=10) for count in (4, 64))
    exact = end.law.log_prob(x.double())
    assert many.error.mean() < few.error.mean() / 3
    assert (many.value - exact).square().mean() < (few.value - exact).square().mean() / 4
    again = estimate(sampler, x, probes=4, steps=10, seed=1)
    assert not torch.equal(again.value, few.value)
    assert torch.equal(estimate(sampler, x, probes=4, steps=10).value, few.value)


def test_density_of_a_velocity_that_does_not_depend_on_x():
    sampler = sampler_of(Space(2), (StraightFlow, lambda x, t: torch.full_like(x, 3.0).detach()))
    x = torch.randn(5, 2)
    expected = gaussian((2,)).log_density(x.double() - 3)
    torch.testing.assert_close(estimate(sampler, x).value, expected, rtol=0, atol=1e-5)


def test_labels_choose_the_density_of_a_class():
    """Class k moves samples by k; the batches are smaller than the number of samples."""
    target = Space(2, names=("a", "b", "c"))
    network = lambda x, t, labels: labels.float().view(-1, 1).expand_as(x)  # noqa: E731
    sampler = sampler_of(target, (StraightFlow, network))
    x = torch.randn(150, 2)
    labels = torch.arange(150) % 3
    expected = gaussian((2,)).log_density(x.double() - labels.unsqueeze(1))
    found = estimate(sampler, x, labels)
    torch.testing.assert_close(found.value, expected, rtol=0, atol=1e-5)


def test_gap_is_the_distance_to_the_few_step_sample():
    """One Euler step of dx/dt = x doubles, the ODE multiplies by e."""
    settings = {"straight_steps": 1}
    sampler = sampler_of(Space(2), (StraightFlow, lambda x, t: x), **settings)
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    expected = (1 - 2 / math.e) * torch.tensor([5.0, 1.0]).double() / 2**0.5
    torch.testing.assert_close(estimate(sampler, x).gap, expected, rtol=1e-5, atol=0)
    fine = sampler.with_settings(replace(sampler.sampling, solver="heun", straight_steps=100))
    assert estimate(fine, x).gap.max() < 1e-3


@pytest.mark.parametrize("name", ["gaussian", "8gaussians"])
def test_density_of_a_source_is_that_of_its_draws(name):
    law = gaussian((2,)) if name == "gaussian" else DATA_SETS[name]
    axis = torch.linspace(-9, 9, 361, dtype=torch.float64)
    cell = float(axis[1] - axis[0]) ** 2
    grid = torch.cartesian_prod(axis, axis)
    mass = law.log_density(grid).exp() * cell
    assert float(mass.sum()) == pytest.approx(1, abs=1e-6)
    draws = law.draw(40_000, torch.Generator().manual_seed(0)).double()
    for power in (1, 2, 4):
        moment = (mass.unsqueeze(1) * grid**power).sum(0)
        torch.testing.assert_close((draws**power).mean(0), moment, rtol=0.04, atol=0.1)
    # the draws are as probable as the density says: a wrong width would change this mean
    entropy = -(mass * law.log_density(grid)).sum()
    assert float(-law.log_density(draws).mean()) == pytest.approx(float(entropy), abs=0.02)


@pytest.mark.parametrize("byte", [0, 128, 255])
def test_bits_per_dimension_of_a_standard_gaussian(byte):
    """Without velocity, x = (b + u - 1/2) / 127.5 - 1 has a standard Gaussian density."""
    target = find_target(shipped("digits").data)
    sampler = sampler_of(target, (StraightFlow, lambda x, t: 0 * x))
    images = torch.full((200, 1, 8, 8), byte, dtype=torch.uint8)
    bits, gap = bits_per_dim(sampler, gaussian(target.shape), images, None, CPU, 0)
    x = byte / 127.5 - 1
    square = x**2 + 1 / (12 * 127.5**2)
    expected = math.log2(127.5) + (square + math.log(2 * math.pi)) / (2 * math.log(2))
    assert bits.shape == (200,)
    assert float(bits.mean()) == pytest.approx(expected, abs=3e-4)
    assert gap.max() < 1e-6
    # noise of the width of a level spreads the bits of equal images
    spread = abs(x) / 127.5 / 12**0.5 / math.log(2) / 8
    assert float(bits.std()) == pytest.approx(spread, rel=0.2, abs=1e-5)


@pytest.mark.parametrize(
    "kinds",
    [
        (OneCall,),
        (ResidualCall,),
        (NSGFSteps, EntryTimes, StraightFlow),
    ],
)
def test_legs_without_an_ode_are_refused(kinds):
    assert not has_density(kinds)
    sampler = sampler_of(Space(2), *((kind, decay(1.0)) for kind in kinds))
    with pytest.raises(UserError, match=r"no ODE.*nsgf\+\+h"):
        estimate(sampler, torch.zeros(2, 2))


@pytest.mark.parametrize("rate", [1.0, -1.0])
def test_twice_the_steps_divide_the_error_by_sixteen(rate):
    """Steps of fourth order; the divergence, which depends only on t, has no error."""
    sampler = sampler_of(Space(1), (StraightFlow, decay(rate)))
    x = torch.tensor([[2.0]])
    exact = gaussian((1,)).log_density(x.double() / math.exp(1.5 * rate)) - 1.5 * rate
    coarse, fine = (abs(float(estimate(sampler, x, steps=steps).value - exact)) for steps in (2, 4))
    assert 10 < coarse / fine < 30
