"""Exports: what is in them, that they are read back exactly, and where they may be written."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import nsgf
from nsgf import UserError, cli
from nsgf.config.files import build, drop_machine_settings, merged, nested
from nsgf.config.leaves import is_path, leaves, plain_type
from nsgf.config.schema import Config, TrackingConfig
from nsgf.experiment import train
from nsgf.report import page
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder
from nsgf.share import export
from nsgf.share.export import export_run
from tests.conftest import shipped


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "shared" / "moons"


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


WHOLE = {
    "README.md",
    "config.json",
    "phase1_nsgf.safetensors",
    "phase2_nsf.safetensors",
    "phase3_predictor.safetensors",
}


def test_an_export_gives_the_samples_of_the_run_bit_for_bit(small, small_run, target):
    lines = export_run(small, small_run, target)
    assert names(target) == WHOLE
    assert names(target.parent) == {"moons"}
    assert lines[:-1] == sorted(str(target / name) for name in WHOLE)
    run, shared = nsgf.load(small_run.path), nsgf.load(target)
    assert torch.equal(shared.sample(20, seed=4), run.sample(20, seed=4))
    assert torch.equal(shared.sample(20, nfe=5), run.sample(20, nfe=5))
    assert shared.progress == run.progress
    assert shared.config == drop_machine_settings(run.config)


@pytest.mark.e2e
def test_images_too(digits_run, target):
    config, run = digits_run
    export_run(config, run, target)
    assert torch.equal(nsgf.load(target).sample(5), nsgf.load(run.path).sample(5))


def test_generator_is_exported_with_its_own_card(told_run, target):
    config, run = told_run
    export_run(config, run, target)
    text = (target / "README.md").read_text()
    assert "a generator that is asked once" in text
    assert f"| generator | 5 of 5 | {config.generator.batch_size} |" in text
    assert f"Sinkhorn flow of generated samples: blur {config.generator.blurs[0]:g} (rel" in text
    assert "label=0" in text
    for untrue in ("icfm", "nfe=10", "particles"):
        assert untrue not in text


def test_generator_that_began_as_a_velocity_is_exported_with_both(target, tmp_path):
    flags = ("--smoke", "--device=cpu", "--train.preview=false", "--model.mlp.width=16")
    config = replace(shipped("2d/onecall+", *flags), out_dir=str(tmp_path / "runs"))
    run = train(config)
    export_run(config, run, target)
    assert {f"phase{n}.safetensors" for n in ("1_nsgf", "2_generator")} < names(target)
    text = (target / "README.md").read_text()
    assert "| nsgf | 5 of 5 |" in text
    assert "8 particles" in text
    assert "Sinkhorn flow of generated samples: blur 0.1" in text
    assert "icfm" not in text
    assert "nfe=10" not in text
    assert torch.equal(nsgf.load(target).sample(4), nsgf.load(run.path).sample(4))


def test_weights_are_the_averages(small, small_run, target):
    export_run(small, small_run, target)
    saved = checkpoint.load(small_run.checkpoint_file("nsf"))
    for name, tensor in load_file(target / "phase2_nsf.safetensors").items():
        assert torch.equal(tensor, saved["ema"][name])
    assert not torch.equal(saved["ema"][name], saved["model"][name])


def test_a_run_that_is_not_finished_is_exported_as_far_as_it_is(small, small_run, target):
    for phase in ("nsf", "predictor"):
        for file in small_run.path.glob(f"checkpoints/*{phase}*"):
            file.unlink()
    export_run(small, small_run, target)
    assert names(target) == WHOLE - {"phase2_nsf.safetensors", "phase3_predictor.safetensors"}
    assert torch.equal(nsgf.load(target).sample(4), nsgf.load(small_run.path).sample(4))


TEXTS = {"exp", "method", "device"}
"""Settings that are texts and no paths."""


def test_no_path_of_the_machine_leaves(small, small_run, target, tmp_path, monkeypatch):
    """Neither settings nor the log nor measures bring one into an export, its card or a page."""
    home = tmp_path / "Jane Doe"
    texts = {key for key, _, item in leaves(small) if plain_type(item) in (str, str | None)}
    paths = {key: f"{home}/{key}" for key, _, item in leaves(small) if is_path(item)}
    assert texts - set(paths) == TEXTS
    config = build(Config, merged(asdict(small), nested(paths)))
    config = replace(config, device="cpu", tracking=TrackingConfig("wandb"))
    measures = {"inception": f"left out: {home}/weights.pth is missing", "weights": "ema"}
    (home / "out_dir").mkdir(parents=True)
    run = RunFolder(small_run.path.rename(home / "out_dir" / small_run.path.name))
    (run.path / "metrics.json").write_text(
        json.dumps({**measures, "updates": {"nsgf": "12 of 12"}})
    )
    with (run.path / "log.txt").open("a") as log:
        log.write(f"nsgf: is damaged, see '{home}/a b/x.pt', {home}/y.pt, ~jane/z.pt\n")
    export_run(config, run, target)
    monkeypatch.setattr(page, "check", lambda config: None)  # not all of them have an effect
    report = Path(page.report_run(config, run)[0])
    for file in (target / "config.json", target / "README.md", report):
        text = file.read_text()
        assert str(tmp_path.parent) not in text, file
        assert "jane" not in text.lower(), file
    assert "left out: weights.pth is missing" in (target / "README.md").read_text()
    assert "see &#39;x.pt&#39;, y.pt, z.pt" in report.read_text()
    assert nsgf.load(target).config.data.name == small.data.name


def test_an_export_can_be_repeated(small, small_run, target):
    export_run(small, small_run, target)
    changed = replace(small, sampling=replace(small.sampling, straight_steps=2))
    export_run(changed, small_run, target)
    assert names(target.parent) == {"moons"}
    assert nsgf.load(target).config.sampling.straight_steps == 2


def test_an_empty_folder_and_a_link_to_one_are_filled(small, small_run, target, tmp_path):
    target.mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    export_run(small, small_run, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(target) == WHOLE


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda to: (to / "notes.txt").write_text("mine"), "holds something else"),
        (lambda to: (to / "config.json").write_text("{}"), "no exported run"),
        (lambda to: (to / "config.json").write_text("\x00"), "cannot be read"),
        (lambda to: (to.rmdir(), to.write_text("a file")), "holds something else"),
    ],
    ids=["other files", "other program", "damaged", "file"],
)
def test_what_is_no_export_is_left_alone(small, small_run, target, prepare, words):
    target.mkdir(parents=True)
    prepare(target)
    before = names(target) if target.is_dir() else target.read_text()
    with pytest.raises(UserError, match=words):
        export_run(small, small_run, target)
    assert (names(target) if target.is_dir() else target.read_text()) == before


@pytest.mark.parametrize("change", ["README.md", "more.txt", "folder", "link"])
def test_an_export_that_was_changed_is_left_alone(small, small_run, target, change):
    export_run(small, small_run, target)
    if change == "folder":
        (target / change).mkdir()
    elif change == "link":
        (target / change).symlink_to(small_run.config_file)
    else:
        (target / change).write_text("mine")
    with pytest.raises(UserError, match=change):
        export_run(small, small_run, target)
    assert change in names(target)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("at", ["card", "_write_index", "sync_folder"])
def test_what_fails_leaves_what_was_there(small, small_run, target, monkeypatch, at, repeated):
    if repeated:
        export_run(small, small_run, target)
    before = (target / "config.json").read_bytes() if repeated else None

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, at, full)
    with pytest.raises(UserError, match=r"No space left on device\); name another folder"):
        export_run(small, small_run, target)
    if at == "sync_folder":  # it was in place by then
        assert names(target) == WHOLE
    else:
        assert target.exists() == repeated
        assert not repeated or (target / "config.json").read_bytes() == before
    assert names(target.parent) == ({"moons"} if target.exists() else set())


def test_a_rename_that_fails_brings_the_earlier_export_back(small, small_run, target, monkeypatch):
    export_run(small, small_run, target)
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        if to == target and not path.name.endswith(".old"):
            raise OSError(5, "broken")
        return real(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(UserError, match="broken"):
        export_run(small, small_run, target)
    assert names(target.parent) == {"moons"}
    assert names(target) == WHOLE


def test_what_a_killed_export_left_is_cleared(small, small_run, target):
    """Killed between its two renames, the earlier export comes back first."""
    export_run(small, small_run, target)
    target.rename(target.with_name(".moons.old"))
    (target.parent / ".moons.partial").mkdir()
    with export._replacing_folder(target):
        assert names(target) == WHOLE
    assert names(target.parent) == {"moons"}


def test_a_run_without_weights_is_refused(small, small_run, target):
    for file in small_run.path.glob("checkpoints/*"):
        file.unlink()
    with pytest.raises(UserError, match="has no checkpoint yet"):
        export_run(small, small_run, target)


def test_damaged_weights_are_refused(small, small_run, target):
    for file in small_run.path.glob("checkpoints/phase2*"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match="another length"):
        export_run(small, small_run, target)
    assert names(target.parent) == set()


def test_the_command(small_run, target, capsys):
    words = ["export", f"--run={small_run.path}", f"--to={target}", "--sampling.straight_steps=3"]
    assert cli.main(words) == 0
    assert "hf upload OWNER/NAME" in capsys.readouterr().out
    index = json.loads((target / "config.json").read_text())
    assert index["settings"]["sampling"]["straight_steps"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "export needs --to DIR"),
        (["--to=x", "--nsgf.lr=1e-3"], "only those of sampling may change"),
        (["--to=x", "--seed=1"], "--seed: an export has its run's settings"),
    ],
)
def test_commands_that_cannot_be_are_one_line(small_run, words, said, capsys):
    assert cli.main(["export", f"--run={small_run.path}", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_other_commands_take_no_export(small, small_run, target, capsys):
    export_run(small, small_run, target)
    for command in ("sample", "evaluate"):
        assert cli.main([command, f"--run={target}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"nsgf.load('{target}')" in line
    assert cli.main(["train", "--exp=2d", f"--to={target}"]) == 2
    assert "nsgf export" in capsys.readouterr().err
