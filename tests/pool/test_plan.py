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


def with_clouds(config, n, m=None):
    return replace(config, sinkhorn=replace(config.sinkhorn, batch_size=n, target_batch=m))


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


@pytest.mark.parametrize(
    ("storage", "free", "dtype"),
    [
        ("memory", 50, "float32"),
        ("memory", 29, "float16"),  # float32 would leave too little to images and networks
        ("memory", 20, "float16"),
        ("disk", 29, "float32"),
        ("disk", 20, "float16"),
    ],
)
def test_auto_takes_float32_where_it_fits_and_says_which(storage, free, dtype):
    config = with_pool(parsed("cifar10"), storage=storage)
    chosen = plan_pool(config, CIFAR, CPU, available=free * GB)
    assert chosen.dtype == dtype
    assert chosen.nbytes == pool_bytes(config, CIFAR, dtype)
    assert f"{chosen.nbytes:,} bytes" in chosen.text
    assert chosen.text.endswith(dtype)


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_pool_that_does_not_fit_names_the_number_of_flows_that_does(storage, dtype):
    config = with_pool(parsed("cifar10"), storage=storage, dtype=dtype)
    with pytest.raises(UserError, match=r"pool\.num_batches = 2500: .*--pool-batches") as caught:
        plan_pool(config, CIFAR, CPU, available=10 * GB)
    message = str(caught.value)
    assert ("--pool.dtype float16" in message) == (dtype == "float32")
    assert "\n" not in message
    fitting = int(re.search(r"--pool-batches (\d+)", message)[1])
    smaller = with_pool(config, num_batches=fitting)
    assert plan_pool(smaller, CIFAR, CPU, available=10 * GB)
    with pytest.raises(UserError):
        plan_pool(with_pool(smaller, num_batches=fitting + 2), CIFAR, CPU, available=10 * GB)


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_even_one_flow_may_be_too_much(storage, monkeypatch):
    monkeypatch.setattr(plan, "available_bytes", lambda: GB)
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
    with pytest.raises(UserError, match=r"pool\.num_batches"):
        plan_pool(chosen, (2,), CPU, available=int(needed / share) - 2)


@pytest.mark.parametrize("name", ["2d", "cifar10"])
@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("solver", ["batched", "geomloss"])
def test_transport_plans_of_a_hundred_thousand_particles_are_refused(
    name, storage, solver, monkeypatch
):
    """Five matrices of 100000 x 100000 floats: 200 GB, whatever the data."""
    config = with_clouds(with_pool(parsed(name), storage=storage, num_batches=1), 100_000)
    config = replace(config, sinkhorn=replace(config.sinkhorn, solver=solver))
    monkeypatch.setattr(plan, "available_bytes", lambda: 100 * GB)
    monkeypatch.setattr(plan, "free_disk_bytes", lambda _: 1000 * GB)
    with pytest.raises(UserError, match=r"^sinkhorn\.batch_size = 100000: ") as caught:
        plan_pool(config, data_shape(config.data), CPU)
    assert "\n" not in str(caught.value)


def test_memory_of_a_card_is_not_computed_beforehand(config):
    """Main memory needs room for the pool; flows that do not fit the card are halved."""
    chosen = with_pool(config, build_batch=7)
    main = int(pool_bytes(chosen, (2,)) / 0.85) + 2
    assert plan_pool(chosen, (2,), torch.device("cuda:1"), available=main)
    with pytest.raises(UserError, match=r"sinkhorn\.batch_size"):
        plan_pool(chosen, (2,), CPU, available=main)


@pytest.mark.parametrize(
    ("solver", "targets", "clouds", "matrices"),
    [
        ("batched", None, (3 + 4) * 8, 5 * 64),
        ("geomloss", None, (3 + 4) * 8, 8 * 64),
        ("batched", 3, (3 + 4) * 8, 5 * 64),
        ("batched", 60, 3 * 8 + 4 * 60, 5 * 480),
        ("geomloss", 60, 3 * 8 + 4 * 60, 8 * 3600),
    ],
)
def test_memory_of_the_solver_counts_clouds_and_matrices(config, solver, targets, clouds, matrices):
    """Of eight particles at T + 1 = 3 times; geomloss has a matrix of the targets alone."""
    chosen = with_clouds(with_pool(config, build_batch=7), 8, targets)
    chosen = replace(chosen, sinkhorn=replace(chosen.sinkhorn, solver=solver))
    assert solver_bytes(chosen, (3, 5), CPU) == 7 * 4 * (clouds * 15 + matrices)


def test_as_many_targets_as_particles_change_no_estimate(config):
    same = with_clouds(config, 8, 8)
    for shape in ((2,), CIFAR):
        assert build_batch(same, shape, CPU) == build_batch(config, shape, CPU)
        assert solver_bytes(same, shape, CPU) == solver_bytes(config, shape, CPU)


def test_every_image_of_mnist_fits_beside_few_particles():
    config = with_pool(with_clouds(parsed("mnist/nsgf++"), 256, 60_000), num_batches=2)
    assert "60000 targets" in plan_pool(config, MNIST, CPU, available=2 * GB).text
    assert build_batch(config, MNIST, CPU) == 1


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


@pytest.mark.parametrize(
    ("name", "shape"), [("2d", (2,)), ("digits", (1, 8, 8)), ("mnist", MNIST), ("cifar10", CIFAR)]
)
def test_flows_under_construction_stay_small(name, shape):
    config = with_clouds(parsed(name), 128)
    together = build_batch(config, shape, CPU)
    result = together * 128 * (config.flow.steps + 1) * torch.Size(shape).numel() * 4
    assert 1 < together <= config.pool.num_batches
    assert result < 100e6


def test_flows_together_can_be_set_and_do_not_exceed_the_pool():
    config = parsed("cifar10")
    assert build_batch(with_pool(config, build_batch=3), CIFAR, CPU) == 3
    assert build_batch(with_pool(config, build_batch=30, num_batches=4), CIFAR, CPU) == 4
    assert build_batch(with_pool(config, num_batches=2), CIFAR, CPU) == 2


@pytest.mark.parametrize(("card", "budget"), [(8 * GB, 2 * GB), (80 * GB, 4 * GB)])
@pytest.mark.parametrize("targets", [None, 2048])
def test_flows_together_on_a_card_take_a_share_of_it_at_most(card, budget, targets, monkeypatch):
    properties = namedtuple("properties", "total_memory")
    monkeypatch.setattr(
        plan.torch.cuda, "get_device_properties", lambda _: properties(total_memory=card)
    )
    config = with_clouds(with_pool(parsed("cifar10"), num_batches=10**6), 128, targets)
    larger = targets or 128
    flow = 4 * ((12 * 128 + 10 * larger) * 3072 + 10 * 128 * larger)
    assert build_batch(config, CIFAR, torch.device("cuda")) == budget // flow
