import json
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nsgf.data import INDICES
from nsgf.pool import TrajectoryPool, plan_pool
from nsgf.pool import trajectories as files
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError
from tests.pool.conftest import CPU, HalfWay, Killed, build, pool_settings, with_pool


def indices(n):
    return INDICES.draw(n, torch.Generator().manual_seed(0))


def counting_pool(dtype=torch.float32):
    """Particle f is at 100 f + t^2 at time t: positions, velocities and times can be read off."""
    pool = TrajectoryPool(torch.empty(6, 5, 1, dtype=dtype), 0.25)
    positions = 100.0 * torch.arange(6).view(-1, 1) + torch.arange(5.0) ** 2
    pool.append(positions[:2].unsqueeze(-1))
    pool.append(positions[2:].unsqueeze(-1))
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pairs_are_position_velocity_and_time(dtype):
    """All these positions are exact in float16 too."""
    batch = counting_pool(dtype).pairs(indices(2000))
    assert {part.dtype for part in batch} == {torch.float32}
    step = (batch.x.squeeze(1) % 100).sqrt()
    torch.testing.assert_close(batch.t, step / 4)
    torch.testing.assert_close(batch.v.squeeze(1), ((step + 1) ** 2 - step**2) / 0.25)
    assert set(step.long().tolist()) == {0, 1, 2, 3}
    assert set((batch.x.squeeze(1) // 100).long().tolist()) == set(range(6))


def test_indices_modulo_the_number_of_pairs_choose_them():
    pool = counting_pool()
    chosen = torch.tensor([0, 24, 5, 29, 23, 2**61 // 24 * 24])
    assert pool.pairs(chosen).x.squeeze(1).tolist() == [0, 0, 101, 101, 509, 0]
    assert pool.particles(chosen).tolist() == [0, 0, 1, 1, 5, 0]


def test_allocated_once_and_filled_in_place():
    """Neither filling nor sampling replaces or copies the storage."""
    positions = torch.empty(64, 3, 3)
    pool = TrajectoryPool(positions, 0.1)
    for _ in range(4):
        pool.append(torch.randn(16, 3, 3))
    pool.pairs(indices(8))
    assert pool._positions.data_ptr() == positions.data_ptr()
    assert len(pool) == 128


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 70_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_positions_that_cannot_be_stored_name_the_setting(value, dtype):
    pool = TrajectoryPool(torch.empty(1, 2, 1, dtype=dtype), 0.1)
    flows = torch.tensor([1.0, value]).view(1, 2, 1)
    if value == 70_000 and dtype == torch.float32:
        pool.append(flows)
        return
    with pytest.raises(UserError, match="pool.dtype" if value == 70_000 else "flow.eta"):
        pool.append(flows)


def test_float16_velocities_are_differences_in_float32():
    """Positions 1000 and 1000.5 are exact in float16; 0.5 / 1e-6 is only in float32."""
    pool = TrajectoryPool(torch.empty(1, 2, 1, dtype=torch.float16), 1e-6)
    pool.append(torch.tensor([1000.0, 1000.5]).view(1, 2, 1))
    torch.testing.assert_close(pool.pairs(indices(1)).v, torch.full((1, 1), 0.5 / 1e-6))


@pytest.fixture
def disk(config):
    return with_pool(config, storage="disk", build_batch=2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "pool"


def header(folder):
    return json.loads((folder / "header.json").read_text())


def edit_header(folder, **values):
    (folder / "header.json").write_text(json.dumps({**header(folder), **values}))


def interrupt(disk, folder, after=1):
    """Kill a build in the chunk with this number; two flows are in each."""
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=after))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_disk_holds_what_memory_holds(disk, folder, dtype):
    disk = with_pool(disk, dtype=dtype)
    on_disk, in_memory = build(disk, folder), build(with_pool(disk, storage="memory"))
    assert torch.equal(on_disk._positions, in_memory._positions)
    stored = torch.frombuffer(
        bytearray((folder / "positions.bin").read_bytes()), dtype=getattr(torch, dtype)
    )
    assert torch.equal(stored, in_memory._positions.flatten())


def test_finished_pool_is_used_again_without_the_solver(disk, folder):
    built, never = build(disk, folder), HalfWay(fail_at=0)
    other = replace(with_pool(disk, build_batch=5), data=replace(disk.data, root="elsewhere"))
    build(with_pool(other, storage="memory"), folder)  # leaves the file as it is
    assert torch.equal(build(other, folder, never)._positions, built._positions)


@pytest.mark.parametrize(("together", "calls"), [(2, [2, 1]), (4, [3])])
def test_interrupted_build_goes_on_at_the_first_missing_flow(disk, folder, together, calls):
    interrupt(disk, folder, after=2)
    assert len(header(folder)["checksums"]) == 4
    rest, said = HalfWay(), []
    pool = build(with_pool(disk, build_batch=together), folder, rest, said)
    assert rest.calls == calls
    assert said[0] == "pool: continuing after 4 of 7 flows"
    assert torch.equal(pool._positions, build(with_pool(disk, storage="memory"))._positions)


def test_killed_build_keeps_the_flows_of_its_last_header(disk, folder, monkeypatch):
    """SIGKILL leaves no time for another header."""
    saves = []
    real = files.PoolFile.save
    monkeypatch.setattr(files, "SAVE_SECONDS", 0.0)

    def save(self):
        if len(saves) < 2:
            saves.append(real(self))

    monkeypatch.setattr(files.PoolFile, "save", save)
    interrupt(disk, folder, after=3)
    monkeypatch.setattr(files.PoolFile, "save", real)
    assert len(header(folder)["checksums"]) == 4
    rest = HalfWay()
    build(disk, folder, rest)
    assert rest.calls == [2, 1]


def test_build_saves_its_flows_every_five_seconds(disk, folder, monkeypatch):
    """With chunks of 2 seconds each: after the third one, and at the end."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(files, "time", clock)
    saved = []
    real = files.PoolFile.save

    def save(self):
        real(self)
        saved.append(len(header(folder)["checksums"]))

    monkeypatch.setattr(files.PoolFile, "save", save)

    class Slow(HalfWay):
        def start(self, x, y, steps):
            clock.now += 2.0
            return super().start(x, y, steps)

    build(with_pool(disk, build_batch=1), folder, Slow())
    assert saved == [3, 6, 7]


def test_all_parts_of_a_pool_are_dropped_and_keep_their_headers(disk, folder):
    build(disk, folder)
    edit_header(folder, limits=[[0, 3]])
    part = folder / "part1of2"
    part.mkdir()
    for file in ("header.json", "positions.bin"):
        shutil.copy(folder / file, part / file)
    assert files.drop_positions(folder) == 2 * pool_settings(disk).pool_bytes("float32")
    assert not [*folder.rglob(files.POSITIONS)]
    assert header(part)["limits"] == header(folder)["limits"] == [[0, 3]]
    assert header(part)["checksums"] == header(folder)["checksums"] == []


@pytest.mark.parametrize(
    ("section", "key", "before", "after"),
    [
        ("flow", "eta", 0.2, 0.25),
        ("sinkhorn", "target_batch", None, 12),
        ("data", "name", "8gaussians", "moons"),
        ("pool", "num_batches", 7, 6),
        ("pool", "dtype", "float32", "float16"),
        ("", "seed", 0, 1),
    ],
)
def test_pool_of_other_settings_is_refused_with_both_values(
    disk, folder, section, key, before, after
):
    interrupt(disk, folder)
    node = replace(getattr(disk, section), **{key: after}) if section else after
    other = replace(disk, **{section or key: node})
    dotted = f"{section}.{key}".lstrip(".")
    run = RunFolder(folder.parent)
    settings = pool_settings(other)
    plan = lambda: plan_pool(settings, CPU, other.out_path, run)  # noqa: E731
    for attempt in (lambda: build(other, folder), plan):
        with pytest.raises(UserError, match="remove that folder") as caught:
            attempt()
        assert f"{dotted}: the pool has {before}, this command {after}" in str(caught.value)


def test_pool_of_a_set_whose_distribution_has_changed_is_refused(disk, folder):
    moons = replace(disk, data=replace(disk.data, name="moons"))
    interrupt(moons, folder)
    settings = header(folder)["settings"]
    del settings["data.edition"]  # as in earlier versions
    edit_header(folder, settings=settings)
    with pytest.raises(UserError, match=r"data\.edition"):
        build(moons, folder)


@pytest.mark.parametrize("lacking", ["sinkhorn.target_batch", "data.conditional"])
def test_setting_that_a_header_lacks_had_its_default(disk, folder, lacking):
    interrupt(disk, folder)
    settings = header(folder)["settings"]
    del settings[lacking]
    edit_header(folder, settings=settings)
    solver = HalfWay()
    build(disk, folder, solver)
    assert solver.calls == [2, 2, 1]


@pytest.mark.parametrize(
    ("finished", "keep"), [(True, 0), (True, 1343), (False, 100), (False, None)]
)
def test_changed_or_cut_file_is_found(disk, folder, finished, keep):
    build(disk, folder) if finished else interrupt(disk, folder, after=2)
    file = folder / "positions.bin"
    if keep is None:
        file.write_bytes(b"\x01" + file.read_bytes()[1:])
    else:
        os.truncate(file, keep)
    with pytest.raises(UserError, match=f"remove the folder {folder}|{folder} cannot be"):
        build(disk, folder)


DAMAGED = [{"format": 0}, {"format": 2}, {"dtype": "int8"}, {"limits": [[0, 0]]}, {"limits": [3]}]
DAMAGED += [{"limits": [["a", 1]]}, {"limits": [[-1, 1]]}, {"limits": [[0, 1, 2]]}]


@pytest.mark.parametrize(
    "values",
    [*DAMAGED, {"checksums": None}, {"checksums": ["00000000"] * 7}, {"checksums": [3]}, None],
)
def test_damaged_header_is_refused(disk, folder, values):
    build(disk, folder)
    if values is None:
        (folder / "header.json").write_text("{")
    else:
        edit_header(folder, **values)
    with pytest.raises(UserError, match="remove the folder"):
        build(disk, folder)


def test_header_with_more_flows_than_the_file_is_refused(disk, folder):
    build(disk, folder)
    known = header(folder)["checksums"]
    edit_header(folder, checksums=[*known, known[0]])
    with pytest.raises(UserError, match="remove the folder"):
        build(disk, folder)


def test_flows_are_on_the_disk_before_the_header_that_lists_them(disk, folder, monkeypatch):
    done, real = [], files.write_header
    monkeypatch.setattr(files.np.memmap, "flush", lambda _: done.append("positions"))
    monkeypatch.setattr(files, "write_header", lambda *a: (done.append("header"), real(*a)))
    build(disk, folder)
    assert done == ["positions", "header"]


def test_space_is_checked_before_anything_is_written(disk, folder, monkeypatch):
    """An interrupted pool has taken its space; continuing needs no more."""
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.pool.free_disk_bytes", lambda _: 500)
        with pytest.raises(UserError, match=r"pool\.num_batches = 7: .*disk"):
            build(disk, folder)
    assert not folder.exists()
    interrupt(disk, folder)
    monkeypatch.setattr("nsgf.pool.free_disk_bytes", lambda _: 0)
    build(disk, folder)


def test_space_is_reserved_and_a_full_disk_is_a_user_error(disk, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match=r"pool\.storage = disk.*No space left"):
        build(disk, folder)
    monkeypatch.delattr(files.os, "posix_fallocate")  # other systems have no such call
    build(disk, folder)


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_folder_that_cannot_be_made_is_a_user_error(disk, tmp_path, storage):
    (tmp_path / "pool").write_text("")
    with pytest.raises(UserError, match=rf"pool\.storage = {storage}.*cannot be written"):
        build(with_pool(disk, storage=storage), tmp_path / "pool")
