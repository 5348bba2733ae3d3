"""The batched solver against the float64 fixed point along whole flows, and what it promises.

Past mistake: A fixed tolerance of the marginals gave velocities that were off by 10 to 40 % late
in 2D flows, where velocities are small.
"""

import math
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

from nsgf.method import run_flow
from nsgf.sinkhorn import batched, blocks, plans
from nsgf.sinkhorn.batched import BatchedSolver
from nsgf.system.errors import UserError
from tests.sinkhorn import reference
from tests.sinkhorn.reference import relative_error


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def points(flows, n):
    """Gaussian to eight clusters on a circle of radius 5."""
    angle = torch.arange(n) * (math.pi / 4) + noise(flows, 1, seed=2)
    return noise(flows, n, 2), 5 * torch.stack([angle.cos(), angle.sin()], 2) + 0.4 * noise(
        flows, n, 2, seed=1
    )


def images(flows, n, dim):
    """Noise to smooth images in [-1, 1]: few coordinates, as real images have."""
    basis = noise(12, dim, seed=3).cumsum(1)
    return noise(flows, n, dim), torch.tanh(noise(flows, n, 12, seed=4) @ basis / dim**0.5)


def digits(n, m):
    return noise(1, n, 64), torch.from_numpy(load_digits().data[:m] / 8 - 1).float()[None]


def solver(max_iterations=2000, *, blur=0.5, **changes):
    return BatchedSolver(blur, max_iterations=max_iterations, **changes)


@pytest.mark.parametrize(
    ("clouds", "blur", "steps", "eta"),
    [
        (points(1, 128), 0.5, 10, 0.5),  # 2d-blur-0.5
        (points(1, 96), 0.25, 10, 0.5),  # 2d-blur-0.25
        (digits(96, 96), 0.5, 5, 0.2),  # digits
        (digits(48, 600), 0.5, 3, 0.5),  # digits-few-to-many
        (images(1, 96, 784), 1.0, 5, 0.2),  # mnist
        (images(1, 64, 3072), 1.0, 5, 0.2),  # cifar10
    ],
)
def test_velocity_along_a_whole_flow(clouds, blur, steps, eta):
    """Wrong signs and factors, and errors that pile up where v is small, all show here."""
    x, y = clouds
    flows = solver(blur=blur)
    positions = run_flow(flows, x, y, [eta] * steps)[0]
    for t in range(steps):
        v = (positions[:, t + 1] - positions[:, t]) / eta
        assert relative_error(v, reference.velocity(positions[:, t], y[0], blur)) < 2e-2
    assert flows.report.unconverged == 0
    assert 0 < flows.report.worst_error <= batched.TOLERANCE
    assert 1 < flows.report.iterations < 200


@pytest.mark.parametrize("blur", [0.1, 0.5, 3.0])
@pytest.mark.parametrize(("n", "m"), [(64, 64), (16, 96), (96, 16)])
def test_marginals_hold_within_the_tolerance(blur, n, m):
    x, y = points(2, 96)
    x, y = x[:, :n], y[:, :m]
    solution = solver(blur=blur).solve(x, y)
    cost = 0.5 * torch.cdist(x.double(), y.double()).square()
    plan = torch.softmax(solution.g.double().unsqueeze(1) - cost / blur**2, dim=2) / n
    torch.testing.assert_close(plan.sum(2), torch.full_like(plan.sum(2), 1 / n))
    errors = (plan.sum(1) - 1 / m).abs().sum(1)
    assert (errors < batched.TOLERANCE * 1.01).all()
    assert solution.converged.all()
    assert (errors <= solution.error + 1e-5).all()  # the reported error is this one or Q's


def test_tolerance_sets_the_error():
    """It shrinks with the speed of the particles, or v would drown in it."""
    x, y = points(1, 64)
    expected = reference.velocity(x[0], y[0], 0.5)
    coarse, fine = (solver(tolerance=t).solve(x, y) for t in (0.1, 1e-5))
    assert relative_error(fine.velocity[0], expected) < 1e-4
    assert relative_error(fine.velocity[0], expected) < relative_error(coarse.velocity[0], expected)
    assert coarse.iterations < fine.iterations
    assert fine.error < 1e-5 < coarse.error
    near = y + 0.02 * x
    slow = solver().solve(near, y)
    assert slow.error < 0.05 * batched.TOLERANCE
    assert relative_error(slow.velocity[0], reference.velocity(near[0], y[0], 0.5)) < 2e-2


@pytest.mark.parametrize(
    ("clouds", "blur"), [(points(6, 64), 0.5), (points(6, 64), 0.1), (images(6, 32, 784), 1.0)]
)
def test_chunks_change_nothing(clouds, blur):
    """Six flows at once, or four and two; some converge long before others. The tolerance
    is fine, because rounding may add a few updates.

    Past mistake: When the plan of one flow was computed again, the row factors of all flows in
    its batch started anew. Results depended on the batch.
    """
    x, y = clouds
    x = x * torch.linspace(0.2, 3.0, 6).view(6, 1, 1)
    whole = solver(blur=blur, tolerance=1e-4)
    expected = run_flow(whole, x, y, [0.5] * 4)
    parts = solver(blur=blur, tolerance=1e-4)
    positions = torch.cat([run_flow(parts, x[k], y[k], [0.5] * 4) for k in (slice(4), slice(4, 6))])
    torch.testing.assert_close(positions, expected, atol=1e-4, rtol=1e-5)
    assert parts.report.iterations == pytest.approx(whole.report.iterations, rel=0.02)


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.0, -1.0, 30.0])
@pytest.mark.parametrize("speed", [1.0, 0.01, 100.0])
def test_the_start_changes_nothing_beyond_the_tolerance(factor, speed):
    """Not even potentials of the wrong sign, or far too large."""
    x, y = points(2, 64)
    cold = solver().solve(x, y)
    guess = replace(cold, g=factor * cold.g, speed=[speed * value for value in cold.speed])
    warm = solver().solve(x, y, guess)
    assert warm.converged.all()
    torch.testing.assert_close(warm.velocity, cold.velocity, atol=0.02, rtol=5e-3)


def test_flows_start_each_step_from_the_last():
    """With the potentials scaled by 1 - eta; a fresh start at each step takes half as many more."""
    x, y = points(4, 128)
    flows, fresh = solver(blur=0.2), solver(blur=0.2)
    positions = run_flow(flows, x, y, [0.5] * 8)
    for t in range(8):
        fresh.solve(positions[:, :, t], y)
    assert fresh.report.iterations > 1.3 * flows.report.iterations


def test_whole_steps_take_as_many_updates_as_nearly_whole_ones():
    """A step of eta = 1 does not stop the particles, so the next tolerance is not the smallest."""
    x, y = noise(1, 64, 200), 1.5 * noise(1, 64, 200, seed=1)
    whole, nearly = solver(blur=1.5), solver(blur=1.5)
    run_flow(whole, x, y, [1.0] * 5)
    run_flow(nearly, x, y, [0.99] * 5)
    assert whole.report.iterations < 1.2 * nearly.report.iterations


def test_over_relaxation_is_raised_where_progress_is_slow(monkeypatch):
    x, y = points(2, 64)
    raised = solver(blur=0.05).solve(x, y)
    monkeypatch.setattr(batched, "OMEGA_MAX", batched.OMEGA)
    assert (solver(blur=0.05).solve(x, y).iterations > 3 * raised.iterations).all()


@pytest.mark.parametrize("distance", [3.0, 4.0])
def test_points_that_hardly_see_each_other_still_do(distance):
    """Their kernel entries of exp(-4.5) and exp(-8) belong to Q: without, equal clouds move."""
    grid = distance * torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0))
    assert reference.first_velocity(solver(blur=1.0), grid, grid).abs().max() < 1e-5


@pytest.mark.parametrize("depth", [48.0, 8000.0])
def test_hidden_columns_are_updated_in_the_log_domain(depth, monkeypatch):
    """A potential so low that its column of the kernel underflows, and with it the target."""
    x, y = points(1, 32)
    solution = solver().solve(x, y)
    g = solution.g.clone()
    g[0, 3] -= depth
    warm = solver().solve(x, y, replace(solution, g=g))
    torch.testing.assert_close(warm.velocity, solution.velocity, atol=0.02, rtol=5e-3)
    monkeypatch.setattr(plans, "HIDDEN", -math.inf)  # without it: the hard way
    assert (solver().solve(x, y, replace(solution, g=g)).iterations > warm.iterations).all()


def test_a_cap_that_is_hit_is_counted():
    x, y = points(3, 64)
    x[0] = y[0] + 1.0  # converges at once: a translation
    flows = solver(max_iterations=30, blur=0.1)
    solution = flows.solve(x, y)
    assert solution.converged.tolist() == (solution.error <= batched.TOLERANCE).tolist()
    assert not solution.converged[1:].any()
    assert flows.report.unconverged == int((~solution.converged).sum())
    assert flows.report.worst_error == pytest.approx(float(solution.error.max()))
    assert flows.report.worst_error > batched.TOLERANCE
    assert solution.velocity.isfinite().all()
    assert (solution.iterations < 30 + 3 * batched.UPDATES).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("blur", [0.5, 100.0, 1000.0])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-38])
def test_every_solve_ends_whatever_rounding_allows(n, blur, tolerance, monkeypatch):
    """Tolerances that float32 cannot reach; for P, for Q, or for either.

    Past mistake: A solve with an error of exactly 0 counted no updates, and the loop never ended.
    """
    turns, real = [], plans.Plan.update

    def counted(self, *arguments):
        turns.append(1)
        assert len(turns) <= 3 * (60 // batched.UPDATES + 1), "endless"
        return real(self, *arguments)

    monkeypatch.setattr(plans.Plan, "update", counted)
    flows = solver(blur=blur, tolerance=tolerance, max_iterations=60)
    assert run_flow(flows, noise(2, n, 2), noise(2, n, 2, seed=1) + 1, [0.5] * 3).isfinite().all()
    assert flows.report.iterations <= 60 + 2 * batched.UPDATES


def test_an_error_of_the_self_term_alone_is_not_converged(monkeypatch):
    """More updates of P cannot change it: the solve ends, and says so."""
    x, y = points(2, 32)
    expected = solver().solve(x, y)
    monkeypatch.setattr(plans, "SELF_POWERS", plans.SELF_POWERS[:2])
    solution = solver().solve(x, y)
    assert not solution.converged.any()
    assert (solution.error > 3 * batched.TOLERANCE).all()
    assert (solution.iterations <= expected.iterations + 2 * batched.UPDATES).all()


def test_cut_off_flows_do_not_depend_on_the_others_in_their_chunk():
    """The third, whose slow particles get a finer plan, goes on after them."""
    x, y = points(3, 48)
    x[2] = y[2] + 0.03 * x[2]
    flows = solver(blur=0.05, max_iterations=60)
    alone = torch.cat([flows.solve(x[k : k + 1], y[k : k + 1]).iterations for k in range(3)])
    together = flows.solve(x, y)
    assert together.converged.tolist() == [False, False, True]
    assert torch.equal(together.iterations, alone)


def test_blur_too_small_for_float32_is_refused():
    """Also where infinite clouds have distances that are not even a number."""
    x, y = points(1, 16)
    with pytest.raises(UserError, match=r"sinkhorn\.blur = 0\.0001 is too small for float32"):
        run_flow(solver(blur=1e-4), x, y, [0.5] * 2)
    with pytest.raises(UserError, match="reaches inf"):
        run_flow(solver(), x, y, [3e38] * 3)


@pytest.mark.parametrize(
    ("clouds", "blur"), [(points(2, 96), 0.5), (digits(48, 600), 0.5), (images(2, 48, 784), 1.0)]
)
def test_plans_in_blocks_give_the_same_flows(clouds, blur, monkeypatch):
    x, y = clouds
    expected = run_flow(solver(blur=blur, tolerance=1e-4), x, y, [0.5] * 3)
    monkeypatch.setattr(blocks, "LARGEST_PLAN", 0)
    monkeypatch.setattr(blocks, "PLAN_BLOCK", 7 * y.shape[1])
    flows = solver(blur=blur, tolerance=1e-4)
    assert relative_error(run_flow(flows, x, y, [0.5] * 3), expected) < 2e-3
    assert flows.report.unconverged == 0


@pytest.mark.parametrize(("small", "is_sparse"), [(1e-9, True), (1e-7, False), (1e-6, False)])
def test_small_entries_of_a_plan_are_left_out_only_if_their_sum_is_small(
    small, is_sparse, monkeypatch
):
    """All targets are near (1, ..., 1), so what is left out lacks in the velocity."""
    n, m, dim = 32, 1024, 1100
    plan = torch.full((1, n, m), small)
    plan[:, range(n), range(n)] = 1 - (m - 1) * small
    y = 1 + 0.1 * noise(1, m, dim)
    own = noise(1, n, dim, seed=1)
    sparse = []
    to_sparse = torch.Tensor.to_sparse
    monkeypatch.setattr(torch.Tensor, "to_sparse", lambda x: sparse.append(x) or to_sparse(x))
    out = torch.empty_like(own)
    plans._subtract(plan, y, own, [0], out)
    assert bool(sparse) is is_sparse
    expected = plan.double() @ y.double() - own.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


def test_single_particles_with_many_coordinates_reach_their_target():
    """Products move with the particle, and end with rounding errors around 0.

    Past mistake: |x|^2 that moved with a particle ended a rounding error below 0, and its root
    was nan. Flows of one particle were refused with a wrong reason.
    """
    x, y = noise(8, 1, 100), noise(8, 2, 100, seed=1)
    end = run_flow(solver(), x, y, [0.5] * 40)[:, 0, -1]
    torch.testing.assert_close(end, y.mean(1), atol=1e-4, rtol=0)
