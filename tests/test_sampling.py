import math

import pytest
import torch
from torch import nn

from nsgf.config import Config, FlowConfig, SamplingConfig
from nsgf.sampling import NSGFSampler, expected_nfe, nsgf_steps, straight_flow


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
    x = straight_flow(
        Function(lambda x, t: torch.ones_like(x)),
        torch.zeros(4, 2),
        tau,
        SamplingConfig(**sampling),
    )
    torch.testing.assert_close(x[:, 0], 1 - tau)


def test_equal_steps_ask_at_the_samples_own_times():
    straight = Function(lambda x, t: torch.ones_like(x))
    tau = torch.tensor([0.0, 0.6])
    straight_flow(straight, torch.zeros(2, 2), tau, SamplingConfig(straight_steps=2))
    torch.testing.assert_close(torch.stack(straight.times), torch.tensor([[0.0, 0.6], [0.5, 0.8]]))


def test_fixed_omega_takes_as_many_steps_as_each_sample_needs():
    straight = Function(lambda x, t: torch.ones_like(x))
    tau = torch.tensor([0.0, 0.5, 0.7])
    straight_flow(straight, torch.zeros(3, 2), tau, SamplingConfig(omega=0.25))
    times = [t.tolist() for t in straight.times]
    expected = [[0.0, 0.5, 0.7], [0.25, 0.75, 0.95], [0.5], [0.75]]
    for found, wanted in zip(times, expected, strict=True):
        assert found == pytest.approx(wanted)


def test_straight_flow_converges_at_first_order():
    """dx/dt = x from 0 to 1 is a factor e."""
    errors = []
    for n in (10, 20):
        x = straight_flow(
            Function(lambda x, t: x),
            torch.ones(1, 1),
            torch.zeros(1),
            SamplingConfig(straight_steps=n),
        )
        errors.append(abs(float(x) - math.e))
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.15)


def test_nfe_counts_every_network_call():
    def sample(**parts):
        networks = {
            "velocity": Function(lambda x, t: 0 * x),
            "straight": Function(lambda x, t: 0 * x),
            "predictor": Function(lambda x: torch.full((len(x),), 0.5)),
        }
        chosen = {name: networks[name] for name in parts.pop("use")}
        return NSGFSampler(config(**parts), **chosen)(torch.zeros(6, 2))

    everything = ("velocity", "straight", "predictor")
    assert sample(use=("velocity",)).nfe == 5
    assert sample(use=everything, straight_steps=10).nfe == 16  # 5 + 1 + 10
    assert sample(use=everything, straight_steps=10, nsgf_steps=3).nfe == 14
    assert sample(use=everything, omega=0.1).nfe == 11  # 5 + 1 + half of 10
    assert expected_nfe(config(straight_steps=10), straight=True) == "16"
    assert expected_nfe(config(), straight=False) == "5"


def test_nfe_is_averaged_over_samples_that_differ():
    sampler = NSGFSampler(
        config(steps=1, omega=0.25),
        Function(lambda x, t: 0 * x),
        Function(lambda x, t: 0 * x),
        Function(lambda x: x[:, 0]),
    )
    assert sampler(torch.tensor([[0.0], [0.75]])).nfe == 1 + 1 + (4 + 1) / 2


def test_predicted_time_decides_where_the_straight_flow_starts():
    """With u = 1 a sample moves by 1 - tau, so an unused tau would show."""
    sampler = NSGFSampler(
        config(steps=2, eta=0.5),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x: x[:, 0] / 10),
    )
    samples = sampler(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    torch.testing.assert_close(samples.tau, torch.tensor([0.1, 0.5]))  # asked after the NSGF steps
    torch.testing.assert_close(samples.x[:, 0], torch.tensor([1 + 0.9, 5 + 0.5]))


def test_without_predictor_the_straight_flow_is_left_out():
    sampler = NSGFSampler(
        config(), Function(lambda x, t: 0 * x), straight=Function(lambda x, t: x + 1)
    )
    samples = sampler(torch.zeros(2, 2))
    assert samples.tau is None
    assert not samples.x.any()


def test_path_holds_start_and_every_step_on_request():
    sampler = NSGFSampler(
        config(steps=3, straight_steps=4),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x, t: torch.ones_like(x)),
        Function(lambda x: torch.full((len(x),), 0.5)),
    )
    start = torch.zeros(2, 2)
    samples = sampler(start, keep_path=True)
    assert len(samples.path) == 1 + 3 + 4
    assert torch.equal(samples.path[0], start)
    assert torch.equal(samples.path[-1], samples.x)
    assert sampler(start).path == []
