"""The method's formulas against closed forms, and the matcher in a training loop."""

import subprocess
import sys

import pytest
import torch

from nsgf import UserError
from nsgf.config.schema import Config, FlowConfig, PoolConfig, SinkhornConfig
from nsgf.method import (
    SinkhornFlowMatcher,
    line_pairs,
    nsgf_steps,
    run_flow,
    step_sizes,
    straight_steps,
    straight_times,
    time_step,
)
from nsgf.sampling.sampler import FlowSampler, NSGFSteps
from nsgf.sinkhorn import BatchedSolver
from nsgf.user_data import load_data
from tests.pool.conftest import build

HARMONIC = FlowConfig(steps=4, schedule="harmonic", eta=0.7)


@pytest.mark.parametrize(
    ("steps", "eta", "sizes", "clock"),
    [(4, None, [1 / 4, 1 / 3, 1 / 2, 1], 1 / 4), (3, 0.2, [0.2] * 3, 0.2)],
)
def test_step_sizes_and_the_clock(steps, eta, sizes, clock):
    assert step_sizes(steps, eta) == sizes
    assert time_step(steps, eta) == clock


def test_flow_on_a_line_pairs_sorted_points():
    """With a small blur the plan is the monotone map: particle i moves to target i, of two problems
    at once, and the rest of the way shrinks by 1 - eta in each step."""
    x = torch.tensor([-3.0, 0.0, 4.0]).view(1, 3, 1)
    y = torch.tensor([-2.0, 1.0, 8.0]).view(1, 3, 1)
    problems = torch.cat([x, x + 10]), torch.cat([y, y - 5])
    positions = run_flow(BatchedSolver(0.05), *problems, [0.5, 0.2])
    assert positions.shape == (2, 3, 3, 1)
    for number, left in enumerate([1, 0.5, 0.5 * 0.8]):
        expected = problems[1] + left * (problems[0] - problems[1])
        torch.testing.assert_close(positions[:, :, number], expected, atol=1e-3, rtol=0)


def test_lines_lead_from_start_to_end_at_their_velocity():
    start, end = torch.randn(2, 4, 1, 3, 3)
    t = torch.tensor([0.0, 0.25, 0.5, 1.0])
    x, u = line_pairs(start, end, t)
    assert torch.equal(x[0], start[0])
    assert torch.equal(x[3], end[3])
    later, _ = line_pairs(start, end, t + 0.5)
    torch.testing.assert_close((later - x) / 0.5, u)
    torch.testing.assert_close(x[1], 0.75 * start[1] + 0.25 * end[1])


def test_nsgf_takes_euler_steps_at_the_times_of_the_pool():
    times, states = [], []

    def velocity(x, t):
        times.append(float(t[0]))
        return x

    x = nsgf_steps(velocity, torch.ones(3, 2), 4, 0.5, states.append)
    torch.testing.assert_close(x, torch.full((3, 2), 1.5**4))
    assert times == [0, 0.25, 0.5, 0.75]
    assert [float(state[0, 0]) for state in states] == [1.5, 1.5**2, 1.5**3, 1.5**4]


def test_finer_straight_steps_lead_from_each_samples_own_time_to_one():
    tau = torch.tensor([0.0, 0.5, 0.9])
    times, sizes = map(torch.stack, zip(*straight_times(tau, 4, 2), strict=True))
    wanted = tau + (1 - tau) * torch.tensor([7, 12, 15, 16])[:, None] / 16
    torch.testing.assert_close(times, torch.cat([tau[None], wanted[:-1]]))
    torch.testing.assert_close(times + sizes, wanted)
    assert (times + sizes <= 1).all()


def test_samples_of_three_functions():
    """Algorithm 2, then Algorithm 4 with and without predicted times, in closed form: x
    + 1 after NSGF; du/dt = 2 t x goes from x(tau) to x(tau) exp(1 - tau^2)."""
    x = torch.rand(5, 2)
    ones = lambda x, t: torch.ones_like(x)  # noqa: E731
    growing = lambda x, t: 2 * t.view(-1, 1) * x  # noqa: E731
    states = []
    x = nsgf_steps(ones, x, 4, 0.25, states.append)
    torch.testing.assert_close(x, states[0] + 0.75)
    tau = torch.tensor([0.0, 0.3, 0.5, 0.9, 0.99])
    end = straight_steps(growing, x, tau, 4000, 1.0, None)
    torch.testing.assert_close(end, x * (1 - tau**2).exp().view(-1, 1), rtol=1e-3, atol=0)
    states.clear()
    end = straight_steps(growing, x, 0 * tau, 2, 2.0, states.append)  # at times 0 and 3/4
    torch.testing.assert_close(end, x * (1 + 2 * 0.75 / 4))
    assert len(states) == 2


def test_harmonic_pool_and_sampler_use_one_clock():
    """A sampler that follows a flow's own velocities ends where the flow does."""
    one = {"sinkhorn": SinkhornConfig(batch_size=1), "pool": PoolConfig(num_batches=1)}
    config = Config(phases=["nsgf"], flow=HARMONIC, **one)
    data = load_data(config.data, 0)
    start, end = data.source("p").at(range(1)), data.target("p").at(range(1))
    pairs = build(config).pairs(torch.arange(4))
    assert torch.allclose(pairs.v, (end - start).expand(4, 2), atol=1e-4)
    velocity = lambda x, t: pairs.v[:1].expand_as(x)  # noqa: E731
    leg = NSGFSteps(velocity, config.sampling, config.flow)
    sampler = FlowSampler([leg], data.record)
    assert torch.allclose(sampler(start).x, end, atol=1e-4)


@pytest.mark.parametrize("eta", [None, 0.4])
def test_matcher_draws_steps_of_the_flow(eta):
    """Euler steps of 1/T along ut are the flow; each particle has a step of its own flow."""
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randn(300, 1, 2, 2, generator=generator)
    x1 = torch.rand(200, 1, 2, 2, generator=generator) + 2
    expected = run_flow(BatchedSolver(0.5), x0[None], x1[None], step_sizes(3, eta))[0]
    matcher = SinkhornFlowMatcher(0.5, 3, eta)
    t, xt, ut = matcher.sample_location_and_conditional_flow(x0, x1)
    wide = matcher.sample_location_and_conditional_flow(x0.double(), x1.double())
    assert {part.dtype for part in wide} == {torch.float64}
    step = (3 * t).round().long()
    assert step.unique().tolist() == [0, 1, 2]
    assert torch.equal(t, step / 3)
    torch.testing.assert_close(xt, expected[range(300), step])
    torch.testing.assert_close(xt + ut / 3, expected[range(300), step + 1])
    assert not ut.requires_grad


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0, 1e4, 1e6])
def test_matcher_gives_the_same_velocities_far_from_the_origin(offset, kind):
    """Points are compared with float64, after their own rounding at this offset."""
    generator = torch.Generator().manual_seed(0)
    x0 = (torch.randn(50, 2, generator=generator) + offset).to(kind)
    x1 = (torch.rand(40, 2, generator=generator) + 2 + offset).to(kind)
    found = []
    for shift in (offset, 0):
        torch.manual_seed(1)
        clouds = (x0.double() - offset + shift, x1.double() - offset + shift)
        matcher = SinkhornFlowMatcher(0.5)
        found.append(matcher.sample_location_and_conditional_flow(*(z.to(kind) for z in clouds)))
    (t, xt, ut), (expected_t, expected_xt, expected_ut) = found
    assert torch.equal(t, expected_t)
    torch.testing.assert_close(ut, expected_ut, rtol=1e-4, atol=1e-5)
    rounding = torch.finfo(kind).eps * offset
    torch.testing.assert_close(xt - offset, expected_xt, rtol=0, atol=rounding + 1e-5)


def test_matcher_takes_arrays():
    x0, x1 = torch.randn(20, 2), torch.randn(30, 2)
    found = []
    for clouds in ((x0, x1), (x0.numpy(), x1.numpy())):
        torch.manual_seed(0)
        found.append(SinkhornFlowMatcher().sample_location_and_conditional_flow(*clouds))
    assert all(map(torch.equal, *found))


def test_matcher_warns_if_a_solve_does_not_converge():
    torch.manual_seed(0)
    ends = torch.tensor([[-5.0], [5.0]])
    x0 = ends.repeat_interleave(torch.tensor([58, 70]), 0) + torch.randn(128, 1) / 10
    x1 = ends.repeat_interleave(torch.tensor([60, 68]), 0) + torch.randn(128, 1) / 10
    matcher = SinkhornFlowMatcher(0.05)
    with pytest.warns(RuntimeWarning, match="not converged"):
        matcher.sample_location_and_conditional_flow(x0, x1)
    matcher.sample_location_and_conditional_flow(x0, x0)  # without a warning


@pytest.mark.parametrize(
    ("settings", "clouds", "words"),
    [
        ({"blur": 0}, None, "blur = 0: must be"),
        ({"steps": 2.5}, None, "steps = 2.5: must be"),
        ({"steps": 100_001}, None, "steps = 100001: must be"),
        ({"eta": 0.0}, None, "eta = 0.0: must be"),
        ({"blur": 1e-6}, (torch.zeros(4, 2), torch.randn(4, 2)), "blur = 1e-06"),
        ({}, (torch.zeros(4, 2).long(), torch.randn(4, 2)), "x0 is torch.int64"),
        ({}, (torch.zeros(4, 2), torch.randn(4, 3)), "with the same shape"),
        ({}, (torch.zeros(4, 2), torch.tensor(1.0)), "with the same shape"),
    ],
)
def test_matcher_names_what_is_wrong(settings, clouds, words):
    with pytest.raises(UserError) as error:
        SinkhornFlowMatcher(**settings).sample_location_and_conditional_flow(*clouds)
    assert words in str(error.value)


def test_method_loads_only_the_solver():
    code = (
        "import sys, nsgf; nsgf.method.run_flow; "
        "print(*(m for m in sys.modules if m.split('.')[0] == 'nsgf'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert len(modules) <= 20
    folders = {module.split(".")[1] for module in modules if "." in module}
    assert folders == {"method", "sinkhorn", "system", "version"}
