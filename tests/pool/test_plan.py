import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nsgf.pool import plan_pool
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.pool.conftest import CPU, build, pool_settings, with_pool

GB = 10**9


def with_clouds(config, n, m=None):
    return replace(config, sinkhorn=replace(config.sinkhorn, batch_size=n, target_batch=m))


def plan(config, device=CPU, run=None):
    """The plan of an experiment's pool."""
    return plan_pool(pool_settings(config), device, config.out_path, run)


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
    assert pool._positions.nbytes == pool_settings(chosen).pool_bytes(dtype)
    if storage == "disk":
        assert (tmp_path / "pool" / "positions.bin").stat().st_size == pool._positions.nbytes
        assert plan(chosen).disk_bytes == pool._positions.nbytes
    assert plan(chosen, run=RunFolder(tmp_path)).disk_bytes == 0


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
    chosen = plan(config)
    assert chosen.dtype == dtype
    assert f"{pool_settings(config).pool_bytes(dtype):,} bytes" in chosen.text


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_pool_that_does_not_fit_names_the_number_of_flows_that_does(storage, dtype, free):
    config = with_pool(shipped("cifar10"), storage=storage, dtype=dtype)
    free(10 * GB, 10 * GB)
    with pytest.raises(UserError, match=r"pool\.num_batches = 2500: ") as caught:
        plan(config)
    fitting = int(re.search(r"; use (\d+),", str(caught.value))[1])
    assert plan(with_pool(config, num_batches=fitting))
    with pytest.raises(UserError):
        plan(with_pool(config, num_batches=fitting + 2))


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_flows_of_a_hundred_thousand_particles_are_refused(storage, free):
    """By geomloss, whose matrices must fit; the Sinkhorn flow takes them in blocks."""
    config = with_clouds(with_pool(shipped("2d"), storage=storage, num_batches=1), 100_000)
    free(100 * GB)
    assert plan(config)
    config = replace(config, flow=replace(config.flow, kind="geomloss"))
    with pytest.raises(UserError, match=r"^sinkhorn\.batch_size = 100000: "):
        plan(config)


def test_memory_of_a_card_is_not_computed_beforehand(config, free):
    """Main memory needs room for the pool; flows that do not fit the card are halved."""
    chosen = with_pool(config, build_batch=7)
    free(int(pool_settings(chosen).pool_bytes("float32") / 0.85) + 2)
    assert plan(chosen, torch.device("cuda:1"))
    with pytest.raises(UserError, match=r"sinkhorn\.batch_size"):
        plan(chosen)


def test_type_of_a_known_pool_stays_when_less_is_free(config, tmp_path, free):
    """auto must not turn a resumed run's float32 values into float16."""
    run, config = RunFolder(tmp_path), with_pool(config, build_batch=1)
    build(config, run.pool)
    settings = pool_settings(config)
    free(int((settings.pool_bytes("float16") + settings.flow_bytes() / 2) / 0.84))
    assert plan(config).dtype == "float16"
    with pytest.raises(UserError, match="float32"):
        plan(config, run=run)
    # another pool: chosen anew
    assert plan(with_pool(config, num_batches=6), run=run).dtype == "float16"


def test_flows_together_can_be_set_and_do_not_exceed_pool_and_card(monkeypatch):
    config = shipped("cifar10")
    for changed, size in (
        (with_pool(config, build_batch=3), 3),
        (with_pool(config, build_batch=30, num_batches=4), 4),
        (with_pool(config, num_batches=2), 2),
        (with_clouds(config, 256, 60_000), 1),
    ):
        assert pool_settings(changed).group_size(CPU) == size
    settings = pool_settings(config)
    assert settings.group_size(CPU) == 80 * 10**6 // settings.flow_bytes() > 1
    many = pool_settings(with_pool(config, num_batches=10**6))
    for card, budget in ((8 * GB, 2 * GB), (80 * GB, 4 * GB)):
        properties = SimpleNamespace(total_memory=card)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, known=properties: known)
        assert many.group_size(torch.device("cuda")) == budget // many.flow_bytes()
