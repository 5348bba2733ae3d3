"""Every solver against closed forms, symmetries and POT; geomloss against its closed form."""

import functools
import math

import numpy as np
import ot
import pytest
import torch

from nsgf.config.schema import SinkhornConfig
from nsgf.sinkhorn import FlowSolver, build_solver
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.sinkhorn.reference_solvers import ClosedFormSolver

SOLVERS = ["batched", "geomloss"]
SHAPES = [  # n, shape, blur of each experiment
    pytest.param(256, (2,), 0.5, id="2d"),
    pytest.param(128, (1, 8, 8), 0.5, id="digits"),
    pytest.param(256, (1, 28, 28), 0.5, id="mnist"),
    pytest.param(128, (3, 32, 32), 1.0, id="cifar10"),
    pytest.param(32, (3, 32, 32), 1.0, id="cifar10-small-card"),
]


def field(solver: str, blur: float = 0.5, scaling: float = 0.8):
    return build(solver, blur, scaling).velocity


def build(solver: str, blur: float = 0.5, scaling: float = 0.8) -> FlowSolver:
    config = SinkhornConfig(solver=solver, blur=blur, scaling=scaling)
    return build_solver(config)


def clouds(n: int, shape: tuple[int, ...], m: int | None = None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((n, *shape), generator=generator)
    y = torch.rand((m or n, *shape), generator=generator) * 2 - 1
    return x, y + (2.0 if len(shape) == 1 else 0.0)


def relative_error(v: torch.Tensor, expected: torch.Tensor) -> float:
    return float((v - expected).norm() / expected.norm())


def plan_by_pot(x: np.ndarray, y: np.ndarray, blur: float) -> np.ndarray:
    """Converged entropic plan. POT's cost is |x - y|^2 without the 1/2, so its reg is doubled."""
    uniform = [np.full(len(z), 1 / len(z)) for z in (x, y)]
    return ot.bregman.sinkhorn_log(
        *uniform, ot.dist(x, y), reg=2 * blur**2, numItermax=20_000, stopThr=1e-10
    )


@functools.cache
def velocity_by_pot(
    n: int, shape: tuple[int, ...], blur: float, m: int | None = None
) -> torch.Tensor:
    """v_i = n (P y - Q x)_i from POT's plans: another library, another iteration, float64."""
    x, y = clouds(n, shape, m)
    a, b = (z.flatten(1).double().numpy() for z in (x, y))
    v = len(a) * (plan_by_pot(a, b, blur) @ b - plan_by_pot(a, a, blur) @ a)
    return torch.from_numpy(v).view(x.shape).float()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "shape", "blur"), SHAPES)
def test_shape_and_type_of_every_experiment(solver, n, shape, blur):
    x, y = clouds(n, shape)
    v = field(solver, blur)(x, y)
    assert v.shape == x.shape
    assert v.dtype == x.dtype
    assert v.isfinite().all()
    assert not v.requires_grad


@pytest.mark.parametrize(("n", "shape", "blur"), SHAPES)
def test_geomloss_equals_its_closed_form(n, shape, blur):
    """Written out, without autograd: a wrong sign or factor would show."""
    x, y = clouds(n, shape)
    closed_form = ClosedFormSolver(SinkhornConfig(blur=blur)).velocity
    assert relative_error(field("geomloss", blur)(x, y), closed_form(x, y)) < 1e-4


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("n", "shape", "blur", "tolerance"),
    [
        pytest.param(256, (2,), 1.0, 0.01, id="2d"),
        pytest.param(128, (1, 8, 8), 1.0, 0.03, id="digits"),
        pytest.param(256, (1, 28, 28), 4.0, 0.01, id="mnist"),
        pytest.param(128, (3, 32, 32), 5.0, 0.01, id="cifar10"),
    ],
)
def test_velocity_agrees_with_pot_where_annealing_converges(solver, n, shape, blur, tolerance):
    """Notices blur used as eps, the missing 1/2 of the cost and a missing self term."""
    x, y = clouds(n, shape)
    expected = velocity_by_pot(n, shape, blur)
    assert relative_error(field(solver, blur, scaling=0.95)(x, y), expected) < tolerance
    double = velocity_by_pot(n, shape, blur * math.sqrt(2))  # what a wrong factor would give
    assert relative_error(double, expected) > 2 * tolerance


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "m"), [(32, 400), (200, 40)])
def test_velocity_agrees_with_pot_against_another_number_of_targets(solver, n, m):
    """Weights of 1/n and 1/m: one taken for the other would scale a plan."""
    x, y = clouds(n, (1, 8, 8), m)
    expected = velocity_by_pot(n, (1, 8, 8), 1.0, m)
    assert relative_error(field(solver, 1.0, scaling=0.95)(x, y), expected) < 0.03


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_points_move_straight_to_each_other(solver):
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, -2.0]])
    torch.testing.assert_close(field(solver)(x, y), y - x)


@pytest.mark.parametrize("solver", SOLVERS)
def test_far_apart_points_move_to_their_partner(solver):
    """At small blur the plan is the assignment: v_i = y_sigma(i) - x_i."""
    x = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    y = x[[2, 0, 1]] + torch.tensor([0.5, -0.3])
    torch.testing.assert_close(
        field(solver, blur=0.05)(x, y), torch.tensor([0.5, -0.3]).expand(3, 2), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_equal_measures_do_not_move(solver):
    """Without the self term, entropy would shrink the cloud."""
    x, _ = clouds(64, (2,))
    v = field(solver)(x, x[torch.randperm(64)])
    assert v.abs().max() < 0.05 * x.std()
    shrunk = field(solver)(x, 0.5 * x)
    assert (shrunk * x).sum() < 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_translation_adds_its_vector(solver):
    x, y = clouds(64, (2,))
    shift = torch.tensor([3.0, -1.0])
    fine = field(solver, scaling=0.95)
    torch.testing.assert_close(fine(x, y + shift), fine(x, y) + shift, atol=0.1, rtol=0.02)


@pytest.mark.parametrize("solver", SOLVERS)
def test_scaling_of_space_scales_the_velocity(solver):
    x, y = clouds(64, (2,))
    v = field(solver, blur=0.5)(x, y)
    torch.testing.assert_close(field(solver, blur=1.5)(3 * x, 3 * y), 3 * v, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_permutations(solver):
    x, y = clouds(40, (2,), m=56)
    order, other = torch.randperm(40), torch.randperm(56)
    v = field(solver)(x, y)
    torch.testing.assert_close(field(solver)(x[order], y), v[order], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(field(solver)(x, y[other]), v, atol=1e-4, rtol=1e-3)


def test_velocity_is_the_negative_gradient_of_the_divergence():
    """v = -n grad S_eps: moving along v lowers the divergence at the rate |v|^2 / n."""
    from geomloss import SamplesLoss

    x, y = clouds(64, (2,))
    divergence = SamplesLoss("sinkhorn", p=2, blur=0.5, scaling=0.99)
    v = build_solver(SinkhornConfig(tolerance=1e-6)).velocity(x, y)
    step = 1e-3
    slope = float(divergence(x + step * v, y) - divergence(x - step * v, y)) / (2 * step)
    assert slope == pytest.approx(-float(v.square().sum()) / len(x), rel=0.02)


@pytest.mark.parametrize("solver", SOLVERS)
def test_flows_step_by_eta_times_velocity(solver):
    """Each flow of the chunk, with its own targets."""
    x, y = clouds(3 * 32, (1, 8, 8))
    x, y = x.view(3, 32, 1, 8, 8), y.view(3, 32, 1, 8, 8)
    flows = build(solver)
    positions = flows.flows(x, y, [0.2] * 3)
    assert positions.shape == (3, 32, 4, 1, 8, 8)
    assert torch.equal(positions[:, :, 0], x)
    for flow, targets in zip(positions, y, strict=True):
        for t in range(3):
            v = flows.velocity(flow[:, t], targets)
            torch.testing.assert_close((flow[:, t + 1] - flow[:, t]) / 0.2, v, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("solver", SOLVERS)
def test_matrix_products_are_full_float32(solver, monkeypatch):
    """TF32 stays off inside, and what was set before holds again after."""
    seen = []
    for name in ("logsumexp", "bmm", "matmul", "cdist"):
        real = getattr(torch, name)

        def spying(*arguments, real=real, **options):
            seen.append(torch.backends.cuda.matmul.allow_tf32)
            return real(*arguments, **options)

        monkeypatch.setattr(torch, name, spying)
        if hasattr(torch.Tensor, name):
            monkeypatch.setattr(torch.Tensor, name, spying)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        field(solver)(*clouds(8, (2,)))
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert seen
    assert not any(seen)


def test_far_from_the_origin_costs_do_not_cancel():
    x, y = clouds(32, (3, 32, 32))
    near, far = (field("batched", 1.0)(x + d, y + d) for d in (0.0, 30.0))
    assert relative_error(far, near) < 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_flows_reach_the_target(solver):
    x, y = clouds(128, (2,))
    positions = build(solver, blur=0.1).flows(x[None], y[None], [0.5] * 10)[0]
    distance = [ot.emd2([], [], ot.dist(p.numpy(), y.numpy())) for p in (x, positions[:, -1])]
    assert distance[1] < 0.01 * distance[0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_flows_of_half_precision_are_float32(solver):
    x, y = clouds(16, (2,))
    positions = build(solver).flows(x[None].half(), y[None].half(), [0.5] * 2)
    assert positions.dtype == torch.float32
    expected = build(solver).flows(x[None].half().float(), y[None].half().float(), [0.5] * 2)
    torch.testing.assert_close(positions, expected)


@pytest.mark.parametrize("solver", SOLVERS)
def test_report_counts_flows_and_solves(solver):
    x, y = clouds(16, (2,))
    flows = build(solver)
    assert (flows.report.flows, flows.report.solves) == (0, 0)
    flows.flows(x.view(2, 8, 2), y.view(2, 8, 2), [0.1] * 3)
    flows.flows(x[None], y[None], [0.1] * 1)
    assert (flows.report.flows, flows.report.solves, flows.report.unconverged) == (3, 7, 0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("x", "y"), [((2, 4, 2), (3, 4, 2)), ((2, 4, 2), (2, 4, 3)), ((4, 2), (4, 2))]
)
def test_flows_of_mismatched_shapes_are_refused(solver, x, y):
    with pytest.raises(ValueError, match="same shape"):
        build(solver).flows(torch.ones(x), torch.ones(y), [0.1] * 1)


@pytest.mark.parametrize("solver", ["closed_form", "assignment"])
def test_solvers_of_earlier_versions_are_refused_in_one_line(solver):
    with pytest.raises(UserError, match=r"sinkhorn\.solver.*batched.*geomloss") as caught:
        shipped("2d", f"--sinkhorn.solver={solver}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("solver", SOLVERS)
class TestUnusualInput:
    def test_diameter_zero(self, solver):
        x = torch.ones(4, 3)
        assert not field(solver)(x, x[:2]).any()

    def test_repeated_points(self, solver):
        """Two copies of each particle move as one of them would."""
        x, y = clouds(16, (2,))
        doubled = field(solver)(torch.cat([x, x]), y)
        expected = field(solver)(x, y)
        torch.testing.assert_close(doubled, torch.cat([expected] * 2), atol=1e-4, rtol=1e-3)

    def test_blur_larger_than_the_cloud_moves_the_mean(self, solver):
        x, y = clouds(32, (2,))
        v = field(solver, blur=1000.0)(x, y)
        mean = (y.mean(0) - x.mean(0)).expand_as(v)
        torch.testing.assert_close(v, mean, atol=1e-3, rtol=1e-3)

    def test_half_precision_is_computed_in_float32(self, solver):
        x, y = clouds(32, (2,))
        v = field(solver)(x.half(), y.half())
        assert v.dtype == torch.float16
        expected = field(solver)(x.half().float(), y.half().float())
        torch.testing.assert_close(v.float(), expected, atol=1e-3, rtol=1e-3)

    def test_autocast_does_not_reach_it(self, solver):
        x, y = clouds(32, (3, 32, 32))
        expected = field(solver)(x, y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(field(solver)(x, y), expected)

    def test_no_grad_does_not_stop_it(self, solver):
        x, y = clouds(8, (2,))
        with torch.no_grad():
            assert field(solver)(x, y).any()

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_non_finite_input_is_refused(self, solver, value):
        x, y = clouds(8, (2,))
        x[3, 1] = value
        for pair in ((x, y), (y, x)):
            with pytest.raises(ValueError, match="finite"):
                field(solver)(*pair)

    def test_empty_clouds_are_refused(self, solver):
        with pytest.raises(ValueError, match="empty"):
            field(solver)(torch.empty(0, 2), torch.ones(3, 2))

    @pytest.mark.parametrize("shape", [(4, 3), (4, 1, 2), (4,)])
    def test_mismatched_shapes_are_refused(self, solver, shape):
        with pytest.raises(ValueError, match="same shape"):
            field(solver)(torch.ones(4, 2), torch.ones(shape))
