"""Exports and their model cards: what is in them, and that they are read back exactly.

Past mistake: A new flow trained, but its card described the Sinkhorn flow, because texts knew
flows by name.
"""

import json
import os
import platform
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import nsgf
from nsgf import UserError, cli
from nsgf.commands import export
from nsgf.commands.export import card, copy_pictures, export_run
from nsgf.commands.report import report_run
from nsgf.commands.train import train
from nsgf.config.layers import SETTINGS, build, drop_machine_settings, values
from nsgf.config.schema import TrackingConfig
from nsgf.config.values import load_yaml
from nsgf.experiment import Experiment
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from tests.conftest import shipped


@pytest.fixture
def exported(tmp_path):
    return tmp_path / "exported" / "moons"


def names(folder):
    return set(os.listdir(folder))


WHOLE = {
    "README.md",
    "config.json",
    "phase1_nsgf.safetensors",
    "phase2_nsf.safetensors",
    "phase3_predictor.safetensors",
}


def test_an_export_gives_the_samples_of_the_run_bit_for_bit(small, small_run, exported):
    lines = export_run(Experiment(small), small_run, exported)
    assert names(exported) == WHOLE
    assert lines[:-1] == sorted(str(exported / name) for name in WHOLE)
    run, reopened = nsgf.load(small_run.path), nsgf.load(exported)
    assert torch.equal(reopened.sample(20, seed=4), run.sample(20, seed=4))
    assert torch.equal(reopened.sample(20, seed=0, nfe=5), run.sample(20, seed=0, nfe=5))
    assert reopened.progress == run.progress
    saved = checkpoint.load(small_run.checkpoint_file("nsf"))
    for name, tensor in load_file(exported / "phase2_nsf.safetensors").items():
        assert torch.equal(tensor, saved["ema"][name])
        assert not torch.equal(tensor, saved["model"][name])
    assert (run.config.train.precision, reopened.config.train.precision) == ("auto", "fp32")
    train = replace(run.config.train, precision="fp32")  # as the networks were trained
    assert reopened.config == drop_machine_settings(replace(run.config, train=train))


@pytest.mark.parametrize(
    ("method", "files"), [("onecall+", ("1_nsgf", "2_generator")), ("affine", ("2_nsf",))]
)
def test_other_methods_are_exported_whole(method, files, exported, tmp_path):
    """A generator with the velocity that it began as, a straight flow with its affine map."""
    flags = ("--smoke", "--device=cpu", "--train.preview=false", "--model.mlp.width=16")
    config = replace(shipped(f"2d/{method}", *flags), out_dir=str(tmp_path / "runs"))
    run = train(Experiment(config))
    export_run(Experiment(config), run, exported)
    assert {f"phase{n}.safetensors" for n in files} < names(exported)
    samples = nsgf.load(exported).sample(4, seed=0, nfe=1)
    assert torch.equal(samples, nsgf.load(run.path).sample(4, seed=0, nfe=1))


def test_a_run_that_is_not_finished_is_exported_as_far_as_it_is(small, small_run, exported):
    for phase in ("nsf", "predictor"):
        for file in small_run.path.glob(f"checkpoints/*{phase}*"):
            file.unlink()
    export_run(Experiment(small), small_run, exported)
    assert names(exported) == WHOLE - {"phase2_nsf.safetensors", "phase3_predictor.safetensors"}
    run, reopened = nsgf.load(small_run.path), nsgf.load(exported)
    assert torch.equal(reopened.sample(4, seed=0), run.sample(4, seed=0))


TEXTS = {"exp", "method", "device", "data.columns", "data.label", "data.source", "data.key"}
"""Settings that are texts and no paths."""


def test_no_path_of_the_machine_leaves(small, small_run, exported, tmp_path, monkeypatch):
    """Neither settings nor the log nor measures bring one into an export, its card or a page, whose
    commands begin in a folder below the user's.

    Past mistake: An export removed the paths on a list beside the schema, and user folders that
    were not on the list went out.
    """
    home = tmp_path / "Jane Doe"
    monkeypatch.setenv("HOME", str(home))
    texts = {key for key, item in SETTINGS.items() if item.kind in (str, str | None)}
    paths = {key: f"{home}/{key}" for key, item in SETTINGS.items() if item.is_path}
    assert texts - set(paths) == TEXTS
    config = build({**values(small), **paths})
    config = replace(config, device="cpu", tracking=TrackingConfig("wandb"))
    (home / "out_dir").mkdir(parents=True)
    monkeypatch.chdir(home / "out_dir")
    run = RunFolder(small_run.path.rename(home / "out_dir" / small_run.path.name))
    with_measures(run, inception=f"left out: {home}/weights.pth is missing")
    with (run.path / "log.txt").open("a") as log:
        log.write(f"nsgf: is damaged, see '{home}/a b/x.pt', {home}/y.pt, ~jane/z.pt\n")
    export_run(Experiment(config), run, exported)
    report = Path(report_run(Experiment(config), run)[0])
    for file in (exported / "config.json", exported / "README.md", report):
        text = file.read_text()
        assert str(tmp_path.parent) not in text, file
        assert not re.search("jane doe|~jane", text.lower()), file
    assert "left out: weights.pth is missing" in (exported / "README.md").read_text()
    assert "see &#39;x.pt&#39;, y.pt, z.pt" in report.read_text()
    assert nsgf.load(exported).config.data.name == small.data.name


def test_only_a_new_or_empty_folder_is_filled(small, small_run, exported, tmp_path):
    exported.mkdir(parents=True)
    (tmp_path / "link").symlink_to(exported)
    export_run(Experiment(small), small_run, tmp_path / "link")
    assert names(exported) == WHOLE
    (exported / "README.md").write_text("mine")
    for place in (exported, exported / "README.md"):
        with pytest.raises(UserError, match=r"^to = "):
            export_run(Experiment(small), small_run, place)
    assert (exported / "README.md").read_text() == "mine"


def test_what_fails_or_is_killed_leaves_nothing(small, small_run, exported, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export, "card", full)
        with pytest.raises(OSError, match="No space left on device"):
            export_run(Experiment(small), small_run, exported)
    assert names(exported.parent) == set()
    left = (
        exported.parent / f"moons.{platform.node()}-{2**22 + 1}.partial"
    )  # no process has this id
    (left / "left").mkdir(parents=True)
    export_run(Experiment(small), small_run, exported)
    assert names(exported.parent) == {"moons"}


def test_damaged_and_missing_weights_are_refused(small, small_run, exported):
    for file in small_run.path.glob("checkpoints/phase2*"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        export_run(Experiment(small), small_run, exported)
    for file in small_run.path.glob("checkpoints/*"):
        file.unlink()
    with pytest.raises(UserError, match="has no checkpoint yet"):
        export_run(Experiment(small), small_run, exported)
    assert names(exported.parent) == set()


def test_weights_rounded_to_half_are_read_as_float32(small, small_run, exported):
    """A tensor with a value beyond float16 stays as it is."""
    payload = checkpoint.load(small_run.checkpoint_file("nsf"))
    name, other = list(payload["ema"])[:2]
    payload["ema"][name].view(-1)[0] = 1e6
    checkpoint.save(small_run.checkpoint_file("nsf"), payload)
    config = replace(small, train=replace(small.train, precision="bf16"))
    export_run(Experiment(config), small_run, exported, half=True)
    assert nsgf.load(exported).config.train.precision == "auto"
    stored = load_file(exported / "phase2_nsf.safetensors")
    assert (stored[name].dtype, stored[other].dtype) == (torch.float32, torch.float16)
    assert json.loads((exported / "config.json").read_text())["weights"] == "float16"
    assert "rounded to float16" in (exported / "README.md").read_text()
    for key, part in nsgf.load(exported).networks["nsf"].state_dict().items():
        full = payload["ema"][key.removeprefix("model.")]
        assert part.dtype == torch.float32
        torch.testing.assert_close(part, full, rtol=1e-3, atol=1e-6)


def test_the_commands_of_an_export(small_run, exported, tmp_path, capsys):
    """It is sampled and measured like its run, and stays as it is; others need a run folder. Its
    card has what ``nsgf evaluate`` measured."""
    own = f"--run={small_run.path}"
    omega = "--sampling.omega=0.5"
    assert cli.main(["evaluate", own, omega]) == 0
    assert cli.main(["export", own, f"--to={exported}", omega]) == 0
    assert "hf upload OWNER/NAME" in capsys.readouterr().out
    assert "    W2 ↓ " in (exported / "README.md").read_text()
    assert (
        json.loads((exported / "config.json").read_text())["settings"]["sampling"]["omega"] == 0.5
    )
    for command in (["train", "--resume"], ["report"], ["export", "--to=x"]):
        assert cli.main([*command, f"--run={exported}"]) == 2
        assert f"run = {exported}" in capsys.readouterr().err
    words = [f"--run={exported}", f"--out-dir={tmp_path / 'results'}", "--seed=3"]
    assert cli.main(["sample", *words]) == cli.main(["evaluate", *words]) == 0
    results = tmp_path / "results" / "exported-moons"
    assert names(results) == {"samples", "metrics.json"}
    assert names(exported) == WHOLE
    x = np.load(results / "samples" / "samples-seed3.npz")["x"]
    run = nsgf.load(small_run.path, overrides={"sampling.omega": 0.5})
    assert torch.equal(torch.from_numpy(x), run.sample(20, seed=3))


UPDATES = {"nsgf": "12 of 12", "nsf": "12 of 12", "predictor": "12 of 12"}
CLASSES = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")


SMOKE = ["**smoke run**", "**random**"]
ONE_CALL = (*CLASSES, "--sampling.guidance=2", "--generator.blurs=[1,0.25]")
GENERATOR = ["blur 1.0, 0.25 ", "22 samples", 'seed=0, label="0")', "10 classes, `0, 1, 2"]
ENERGY = ["by a neural energy-distance gradient flow", "in place of the Sinkhorn divergence of Ne"]
BOTH = ["blur 0.25; 1024 particles, 1024 targets, 10 steps.", "512 samples, 512 targets."]


def front_matter(text):
    empty, front, _ = text.split("---\n", 2)
    assert empty == ""
    return load_yaml(front)


def with_measures(run, **changes):
    measures = {"updates": UPDATES, "sampling": {"straight_steps": 4}, "w2": 0.25, "nfe": 8.0}
    measures |= changes
    (run.path / "metrics.json").write_text(json.dumps(measures))
    return run


def test_measures_of_the_same_weights_are_shown(small, small_run):
    """A text of the file stays in its line."""
    run = with_measures(small_run, w2_x="x\n\n# Title\x1b[1m")
    text = card(Experiment(small), run, UPDATES, [])
    (model,) = front_matter(text)["model-index"]
    (result,) = model["results"]
    assert result["metrics"] == [{"type": "w2", "name": "W2 ↓", "value": 0.25}]
    assert "    W2 ↓      0.25\n" in text
    assert "\n# Title" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({}, True),
        ({"sampling": {}}, False),
        ({"sampling": None, "guidance": 2.0}, False),  # of an earlier version
        ({"sampling": {"guidance": 2.0, "label": 3}}, False),
        ({"updates": {"generator": "6 of 12"}}, False),
        ({"updates": {}}, False),
        ({"updates": 3}, False),
    ],
)
def test_measures_of_other_weights_or_sampling_are_not(small_run, changes, is_same):
    """Past mistake: The check of a card looked at two settings of the sampler. The card showed
    measures of another solver and number of steps.
    """
    config = shipped("digits/onecall", *CLASSES, "--sampling.guidance=2")
    updates = {"generator": "12 of 12"}
    same = {"updates": updates, "sampling": {"guidance": 2.0}}
    text = card(Experiment(config), with_measures(small_run, **same | changes), updates, [])
    assert ("model-index" in front_matter(text)) == is_same
    assert ("Not measured with these weights" in text) != is_same


@pytest.mark.parametrize(
    ("exp", "flags", "updates", "words", "untrue"),
    [
        ("2d/nsgf++", (), UPDATES, ["| nsf | 12 of 12 | 256 | 0.001 |", "(64, 2), points"], SMOKE),
        ("digits/icfm", ("--smoke", "--fake-data"), {}, [*SMOKE, "`icfm`"], ["affine map"]),
        ("digits", (), {}, ["(64, 1, 8, 8), images in [-1, 1]", "nfe=10"], ["icfm", "label="]),
        ("digits", ("--sampling.solver=dopri5",), {}, [], ["nfe=10"]),
        ("digits/onecall", ONE_CALL, {"generator": "2 of 2"}, GENERATOR, ["particles", "nfe="]),
        ("2d/nsgf", ("--flow.kind=energy",), {"nsgf": "1 of 2"}, ENERGY, ["blur", "Sinkhorn grad"]),
        ("2d/onecall+", (), {"nsgf": "1 of 2", "generator": "2 of 2"}, BOTH, ["label="]),
        ("digits", (), {"nsgf": "1 of 2"}, ["| nsf | not used |"], ["predictor"]),
    ],
)
def test_the_card_says_what_was_trained(small_run, exp, flags, updates, words, untrue):
    text = card(Experiment(shipped(exp, *flags)), small_run, updates, ["grid.png"])
    for each in (*words, "![grid.png](grid.png)"):
        assert each in text
    for each in untrue:
        assert each not in text
    front = front_matter(text)
    assert front["license"] == "mit"
    task = None if exp.startswith("2d") else "unconditional-image-generation"
    assert front.get("pipeline_tag") == (None if ONE_CALL[-1] in flags else task)


def test_pictures_of_the_command_come_before_the_last_phase_s(small, small_run, tmp_path):
    """Pictures of earlier weights are not copied, and none that shows a user's own data."""
    samples = small_run.samples
    samples.mkdir(exist_ok=True)
    for name in ("grid", "trajectory", "phase2_nsf", "phase3_predictor"):
        (samples / f"{name}.png").write_bytes(name.encode())

    def pictures(*, shows_data):
        return copy_pictures(small_run, small.phases[-1], shows_data, tmp_path)

    assert pictures(shows_data=False) == ["grid.png", "trajectory.png"]
    assert pictures(shows_data=True) == ["grid.png", "trajectory.png"]
    assert Path(tmp_path, "grid.png").read_bytes() == b"grid"
    os.utime(samples / "grid.png", (1, 1))
    assert pictures(shows_data=True) == []  # of points
    os.utime(samples / "trajectory.png", (1, 1))
    assert pictures(shows_data=False) == ["phase3_predictor.png"]
    assert pictures(shows_data=True) == []
    os.utime(samples / "phase3_predictor.png", (1, 1))
    assert pictures(shows_data=False) == []
    for phase in small.phases:  # only the checkpoint before the last may be left
        file = small_run.checkpoint_file(phase)
        file.rename(file.with_suffix(".earlier.pt"))
    assert pictures(shows_data=False) == []
