import errno
import io
import json
import math
import os
import stat
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from nsgf.commands.resume import Resumption
from nsgf.experiment import Experiment
from nsgf.phases.base import load_network
from nsgf.run import checkpoint, store
from nsgf.run.checkpoint import previous_file
from nsgf.system.errors import UserError
from tests.conftest import CPU

START = {"phase": "nsgf", "config": {}}
"""Parts of every checkpoint besides its step."""


class Malicious:
    """Unpickled by an ordinary reader it creates a file."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def serialized(payload):
    stream = io.BytesIO()
    torch.save(payload, stream)
    return stream.getvalue()


def craft(file, content, **header):
    """A checkpoint whose header and checksums are right, whatever its content is."""
    file.write_bytes(content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(
            store.HEADER, json.dumps({"format": checkpoint.CHECKPOINT_FORMAT, **header})
        )


@pytest.fixture
def pair(tmp_path):
    """A checkpoint of step 2, and beside it that of step 1."""
    file = tmp_path / "a.pt"
    for step in (1, 2):
        weights = {"w": torch.full((50,), float(step)), "n": torch.tensor(3)}
        checkpoint.save(file, {**START, "step": step, "model": weights})
    return file


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_payload_comes_back_and_its_header_without_the_weights(tmp_path, monkeypatch):
    file = tmp_path / "checkpoints" / "a.pt"
    payload = {"phase": "nsf", "step": 7, "config": {"seed": 1, "lr": 1e-4}, "none": None}
    checkpoint.save(file, {**payload, "model": {"w": torch.ones(2)}})
    loaded = checkpoint.load(file)
    assert {key: loaded[key] for key in payload} == payload
    assert torch.equal(loaded["model"]["w"], torch.ones(2))
    assert loaded["versions"]["torch"]
    assert names(file.parent) == ["a.pt"]
    assert checkpoint.load_good(file)[1] == ""
    monkeypatch.setattr(store, "read", None)
    header = checkpoint.load(file, only_header=True)
    assert header == {key: loaded[key] for key in ("phase", "step", "config", "versions")}


@pytest.mark.parametrize("links", [True, False])
def test_the_last_two_are_kept(pair, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EPERM, "no links here")))
    checkpoint.save(pair, {**START, "step": 3})
    assert checkpoint.load(pair)["step"] == 3
    assert checkpoint.load(previous_file(pair))["step"] == 2
    assert names(pair.parent) == ["a.earlier.pt", "a.pt"]


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (KeyboardInterrupt("second"), KeyboardInterrupt, "second"),
        (OSError(errno.ENOSPC, "No space left"), UserError, r"a\.pt cannot be written \(No space"),
    ],
)
def test_failed_write_keeps_the_checkpoints_before(pair, error, expected, words, monkeypatch):
    """Torch hides the error behind one of its own, e.g. ``unexpected pos 704 vs 598``.

    Past mistake: torch's zip writer replaced the error of a full disk, which ended in a
    traceback.
    """

    def writing(payload, stream, torch_save=torch.save):
        stream.write(b"half")
        torch_save(payload, Mock(**{"write.side_effect": error}))

    monkeypatch.setattr(torch, "save", writing)
    with pytest.raises(expected, match=words):
        checkpoint.save(pair, {**START, "step": 3, "w": torch.randn(10**4)})
    assert checkpoint.load(pair)["step"] == 2
    assert names(pair.parent) == ["a.earlier.pt", "a.pt"]


def test_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    file, synced, real = tmp_path / "a.pt", [], os.fsync

    def fsync(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append((file.exists(), Path(f"/dev/fd/{descriptor}").read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(file, {**START, "step": 1, "model": {"w": torch.arange(3000.0)}})
    assert synced
    assert all(written == (False, file.read_bytes()) for written in synced)


def same(one, other):
    found = checkpoint.load(one)
    return torch.equal(found.pop("model")["w"], other.pop("model")["w"]) and found == other


def test_flipped_bits_and_cuts_are_noticed(pair):
    """Those that change nothing, such as the time of a member of the archive, may pass.

    Past mistake: `zipfile` raises UnicodeDecodeError for some flipped bits. A damaged checkpoint
    ended in a traceback, because exceptions were listed and not tried.
    """
    content, flipped, passed = pair.read_bytes(), pair.with_name("flipped.pt"), 0
    end = len(content) - 22  # of the archive's directory: damage leads before the file's beginning
    for position in (*range(0, end, 5), *range(end, end + 22)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8 if position < end else 7)
        flipped.write_bytes(damaged)
        try:
            assert same(flipped, checkpoint.load(pair)), position
            passed += 1
        except checkpoint.Unreadable:
            continue
    assert passed < len(content) / 10
    for length in (*range(0, len(content), 97), len(content) - 1):
        flipped.write_bytes(content[:length])
        with pytest.raises(checkpoint.Unreadable):
            checkpoint.load(flipped)


@pytest.mark.parametrize(
    "changes",
    [
        *({"config": []}, {"phase": ["nsgf"]}, {"format": "4"}, {"format": -4}),
        *({"step": step} for step in ("3", math.inf, -1, 2**70)),
    ],
)
def test_header_without_its_parts_is_damage(tmp_path, changes):
    craft(file := tmp_path / "a.pt", serialized({}), **{**START, "step": 3, **changes})
    with pytest.raises(checkpoint.Unreadable):
        checkpoint.load(file, only_header=True)


def cut(file):
    file.write_bytes(file.read_bytes()[:-500])


def foreign(file):
    craft(file, b"no archive", **START, step=2)


def not_finite(file):
    craft(file, serialized({"ema": {"w": torch.tensor([1.0, math.nan])}}), **START, step=2)


@pytest.mark.parametrize("spoil", [cut, foreign, not_finite, Path.unlink])
def test_damaged_or_missing_checkpoint_is_replaced_by_the_one_before(pair, spoil):
    lines = []
    spoil(pair)
    payload, remark = checkpoint.load_good(pair)
    assert payload["step"] == 1
    assert remark.endswith("the previous one is used")
    checkpoint.restore_previous(pair, lines.append)
    assert checkpoint.load(pair)["step"] == 1
    [line] = lines
    assert f"checkpoint {pair} is " in line
    aside = pair.parent / "a.damaged1.pt"
    assert aside.exists() == (aside.name in line) == (spoil is not Path.unlink)
    checkpoint.save(pair, {**START, "step": 5})
    assert checkpoint.load(previous_file(pair))["step"] == 1


@pytest.mark.parametrize("spoil", [lambda _: None, cut])
def test_good_checkpoint_and_damaged_pair_are_left_alone(pair, spoil):
    for file in (pair, previous_file(pair)):
        spoil(file)
    before = pair.read_bytes()
    checkpoint.restore_previous(pair, pytest.fail)
    assert pair.read_bytes() == before


def newer(patch, file):
    with patch.context() as newer:
        newer.setattr(checkpoint, "CHECKPOINT_FORMAT", 5)
        file.unlink()
        checkpoint.save(file, {**START, "step": 1})


def failing(owner, name, error):
    return lambda patch, file: patch.setattr(owner, name, Mock(side_effect=error))


IO = OSError(errno.EIO, "Input/output error")
MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (newer, "newer format 5, this program reads 4"),
        (failing(Path, "open", IO), "cannot be read .*Input/output"),
        (failing(torch, "load", IO), "cannot be read .*Input/output"),
        (failing(torch, "load", MEMORY), "can't allocate memory"),
    ],
)
def test_unreadable_file_is_not_damaged(pair, spoil, words, monkeypatch):
    """Nothing is renamed, and the one before is not used instead.

    Past mistake: A system error while reading a checkpoint counted as damage, and a good
    checkpoint was renamed.
    """
    spoil(monkeypatch, pair)
    for use in (checkpoint.load_good, lambda file: checkpoint.restore_previous(file, print)):
        with pytest.raises(UserError, match=words) as caught:
            use(pair)
        assert "remove" not in str(caught.value)
    assert names(pair.parent) == ["a.earlier.pt", "a.pt"]


def test_checkpoint_of_another_phase_is_refused(tiny, tiny_run):
    experiment = Experiment(tiny)
    for name, other in (("nsf", "nsgf"), ("nsgf", "predictor")):
        tiny_run.checkpoint_file(name).write_bytes(tiny_run.checkpoint_file(other).read_bytes())
        (phase,) = experiment.phases([name])
        for use in (
            lambda phase=phase: load_network(phase, tiny_run, CPU),
            Resumption(experiment, tiny_run).pending_phases,
        ):
            with pytest.raises(UserError, match=f"is of phase {other}, not {name}"):
                use()


def test_checkpoint_from_a_card_is_read_on_a_cpu(tmp_path):
    """The archive's record of tensors says cuda:0 in place of cpu."""
    file, written = tmp_path / "card.pt", io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(serialized({"model": {"w": torch.ones(50)}}))) as old,
        zipfile.ZipFile(written, "w") as new,
    ):
        for name in old.namelist():
            cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
            new.writestr(name, old.read(name).replace(cpu, cuda))
    assert b"cuda:0" in written.getvalue()
    craft(file, written.getvalue(), **START, step=1, versions={"torch": "1.0.0"})
    weights = checkpoint.load(file)["model"]["w"]
    assert weights.device == CPU
    assert torch.equal(weights, torch.ones(50))
