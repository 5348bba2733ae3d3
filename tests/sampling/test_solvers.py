import sys
from itertools import pairwise

import pytest
import torch

from nsgf.config.schema import SamplingConfig
from nsgf.sampling import solvers
from nsgf.sampling.solvers import integrate, load_odeint
from nsgf.system.errors import UserError


class Slope:
    """dx/dt = 2 t x, so x(1) = x(tau) exp(1 - tau^2); keeps the times of its calls."""

    def __init__(self):
        self.times: list[torch.Tensor] = []

    def __call__(self, x, t):
        assert t.shape == x.shape[:1]
        self.times.append(t)
        return 2 * t.view(-1, *[1] * (x.ndim - 1)) * x


def called_times(tau, **sampling):
    """The times at which a solver calls the velocity, (calls, B), from its samples' own times."""
    slope = Slope()
    integrate(slope, torch.ones(len(tau), 2), torch.tensor(tau), SamplingConfig(**sampling))
    return [t.tolist() for t in slope.times]


def test_error_of_heun_has_order_two():
    tau = torch.tensor([0.0, 0.3], dtype=torch.float64)
    errors = []
    for n in (32, 64, 128):
        config = SamplingConfig(solver="heun", straight_steps=n)
        x = integrate(Slope(), torch.ones(2, 1, dtype=torch.float64), tau, config)
        errors.append((x[:, 0] - (1 - tau**2).exp()).abs())
    for coarse, fine in pairwise(errors):
        found = (coarse / fine).log2()
        torch.testing.assert_close(found, torch.full_like(tau, 2), rtol=0.05, atol=0)


@pytest.mark.parametrize(("solver", "error"), [("euler", 2e-3), ("heun", 2e-6), ("dopri5", 2e-5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_sample_is_integrated_from_its_own_time_to_one(solver, error, dtype):
    tau = torch.tensor([0.0, 0.25, 0.9, 1.0])
    config = SamplingConfig(solver=solver, straight_steps=1000)
    x = integrate(Slope(), torch.ones(4, 2, 3, 3, dtype=dtype), tau, config)
    exact = (1 - tau**2).exp().view(4, 1, 1, 1).expand(4, 2, 3, 3).to(dtype)
    torch.testing.assert_close(x, exact, rtol=error, atol=0)


def test_euler_equals_its_formula_bit_for_bit():
    x, tau = torch.randn(5, 3), torch.rand(5)
    found = integrate(Slope(), x, tau, SamplingConfig(straight_steps=7))
    omega = (1 - tau) / 7
    for count in range(7):
        t = tau + count * omega
        x = x + torch.minimum(omega, 1 - t)[:, None] * Slope()(x, t)
    assert torch.equal(found, x)


@pytest.mark.parametrize(("power", "middle"), [(1, 0.5), (2, 0.75), (0.5, 1 - 0.5**0.5)])
@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_spacing_makes_steps_finer_towards_the_data(solver, power, middle):
    times = called_times([0.0, 0.6], solver=solver, straight_steps=2, spacing=power)
    inner = [middle, 0.6 + 0.4 * middle]
    expected = {"euler": [[0, 0.6], inner], "heun": [[0, 0.6], inner, inner, [1, 1]]}
    torch.testing.assert_close(torch.tensor(times), torch.tensor(expected[solver]))


def test_omega_takes_as_many_steps_as_each_sample_needs():
    times = called_times([0.0, 0.5, 0.7], omega=0.25)
    expected = [[0.0, 0.5, 0.7], [0.25, 0.75, 0.95], [0.5], [0.75]]
    for found, wanted in zip(times, expected, strict=True):
        assert found == pytest.approx(wanted)
    tau = torch.tensor([0.0, 0.25, 0.9, 1.0])
    x = integrate(lambda x, t: 0 * x + 1, torch.zeros(4, 2), tau, SamplingConfig(omega=0.3))
    torch.testing.assert_close(x[:, 0], 1 - tau)  # the last step is shorter
    assert len(called_times([0.9], omega=0.1)) == 1  # (1 - 0.9) / 0.1 is rounded up


@pytest.mark.parametrize("times", [[0.2, 0.99], [0.9995, 0.999]])
def test_dopri5_calls_only_at_times_between_start_and_end(times):
    """Where little is left its search for a first step looks far ahead."""
    found, tau = torch.tensor(called_times(times, solver="dopri5")), torch.tensor(times)
    assert torch.equal(found[0], tau)
    assert (found >= tau).all()
    assert (found <= 1).all()
    torch.testing.assert_close(found.max(dim=0).values, torch.ones(2))


def test_dopri5_reaches_its_tolerance_with_more_calls():
    x, calls = torch.tensor([[1.0, 2.0], [-3.0, 0.0]], dtype=torch.float64), []
    for tolerance in (1e-2, 1e-4, 1e-7):
        slope, config = Slope(), SamplingConfig(solver="dopri5", tolerance=tolerance)
        end = integrate(slope, x, torch.zeros(2), config)
        assert (end - x * torch.e).abs().max() < 20 * tolerance
        calls.append(len(slope.times))
    assert calls[0] < calls[1] < calls[2]
    assert [count % 6 for count in calls] == [2, 2, 2]


@pytest.mark.parametrize(("solver", "steps", "error"), [("heun", 100, 1e-3), ("dopri5", 5, 1e-3)])
def test_observed_states_are_those_of_equal_times(solver, steps, error):
    config, x, states = SamplingConfig(solver=solver, straight_steps=steps), torch.ones(2, 1), []
    end = integrate(Slope(), x, torch.zeros(2), config, states.append)
    assert len(states) == steps
    for number, state in enumerate(states, start=1):
        exact = torch.full((2, 1), (number / steps) ** 2).exp()
        torch.testing.assert_close(state, exact, rtol=error, atol=0)
    assert torch.equal(states[-1], end)


@pytest.mark.parametrize(
    "slope",
    [
        lambda x, t: torch.full_like(x, torch.nan if t[0] >= 0.5 else 1.0),
        lambda x, t: torch.cos(1e6 * x),  # would take hours
    ],
)
def test_dopri5_gives_up_with_a_one_line_error(slope, monkeypatch):
    monkeypatch.setattr(solvers, "MAX_STEPS", 20)
    with pytest.raises(UserError, match=r"sampling\.solver = dopri5.*sampling\.tolerance = "):
        integrate(slope, torch.rand(2, 1), torch.zeros(2), SamplingConfig(solver="dopri5"))


def test_missing_torchdiffeq_is_a_one_line_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    assert load_odeint("heun") is None
    with pytest.raises(UserError, match=r"sampling\.solver = dopri5: .*pip install"):
        load_odeint("dopri5")
