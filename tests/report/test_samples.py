import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsgf.config.schema import PhaseName, SamplingConfig
from nsgf.data import build_source
from nsgf.metrics.evaluate import evaluate_run
from nsgf.phases import load_sampler
from nsgf.report.samples import changed_settings, sample_run
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, earlier, results_folder
from nsgf.sampling.generate import generate
from nsgf.system.errors import UserError

CPU = torch.device("cpu")


def test_points_are_sampled_to_files(small, small_run):
    lines = sample_run(small, small_run)
    assert lines[0].startswith("20 samples, NFE 8, after updates: nsgf 12 of 12, nsf")  # 3 + 1 + 4
    saved = np.load(small_run.samples / "samples.npz", allow_pickle=False)
    assert saved["x"].shape == (20, 2)
    assert saved["tau"].shape == (20,)
    assert saved["nfe"] == 8
    assert {path.name for path in small_run.samples.iterdir()} == {"samples.npz", "trajectory.png"}


def test_samples_that_cannot_be_written_leave_those_before(small, small_run, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    small_run.samples.mkdir()
    file = small_run.samples / "samples.npz"
    file.write_bytes(b"before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        sample_run(small, small_run)
    assert file.read_bytes() == b"before"


def lose(run: RunFolder, phase: PhaseName) -> None:
    """Remove a phase's checkpoint, and the one before, which would be taken in its place."""
    file = run.checkpoint_file(phase)
    file.unlink(missing_ok=True)
    earlier(file).unlink(missing_ok=True)


def test_fixed_time_needs_no_predictor(small, small_run):
    """The same samples whether its checkpoint is there or not."""
    fixed = replace(small, sampling=replace(small.sampling, tau=0.25, solver="heun"))
    drawn = []
    for _ in range(2):
        (line, *_) = sample_run(fixed, small_run)
        assert "NFE 11, after updates: nsgf 12 of 12, nsf 12 of 12" in line  # 3 + 2 x 4
        saved = np.load(small_run.samples / "samples-tau0.25-solver_heun.npz")
        assert (saved["tau"] == 0.25).all()
        drawn.append(saved["x"])
        lose(small_run, "predictor")
    assert np.array_equal(*drawn)
    _, found = evaluate_run(fixed, small_run)
    assert (found["nfe"], found["expected_nfe"], found["solver"]) == (11, 11, "heun")
    assert (found["tau_mean"], found["tau_std"]) == (0.25, 0)
    assert set(found["updates"]) == {"nsgf", "nsf"}
    assert list(load_sampler(small, small_run, CPU)[1]) == ["nsgf"]


def test_missing_torchdiffeq_is_noticed_before_sampling(small, small_run, monkeypatch):
    for module in ("sampling.generate", "metrics.evaluate"):
        monkeypatch.setattr(
            f"nsgf.{module}.generate", lambda *_, **__: pytest.fail("sampled first")
        )
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    config = replace(small, sampling=replace(small.sampling, solver="dopri5"))
    for command in (sample_run, evaluate_run):
        with pytest.raises(UserError, match="pip install torchdiffeq"):
            command(config, small_run)


def test_batches_do_not_change_the_samples(small, small_run):
    def drawn(size):
        config = replace(small, sampling=replace(small.sampling, batch_size=size))
        sampler, _ = load_sampler(config, small_run, CPU)
        return generate(sampler, build_source(small.data, 0, "x"), 20, CPU)

    whole, parts = drawn(20), drawn(7)
    torch.testing.assert_close(whole.x, parts.x)
    torch.testing.assert_close(whole.tau, parts.tau)
    assert whole.nfe == parts.nfe == 8


def test_unfinished_networks_are_named(small, small_run):
    longer = replace(small, nsf=replace(small.nsf, iterations=500))
    payload = checkpoint.load(small_run.checkpoint_file("nsf"))
    payload["config"]["nsf"]["iterations"] = 500
    checkpoint.save(small_run.checkpoint_file("nsf"), payload)
    assert "nsf 12 of 500" in sample_run(longer, small_run)[0]
    _, found = evaluate_run(longer, small_run)
    assert found["updates"] == {"nsgf": "12 of 12", "nsf": "12 of 500", "predictor": "12 of 12"}


def test_samples_of_other_settings_get_names_of_their_own(small, small_run):
    """None overwrites those of the run's own settings; the size of a batch changes no sample."""
    own = small.sampling
    names = {
        changed_settings(replace(small, sampling=sampling), small_run)
        for sampling in (
            replace(own, batch_size=5),
            replace(own, nsgf_steps=10),
            replace(own, num_samples=3, nsgf_steps=2),
            replace(own, tau=0.5, omega=0.1, straight_steps=3),
        )
    }
    assert names == {
        "",
        "-nsgf_steps10",
        "-num_samples3-nsgf_steps2",
        "-tau0.5-straight_steps3-omega0.1",
    }
    alone = replace(small, phases=["nsgf"], seed=1)
    assert changed_settings(alone, small_run) == "-seed1-phases_nsgf"
    assert changed_settings(replace(small, phases=["nsgf", "nsf"]), small_run) == "-phases_nsgf+nsf"
    small_run.write_config(replace(small, seed=3, sampling=replace(own, tau=0.5)))
    assert changed_settings(small, small_run) == "-seed0-tau_null"
    small_run.config_file.write_text("exp: 2d\nseed: 0\n")  # an old run with fewer settings
    alone = replace(small, sampling=SamplingConfig(num_samples=3))
    assert changed_settings(alone, small_run) == "-num_samples3"


@pytest.mark.parametrize("command", [sample_run, evaluate_run])
def test_folders_that_cannot_be_written_are_known_before_sampling(
    command, small, small_run, monkeypatch, tmp_path
):
    monkeypatch.setattr("nsgf.report.samples.load_sampler", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr("nsgf.metrics.evaluate.load_sampler", lambda *_: pytest.fail("loaded"))

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nsgf.run.folder.TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"cannot be written"):
        command(small, small_run)
    monkeypatch.undo()
    (tmp_path / "out").touch()  # a file in place of a folder
    with pytest.raises(UserError, match=r"out.*cannot be written"):
        command(replace(small, out_dir=str(tmp_path / "out")), small_run)


def test_results_of_a_read_only_run_go_to_another_folder(small, small_run, tmp_path):
    """Nothing is written in the run folder."""
    before = {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))}
    other = replace(small, out_dir=str(tmp_path / "mine"))
    lines = sample_run(other, small_run)
    folder = tmp_path / "mine" / small_run.path.name
    assert [str(folder / "samples" / name) for name in ("samples.npz", "trajectory.png")] == lines[
        1:
    ]
    file, _ = evaluate_run(other, small_run)
    assert file == folder / "metrics.json"
    assert file.is_file()
    assert {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))} == before


def test_results_go_into_the_run_however_its_folder_is_named(small, small_run, monkeypatch):
    monkeypatch.chdir(small_run.path.parent)
    here = replace(small, out_dir=".")
    link = small_run.path.with_name("link")
    link.symlink_to(small_run.path)
    assert results_folder(here, RunFolder(link)) == link
    (small_run.path.parents[1] / "elsewhere").mkdir()
    link = link.replace(small_run.path.parents[1] / "elsewhere" / "link")
    linked = replace(small, out_dir=str(link.parent))
    assert results_folder(linked, RunFolder(link)) == link
    assert results_folder(here, RunFolder(Path(small_run.path.name))) == Path(small_run.path.name)
    assert results_folder(here, small_run) == small_run.path


def test_links_among_the_results_are_replaced_and_never_followed(digits_run, tmp_path):
    config, run = digits_run
    (victim := tmp_path / "victim").write_text("precious")
    results = tmp_path / run.path.name / "samples"
    results.mkdir(parents=True)
    for name in ("samples.npz", "grid.png", "trajectory.png"):
        (results / name).symlink_to(victim)
    sample_run(replace(config, out_dir=str(tmp_path)), run)
    assert victim.read_text() == "precious"
    assert not any(file.is_symlink() for file in results.iterdir())


def test_images_are_sampled_to_a_grid(digits_run):
    config, run = digits_run
    lines = sample_run(config, run)
    files = [run.samples / name for name in ("samples.npz", "grid.png", "trajectory.png")]
    assert lines[1:] == list(map(str, files))
    assert np.load(run.samples / "samples.npz")["x"].shape == (9, 1, 8, 8)
    names = {path.name for path in run.samples.iterdir()}
    pictures = {"phase1_nsgf.png", "phase2_nsf.png", "phase3_predictor.png"}
    assert names == {"samples.npz", "grid.png", "trajectory.png", *pictures}


def test_the_checkpoint_before_the_newest_is_named(small, small_run):
    file = small_run.checkpoint_file("nsgf")
    file.unlink()
    [line, *_] = sample_run(small, small_run)
    assert f"nsgf 10 of 12; {file.name} is gone" in line
