import json
import os
import re
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsgf.pool import plan_pool, pool_bytes
from nsgf.pool import storage as files
from nsgf.system.errors import UserError
from tests.pool.conftest import CPU, HalfWay, Killed, build, with_pool

REMEDY = "remove the folder"


@pytest.fixture
def disk(config):
    return with_pool(config, storage="disk", build_batch=2)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "pool"


def header(folder) -> dict:
    return json.loads((folder / "header.json").read_text())


def edit_header(folder, **values) -> None:
    (folder / "header.json").write_text(json.dumps({**header(folder), **values}))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_disk_holds_what_memory_holds(disk, folder, dtype):
    disk = with_pool(disk, dtype=dtype)
    on_disk, in_memory = build(disk, folder), build(with_pool(disk, storage="memory"))
    for one, other in zip(
        *(pool.pairs(torch.arange(500)) for pool in (on_disk, in_memory)),
        strict=True,
    ):
        assert torch.equal(one, other)
    stored = torch.frombuffer(
        bytearray((folder / "positions.bin").read_bytes()), dtype=getattr(torch, dtype)
    )
    assert torch.equal(stored, in_memory._positions.flatten())


def test_finished_pool_is_used_again_without_the_solver(disk, folder):
    built, never, said = build(disk, folder), HalfWay(fail_at=0), []
    again = build(disk, folder, never, said)
    assert never.calls == []
    assert torch.equal(again._positions, built._positions)
    assert "complete" in said[0]


def test_interrupted_build_goes_on_at_the_first_missing_flow(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=2))
    assert len(header(folder)["checksums"]) == 4
    rest, said = HalfWay(), []
    pool = build(disk, folder, rest, said)
    assert rest.calls == [2, 1]  # seven flows, four were there
    assert said[0] == "pool: continuing after 4 of 7 flows"
    whole = build(with_pool(disk, storage="memory"))
    assert torch.equal(pool._positions, whole._positions)


def test_killed_build_keeps_what_a_header_vouches_for(disk, folder, monkeypatch):
    """Without a last word: only headers written on the way count."""
    saves = []
    real = files.PoolFile.save
    monkeypatch.setattr(files, "SAVE_SECONDS", 0.0)

    def save(self):
        if len(saves) < 2:
            saves.append(real(self))

    monkeypatch.setattr(files.PoolFile, "save", save)
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=3))
    monkeypatch.setattr(files.PoolFile, "save", real)
    assert len(header(folder)["checksums"]) == 4
    rest = HalfWay()
    build(disk, folder, rest)
    assert rest.calls == [2, 1]


def test_pool_on_disk_outlives_a_build_in_memory(disk, folder):
    build(disk, folder)
    build(with_pool(disk, storage="memory"), folder)
    never = HalfWay(fail_at=0)
    build(disk, folder, never)
    assert never.calls == []


def test_space_of_all_parts_of_a_pool_is_taken_by_it_and_that_of_no_other_pool(folder):
    for name in ("part1of2", "part2of2", "part1of3", "part1of12", "."):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "positions.bin").write_bytes(b"x" * 8192)
    one = files.taken_bytes(folder)
    assert one >= 8192
    assert files.taken_bytes(folder / "part1of2") == 2 * one
    assert files.taken_bytes(folder / "part3of3") == one
    assert files.drop_positions(folder) == 5 * one


def test_other_chunks_continue_the_same_file(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    rest = HalfWay()
    pool = build(with_pool(disk, build_batch=4), folder, rest)
    assert rest.calls == [4, 1]
    assert torch.equal(pool._positions, build(with_pool(disk, storage="memory"))._positions)


@pytest.mark.parametrize(
    ("section", "key", "before", "after"),
    [
        ("flow", "eta", 0.2, 0.25),
        ("sinkhorn", "blur", 0.25, 0.75),
        ("sinkhorn", "target_batch", None, 12),
        ("data", "source", "gaussian", "8gaussians"),
        ("pool", "num_batches", 7, 6),
        ("pool", "dtype", "float32", "float16"),
        ("", "seed", 0, 1),
    ],
)
def test_pool_of_other_settings_is_refused_with_both_values(
    disk, folder, section, key, before, after
):
    build(disk, folder)
    node = replace(getattr(disk, section), **{key: after}) if section else after
    other = replace(disk, **{section or key: node})
    if section == "data":
        other = replace(other, data=replace(other.data, name="moons"))
    dotted = f"{section}.{key}".lstrip(".")
    expected = f"{dotted}: the pool has {before}, this command {after}"
    for attempt in (lambda: build(other, folder), lambda: plan_pool(other, (2,), CPU, folder)):
        with pytest.raises(UserError, match=re.escape(expected)) as caught:
            attempt()
        assert "remove that folder" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_half_finished_pool_of_other_settings_is_refused_too(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    told = f"pool {re.escape(str(folder))} was built .* seed: the pool has 0, this command 1"
    with pytest.raises(UserError, match=told):
        build(replace(disk, seed=1), folder)


def test_settings_that_change_no_value_may_differ(disk, folder):
    build(disk, folder)
    other = replace(
        with_pool(disk, build_batch=5), data=replace(disk.data, root="elsewhere"), device="cpu"
    )
    never = HalfWay(fail_at=0)
    build(other, folder, never)


def without_targets(folder, **values) -> None:
    """As an earlier version wrote the header, without sinkhorn.target_batch; other ``values``."""
    settings = {**header(folder)["settings"], **values}
    del settings["sinkhorn.target_batch"]
    edit_header(folder, settings=settings)


def test_half_finished_pool_goes_on_whose_header_lacks_a_setting_that_is_null(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    without_targets(folder)
    solver = HalfWay()
    pool = build(disk, folder, solver)
    assert solver.calls == [2, 2, 1]
    assert torch.equal(pool._positions, build(disk)._positions)


def test_pool_of_a_version_without_classes_goes_on(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    settings = header(folder)["settings"]
    assert settings.pop("data.conditional") is False
    edit_header(folder, settings=settings)
    build(disk, folder, solver := HalfWay())
    assert solver.calls == [2, 2, 1]


def test_known_type_holds_where_the_header_lacks_a_setting_that_is_null(config, folder):
    """Of a pool in memory too: what it was rounded to, and the flows that fit a card."""
    config = with_pool(config, build_batch=1)
    build(config, folder)
    without_targets(folder, **{"pool.dtype": "float16"})
    edit_header(folder, dtype="float16", limits=[[0, 3]])
    solver = HalfWay()
    assert build(with_pool(config, build_batch=7), folder, solver)._positions.dtype == torch.float16
    assert solver.calls == [3, 3, 1]


@pytest.mark.parametrize("position", [0, 100, -1])
def test_edited_file_is_found(disk, folder, position):
    build(disk, folder)
    file = folder / "positions.bin"
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"{file} was changed.*{REMEDY} {folder} to build"):
        build(disk, folder)


def test_edit_of_an_unfinished_file_is_found(disk, folder):
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    with (folder / "positions.bin").open("r+b") as stream:
        stream.write(b"other")
    with pytest.raises(UserError, match="flow 0"):
        build(disk, folder)


@pytest.mark.parametrize("keep", [0, 100, 1343])
def test_truncated_file_is_found(disk, folder, keep):
    build(disk, folder)
    file = folder / "positions.bin"
    os.truncate(file, keep)
    with pytest.raises(UserError, match=f"has {keep} of 1344 bytes; {REMEDY}"):
        build(disk, folder)
    file.unlink()
    with pytest.raises(UserError, match=f"has 0 of 1344 bytes; {REMEDY}"):
        build(disk, folder)


def test_removing_the_folder_is_the_remedy(disk, folder):
    build(disk, folder)
    os.truncate(folder / "positions.bin", 5)
    shutil.rmtree(folder)
    solver = HalfWay()
    build(disk, folder, solver)
    assert solver.report.flows == 7


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "header.json").write_text("{"),
        lambda folder: (folder / "header.json").write_text("[]"),
        lambda folder: edit_header(folder, format=0),
        lambda folder: edit_header(folder, checksums=None),
        lambda folder: edit_header(folder, dtype="int8"),
        lambda folder: edit_header(folder, limits=[[0, 0]]),
        lambda folder: edit_header(folder, limits=[[0, 1.5]]),
        lambda folder: edit_header(folder, limits=[3]),
        lambda folder: edit_header(folder, checksums=header(folder)["checksums"] * 2),
        lambda folder: edit_header(folder, checksums=["00000000"] * 7),
    ],
)
def test_damaged_header_is_refused(disk, folder, damage):
    build(disk, folder)
    damage(folder)
    with pytest.raises(UserError, match=REMEDY):
        build(disk, folder)


@pytest.mark.parametrize(
    ("checksums", "told"),
    [(14, "has more than 7 checksums in its header"), (7, "was changed or cut off .flow 0.")],
)
def test_checksums_that_do_not_fit_are_said(disk, folder, checksums, told):
    build(disk, folder)
    edit_header(folder, checksums=["00000000"] * checksums)
    with pytest.raises(UserError, match=rf"positions\.bin {told}; remove the folder"):
        build(disk, folder)


def test_damaged_pool_that_is_done_with_is_removed_all_the_same(tmp_path):
    for name in ("header.json", "positions.bin"):
        (tmp_path / name).write_bytes(bytes(8192))
    assert files.drop_positions(tmp_path) >= 8192
    assert not list(tmp_path.iterdir())


def test_header_is_replaced_as_a_whole(disk, folder, monkeypatch):
    build(disk, folder)
    before = header(folder)

    def dying(*_, **__):
        raise Killed

    monkeypatch.setattr("nsgf.run.folder.os.fsync", dying)
    with pytest.raises(Killed):
        files.write_header(folder, {})
    assert header(folder) == before


def test_flows_are_on_the_disk_before_the_header_that_lists_them(disk, folder, monkeypatch):
    done, real = [], files.write_header
    monkeypatch.setattr(files.np.memmap, "flush", lambda _: done.append("positions"))
    monkeypatch.setattr(files, "write_header", lambda *a: (done.append("header"), real(*a)))
    build(disk, folder)
    assert done == ["header", "positions", "header"]


def test_header_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(files.os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    files.write_header(tmp_path, {"format": 1})
    assert sizes[0] == (tmp_path / "header.json").stat().st_size  # then, perhaps, the folder


def test_space_is_checked_before_anything_is_written(disk, folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 10**9, 500))
    with pytest.raises(UserError, match=r"pool\.num_batches = 7: .*disk"):
        build(disk, folder)
    assert not folder.exists()


def test_space_of_the_pool_itself_counts_as_free(disk, folder, monkeypatch):
    """An interrupted pool has taken its space; going on needs no more."""
    with pytest.raises(Killed):
        build(disk, folder, HalfWay(fail_at=1))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 10**9, 0))
    exactly = pool_bytes(disk, (2,), header(folder)["dtype"])
    monkeypatch.setattr("nsgf.pool.plan.taken_bytes", lambda _: exactly)
    build(disk, folder)


def test_disk_that_fills_up_is_a_user_error(disk, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_reserve", full)
    with pytest.raises(UserError, match=r"pool\.storage = disk.*No space left"):
        build(disk, folder)


def test_space_that_is_not_there_is_not_filled_by_hand(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full, raising=False)
    with (tmp_path / "file").open("w+b") as file, pytest.raises(OSError, match="No space left"):
        files._reserve(file.fileno(), 5)
    assert (tmp_path / "file").stat().st_size == 0


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_folder_that_cannot_be_made_is_a_user_error(disk, tmp_path, storage):
    (tmp_path / "pool").write_text("")
    config = with_pool(disk, storage=storage)
    with pytest.raises(UserError, match="cannot be written"):
        build(config, tmp_path / "pool")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_a_user_error(disk, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match=r"pool\.storage = disk.*Permission denied"):
            build(disk, tmp_path / "pool")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("missing", [AttributeError(), OSError(95, "not supported")])
def test_space_is_taken_where_the_system_has_no_call_for_it(tmp_path, monkeypatch, missing):
    def unsupported(*_):
        raise missing

    monkeypatch.setattr(files.os, "posix_fallocate", unsupported, raising=False)
    with (tmp_path / "file").open("w+b") as stream:
        files._reserve(stream.fileno(), (1 << 24) + 5)
    assert (tmp_path / "file").stat().st_size == (1 << 24) + 5


def test_header_that_the_system_refuses_to_read_is_no_damaged_one(tmp_path, monkeypatch):
    (tmp_path / "header.json").write_text("{}")

    def refuses(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", refuses)
    with pytest.raises(UserError, match=r"cannot be read \(Input/output error\)$"):
        files.read_header(tmp_path)
