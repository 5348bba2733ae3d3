"""A blur that falls from step to step: what is solved, and what the flow gains from it."""

import math

import pytest
import torch

import nsgf
from nsgf.method import SinkhornFlowMatcher, run_flow, step_sizes
from nsgf.sinkhorn import GeomlossSolver, blocks
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.errors import UserError
from tests.sinkhorn import reference
from tests.sinkhorn.reference import relative_error

STEPS = 6


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def narrow_clusters(flows, n, std, seed=1):
    """Targets of twelve clusters on a circle of radius 3."""
    angle = torch.arange(n) * (math.pi / 6)
    centres = 3 * torch.stack([angle.cos(), angle.sin()], 1)
    return centres + std * noise(flows, n, 2, seed=seed)


def images(flows, n, dim):
    basis = noise(12, dim, seed=3).cumsum(1)
    return torch.tanh(noise(flows, n, 12, seed=4) @ basis / dim**0.5)


CLOUDS = {
    "points": (noise(2, 120, 2), narrow_clusters(2, 96, 0.2)),
    "images": (noise(2, 40, 784), images(2, 48, 784)),  # with inner products as columns
}


@pytest.mark.parametrize("kind", CLOUDS)
def test_equal_blurs_are_the_constant_flow_bit_for_bit(kind):
    x, y = CLOUDS[kind]
    etas = step_sizes(STEPS, None)
    constant = run_flow(BatchedSolver(0.7), x, y, etas)
    assert torch.equal(run_flow(BatchedSolver(0.7, first_blur=0.7), x, y, etas), constant)


@pytest.mark.parametrize("largest", [blocks.LARGEST_PLAN, 0], ids=["whole", "in blocks"])
@pytest.mark.parametrize(("kind", "last"), [("points", 0.5), ("images", 2.0)])
def test_each_step_follows_the_velocity_of_its_blur(kind, last, largest, monkeypatch):
    """Compare with the fixed point in float64, whose blur is that of the formula."""
    monkeypatch.setattr(blocks, "LARGEST_PLAN", largest)
    x, y = CLOUDS[kind]
    etas = step_sizes(STEPS, 0.3)
    flow = BatchedSolver(last, first_blur=8.0)
    positions = run_flow(flow, x, y, etas)
    assert flow.report.unconverged == 0
    assert flow.report.solves == 2 * STEPS
    for step in range(STEPS):
        blur = 8 * (last / 8) ** (step / (STEPS - 1))
        moved = (positions[:, :, step + 1] - positions[:, :, step]) / 0.3
        exact = torch.stack(
            [reference.velocity(a, b, blur) for a, b in zip(positions[:, :, step], y, strict=True)]
        )
        assert relative_error(moved, exact) < 0.01


def test_geomloss_has_the_same_blurs():
    x, y = CLOUDS["points"]
    etas = step_sizes(3, 0.3)
    flow = BatchedSolver(0.5, first_blur=2.0)
    geomloss = GeomlossSolver(0.5, 0.99, first_blur=2.0)
    moved = run_flow(flow, x, y, etas)[:, :, -1] - x
    assert relative_error(run_flow(geomloss, x, y, etas)[:, :, -1] - x, moved) < 0.02


def test_one_step_has_the_last_blur():
    x, y = CLOUDS["points"]
    expected = run_flow(BatchedSolver(0.5), x, y, [1.0])
    assert torch.equal(run_flow(BatchedSolver(0.5, first_blur=2.0), x, y, [1.0]), expected)


def spread_at_the_end(flow, std):
    """Variance around the nearest centre at the end of a flow, in units of the targets'."""
    x = noise(2, 480, 2)
    y = narrow_clusters(2, 480, std)
    end = run_flow(flow, x, y, step_sizes(10, None))[:, :, -1].flatten(0, 1)
    angle = torch.arange(12) * (math.pi / 6)
    centres = 3 * torch.stack([angle.cos(), angle.sin()], 1)
    return float(torch.cdist(end, centres).amin(1).square().mean() / (2 * std**2))


def test_parts_narrower_than_the_first_blur_keep_their_width():
    """A constant blur of 0.5 ends several times too wide; one that falls to 0.05 does not."""
    constant = spread_at_the_end(BatchedSolver(0.5), 0.1)
    falling = spread_at_the_end(BatchedSolver(0.05, first_blur=0.5), 0.1)
    assert constant > 3
    assert falling == pytest.approx(1, abs=0.1)


def test_potentials_of_the_step_before_save_updates():
    """A pool with a falling blur costs less than one whose blur is the last one in all steps."""
    x = noise(2, 256, 2)
    y = narrow_clusters(2, 256, 0.1)
    etas = step_sizes(10, None)
    falling = BatchedSolver(0.02, first_blur=0.5)
    positions = run_flow(falling, x, y, etas)
    constant = BatchedSolver(0.02)
    run_flow(constant, x, y, etas)
    assert falling.report.iterations < 0.8 * constant.report.iterations
    cold = 0.0
    for step, solver in enumerate(falling.at_steps(10)):
        alone = BatchedSolver(solver.blur)
        alone.solve(positions[:, :, step], y)
        cold += alone.report.iterations / 10
    assert falling.report.iterations < 0.7 * cold


def test_title_names_both_blurs():
    assert "blur falling from 2 to 0.5" in str(BatchedSolver(0.5, first_blur=2.0))
    assert str(BatchedSolver(0.5)).endswith("blur 0.5")


def test_pairs_for_a_loop_of_the_reader_follow_the_falling_blur():
    x = noise(480, 2)
    y = narrow_clusters(1, 480, 0.1)[0]
    matcher = SinkhornFlowMatcher(0.05, 1, first_blur=0.5)
    torch.manual_seed(0)
    constant = SinkhornFlowMatcher(0.05, 1).sample_location_and_conditional_flow(x, y)[2]
    torch.manual_seed(0)
    assert torch.equal(matcher.sample_location_and_conditional_flow(x, y)[2], constant)
    torch.manual_seed(0)
    two = SinkhornFlowMatcher(0.05, 2).sample_location_and_conditional_flow(x, y)[2]
    torch.manual_seed(0)
    matcher = SinkhornFlowMatcher(0.05, 2, first_blur=5.0)
    assert relative_error(matcher.sample_location_and_conditional_flow(x, y)[2], two) > 0.1


def test_pool_takes_the_first_blur():
    x = noise(400, 2)
    y = narrow_clusters(1, 400, 0.1)[0]
    settings = {"num_batches": 2, "batch_size": 100, "schedule": "harmonic", "device": "cpu"}
    pools = [
        nsgf.SinkhornPool(x, y, 0.05, 4, first_blur=blur, **settings) for blur in (None, 0.05, 2.0)
    ]
    constant, equal, falling = (pool._pool.pairs(torch.arange(800)).v for pool in pools)
    assert torch.equal(constant, equal)
    assert relative_error(falling, constant) > 0.05


def build_pool(blur, first_blur):
    nsgf.SinkhornPool(noise(50, 2), noise(50, 2), blur, first_blur=first_blur)


@pytest.mark.parametrize("build", [SinkhornFlowMatcher, build_pool])
@pytest.mark.parametrize("first", [0.4, -1.0, math.nan])
def test_first_blur_below_the_last_is_refused(build, first):
    with pytest.raises(UserError, match=r"^first_blur = \S+: must be") as error:
        build(0.5, first_blur=first)
    assert "\n" not in str(error.value)
