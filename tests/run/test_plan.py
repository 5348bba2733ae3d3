from dataclasses import replace

import pytest

from nsgf.pool.storage import drop_positions, read_header
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, earlier
from nsgf.run.plan import check_space, checkpoint_bytes, training_plan
from nsgf.system.errors import UserError
from tests.conftest import shipped
from tests.pool.conftest import CPU, build, with_pool


def test_a_checkpoint_has_about_the_bytes_that_are_asked_for(tiny_run):
    file = tiny_run.checkpoint_file("nsgf")
    weights = sum(tensor.numel() for tensor in checkpoint.load(file)["model"].values())
    assert checkpoint_bytes(weights) < file.stat().st_size < checkpoint_bytes(weights) + 20_000


@pytest.fixture
def fits(monkeypatch):
    """``check_space`` where that many bytes are free."""

    def check(available, *values):
        monkeypatch.setattr("nsgf.run.plan.free_disk_bytes", lambda _: available)
        check_space(*values)

    return check


def test_two_checkpoints_of_each_phase_one_more_and_the_pool_must_fit(tmp_path, fits):
    run, weights = RunFolder(tmp_path / "new"), {"nsgf": 1000, "nsf": 3000}
    needed = 16 * (2 * 1000 + 2 * 3000 + 3000)
    fits(needed, weights, 0, run)
    with pytest.raises(UserError, match=r"need 176.0 KB of disk space.* --out-dir"):
        fits(needed - 1, weights, 0, run)
    fits(needed + 5000, weights, 5000, run)
    with pytest.raises(UserError, match=r"and the pool 5.0 KB"):
        fits(needed + 4999, weights, 5000, run)


def test_checkpoints_that_are_there_need_no_more_room(tmp_path, fits):
    run = RunFolder(tmp_path)
    for file in (run.checkpoint_file("nsf"), earlier(run.checkpoint_file("nsf"))):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(16_000))
    fits(16_000, {"nsf": 1000}, 0, run)
    with pytest.raises(UserError):
        fits(15_999, {"nsf": 1000}, 0, run)
    fits(32_000, {"nsf": 1000}, 0, run, ["nsf"])  # one is only renamed
    with pytest.raises(UserError):
        fits(31_999, {"nsf": 1000}, 0, run, ["nsf"])


@pytest.mark.parametrize(("storage", "fits"), [("memory", True), ("disk", False)])
def test_plan_refuses_a_full_disk(tiny, monkeypatch, storage, fits):
    asked = []
    monkeypatch.setattr("nsgf.run.plan.check_space", lambda *values: asked.append(values))
    training_plan(with_pool(tiny, storage=storage), ["nsgf"], CPU)
    [(weights, pool, run, _)] = asked
    assert list(weights) == ["nsgf"]
    assert pool == (0 if fits else 2048)
    assert str(run.path) == tiny.out_dir


def test_plan_refuses_fp16_on_a_cpu(tiny):
    half = replace(tiny, train=replace(tiny.train, precision="fp16"))
    with pytest.raises(UserError, match=r"train\.precision = fp16: a CPU"):
        training_plan(half, ["nsgf"], CPU)
    assert training_plan(half, [], CPU)[0] == "nsgf: done already"  # it can be measured


def test_dropped_pool_is_built_again_to_the_same_values(tmp_path):
    config = shipped("2d", "--pool-batches=3", "--sinkhorn-batch=8", "--steps=2")
    config = with_pool(config, storage="disk")
    folder = tmp_path / "pool"
    before = build(config, folder)._positions.clone()
    assert drop_positions(folder) > 0
    assert not (folder / "positions.bin").exists()
    assert read_header(folder)["checksums"] == []
    assert drop_positions(folder) == 0
    assert (build(config, folder)._positions == before).all()
