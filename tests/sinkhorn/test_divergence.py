"""The divergence and its velocity as functions: gradients, shapes, refusals. ``test_geometries``
compares both with float64."""

import math
import warnings

import numpy as np
import pytest
import torch

from nsgf import UserError, sinkhorn_divergence, sinkhorn_velocity
from tests.sinkhorn.test_batched import noise as cloud

BLUR = 0.5


def pair(*batch):
    """Forty particles and sixty targets, shifted and wider."""
    return cloud(*batch, 40, 2), 1.5 * cloud(*batch, 60, 2, seed=1) + 1


def test_gradient_is_the_velocity_of_each_side():
    """-N grad_x S = v(x, y), -M grad_y S = v(y, x), times what is done with the value."""
    x, y = (z.requires_grad_() for z in pair(3))
    weights = torch.tensor([3.0, -0.5, 1.0])
    (weights * sinkhorn_divergence(x, y, BLUR)).sum().backward()
    v_x, v_y = (weights.view(3, 1, 1) * sinkhorn_velocity(*z, BLUR) for z in ((x, y), (y, x)))
    assert not v_x.requires_grad
    torch.testing.assert_close(-40 * x.grad, v_x)
    torch.testing.assert_close(-60 * y.grad, v_y, rtol=0, atol=1e-2)


def test_one_tensor_on_both_sides_has_no_gradient():
    x = cloud(30, 2).requires_grad_()
    value = sinkhorn_divergence(x, x, BLUR)
    (gradient,) = torch.autograd.grad(value, x)
    assert abs(value.item()) < 1e-5
    assert gradient.abs().max() < 1e-3


def test_second_derivatives_are_refused():
    """Past mistake: torch's `once_differentiable` refuses second derivatives only in some cases.
    A gradient penalty would have been constant.
    """
    x, y = pair()
    x.requires_grad_()
    with pytest.raises(UserError, match="no second derivative"):
        torch.autograd.grad(sinkhorn_divergence(x, y), x, create_graph=True)


@pytest.mark.parametrize("function", [sinkhorn_divergence, sinkhorn_velocity])
def test_arrays_are_taken_for_tensors(function):
    x, y = pair()
    array = x.double().numpy()
    for given, same in ((array, x), (array.astype(">f8"), x), (array[::-1], x.flipud())):
        torch.testing.assert_close(function(given, y), function(same.double(), y), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2,), (1, 4, 4)])
def test_several_problems_are_solved_like_each_alone(shape):
    x, y = cloud(3, 20, *shape), cloud(3, 30, *shape, seed=1) + 1
    values, v = sinkhorn_divergence(x, y), sinkhorn_velocity(x, y)
    assert values.shape == (3,)
    assert v.shape == x.shape
    torch.testing.assert_close(sinkhorn_divergence(x[1], y[1]), values[1])
    torch.testing.assert_close(sinkhorn_velocity(x[1], y[1]), v[1])


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_types_come_back(kind):
    x, y = (z.to(kind).requires_grad_() for z in pair())
    value = sinkhorn_divergence(x, y)
    value.backward()
    assert value.dtype == (torch.float32 if kind == torch.bfloat16 else kind)
    assert x.grad.dtype == y.grad.dtype == sinkhorn_velocity(x, y).dtype == kind


@pytest.mark.parametrize("function", [sinkhorn_divergence, sinkhorn_velocity])
def test_what_is_cut_off_warns(function):
    x, y = pair()
    with pytest.warns(RuntimeWarning, match="1 of 1 Sinkhorn problems did not converge") as caught:
        function(x, y, 0.05, max_iterations=10)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(x, y)


@pytest.mark.parametrize("function", [sinkhorn_divergence, sinkhorn_velocity])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(5)}, "x is (5,)"),
        ({"x": torch.zeros(2, 5, 2)}, "x is (2, 5, 2)"),
        ({"x": torch.zeros(5, 3)}, "with the same shape"),
        ({"x": torch.zeros(5, 2, dtype=torch.int64)}, "torch.int64"),
        ({"y": torch.zeros(5, 2, device="meta")}, "meta"),
        ({"x": np.ma.masked_less(cloud(5, 2).numpy(), 0)}, "masked"),
        ({"blur": 0}, "blur = 0: must be"),
        ({"tolerance": float("nan")}, "tolerance = nan: must be"),
        ({"max_iterations": 0}, "max_iterations = 0: must be"),
        ({"max_iterations": math.inf}, "max_iterations = inf: must be"),
        ({"blur": "0.5"}, "blur = '0.5': must be"),
        ({"blur": "half"}, "blur = 'half': must be"),
        ({"blur": 1e-5}, "blur = 1e-05: must be between"),
        ({"blur": 120.0}, "blur = 120.0: must be between"),
    ],
)
def test_what_does_not_go_together_is_one_line(function, change, words):
    x, y = pair()
    with pytest.raises(UserError) as error:
        function(**{"x": x, "y": y, **change})
    assert words in str(error.value)
