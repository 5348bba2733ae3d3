import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nsgf.data import data_shape
from nsgf.pool import build_batch, flow_bytes, plan_pool, pool_bytes
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.pool.conftest import CPU, build, with_pool

GB = 10**9
CIFAR = (3, 32, 32)


def with_clouds(config, n, m=None):
    return replace(config, sinkhorn=replace(config.sinkhorn, batch_size=n, target_batch=m))


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes of memory, and those of the disk."""

    def set_free(memory, disk=1000 * GB):
        monkeypatch.setattr("nsgf.pool.available_bytes", lambda: memory)
        monkeypatch.setattr("nsgf.pool.free_disk_bytes", lambda _: disk)

    return set_free


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_estimate_is_what_the_pool_holds(config, tmp_path, dtype, storage):
    chosen = with_pool(config, dtype=dtype, storage=storage)
    pool = build(chosen, tmp_path / "pool")
    assert pool._positions.nbytes == pool_bytes(chosen, (2,), dtype)
    if storage == "disk":
        assert (tmp_path / "pool" / "positions.bin").stat().st_size == pool._positions.nbytes
        assert plan_pool(chosen, (2,), CPU).disk_bytes == pool._positions.nbytes
    assert plan_pool(chosen, (2,), CPU, RunFolder(tmp_path)).disk_bytes == 0


@pytest.mark.parametrize(
    ("storage", "size", "dtype"),
    [
        ("memory", 50, "float32"),
        ("memory", 29, "float16"),  # float32 would leave too little to images and networks
        ("memory", 20, "float16"),
        ("disk", 29, "float32"),
        ("disk", 20, "float16"),
    ],
)
def test_auto_takes_float32_where_it_fits_and_says_which(storage, size, dtype, free):
    config = with_pool(shipped("cifar10"), storage=storage)
    free(size * GB, size * GB)
    chosen = plan_pool(config, CIFAR, CPU)
    assert chosen.dtype == dtype
    assert f"{pool_bytes(config, CIFAR, dtype):,} bytes" in chosen.text


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_pool_that_does_not_fit_names_the_number_of_flows_that_does(storage, dtype, free):
    config = with_pool(shipped("cifar10"), storage=storage, dtype=dtype)
    free(10 * GB, 10 * GB)
    with pytest.raises(UserError, match=r"pool\.num_batches = 2500: ") as caught:
        plan_pool(config, CIFAR, CPU)
    fitting = int(re.search(r"; use (\d+),", str(caught.value))[1])
    assert plan_pool(with_pool(config, num_batches=fitting), CIFAR, CPU)
    with pytest.raises(UserError):
        plan_pool(with_pool(config, num_batches=fitting + 2), CIFAR, CPU)


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_flows_of_a_hundred_thousand_particles_are_refused(storage, free):
    """By geomloss, whose matrices must fit; the Sinkhorn flow takes them in blocks."""
    config = with_clouds(with_pool(shipped("2d"), storage=storage, num_batches=1), 100_000)
    free(100 * GB)
    assert plan_pool(config, data_shape(config.data), CPU)
    config = replace(config, flow=replace(config.flow, kind="geomloss"))
    with pytest.raises(UserError, match=r"^sinkhorn\.batch_size = 100000: "):
        plan_pool(config, data_shape(config.data), CPU)


def test_memory_of_a_card_is_not_computed_beforehand(config, free):
    """Main memory needs room for the pool; flows that do not fit the card are halved."""
    chosen = with_pool(config, build_batch=7)
    free(int(pool_bytes(chosen, (2,), "float32") / 0.85) + 2)
    assert plan_pool(chosen, (2,), torch.device("cuda:1"))
    with pytest.raises(UserError, match=r"sinkhorn\.batch_size"):
        plan_pool(chosen, (2,), CPU)


def test_type_of_a_known_pool_stays_when_less_is_free(config, tmp_path, free):
    """auto must not turn a resumed run's float32 values into float16."""
    run, config = RunFolder(tmp_path), with_pool(config, build_batch=1)
    build(config, run.pool)
    half = pool_bytes(config, (2,), "float16")
    free(int((half + flow_bytes(config, (2,)) / 2) / 0.84))
    assert plan_pool(config, (2,), CPU).dtype == "float16"
    with pytest.raises(UserError, match="float32"):
        plan_pool(config, (2,), CPU, run)
    # another pool: chosen anew
    assert plan_pool(with_pool(config, num_batches=6), (2,), CPU, run).dtype == "float16"


def test_flows_together_can_be_set_and_do_not_exceed_pool_and_card(monkeypatch):
    config = shipped("cifar10")
    assert build_batch(with_pool(config, build_batch=3), CIFAR, CPU) == 3
    assert build_batch(with_pool(config, build_batch=30, num_batches=4), CIFAR, CPU) == 4
    assert build_batch(with_pool(config, num_batches=2), CIFAR, CPU) == 2
    assert build_batch(with_clouds(config, 256, 60_000), CIFAR, CPU) == 1
    assert build_batch(config, CIFAR, CPU) == 80 * 10**6 // flow_bytes(config, CIFAR) > 1
    for card, budget in ((8 * GB, 2 * GB), (80 * GB, 4 * GB)):
        known = SimpleNamespace(total_memory=card)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, known=known: known)
        many = with_pool(config, num_batches=10**6)
        assert build_batch(many, CIFAR, torch.device("cuda")) == budget // flow_bytes(config, CIFAR)
