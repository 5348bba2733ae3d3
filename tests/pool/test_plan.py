import re
from collections import namedtuple
from dataclasses import replace

import pytest
import torch

from nsgf.data import data_shape
from nsgf.pool import build_batch, plan, plan_pool, pool_bytes
from nsgf.pool.plan import solver_bytes
from nsgf.system.errors import UserError
from tests.pool.conftest import CPU, build, parsed, with_pool

GB = 10**9
CIFAR, MNIST = (3, 32, 32), (1, 28, 28)


def test_size_is_known_before_building():
    """The paper's pools: 2500 x 128 and 1500 x 256 flows of 5 steps, T + 1 positions each."""
    cifar, mnist = parsed("cifar10"), parsed("mnist/nsgf++")
    assert pool_bytes(cifar, CIFAR, "float32") == 2500 * 128 * 6 * 3072 * 4
    assert pool_bytes(cifar, CIFAR, "float16") == 2500 * 128 * 6 * 3072 * 2 <= 12 * GB
    assert pool_bytes(mnist, MNIST, "float16") == 1500 * 256 * 6 * 784 * 2 <= 4 * GB


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_estimate_is_what_the_pool_holds(config, tmp_path, dtype, storage):
    chosen = with_pool(config, dtype=dtype, storage=storage)
    pool = build(chosen, tmp_path / "pool")
    assert pool._positions.nbytes == pool_bytes(chosen, (2,))
    if storage == "disk":
        assert (tmp_path / "pool" / "positions.bin").stat().st_size == pool._positions.nbytes


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize(
    ("free", "dtype", "size"),
    [
        (50, "float32", "23,592,960,000 bytes (23.6 GB)"),
        (20, "float16", "11,796,480,000 bytes (11.8 GB)"),
    ],
)
def test_auto_takes_float32_where_it_fits_and_says_which(storage, free, dtype, size):
    config = with_pool(parsed("cifar10"), storage=storage)
    chosen = plan_pool(config, CIFAR, CPU, available=free * GB)
    assert chosen.dtype == dtype
    assert chosen.nbytes == pool_bytes(config, CIFAR, dtype)
    what = {"memory": "memory", "disk": "disk space"}[storage]
    assert chosen.text == (
        f"2500 flows of 128 particles, 5 steps each, {size} of {free}.0 GB of {what} free, {dtype}"
    )


@pytest.mark.parametrize(("storage", "dtype"), [("memory", "float16"), ("disk", "float32")])
def test_auto_leaves_half_of_the_memory_to_images_and_networks(storage, dtype):
    """23.6 GB of float32 fit into 29 GB, and leave too little for everything else."""
    config = with_pool(parsed("cifar10"), storage=storage)
    assert plan_pool(config, CIFAR, CPU, available=29 * GB).dtype == dtype


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_pool_that_does_not_fit_names_the_setting_that_does(storage, dtype):
    config = with_pool(parsed("cifar10"), storage=storage, dtype=dtype)
    with pytest.raises(UserError, match=r"pool\.num_batches = 2500") as caught:
        plan_pool(config, CIFAR, CPU, available=10 * GB)
    message = str(caught.value)
    assert f"pool.storage = {storage}" in message
    assert "\n" not in message
    fitting = int(re.search(r"--pool-batches (\d+) would", message).group(1))
    assert fitting > 500
    smaller = with_pool(config, num_batches=fitting)
    assert plan_pool(smaller, CIFAR, CPU, available=10 * GB)
    with pytest.raises(UserError):
        plan_pool(with_pool(smaller, num_batches=fitting + 2), CIFAR, CPU, available=10 * GB)


def test_smaller_type_is_named_when_it_would_fit():
    config = with_pool(parsed("cifar10"), dtype="float32")
    with pytest.raises(UserError, match=r"--pool\.dtype float16 would"):
        plan_pool(config, CIFAR, CPU, available=20 * GB)
    assert plan_pool(with_pool(config, dtype="float16"), CIFAR, CPU, available=20 * GB)
    with pytest.raises(UserError) as caught:
        plan_pool(config, CIFAR, CPU, available=10 * GB)
    assert "float16" not in str(caught.value)


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_even_one_batch_may_be_too_much(storage):
    config = with_pool(parsed("cifar10"), storage=storage)
    with pytest.raises(UserError, match="--sinkhorn-batch"):
        plan_pool(config, CIFAR, CPU, available=10**6)


@pytest.mark.parametrize(("storage", "share"), [("memory", 0.85), ("disk", 0.95)])
def test_a_part_of_what_is_free_stays_free(config, storage, share):
    """What is left is for networks and batches, or for checkpoints."""
    chosen = with_pool(config, storage=storage, dtype="float32", num_batches=1000)
    needed = pool_bytes(chosen, (2,))
    if storage == "memory":
        needed += solver_bytes(chosen, (2,), CPU)
    plan_pool(chosen, (2,), CPU, available=int(needed / share) + 2)
    with pytest.raises(UserError, match=f"does not fit into {share:.0%} of the"):
        plan_pool(chosen, (2,), CPU, available=int(needed / share) - 2)


@pytest.mark.parametrize("name", ["2d", "digits", "mnist", "cifar10"])
@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("solver", ["batched", "geomloss"])
def test_plans_of_a_hundred_thousand_particles_are_refused(name, storage, solver, monkeypatch):
    """Five matrices of 100000 x 100000 floats: 200 GB, whatever the data."""
    config = with_pool(parsed(name), storage=storage, num_batches=1)
    many = replace(config.sinkhorn, batch_size=100_000, solver=solver)
    config, shape = replace(config, sinkhorn=many), data_shape(config.data)
    monkeypatch.setattr(plan, "available_bytes", lambda: 100 * GB)
    monkeypatch.setattr(plan, "free_disk_bytes", lambda _: 1000 * GB)
    with pytest.raises(UserError, match=r"^sinkhorn\.batch_size = 100000: ") as caught:
        plan_pool(config, shape, CPU)
    message = str(caught.value)
    assert "\n" not in message
    assert "85% of the 100.0 GB of free main memory" in message
    fitting = int(re.search(r"try --sinkhorn-batch (\d+)$", message)[1])
    smaller = replace(config, sinkhorn=replace(config.sinkhorn, batch_size=fitting))
    assert 0.99 < solver_bytes(smaller, shape, CPU) / (85 * GB) <= 1
    more = replace(config, sinkhorn=replace(config.sinkhorn, batch_size=fitting + 1))
    assert solver_bytes(more, shape, CPU) > 85 * GB


def test_solver_of_a_card_must_fit_there(config, monkeypatch):
    """And leaves main memory to the pool."""
    free = []
    monkeypatch.setattr(plan.torch.cuda, "mem_get_info", lambda _: (free[-1], 80 * GB))
    card = torch.device("cuda:1")
    chosen = with_pool(config, build_batch=7)
    needed, pool = solver_bytes(chosen, (2,), card), pool_bytes(chosen, (2,))
    main = int(pool / 0.85) + 2
    free.append(int(needed / 0.85) + 2)
    assert plan_pool(chosen, (2,), card, available=main)
    free.append(int(needed / 0.85) - 2)
    with pytest.raises(UserError, match=r"7 flows .* of free memory of cuda:1; try --pool.build_b"):
        plan_pool(chosen, (2,), card, available=main)
    with pytest.raises(UserError, match="free main memory"):
        plan_pool(chosen, (2,), CPU, available=main)


def test_fewer_flows_at_a_time_are_proposed_where_they_fit(config):
    chosen = with_pool(config, build_batch=7)
    needed = solver_bytes(chosen, (2,), CPU)
    with pytest.raises(UserError, match=r"7 flows together need .* try --pool\.build_batch 4$"):
        plan_pool(chosen, (2,), CPU, available=int(4.5 / 7 * needed / 0.85))


def test_smaller_clouds_are_proposed_where_not_even_one_flow_fits(config):
    chosen = with_pool(config, build_batch=1)
    with pytest.raises(UserError, match=r"and a flow needs about .* try --sinkhorn-batch 4$"):
        plan_pool(chosen, (2,), CPU, available=int(solver_bytes(chosen, (2,), CPU) / 2))


@pytest.mark.parametrize(("solver", "matrices"), [("batched", 5), ("geomloss", 8)])
def test_memory_of_the_solver_counts_matrices_and_clouds(config, solver, matrices):
    """Positions at T + 1 = 3 times and four more clouds; seven flows together."""
    chosen = replace(config, sinkhorn=replace(config.sinkhorn, solver=solver))
    assert solver_bytes(chosen, (3, 5), CPU) == 7 * 4 * 8 * ((3 + 4) * 15 + matrices * 8)


@pytest.mark.parametrize(
    ("solver", "targets", "matrices"),
    [
        ("batched", 3, 5 * 64),
        ("batched", 60, 5 * 480),
        ("geomloss", 60, 8 * 3600),
    ],
)
def test_clouds_and_matrices_count_as_the_larger_of_particles_and_targets(
    config, solver, targets, matrices
):
    """Of eight particles; geomloss has a matrix of the targets alone."""
    sinkhorn = replace(config.sinkhorn, solver=solver, target_batch=targets)
    chosen = replace(with_pool(config, build_batch=7), sinkhorn=sinkhorn)
    clouds = (3 * 8 + 4 * max(8, targets)) * 15
    assert solver_bytes(chosen, (3, 5), CPU) == 7 * 4 * (clouds + matrices)


def test_as_many_targets_as_particles_change_no_estimate(config):
    same = replace(config, sinkhorn=replace(config.sinkhorn, target_batch=8))
    for shape in ((2,), CIFAR):
        assert build_batch(same, shape, CPU) == build_batch(config, shape, CPU)
        assert solver_bytes(same, shape, CPU) == solver_bytes(config, shape, CPU)


def test_more_targets_leave_room_for_fewer_flows_together():
    config = parsed("mnist/nsgf++", "--sinkhorn.target_batch=2048")
    alone, together = (4 * ((12 * 256 + 10 * m) * 784 + 10 * 256 * m) for m in (2048, 256))
    assert build_batch(config, MNIST, CPU, 40 * GB) == 4 * GB // alone
    assert build_batch(parsed("mnist/nsgf++"), MNIST, CPU, 40 * GB) == 4 * GB // together


def test_every_image_of_mnist_fits_beside_few_particles():
    config = with_pool(parsed("mnist/nsgf++", "--sinkhorn.target_batch=60000"), num_batches=2)
    chosen = plan_pool(config, MNIST, CPU, available=2 * GB)
    assert chosen.text.startswith("2 flows of 256 particles against 60000 targets, 5 steps each, ")
    assert build_batch(config, MNIST, CPU) == 1


@pytest.mark.parametrize(("particles", "targets"), [(256, 10**6), (5000, 10**5), (10**5, 500)])
def test_targets_that_do_not_fit_name_both_sizes_that_would(config, particles, targets):
    """Few targets are no help where the particles' own matrix is too large."""

    def changed(n, m):
        sinkhorn = replace(config.sinkhorn, batch_size=n, target_batch=m)
        return with_pool(replace(config, sinkhorn=sinkhorn), num_batches=1)

    free = 2 * GB
    with pytest.raises(UserError) as caught:
        plan_pool(changed(particles, targets), (2,), CPU, available=free)
    message = str(caught.value)
    assert message.startswith(
        f"sinkhorn.batch_size = {particles}, sinkhorn.target_batch = {targets}: the transport "
        f"plans are {particles} x {targets} matrices, and a flow needs about "
    )
    found = re.fullmatch(r".*; try --sinkhorn-batch (\d+)(?: or (--\S+) (\d+))?", message)
    sizes = [(int(found[1]), 0)]
    if particles != 10**5:
        assert found[2] == "--sinkhorn.target_batch"
        sizes.append((0, int(found[3])))
    for n, m in sizes:
        for more, fits in ((0, True), (1, False)):
            chosen = changed(n + more if n else particles, m + more if m else targets)
            assert (solver_bytes(chosen, (2,), CPU) <= int(0.85 * free)) == fits


def test_flow_of_which_no_side_alone_can_be_small_enough_names_both(config):
    sinkhorn = replace(config.sinkhorn, batch_size=10**6, target_batch=10**9)
    with pytest.raises(UserError, match=r"try smaller --sinkhorn-batch and --sinkhorn\.target_b"):
        plan_pool(replace(config, sinkhorn=sinkhorn), (2,), CPU, available=GB)


def test_type_of_a_known_pool_stays_when_less_is_free(config, tmp_path):
    """auto must not turn a resumed run's float32 values into float16."""
    folder, config = tmp_path / "pool", with_pool(config, build_batch=1)
    build(config, folder)
    half = pool_bytes(config, (2,), "float16")
    tight = int((half + solver_bytes(config, (2,), CPU)) / 0.84)
    assert plan_pool(config, (2,), CPU, available=tight).dtype == "float16"
    with pytest.raises(UserError, match="float32"):
        plan_pool(config, (2,), CPU, folder, available=tight)
    other = with_pool(config, num_batches=6)  # another pool: chosen anew
    assert plan_pool(other, (2,), CPU, folder, available=tight).dtype == "float16"


@pytest.mark.parametrize("name", ["2d", "digits", "mnist", "cifar10"])
def test_flows_under_construction_stay_small(name):
    shape = {"mnist": MNIST, "cifar10": CIFAR, "digits": (1, 8, 8), "2d": (2,)}[name]
    base = parsed(name)
    config = replace(base, sinkhorn=replace(base.sinkhorn, batch_size=128))
    together = build_batch(config, shape, CPU)
    n, values = config.sinkhorn.batch_size, torch.Size(shape).numel()
    result = together * n * (config.flow.steps + 1) * values * 4
    assert 1 < together <= config.pool.num_batches
    assert result < 100e6


def test_flows_together_can_be_set_and_do_not_exceed_the_pool():
    config = parsed("cifar10")
    assert build_batch(with_pool(config, build_batch=3), CIFAR, CPU) == 3
    assert build_batch(with_pool(config, build_batch=30, num_batches=4), CIFAR, CPU) == 4
    assert build_batch(with_pool(config, num_batches=2), CIFAR, CPU) == 2


@pytest.mark.parametrize(("card", "budget"), [(8 * GB, 2 * GB), (80 * GB, 4 * GB)])
def test_flows_together_on_a_card_take_a_share_of_it_at_most(card, budget, monkeypatch):
    properties = namedtuple("properties", "total_memory")
    monkeypatch.setattr(
        plan.torch.cuda, "get_device_properties", lambda _: properties(total_memory=card)
    )
    config = with_pool(parsed("cifar10"), num_batches=10**6)
    n, positions = config.sinkhorn.batch_size, 2 * (config.flow.steps + 1)
    flow = 4 * n * ((positions + 10) * 3072 + 10 * n)
    assert build_batch(config, CIFAR, torch.device("cuda")) == budget // flow
    assert build_batch(config, CIFAR, CPU, memory=card) == budget // flow
    assert solver_bytes(config, CIFAR, CPU, card) == solver_bytes(
        config, CIFAR, torch.device("cuda")
    )
