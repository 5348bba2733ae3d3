"""Algorithms 2 and 4 with networks given by formulas, classes, and how calls are shared."""

import math
from dataclasses import replace

import pytest
import torch

from nsgf.config.schema import Config, FlowConfig, SamplingConfig
from nsgf.sampling.sampler import (
    EntryTimes,
    FixedTime,
    FlowSampler,
    NSGFSteps,
    OneCall,
    ResidualCall,
    StraightFlow,
    nsgf_steps,
)
from nsgf.system.errors import UserError
from tests.conftest import shipped

WAY = (NSGFSteps, EntryTimes, StraightFlow)


def config(steps=3, eta=0.2, **sampling) -> Config:
    return Config(flow=FlowConfig(steps=steps, eta=eta), sampling=SamplingConfig(**sampling))


def plus_plus(config, straight, predictor=None, velocity=lambda x, t: 0 * x + 1) -> FlowSampler:
    """Algorithm 4, with a velocity of one in its NSGF steps."""
    time = EntryTimes if config.sampling.tau is None else FixedTime
    legs = zip((NSGFSteps, time, StraightFlow), (velocity, predictor, straight), strict=True)
    return FlowSampler([leg(config, own) for leg, own in legs])


def growing(x, t):
    """dx/dt = 2 t x, so x(1) = x(tau) exp(1 - tau^2)."""
    return 2 * t.view(-1, *[1] * (x.ndim - 1)) * x


def half(x):
    return x.new_full((len(x),), 0.5)


def test_nsgf_takes_euler_steps_at_the_times_of_the_pool():
    times = []

    def velocity(x, t):
        times.append(float(t[0]))
        return x

    x = nsgf_steps(velocity, torch.ones(3, 2), steps=4, flow_time=4 * 0.5)
    torch.testing.assert_close(x, torch.full((3, 2), 1.5**4))
    assert times == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("settings", "calls", "expected"),
    [
        ({"straight_steps": 10}, 3 + 1 + 10, 14),
        ({"straight_steps": 10, "nsgf_steps": 2}, 2 + 1 + 10, 13),
        ({"straight_steps": 10, "solver": "heun"}, 3 + 1 + 20, 24),
        ({"straight_steps": 10, "solver": "heun", "tau": 0.5}, 3 + 20, 23),
        ({"omega": 0.1}, 3 + 1 + 5, None),  # half of 10, by the predicted times
        ({"omega": 0.25, "tau": 0.5}, 3 + 2, None),
        ({"solver": "dopri5"}, None, None),
    ],
)
def test_nfe_counts_every_network_call(settings, calls, expected):
    made = []

    def straight(x, t):
        made.append(len(x))
        return growing(x, t)

    sampler = plus_plus(config(**settings), straight, half)
    assert sampler.expected_nfe == expected
    for _ in range(2):  # of one call of the sampler
        made.clear()
        assert sampler(torch.zeros(6, 2)).nfe == (calls or 3 + 1 + sum(made) / 6)


def test_predicted_time_decides_where_the_straight_flow_starts():
    """With u = 1 a sample moves by 1 - tau; tau is predicted after the NSGF steps."""
    sampler = plus_plus(config(2, 0.5), lambda x, t: 0 * x + 1, lambda x: x[:, 0] / 10)
    start = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    samples = sampler(start)
    torch.testing.assert_close(samples.tau, torch.tensor([0.1, 0.5]))
    torch.testing.assert_close(samples.x[:, 0], torch.tensor([1 + 0.9, 5 + 0.5]))
    assert samples.nfe == 2 + 1 + 10
    steps = replace(sampler.config, sampling=replace(sampler.config.sampling, omega=0.25))
    assert sampler.with_settings(steps)(start).nfe == 2 + 1 + (4 + 2) / 2


@pytest.mark.parametrize("tau", [0.0, 0.75])
def test_fixed_time_replaces_the_predictor(tau):
    """Three NSGF steps of 0.2, then the way from tau to 1."""
    settings = {"solver": "heun", "straight_steps": 500}
    samples = plus_plus(config(tau=tau, **settings), growing)(torch.ones(2, 2))
    assert torch.equal(samples.tau, torch.tensor([tau, tau]))
    exact = torch.full((2, 2), 1.6 * math.exp(1 - tau**2))
    torch.testing.assert_close(samples.x, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("solver", ["euler", "heun", "dopri5"])
def test_path_holds_start_and_every_step_on_request(solver):
    sampler = plus_plus(config(straight_steps=4, solver=solver), growing, half)
    start = torch.zeros(2, 2)
    samples = sampler(start, keep_path=True)
    straight = [f"straight {step}/4" for step in (1, 2, 3, 4)]
    assert samples.marks == ["start", "NSGF 1/3", "NSGF 2/3", "NSGF 3/3", *straight]
    assert len(samples.path) == len(samples.marks)
    assert torch.equal(samples.path[0], start)
    torch.testing.assert_close(samples.path[2], start + 0.4)
    assert torch.equal(samples.path[-1], samples.x)
    alone = sampler(start)
    assert (alone.path, alone.nfe) == ([], samples.nfe)
    assert torch.equal(alone.x, samples.x)


def with_classes(**sampling) -> Config:
    flags = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")
    own = SamplingConfig(straight_steps=3, **sampling)
    return replace(shipped("digits/onecall", *flags), sampling=own)


def answers(x, t, labels):
    """The class; 10 stands for none."""
    return labels.to(x.dtype).view(-1, *[1] * (x.ndim - 1)).expand_as(x)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("legs", [(OneCall,), (ResidualCall,), (NSGFSteps,), (StraightFlow,), WAY])
def test_guidance_equals_its_formula_and_counts_both_calls(legs, weight):
    """The time predictor is given no class, and is called once."""

    def network(x, *others):
        return answers(x, *others) if others else torch.zeros(len(x))

    own = with_classes(guidance=weight)
    sampler = FlowSampler([leg(own, network) for leg in legs])
    labels, single = torch.tensor([1, 2, 3]), torch.tensor([1])
    found = sampler(torch.zeros(3, 1, 8, 8), labels)
    unguided = FlowSampler([leg(with_classes(), network) for leg in legs])
    unit = unguided(torch.zeros(1, 1, 8, 8), single).x.mean()  # the length of the way
    moved = (10 + weight * (labels - 10.0)) * unit
    torch.testing.assert_close(found.x[:, 0, 0, 0], moved)
    calls = {OneCall: 1, ResidualCall: 1, NSGFSteps: 5, StraightFlow: 3, EntryTimes: 1}
    twice = 1 if weight == 1 else 2
    expected = sum(calls[leg] * (1 if leg is EntryTimes else twice) for leg in legs)
    assert found.nfe == sampler.expected_nfe == expected


def test_sampling_settings_choose_the_classes():
    def labels(config):
        return FlowSampler([OneCall(config, answers)]).labels(range(8, 12))

    assert labels(with_classes()).tolist() == [8, 9, 0, 1]
    assert labels(with_classes(label=7)).tolist() == [7] * 4
    assert labels(shipped("digits/onecall")) is None
    sampler = FlowSampler([OneCall(with_classes(), answers)])
    bytes_ = torch.tensor([9, 0, 4], dtype=torch.uint8)
    for own, expected in ((None, [0, 1, 2]), (bytes_, [9, 0, 4])):
        found = sampler(torch.zeros(3, 1, 8, 8), own)
        assert found.labels.dtype == torch.int64
        assert found.labels.tolist() == found.x[:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, 10, 1]),  # which stands for no class
        torch.tensor([0, 1, -1]),
        torch.tensor([0, 1]),
        torch.tensor(1),
        torch.tensor([0.0, 1.5, 2.0]),
    ],
)
def test_wrong_labels_are_a_one_line_error(labels):
    sampler = FlowSampler([OneCall(with_classes(), lambda *_: pytest.fail("called"))])
    with pytest.raises(UserError, match=r"^labels: must be 3 whole numbers"):
        sampler(torch.zeros(3, 1, 8, 8), labels)
    without = FlowSampler([OneCall(shipped("digits/onecall"), lambda x, t: x)])
    assert without(torch.ones(3, 1, 8, 8)).labels is None
    with pytest.raises(UserError, match=r"^labels: have no effect without data\.conditional"):
        without(torch.zeros(3, 1, 8, 8), torch.tensor([0, 1, 2]))
