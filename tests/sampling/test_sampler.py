import math
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from nsgf.config.schema import Config, FlowConfig, SamplingConfig
from nsgf.sampling.sampler import EntryTimes, FlowSampler, NSGFSteps, StraightFlow, nsgf_steps
from nsgf.sampling.solvers import integrate
from nsgf.system.errors import UserError

SOLVERS = ("euler", "heun", "dopri5")


class Function(nn.Module):
    """A network given by a formula; keeps the times it was asked for."""

    def __init__(self, formula) -> None:
        super().__init__()
        self.formula, self.times = formula, []

    def forward(self, x, t=None):
        if t is None:
            return self.formula(x)
        self.times.append(t)
        return self.formula(x, t)


def config(steps=5, eta=0.2, **sampling) -> Config:
    return Config(flow=FlowConfig(steps=steps, eta=eta), sampling=SamplingConfig(**sampling))


def plus_plus(config, velocity, straight=None, predictor=None) -> FlowSampler:
    """Algorithm 4, or Algorithm 2 with the velocity alone."""
    legs = [NSGFSteps(config, velocity)]
    if straight is not None:
        legs += [EntryTimes(config, predictor or never), StraightFlow(config, straight)]
    return FlowSampler(legs)


def never(x):
    raise RuntimeError("the predictor was called")


def test_nsgf_takes_t_euler_steps_of_eta_at_the_pools_times():
    velocity = Function(lambda x, t: x)
    x = nsgf_steps(velocity, torch.ones(3, 2), steps=4, flow_time=4 * 0.5)
    torch.testing.assert_close(x, torch.full((3, 2), 1.5**4))
    assert [float(t[0]) for t in velocity.times] == [0, 0.25, 0.5, 0.75]


def test_other_step_counts_cover_the_same_flow_time():
    """dx/dt = -x over time 1: halving the step halves the error."""
    errors = [
        abs(
            float(nsgf_steps(Function(lambda x, t: -x), torch.ones(1), steps=n, flow_time=1.0))
            - math.exp(-1)
        )
        for n in (10, 20, 40)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("sampling", [{"straight_steps": 4}, {"omega": 0.3}])
def test_straight_flow_covers_tau_to_one_for_each_sample(sampling):
    tau = torch.tensor([0.0, 0.25, 0.9, 1.0])
    x = integrate(
        Function(lambda x, t: torch.ones_like(x)),
        torch.zeros(4, 2),
        tau,
        SamplingConfig(**sampling),
    )
    torch.testing.assert_close(x[:, 0], 1 - tau)


def test_equal_steps_ask_at_the_samples_own_times():
    straight = Function(lambda x, t: torch.ones_like(x))
    tau = torch.tensor([0.0, 0.6])
    integrate(straight, torch.zeros(2, 2), tau, SamplingConfig(straight_steps=2))
    torch.testing.assert_close(torch.stack(straight.times), torch.tensor([[0.0, 0.6], [0.5, 0.8]]))


def test_fixed_omega_takes_as_many_steps_as_each_sample_needs():
    straight = Function(lambda x, t: torch.ones_like(x))
    tau = torch.tensor([0.0, 0.5, 0.7])
    integrate(straight, torch.zeros(3, 2), tau, SamplingConfig(omega=0.25))
    times = [t.tolist() for t in straight.times]
    expected = [[0.0, 0.5, 0.7], [0.25, 0.75, 0.95], [0.5], [0.75]]
    for found, wanted in zip(times, expected, strict=True):
        assert found == pytest.approx(wanted)


def growing(x, t):
    """dx/dt = 2 t x, so x(1) = x(tau) exp(1 - tau^2)."""
    return 2 * t.view(-1, *[1] * (x.ndim - 1)) * x


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
def test_half_the_step_divides_the_error_by_two_to_the_order(solver, order):
    tau = torch.tensor([0.0, 0.3], dtype=torch.float64)
    errors = []
    for n in (32, 64, 128):
        config = SamplingConfig(solver=solver, straight_steps=n)
        x = integrate(Function(growing), torch.ones(2, 1, dtype=torch.float64), tau, config)
        errors.append((x[:, 0] - (1 - tau**2).exp()).abs())
    for coarse, fine in pairwise(errors):
        torch.testing.assert_close(
            (coarse / fine).log2(), torch.full_like(tau, order), rtol=0.05, atol=0
        )


@pytest.mark.parametrize(("solver", "error"), [("euler", 2e-3), ("heun", 2e-6), ("dopri5", 2e-5)])
def test_samples_go_from_their_own_times_to_one(solver, error):
    tau = torch.tensor([0.0, 0.25, 0.9, 1.0])
    config = SamplingConfig(solver=solver, straight_steps=1000)
    x = integrate(Function(growing), torch.ones(4, 2, 3, 3), tau, config)
    exact = (1 - tau**2).exp().view(4, 1, 1, 1).expand(4, 2, 3, 3)
    torch.testing.assert_close(x, exact, rtol=error, atol=0)


def test_euler_is_the_sum_written_out_bit_for_bit():
    x, tau = torch.randn(5, 3), torch.rand(5)
    found = integrate(Function(growing), x, tau, SamplingConfig(straight_steps=7))
    omega = (1 - tau) / 7
    for count in range(7):
        t = tau + count * omega
        x = x + torch.minimum(omega, 1 - t)[:, None] * growing(x, t)
    assert torch.equal(found, x)


def test_heun_asks_at_both_ends_of_the_samples_own_steps():
    straight = Function(lambda x, t: torch.ones_like(x))
    config = SamplingConfig(solver="heun", straight_steps=2)
    integrate(straight, torch.zeros(2, 2), torch.tensor([0.0, 0.6]), config)
    expected = torch.tensor([[0.0, 0.6], [0.5, 0.8], [0.5, 0.8], [1.0, 1.0]])
    torch.testing.assert_close(torch.stack(straight.times), expected)


@pytest.mark.parametrize("times", [[0.2, 0.99], [0.9995, 0.999]])
def test_dopri5_asks_at_no_time_before_or_behind_the_way(times):
    """Where little is left to go its search for a first step looks far ahead."""
    straight, tau = Function(growing), torch.tensor(times)
    integrate(straight, torch.ones(2, 2), tau, SamplingConfig(solver="dopri5"))
    times = torch.stack(straight.times)
    assert torch.equal(times[0], tau)
    assert (times >= tau).all()
    assert (times <= 1).all()
    torch.testing.assert_close(times.max(dim=0).values, torch.ones(2))


def test_nfe_counts_every_network_call():
    half = Function(lambda x: torch.full((len(x),), 0.5))

    def sample(straight=True, **parts):
        still = Function(lambda x, t: 0 * x)
        sampler = plus_plus(config(**parts), still, still if straight else None, half)
        return sampler(torch.zeros(6, 2)).nfe, sampler.expected_nfe

    assert sample(straight=False) == (5, 5)
    assert sample(straight_steps=10) == (16, 16)  # 5 + 1 + 10
    assert sample(straight_steps=10, nsgf_steps=3) == (14, 14)
    assert sample(omega=0.1) == (11, None)  # 5 + 1 + half of 10, by predicted times


def test_nfe_is_that_of_one_call_of_the_sampler():
    sampler = plus_plus(config(), Function(lambda x, t: 0 * x))
    assert [sampler(torch.zeros(6, 2)).nfe for _ in range(2)] == [5, 5]


def sampler_of(straight, predictor=None, **sampling):
    velocity = Function(lambda x, t: torch.ones_like(x))
    return plus_plus(config(steps=3, **sampling), velocity, straight, predictor)


def test_nfe_of_other_solvers_counts_every_network_call():
    half = Function(lambda x: torch.full((len(x),), 0.5))
    heun = {"solver": "heun", "straight_steps": 10}
    sampler = sampler_of(Function(growing), half, **heun)
    assert sampler(torch.zeros(6, 2)).nfe == sampler.expected_nfe == 3 + 1 + 20
    assert sampler_of(Function(growing), tau=0.5, **heun).expected_nfe == 3 + 20
    straight = Function(growing)
    sampler = sampler_of(straight, half, solver="dopri5")
    assert sampler(torch.zeros(6, 2)).nfe == 3 + 1 + len(straight.times)
    assert sampler.expected_nfe is None
    assert sampler_of(None, solver="dopri5").expected_nfe == 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_fixed_time_replaces_the_predictor(solver):
    """Three NSGF steps of 0.2, then the way from 0.75 to 1: exp(1 - 0.75^2)."""
    settings = {"solver": solver, "straight_steps": 500}
    fixed = sampler_of(Function(growing), Function(never), tau=0.75, **settings)
    samples = fixed(torch.ones(2, 2))
    assert torch.equal(samples.tau, torch.tensor([0.75, 0.75]))
    exact = torch.full((2, 2), 1.6 * math.exp(1 - 0.75**2))
    torch.testing.assert_close(samples.x, exact, rtol=1e-3, atol=0)
    same = Function(lambda x: torch.full((len(x),), 0.75))
    predicted = sampler_of(Function(growing), same, **settings)(torch.ones(2, 2))
    assert torch.equal(samples.x, predicted.x)
    assert samples.nfe == predicted.nfe - 1


def test_time_zero_is_a_fixed_time():
    samples = sampler_of(Function(lambda x, t: torch.ones_like(x)), tau=0.0)(torch.zeros(2, 2))
    torch.testing.assert_close(samples.x, torch.full((2, 2), 1.6))
    assert samples.nfe == 3 + 10


def test_nfe_that_is_expected_of_a_fixed_time():
    assert sampler_of(Function(growing), tau=0.5).expected_nfe == 3 + 10
    stepped = sampler_of(Function(growing), tau=0.5, omega=0.25)
    assert stepped(torch.ones(2, 2)).nfe == stepped.expected_nfe == 3 + 2


def test_straight_flow_alone_starts_at_time_zero_whatever_tau_says():
    """All that the methods NSGF is compared with do; with u = 1 a sample moves by 1."""
    own = config(tau=0.5, omega=0.25)
    sampler = FlowSampler([StraightFlow(own, Function(lambda x, t: torch.ones_like(x)))])
    samples = sampler(torch.zeros(2, 2))
    torch.testing.assert_close(samples.x, torch.ones(2, 2))
    assert samples.tau is None
    assert samples.nfe == sampler.expected_nfe == 4


def test_straight_flow_is_known():
    assert sampler_of(Function(growing), tau=0.5).has_straight_flow
    assert not sampler_of(None).has_straight_flow


def test_missing_torchdiffeq_is_told_before_anything_is_sampled(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(UserError, match="pip install torchdiffeq"):
        sampler_of(Function(growing), tau=0.5, solver="heun")
    assert sampler_of(None, solver="heun")(torch.ones(2, 2)).nfe == 3


def test_nfe_is_averaged_over_samples_that_differ():
    sampler = plus_plus(
        config(steps=1, omega=0.25),
        Function(lambda x, t: 0 * x),
        Function(lambda x, t: 0 * x),
        Function(lambda x: x[:, 0]),
    )
    assert sampler(torch.tensor([[0.0], [0.75]])).nfe == 1 + 1 + (4 + 1) / 2


def test_predicted_time_decides_where_the_straight_flow_starts():
    """With u = 1 a sample moves by 1 - tau, so an unused tau would show."""
    sampler = plus_plus(
        config(steps=2, eta=0.5),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x: x[:, 0] / 10),
    )
    samples = sampler(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    torch.testing.assert_close(samples.tau, torch.tensor([0.1, 0.5]))  # asked after the NSGF steps
    torch.testing.assert_close(samples.x[:, 0], torch.tensor([1 + 0.9, 5 + 0.5]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_path_holds_start_and_every_step_on_request(solver):
    sampler = plus_plus(
        config(steps=3, straight_steps=4, solver=solver),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x: torch.full((len(x),), 0.5)),
    )
    start = torch.zeros(2, 2)
    samples = sampler(start, keep_path=True)
    assert len(samples.path) == 1 + 3 + 4
    straight = [f"u {step}/4" for step in (1, 2, 3, 4)]
    assert samples.marks == ["start", "v 1/3", "v 2/3", "v 3/3", *straight]
    assert torch.equal(samples.path[0], start)
    assert torch.equal(samples.path[-1], samples.x)
    alone = sampler(start)
    assert alone.path == []
    assert alone.nfe == samples.nfe
    assert torch.equal(alone.x, samples.x)
