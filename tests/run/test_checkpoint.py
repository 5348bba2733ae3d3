from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsgf.command_line import parse
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, dump_config
from nsgf.system.errors import UserError


def test_payload_comes_back(tmp_path):
    file = tmp_path / "checkpoints" / "a.pt"
    checkpoint.save(file, {"step": 3, "model": {"w": torch.ones(2)}, "none": None})
    payload = checkpoint.load(file)
    assert payload["step"] == 3
    assert torch.equal(payload["model"]["w"], torch.ones(2))
    assert payload["versions"]["torch"]
    assert [path.name for path in file.parent.iterdir()] == ["a.pt"]


def test_interrupted_write_keeps_the_earlier_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "a.pt"
    checkpoint.save(file, {"step": 1})

    def dies(payload, stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(file, {"step": 2})
    assert checkpoint.load(file)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


class Malicious:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_checkpoint_cannot_execute_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": checkpoint.FORMAT, "x": Malicious()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(tmp_path / "bad.pt")
    assert not (tmp_path / "executed").exists()


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
    checkpoint.save(file, {"model": torch.randn(1000)})
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(file)


def test_foreign_file_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="none of this program's"):
        checkpoint.load(tmp_path / "a.pt")


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
        checkpoint.save(run.checkpoint_file(phase), {"step": 1})
    run.set_aside("nsf")
    checkpoint.save(run.checkpoint_file("nsf"), {"step": 2})
    run.set_aside("nsf")
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    kept = ["phase2_nsf.previous1.pt", "phase2_nsf.previous2.pt"]
    assert names == ["phase1_nsgf.pt", *kept, "phase3_predictor.pt"]
    steps = [checkpoint.load(run.path / "checkpoints" / name)["step"] for name in kept]
    assert steps == [1, 2]
