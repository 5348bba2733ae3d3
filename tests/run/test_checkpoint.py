import errno
import io
import json
import math
import os
import stat
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsgf.cli.arguments import parse
from nsgf.phases import get_phase
from nsgf.phases.base import load_network
from nsgf.phases.resume import pending_phases
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config
from nsgf.system.errors import UserError

START = {"phase": "nsgf", "config": {}}
"""What each checkpoint has besides its step."""

CPU = torch.device("cpu")


def test_payload_comes_back(tmp_path):
    file = tmp_path / "checkpoints" / "a.pt"
    checkpoint.save(file, {**START, "step": 3, "model": {"w": torch.ones(2)}, "none": None})
    payload = checkpoint.load(file)
    assert payload["step"] == 3
    assert torch.equal(payload["model"]["w"], torch.ones(2))
    assert payload["versions"]["torch"]
    assert [path.name for path in file.parent.iterdir()] == ["a.pt"]
    assert checkpoint.load_good(file)[1] == ""


def test_interrupted_write_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1})

    def dies(payload, stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(file, {**START, "step": 2})
    assert checkpoint.load(file)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_interruption_that_torch_hides_is_one_all_the_same(tmp_path, monkeypatch):
    def dies(data: bytes) -> None:
        raise KeyboardInterrupt

    def writing(payload, stream, torch_save=torch.save):
        torch_save(payload, SimpleNamespace(write=dies, flush=stream.flush))

    monkeypatch.setattr(torch, "save", writing)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "a.pt", {**START, "step": 2, "w": torch.randn(10**4)})


class Malicious:
    """Unpickled by an ordinary reader it creates a file."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def serialized(payload) -> bytes:
    stream = io.BytesIO()
    torch.save(payload, stream)
    return stream.getvalue()


def craft(file: Path, content: bytes, **header) -> None:
    """A checkpoint whose header and checksums are right, whatever its content is."""
    text = json.dumps(header).encode()
    file.write_bytes(checkpoint._lead(text, len(content), zlib.crc32(content)) + text + content)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_missing_and_damaged_files_end_in_one_line(tmp_path, content):
    file = tmp_path / "a.pt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        checkpoint.load(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_truncated_checkpoint_is_refused(tmp_path):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1, "model": torch.randn(1000)})
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(file)


def test_foreign_and_older_files_are_refused(tmp_path):
    file = tmp_path / "a.pt"
    file.write_bytes(b"GIF89a" * 100)
    with pytest.raises(UserError, match="no header of format 3"):
        checkpoint.load(file)
    torch.save({"format": 2, "step": 3}, file)
    for read in (
        checkpoint.load,
        checkpoint.read_header,
        lambda file: checkpoint.mend(file, print),
    ):
        with pytest.raises(UserError, match="of format 2 or older, this program reads 3"):
            read(file)
    assert file.exists()


def test_newer_file_is_not_to_be_removed(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint, "FORMAT", 4)
        checkpoint.save(file, {**START, "step": 1})
    checkpoint.save(file.with_name("a.earlier.pt"), {**START, "step": 0})
    for use in (checkpoint.load_good, lambda file: checkpoint.mend(file, print)):
        with pytest.raises(UserError, match="newer format 4, this program reads 3") as caught:
            use(file)
        assert "remove" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.earlier.pt", "a.pt"]


@pytest.mark.parametrize(
    "changes",
    [{"config": None}, {"config": []}, {"step": "3"}, {"step": math.inf}, {"phase": ["nsgf"]}],
)
def test_header_without_its_parts_is_damage(tmp_path, changes):
    file = tmp_path / "a.pt"
    craft(file, serialized({}), **{**START, "step": 3})
    assert checkpoint.read_header(file)["step"] == 3
    craft(file, serialized({}), **{**START, "step": 3, **changes})
    with pytest.raises(UserError, match="no header of format 3"):
        checkpoint.read_header(file)
    assert checkpoint.damage(file)


def test_how_far_a_phase_is_stands_in_the_first_kilobytes(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    payload = {"phase": "nsf", "step": 7, "config": {"seed": 1, "lr": 1e-4}, "model": {}}
    checkpoint.save(file, {**payload, "w": torch.randn(10**5)})
    with file.open("r+b") as stream:  # the content is damaged, and nobody looks at it
        stream.seek(-(10**5), 2)
        stream.write(bytes(8))
    header = checkpoint.read_header(file)
    assert {key: header[key] for key in ("phase", "step", "config")} == {
        key: payload[key] for key in ("phase", "step", "config")
    }
    assert checkpoint.damage(file) == "its content does not fit its checksum"
    with pytest.raises(UserError) as caught:
        checkpoint.load(file)
    assert str(caught.value).startswith(f"checkpoint {file} cannot be read (its content")


def test_all_of_it_is_handed_to_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    file, synced, real = tmp_path / "a.pt", [], os.fsync

    def fsync(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append((file.exists(), Path(f"/dev/fd/{descriptor}").read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(file, {**START, "step": 1, "model": {"w": torch.arange(3000.0)}})
    assert synced
    assert all(written == (False, file.read_bytes()) for written in synced)


def test_content_of_many_chunks_fits_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1, "model": {"w": torch.arange(3000.0)}})
    assert checkpoint.damage(file) is None
    assert torch.equal(checkpoint.load(file)["model"]["w"], torch.arange(3000.0))


def test_weights_that_are_not_finite_are_damage(tmp_path):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1, "ema": {"w": torch.ones(3), "n": torch.tensor(3)}})
    checkpoint.save(file, {**START, "step": 2, "ema": {"w": torch.tensor([1.0, float("nan")])}})
    with pytest.raises(UserError, match="ema has values that are not finite"):
        checkpoint.load(file)
    payload, remark = checkpoint.load_good(file)
    assert payload["step"] == 1
    assert "a.pt is damaged, this is the one before" in remark
    checkpoint.mend(file, lambda _: None)
    assert checkpoint.load(file)["step"] == 1


def test_content_that_torch_cannot_read_falls_back_to_the_one_before(tmp_path):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1})
    checkpoint.save(file, {**START, "step": 2})
    file.unlink()
    craft(file, b"no archive", **START, step=2)
    assert checkpoint.load_good(file)[0]["step"] == 1
    checkpoint.mend(file, lambda _: None)
    assert checkpoint.load(file)["step"] == 1


def test_checkpoint_that_is_gone_is_told_and_the_one_before_used(tmp_path):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1})
    checkpoint.save(file, {**START, "step": 2})
    file.unlink()
    payload, remark = checkpoint.load_good(file)
    assert (payload["step"], remark) == (1, "; a.pt is gone, this is the one before")
    assert checkpoint.good_header(file)["step"] == 1


def test_mending_says_what_was_wrong_and_what_became_of_it(tmp_path):
    file, said = tmp_path / "a.pt", []
    for step in (1, 2):
        checkpoint.save(file, {**START, "step": step})
    file.unlink()
    checkpoint.mend(file, said.append)
    content = file.read_bytes()
    file.unlink()  # or the one before, which is the same file now, would be cut off too
    file.write_bytes(content[:-1])
    checkpoint.mend(file, said.append)
    (aside,) = tmp_path.glob("*damaged*")
    assert said == [
        f"checkpoint {file} is damaged ({what}); going on from the one before"
        for what in (
            "it is gone; there is none",
            f"1 bytes are missing; it is kept as {aside.name}",
        )
    ]
    assert checkpoint.load(file)["step"] == 1


def test_checkpoint_of_another_phase_is_refused(tiny, tiny_run):
    for phase, other in (("nsf", "nsgf"), ("nsgf", "predictor")):
        file = tiny_run.checkpoint_file(phase)
        file.write_bytes(tiny_run.checkpoint_file(other).read_bytes())
        for use in (
            lambda phase=phase: load_network(get_phase(phase), tiny, tiny_run, torch.device("cpu")),
            lambda: pending_phases(tiny, tiny_run),
        ):
            with pytest.raises(UserError, match=f"is of phase {other}, not of {phase}"):
                use()


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    """Torch hides the system's error behind one of its own, e.g. ``unexpected pos 704 vs 598``."""
    file = tmp_path / "a.pt"
    checkpoint.save(file, {**START, "step": 1})

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def writing(payload, stream, torch_save=torch.save):
        torch_save(payload, SimpleNamespace(write=full, flush=stream.flush))

    monkeypatch.setattr(torch, "save", writing)
    with pytest.raises(UserError, match=r"a\.pt cannot be written \(No space left on device\)"):
        checkpoint.save(file, {**START, "step": 2, "w": torch.randn(10**4)})
    assert checkpoint.load(file)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("when", ["opened", "read", "loaded"])
def test_unreadable_file_is_no_damaged_one(number, when, tmp_path, monkeypatch):
    """Nothing is renamed, and nothing older is taken for it in silence."""
    file = tmp_path / "a.pt"
    for step in (1, 2):
        checkpoint.save(file, {**START, "step": step})

    def refuses(*_, **__):
        raise OSError(number, os.strerror(number))

    place, name = {
        "opened": (Path, "open"),
        "read": (checkpoint, "_checksum"),
        "loaded": (torch, "load"),
    }[when]
    monkeypatch.setattr(place, name, refuses)
    for use in (checkpoint.load_good, lambda file: checkpoint.mend(file, print)):
        with pytest.raises(UserError, match=rf"a\.pt cannot be read \(.*{os.strerror(number)}"):
            use(file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.earlier.pt", "a.pt"]


def test_a_machine_without_memory_damages_no_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    for step in (1, 2):
        checkpoint.save(file, {**START, "step": step})

    def refuses(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

    monkeypatch.setattr(torch, "load", refuses)
    with pytest.raises(UserError, match="can't allocate memory"):
        checkpoint.mend(file, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.earlier.pt", "a.pt"]


def test_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("a.pt", "a.earlier.pt"):
        (tmp_path / f"{name}.{os.getpid()}.partial").symlink_to(victim)
    for step in (1, 2):
        checkpoint.save(tmp_path / "a.pt", {**START, "step": step})
    assert victim.read_text() == "precious"
    assert not list(tmp_path.glob("*.partial"))


def test_run_folder_holds_configuration_and_versions(tiny):
    run = RunFolder.create(tiny)
    assert run.path.name.startswith("2d-")
    assert parse(["sample", "--run", str(run.path)]).config == tiny
    assert (run.path / "versions.json").exists()
    assert run.checkpoint_file("nsf").name == "phase2_nsf.pt"


def test_two_runs_in_one_second_have_two_folders(tiny):
    runs = [RunFolder.create(tiny) for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert RunFolder.newest(Path(tiny.out_dir), "2d").path == runs[-1].path


def test_newest_run_is_of_that_experiment(tiny, tmp_path):
    for name in ("2d-20260101_000000", "2d-20270101_000000", "2d-big-20280101_000000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(dump_config(tiny))
    (tmp_path / "2d-20290101_000000").mkdir()  # no configuration in it
    (tmp_path / "2d-20290101_000000_backup").mkdir()
    (tmp_path / "2d-20290101_000000_backup" / "config.yaml").write_text(dump_config(tiny))
    assert RunFolder.newest(tmp_path, "2d").path.name == "2d-20270101_000000"
    assert RunFolder.newest(tmp_path, "2d-big").path.name == "2d-big-20280101_000000"
    with pytest.raises(UserError, match="no run of mnist"):
        RunFolder.newest(tmp_path, "mnist")


def test_folder_that_cannot_be_written(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out-dir"):
        RunFolder.create(replace(tiny, out_dir=str(tmp_path / "file")))


def test_opening_something_else(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        RunFolder.open(tmp_path)


def test_set_aside_never_overwrites(tiny):
    run = RunFolder.create(tiny)
    for phase in tiny.phases:
        checkpoint.save(run.checkpoint_file(phase), {**START, "step": 1})
    run.set_aside("nsf")
    checkpoint.save(run.checkpoint_file("nsf"), {**START, "step": 2})
    run.set_aside("nsf")
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    kept = ["phase2_nsf.previous1.pt", "phase2_nsf.previous2.pt"]
    assert names == ["phase1_nsgf.pt", *kept, "phase3_predictor.pt"]
    steps = [checkpoint.load(run.path / "checkpoints" / name)["step"] for name in kept]
    assert steps == [1, 2]
