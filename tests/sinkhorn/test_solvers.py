"""Both solvers against POT, and what they promise alike."""

import functools
import math

import numpy as np
import ot
import pytest
import torch
from torch.overrides import TorchFunctionMode

from nsgf.config.schema import SinkhornConfig
from nsgf.method import run_flow
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError
from tests.sinkhorn.reference import first_velocity, relative_error

pytestmark = pytest.mark.parametrize("solver", ["sinkhorn", "geomloss"])


def build(solver, blur=0.5, scaling=0.8):
    return build_flow(solver, SinkhornConfig(blur=blur, scaling=scaling))


def clouds(n, shape, m=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((n, *shape), generator=generator)
    y = torch.rand((m or n, *shape), generator=generator) * 2 - 1
    return x, y + (2.0 if len(shape) == 1 else 0.0)


def plan_by_pot(x, y, blur):
    """Converged entropic plan. POT's cost is |x - y|^2 without the 1/2, so its reg is doubled."""
    uniform = [np.full(len(z), 1 / len(z)) for z in (x, y)]
    return ot.bregman.sinkhorn_log(
        *uniform, ot.dist(x, y), reg=2 * blur**2, numItermax=20_000, stopThr=1e-10
    )


@functools.cache  # of both solvers
def velocity_by_pot(n, shape, blur, m):
    """v_i = n (P y - Q x)_i from POT's plans: another library, another iteration, float64."""
    x, y = clouds(n, shape, m)
    a, b = (z.flatten(1).double().numpy() for z in (x, y))
    v = len(a) * (plan_by_pot(a, b, blur) @ b - plan_by_pot(a, a, blur) @ a)
    return torch.from_numpy(v).view(x.shape).float()


@pytest.mark.parametrize(
    ("n", "m", "shape", "blur", "tolerance"),
    [
        (256, 256, (2,), 1.0, 0.01),  # 2d
        (128, 128, (1, 8, 8), 1.0, 0.03),  # digits
        (256, 256, (1, 28, 28), 4.0, 0.01),  # mnist
        (128, 128, (3, 32, 32), 5.0, 0.01),  # cifar10
        (32, 400, (1, 8, 8), 1.0, 0.03),  # few-to-many
        (200, 40, (1, 8, 8), 1.0, 0.03),  # many-to-few
    ],
)
def test_velocity_agrees_with_pot_where_annealing_converges(solver, n, m, shape, blur, tolerance):
    """Notices blur used as eps, the missing 1/2 of the cost, a missing self term, and weights of
    1/n taken for 1/m."""
    x, y = clouds(n, shape, m)
    expected = velocity_by_pot(n, shape, blur, m)
    assert relative_error(first_velocity(build(solver, blur, 0.95), x, y), expected) < tolerance


def test_flows_step_by_eta_times_velocity(solver):
    """Each flow of the chunk, with its own targets."""
    x, y = clouds(3 * 32, (1, 8, 8))
    x, y = x.view(3, 32, 1, 8, 8), y.view(3, 32, 1, 8, 8)
    flows = build(solver)
    etas = [0.2, 0.5, 1.0]
    positions = run_flow(flows, x, y, etas)
    assert positions.shape == (3, 32, 4, 1, 8, 8)
    assert torch.equal(positions[:, :, 0], x)
    assert (flows.report.solves, flows.report.unconverged) == (9, 0)
    for flow, targets in zip(positions, y, strict=True):
        for t, eta in enumerate(etas):
            v = first_velocity(flows, flow[:, t], targets)
            torch.testing.assert_close((flow[:, t + 1] - flow[:, t]) / eta, v, atol=0.02, rtol=0.01)


def test_matrix_products_are_full_float32(solver):
    """TF32 stays off inside, and what was set before holds again after."""
    seen = []

    class Spy(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function.__name__ in ("bmm", "matmul", "cdist", "__matmul__"):
                seen.append(torch.backends.cuda.matmul.allow_tf32)
            return function(*args, **(kwargs or {}))

    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with Spy():
            first_velocity(build(solver), *clouds(8, (2,)))
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert seen
    assert not any(seen)


def test_half_precision_is_computed_in_float32(solver):
    x, y = (z.half() for z in clouds(32, (2,)))
    own = build(solver)
    positions = run_flow(own, x[None], y[None], [0.5] * 2)
    assert positions.dtype == torch.float32
    torch.testing.assert_close(
        positions, run_flow(own, x[None].float(), y[None].float(), [0.5] * 2)
    )


def test_autocast_and_no_grad_change_nothing(solver):
    x, y = clouds(32, (3, 32, 32))
    expected = first_velocity(build(solver), x, y)
    assert (expected.shape, expected.dtype, expected.requires_grad) == (x.shape, x.dtype, False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.equal(first_velocity(build(solver), x, y), expected)


def test_single_point_rests(solver):
    x = torch.ones(4, 3)
    assert not first_velocity(build(solver), x, x[:2]).any()


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.full((8, 2), math.nan), torch.ones(8, 2), "finite"),
        (torch.ones(8, 2), torch.full((8, 2), math.inf), "finite"),
        (torch.empty(0, 2), torch.ones(3, 2), "empty"),
        (torch.ones(4, 2), torch.ones(4, 3), "same shape"),
        (torch.ones(4, 2), torch.ones(4), "same shape"),
    ],
)
def test_clouds_that_do_not_go_together_are_refused(solver, x, y, words):
    with pytest.raises(UserError, match=words):
        run_flow(build(solver), x[None], y[None], [0.1])
