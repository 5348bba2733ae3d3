import sys
from types import SimpleNamespace

import pytest
import torch

from nsgf.config.schema import SamplingConfig
from nsgf.sampling.solvers import check_solver, expected_calls, integrate, steps_within
from nsgf.system.errors import UserError


def as_column(t, x):
    """Times (B,) to be multiplied with states (B, *shape)."""
    return t.view(-1, *[1] * (x.ndim - 1))


class Slope:
    """dx/dt = 3 t^2 x, so x(t) = x(0) exp(t^3); keeps the times it was asked for."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, x, t):
        assert t.shape == x.shape[:1]
        self.times.append(float(t[0]))
        return 3 * as_column(t, x) ** 2 * x


def from_zero(x):
    return x.new_zeros(len(x))


def solved(x, **sampling):
    slope, states = Slope(), []
    end = integrate(slope, x, from_zero(x), SamplingConfig(**sampling), states.append)
    return end, states, slope.times


def test_heun_takes_two_calls_a_step_and_shows_each():
    """Written out: the mean of the slopes at both ends, the second one after an Euler step."""
    x = torch.tensor([[1.0], [-2.0]])
    end, states, times = solved(x, solver="heun", straight_steps=4)
    assert times == [0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1]
    assert len(states) == 4
    for number, state in enumerate(states):
        s, step = number / 4, 1 / 4
        first = 3 * s**2 * x
        second = 3 * (s + step) ** 2 * (x + step * first)
        x = x + step * (first + second) / 2
        torch.testing.assert_close(state, x)
    assert torch.equal(states[-1], end)


@pytest.mark.parametrize("steps", [1, 3, 7, 10, 49])
def test_heun_takes_exactly_the_steps_asked_for(steps):
    """A step of 1 / S would take one more where its rounding is unlucky."""
    assert len(solved(torch.ones(1, 1), solver="heun", straight_steps=steps)[2]) == 2 * steps


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-7])
def test_dopri5_reaches_its_tolerance(tolerance):
    x = torch.tensor([[1.0, 2.0], [-3.0, 0.0]], dtype=torch.float64)
    end, *_ = solved(x, solver="dopri5", tolerance=tolerance)
    error = (end - x * torch.e).abs().max()
    assert error < 20 * tolerance


def test_dopri5_works_harder_for_smaller_tolerances():
    calls = [
        len(solved(torch.ones(3, 1), solver="dopri5", **tolerances)[2])
        for tolerances in ({"tolerance": 1e-2}, {}, {"tolerance": 1e-7})
    ]
    assert calls[0] < calls[1] < calls[2]
    assert [count % 6 for count in calls] == [2, 2, 2]


def test_dopri5_shows_states_between_its_steps_for_nothing():
    x = torch.ones(2, 1)
    end, states, times = solved(x, solver="dopri5", straight_steps=5)
    for number, state in enumerate(states, start=1):
        exact = torch.full((2, 1), (number / 5) ** 3).exp()
        torch.testing.assert_close(state, exact, rtol=1e-3, atol=0)
    unseen = Slope()
    alone = integrate(unseen, x, from_zero(x), SamplingConfig(solver="dopri5", straight_steps=5))
    assert len(states) == 5
    assert torch.equal(states[-1], end)
    assert torch.equal(alone, end)
    assert unseen.times == times


@pytest.mark.parametrize("speed", [0.0, 1e-3, 1.0, 100.0])
def test_no_step_ends_behind_the_end(speed):
    """dopri5 left alone ends its last step where that falls, up to ten times too far."""
    for solver in ("heun", "dopri5"):
        times = []

        def slope(x, t, times=times):
            times.append(float(t[0]))
            return speed * torch.ones_like(x)

        end = integrate(slope, torch.zeros(2, 1), torch.zeros(2), SamplingConfig(solver=solver))
        torch.testing.assert_close(end, torch.full((2, 1), speed), atol=1e-4, rtol=1e-4)
        assert max(times) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("solver", ["heun", "dopri5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_result_has_the_type_of_the_state(solver, dtype):
    end, states, _ = solved(torch.ones(2, 3, 4, dtype=dtype), solver=solver)
    assert {state.dtype for state in [end, *states]} == {dtype}
    assert end.shape == (2, 3, 4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("since", [0.0, 0.5])
def test_dopri5_that_cannot_go_on_is_one_line(value, since):
    def slope(x, t):
        return torch.full_like(x, value if t[0] >= since else 1.0)

    with pytest.raises(UserError, match=r"sampling\.solver = dopri5: .*; use a larger one"):
        integrate(slope, torch.ones(2, 1), torch.zeros(2), SamplingConfig(solver="dopri5"))


def test_dopri5_of_a_stiff_field_ends_after_so_many_steps():
    """A field that turns ever faster would take hours, or for ever."""
    calls = []

    def slope(x, t):
        calls.append(t)
        assert len(calls) < 10_000, "no end"
        return torch.cos(1e6 * x)

    with pytest.raises(UserError, match=r"more than 1000 steps.*sampling\.tolerance"):
        integrate(slope, torch.rand(2, 1), torch.zeros(2), SamplingConfig(solver="dopri5"))


def test_failed_assertions_of_networks_stay_what_they_are():
    def slope(x, t):
        raise AssertionError("a bug")

    with pytest.raises(AssertionError, match="a bug"):
        integrate(slope, torch.ones(2, 1), torch.zeros(2), SamplingConfig(solver="dopri5"))


def too_old(*_, **__):
    raise ValueError('Invalid method "heun2"')


@pytest.mark.parametrize("module", [None, SimpleNamespace(odeint=too_old)])
def test_torchdiffeq_missing_or_too_old_is_one_line(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", module)
    for solver in ("heun", "dopri5"):
        with pytest.raises(UserError, match=f"{solver}: needs torchdiffeq.*pip install torchdiff"):
            check_solver(SamplingConfig(solver=solver))
    check_solver(SamplingConfig(solver="euler"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"straight_steps": 7}, {"solver": "heun", "straight_steps": 4}, {"omega": 0.3}],
)
@pytest.mark.parametrize("start", [0.0, 0.25, 0.9])
def test_expected_calls_are_those_that_are_made(settings, start):
    slope, config = Slope(), SamplingConfig(**settings)
    integrate(slope, torch.ones(3, 2), torch.full((3,), start), config)
    assert expected_calls(config, start) == len(slope.times)


def test_calls_that_depend_on_the_samples_are_not_expected():
    assert expected_calls(SamplingConfig(solver="dopri5"), 0.0) is None
    assert expected_calls(SamplingConfig(omega=0.1), None) is None
    assert expected_calls(SamplingConfig(solver="heun", straight_steps=3), None) == 6


@pytest.mark.parametrize(("solver", "steps"), [("euler", 9), ("heun", 4)])
def test_steps_within_a_number_of_calls(solver, steps):
    config = SamplingConfig(solver=solver)
    assert steps_within(config, 9) == steps
    assert steps_within(config, 0) == 1
