"""``train.keep: light``: a quarter of the bytes, the same networks, and no further updates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nsgf.cli import main
from nsgf.config.files import build, read_settings
from nsgf.config.schema import PHASES, Config
from nsgf.experiment import train
from nsgf.phases import get_phase
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, earlier
from nsgf.run.keep import lighten
from nsgf.system.errors import UserError


def light(config: Config) -> Config:
    return replace(config, train=replace(config.train, keep="light"))


def assert_same_networks(one: RunFolder, other: RunFolder) -> None:
    for phase in PHASES:
        ours, theirs = (checkpoint.load(run.checkpoint_file(phase)) for run in (one, other))
        for part in ("model", "ema"):
            assert ours[part].keys() == theirs[part].keys()
            for name, tensor in ours[part].items():
                assert torch.equal(tensor, theirs[part][name])


def bytes_of(run: RunFolder) -> int:
    return sum(file.stat().st_size for file in (run.path / "checkpoints").iterdir())


def test_later_phases_learn_the_same_also_in_a_later_session(tiny, tiny_run):
    """The straight flow starts from NSGF's network, which was kept light by then."""
    whole = replace(tiny, nsf=replace(tiny.nsf, source="nsgf"))
    run = train(replace(light(whole), phases=["nsgf"]))
    train(light(whole), run)
    assert_same_networks(run, train(whole))
    names = sorted(file.name for file in (run.path / "checkpoints").iterdir())
    assert names == ["phase1_nsgf.pt", "phase2_nsf.pt", "phase3_predictor.pt"]


def test_run_that_is_finished_is_lightened_by_a_resume(tiny, tiny_run):
    """Also after a kill that came between the last update and this."""
    before, size = checkpoint.load(tiny_run.checkpoint_file("nsf")), bytes_of(tiny_run)
    aside = tiny_run.checkpoint_file("nsf").with_suffix(".previous1.pt")
    aside.write_bytes(b"of a phase that was trained anew")
    assert earlier(tiny_run.checkpoint_file("nsf")).exists()
    train(light(tiny), tiny_run)
    after = checkpoint.load(tiny_run.checkpoint_file("nsf"))
    assert before.keys() - after.keys() >= {"optimizer", "scheduler", "window"}
    assert (after["step"], after["config"]) == (before["step"], before["config"])
    assert aside.read_bytes() == b"of a phase that was trained anew"
    assert not earlier(tiny_run.checkpoint_file("nsf")).exists()
    assert bytes_of(tiny_run) < 0.4 * size  # a small network's file has a large frame
    said = (tiny_run.path / "log.txt").read_text()
    assert said.count("kept light") == 3
    train(light(tiny), tiny_run)
    assert (tiny_run.path / "log.txt").read_text().count("kept light") == 3


def test_finished_run_that_is_lightened_says_so_in_its_settings_and_nothing_else(tiny, tiny_run):
    """Nothing was trained with this command's other settings, nor with its versions."""
    before = build(Config, read_settings(tiny_run.config_file))
    versions = (tiny_run.path / "versions.json").read_bytes()
    train(light(replace(tiny, train=replace(tiny.train, log_every=3))), tiny_run)
    assert build(Config, read_settings(tiny_run.config_file)) == light(before)
    assert (tiny_run.path / "versions.json").read_bytes() == versions


def test_further_updates_are_refused_and_a_phase_trained_anew_is_not(tiny, tiny_run, capsys):
    train(light(tiny), tiny_run)
    argv = ["train", "--run", str(tiny_run.path), "--resume", "--predictor.iterations", "20"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "predictor.iterations = 20: phase predictor was kept light after 12 updates" in said
    train(tiny, tiny_run, first="predictor")
    assert "optimizer" in checkpoint.load(tiny_run.checkpoint_file("predictor"))


def test_phase_that_begins_anew_may_take_more_updates(tiny, tiny_run, capsys):
    """It needs nothing of what was not kept; other data are refused as for any phase."""
    train(light(tiny), tiny_run)
    argv = ["train", "--run", str(tiny_run.path), "--nsf.iterations", "20"]
    assert main([*argv, "--resume"]) == 2
    assert "train it anew with --resume-phase 2, or longer in a new run" in capsys.readouterr().err
    assert main([*argv, "--resume-phase", "3"]) == 2  # phase 2 would be gone on with
    assert main([*argv, "--resume-phase", "2", "--seed", "7"]) == 2
    assert not list(tiny_run.path.rglob("*.previous*"))
    assert main([*argv, "--resume-phase", "2"]) == 0
    steps = [checkpoint.read_header(tiny_run.checkpoint_file(name))["step"] for name in PHASES]
    assert steps == [12, 20, 12]
    file = tiny_run.checkpoint_file("nsf")
    assert checkpoint.read_header(file.with_suffix(".previous1.pt"))["step"] == 12
    anew = train(replace(tiny, nsf=replace(tiny.nsf, iterations=20)))
    assert_same_networks(tiny_run, anew)


def test_damaged_light_checkpoint_says_how_to_train_the_phase_anew(tiny, tiny_run, capsys):
    """There is none before it, and what is said can be done."""
    train(light(tiny), tiny_run)
    file = tiny_run.checkpoint_file("nsf")
    content = bytearray(file.read_bytes())
    content[-1000] ^= 255
    file.write_bytes(content)
    argv = ["--run", str(tiny_run.path)]
    assert main(["sample", *argv, "--num-samples", "9"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    way = f"remove it and train that phase anew: train --run {tiny_run.path} --resume-phase 2\n"
    assert said.endswith(way)
    with pytest.raises(UserError, match=r"--resume-phase 2$"):  # also where it is not asked for now
        get_phase("nsf").load(replace(tiny, phases=["nsgf"]), tiny_run, "ema", torch.device("cpu"))
    file.unlink()
    assert main(["train", *argv, "--resume-phase", "2"]) == 0
    assert main(["sample", *argv, "--num-samples", "9"]) == 0


def test_samples_of_both_weights_are_those_of_the_whole_run(tiny, tiny_run, tmp_path):
    for name in ("ema", "last"):
        argv = ["sample", "--run", str(tiny_run.path), "--sampling.weights", name]
        assert main([*argv, "--num-samples", "9", "--out-dir", str(tmp_path / name)]) == 0
    train(light(tiny), tiny_run)
    for name in ("ema", "last"):
        argv = ["sample", "--run", str(tiny_run.path), "--sampling.weights", name]
        assert main([*argv, "--num-samples", "9", "--out-dir", str(tmp_path / f"l-{name}")]) == 0
        [one], [other] = ((tmp_path / place).rglob("*.npz") for place in (name, f"l-{name}"))
        assert one.read_bytes() == other.read_bytes()


def test_lighter_file_that_cannot_be_written_leaves_the_whole_one(tiny_run, monkeypatch):
    file = tiny_run.checkpoint_file("nsgf")
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="cannot be written"):
        lighten(tiny_run, "nsgf", print)
    assert file.read_bytes() == before
    assert earlier(file).exists()
    assert not list(Path(file.parent).glob("*.partial"))
