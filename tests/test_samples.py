import csv
import os
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.config.schema import OF_PHASES, Config, DataConfig
from nsgf.config.settings import change
from nsgf.data import Data, in_units
from nsgf.data.images import to_bytes
from nsgf.experiment import train
from nsgf.metrics.evaluate import evaluate_run
from nsgf.phases import PHASES, find_preview, get_phases, load_sampler
from nsgf.plots.samples import save_figure
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, results_folder
from nsgf.sample_files import BatchReader, write_animation, write_samples
from nsgf.samples import changed_settings, part_of_way, preview_samples, sample_run
from nsgf.sampling.sampler import Samples
from nsgf.system.errors import UserError
from tests.conftest import CPU, shipped

OF_METHOD = OF_PHASES[:3]
LINE = {"samples": 16, "shape": [1], "checksum": "x", "names": ["a"], "mean": [0.0], "scale": [1.0]}


def test_points_are_sampled_to_files(small, small_run):
    lines = sample_run(small, small_run)
    assert lines[0].startswith("20 samples, NFE 8, after updates: nsgf 12 of 12, nsf")  # 3 + 1 + 4
    saved = np.load(small_run.samples / "samples.npz", allow_pickle=False)
    assert (saved["x"].shape, saved["tau"].shape, saved["nfe"]) == ((20, 2), (20,), 8)
    assert {path.name for path in small_run.samples.iterdir()} == {"samples.npz", "trajectory.png"}


def test_unfinished_networks_and_earlier_checkpoints_are_named(small, small_run):
    longer = replace(small, nsf=replace(small.nsf, iterations=500))
    payload = checkpoint.load(small_run.checkpoint_file("nsf"))
    payload["config"]["nsf"]["iterations"] = 500
    checkpoint.save(small_run.checkpoint_file("nsf"), payload)
    file = small_run.checkpoint_file("nsgf")
    file.unlink()
    line = sample_run(longer, small_run)[0]
    assert f"nsgf 10 of 12; {file.name} is missing" in line
    assert "nsf 12 of 500" in line
    for number in (3, 2):  # without the predictor the trained straight flow is not used either
        for file in small_run.path.glob(f"checkpoints/phase{number}*"):
            file.unlink()
        assert "nsgf 10 of 12" in (line := sample_run(longer, small_run)[0])
        assert "nsf not used, predictor not used" in line


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        ({"batch_size": 5}, ""),
        ({"num_samples": 3, "nsgf_steps": 2}, "-num_samples3-nsgf_steps2"),
        ({"tau": 0.5, "omega": 0.1, "straight_steps": 3}, "-tau0.5-straight_steps3-omega0.1"),
    ],
)
def test_samples_of_other_settings_get_names_of_their_own(small, small_run, sampling, name):
    own = replace(small.sampling, **sampling)
    assert changed_settings(replace(small, sampling=own), small_run) == name
    other = replace(small, sampling=own, phases=["nsgf", "nsf"], seed=1)
    assert changed_settings(other, small_run) == f"-seed1-phases_nsgf+nsf{name}"
    other = change(other, {"train.precision": "bf16", "seed": small.seed})
    assert changed_settings(other, small_run) == f"-precision_bf16-phases_nsgf+nsf{name}"


@pytest.mark.parametrize("command", [sample_run, evaluate_run])
def test_folder_that_cannot_be_written_is_known_before_sampling(
    command, small, small_run, monkeypatch, tmp_path
):
    for module in ("samples", "metrics.evaluate"):
        monkeypatch.setattr(f"nsgf.{module}.load_sampler", lambda *_: pytest.fail("loaded"))
    (tmp_path / "out").touch()  # a file in place of a folder
    with pytest.raises(UserError, match=r"out.*cannot be written"):
        command(replace(small, out_dir=str(tmp_path / "out")), small_run)


def test_results_of_a_read_only_run_go_to_another_folder(small, small_run, tmp_path):
    """Nothing is written in the run folder."""
    before = {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))}
    other = replace(small, out_dir=str(tmp_path / "mine"))
    folder = tmp_path / "mine" / small_run.path.name
    names = ("samples.npz", "trajectory.png")
    assert sample_run(other, small_run)[1:] == [str(folder / "samples" / name) for name in names]
    assert evaluate_run(other, small_run)[0] == folder / "metrics.json"
    assert {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))} == before


def test_results_go_into_the_run_however_its_folder_is_named(small, small_run, monkeypatch):
    monkeypatch.chdir(small_run.path.parent)
    here, link = replace(small, out_dir="."), small_run.path.with_name("link")
    link.symlink_to(small_run.path)
    for path in (link, Path(small_run.path.name), small_run.path):
        assert results_folder(here, RunFolder(path)) == path.absolute()


def test_images_are_sampled_to_a_grid(digits_run, tmp_path):
    config, run = digits_run
    results = tmp_path / run.path.name / "samples"
    files = [results / name for name in ("samples.npz", "grid.png", "trajectory.png")]
    assert sample_run(replace(config, out_dir=str(tmp_path)), run)[1:] == list(map(str, files))
    assert np.load(files[0])["x"].shape == (9, 1, 8, 8)


def test_samples_go_to_one_file_or_folder(small, small_run, digits_run, tmp_path):
    """The same samples in each form, with the NFE that was wanted, and nothing else."""
    table, array = tmp_path / "new" / "x.csv", tmp_path / "x.npz"
    lines = sample_run(small, small_run, nfe=6, out=str(table))
    assert (lines[0][:17], lines[1:]) == ("20 samples, NFE 6", [str(table)])
    sample_run(small, small_run, nfe=6, out=str(array))
    (head, *rows), saved = csv.reader(table.open()), np.load(array)
    assert head == ["x1", "x2"]
    assert np.array_equal(np.array(rows, "f4"), saved["x"])
    assert saved["nfe"] == 6
    assert not small_run.samples.exists()

    config, run = digits_run
    with pytest.raises(UserError, match="DIR/"):
        sample_run(config, run, out=str(tmp_path / "images.csv"))
    sample_run(config, run, out=f"{tmp_path}/images/")
    sample_run(config, run, out=str(tmp_path / "images.npz"))
    files = sorted((tmp_path / "images").iterdir())
    assert [file.name for file in files] == [f"{number:06d}.png" for number in range(9)]
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    expected = to_bytes(torch.from_numpy(np.load(tmp_path / "images.npz")["x"]))
    assert np.array_equal(pixels[:, None], expected)


def test_moving_picture_ends_with_the_same_samples(small, small_run, digits_run, tmp_path):
    """Of one coordinate there is none."""
    config, run = digits_run
    sample_run(config, run, out=str(tmp_path / "x.npz"))
    grids = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nsgf.sample_files.save_animation", lambda samples, *_: grids.append(samples))
        sample_run(config, run, out=str(tmp_path / "x.webp"))
    assert np.array_equal(grids[0].path[-1], np.load(tmp_path / "x.npz")["x"])
    sample_run(small, small_run, out=str(tmp_path / "x.gif"))
    with Image.open(tmp_path / "x.gif") as picture:
        assert picture.n_frames == 1 + 3 + 4
    with pytest.raises(UserError, match="not finite"):
        write_animation(small, replace(grids[0], finite=False), tmp_path / "z.gif")
    line = replace(Config(), data=DataConfig(name="points", path="x", found=LINE))
    with pytest.raises(UserError, match=r"FILE.parquet for this"):
        sample_run(line, small_run, out=str(tmp_path / "y.gif"))


def test_columns_have_the_names_of_the_data(own_data, tmp_path, monkeypatch):
    config = shipped("points", *own_data["points"], "--smoke", "--device=cpu", "--phases=[nsgf]")
    found = {**config.data.found, "names": ["a, b", "c", "d"]}
    config = replace(config, data=replace(config.data, found=found), out_dir=str(tmp_path))
    run = train(config)
    config = replace(config, data=replace(config.data, path="gone"))  # only for the picture
    sample_run(config, run, out=str(tmp_path / "x.csv"))
    with pytest.raises(UserError, match="--out FILE"):
        sample_run(config, run)
    assert next(csv.reader((tmp_path / "x.csv").open())) == ["a, b", "c", "d"]
    drawn = []
    monkeypatch.setattr("nsgf.samples.save_figure", lambda figure, file: drawn.append(figure))
    sample_run(replace(config, data=replace(config.data, path=None)), run)  # as in an export
    ((panel,),) = (figure.axes for figure in drawn)
    assert panel.get_xlabel() == "a, b (of 3 coordinates)"
    shown = np.asarray(panel.collections[-1].get_offsets())
    assert abs(np.median(shown[:, 0]) + 5) < 1  # in its units


def test_a_table_keeps_all_digits(tmp_path):
    """Also of microseconds in seconds since 1970."""
    found = {"samples": 16, "shape": [2], "checksum": "x", "names": ["a", "b"]}
    found |= {"mean": [1.7e9, 0.1], "scale": [1e-3, 1e-9]}
    config = replace(Config(), data=DataConfig(name="points", path="x", found=found))
    x = torch.randn(20, 2)
    write_samples(config, BatchReader([Samples(x=x, nfe=1)]), tmp_path / "x.csv", ".csv")
    written = np.loadtxt(tmp_path / "x.csv", delimiter=",", skiprows=1)
    assert np.array_equal(written, in_units(config.data, x))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"out": "x.txt"}, "out = x.txt: must be .* FILE.csv"),
        ({"out": "old.csv"}, "old.csv: exists"),
        ({"out": "old.csv/x.npz"}, "out=DIR"),
        ({"out": f"{'x' * 250}.csv"}, "out=DIR"),  # the temporary name is longer
        ({"nfe": 2}, "nfe = 2: must be a whole number >= 3"),
        ({"nfe": 100_001}, "nfe = 100001: "),
    ],
)
def test_wrong_output_or_calls_are_known_before_sampling(
    how, words, small, small_run, monkeypatch, tmp_path
):
    monkeypatch.setattr("nsgf.samples.load_sampler", lambda *_: pytest.fail("loaded"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv").touch()
    with pytest.raises(UserError, match=words):
        sample_run(small, small_run, **how)


def test_folder_of_images_is_written_whole_or_not_at_all(digits_run, tmp_path, monkeypatch):
    """Also if it exists, empty. A folder that only looks like a leftover stays."""
    (tmp_path / "images.my.partial").mkdir()
    (tmp_path / "images").mkdir()
    with monkeypatch.context() as patch:
        written = []

        def full(_, file):
            written.append(file)
            assert not list((tmp_path / "images").iterdir())
            if len(written) == 3:
                raise OSError(28, "No space left on device")

        patch.setattr("PIL.Image.Image.save", full)
        with pytest.raises(OSError, match="No space"):
            sample_run(*digits_run, out=f"{tmp_path}/images/")
    assert sorted(os.listdir(tmp_path)) == ["images", "images.my.partial"]
    sample_run(*digits_run, out=f"{tmp_path}/images.npz/")
    assert len(os.listdir(tmp_path / "images.npz")) == 9


def test_names_too_long_for_the_file_system_are_known_before_sampling(
    told_run, tmp_path, monkeypatch
):
    """Names of classes are parts of names of files."""
    monkeypatch.setattr("nsgf.samples.load_sampler", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr("nsgf.sample_files.class_names", lambda _: ("a", "b" * 250))
    with pytest.raises(UserError, match="out=DIR"):
        sample_run(*told_run, out=f"{tmp_path}/images/")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def pictured_config(tiny):
    sampling = replace(tiny.sampling, straight_steps=4)
    return replace(tiny, train=replace(tiny.train, preview=True), sampling=sampling)


def test_every_phase_leaves_its_picture_and_trains_the_same(pictured_config, tiny_run):
    """``tiny_run`` was trained without previews; weights, optimizers and losses agree."""
    pictured = train(pictured_config)
    names = {f"phase{number}_{phase}.png" for number, phase in enumerate(OF_METHOD, start=1)}
    assert {file.name for file in pictured.samples.iterdir()} == names
    assert "nsf: picture of samples, " in (pictured.path / "log.txt").read_text()

    for phase in OF_METHOD:
        shown, without = (
            checkpoint.load(run.checkpoint_file(phase)) for run in (pictured, tiny_run)
        )
        for part in ("model", "ema", "optimizer", "step", "window"):
            torch.testing.assert_close(shown[part], without[part], rtol=0, atol=0)
    assert not tiny_run.samples.exists()


def test_pictures_show_what_the_phases_so_far_draw(pictured_config, tiny_run):
    data = Data(pictured_config.data, pictured_config.seed)
    for phase in get_phases(OF_METHOD):
        way = find_preview(pictured_config, phase)
        sampler, _ = load_sampler(pictured_config, tiny_run, CPU, way)
        expected = sampler(data.source("preview").sample(2048)).x
        shown = preview_samples(pictured_config, tiny_run, phase, data, CPU)
        torch.testing.assert_close(shown, expected)


@pytest.mark.parametrize(
    ("flags", "phase", "words"),
    [
        (("--method=nsgf++h",), "nsgf", "continues from here"),
        (("--method=nsgf++h",), "nsf", ""),
        (("--method=nsgf",), "nsgf", ""),
        (("--method=onecall+",), "nsgf", ""),
    ],
)
def test_picture_of_an_early_phase_says_where_the_next_one_continues(flags, phase, words):
    found = part_of_way(shipped("digits", *flags), PHASES[phase])
    assert words in found if words else not found


class Killed(BaseException):
    """Ends a process without any cleaning up."""


def kill(*_):
    raise Killed


def pictures(run):
    return {file.name: file.read_bytes() for file in run.samples.iterdir()}


@pytest.mark.parametrize("phase", range(3))
def test_picture_that_a_kill_prevented_is_drawn_by_the_next_session(
    phase, pictured_config, monkeypatch
):
    """As it would have been; weights and records do not change, nothing is left beside it."""
    whole = train(pictured_config)
    run = RunFolder.create(pictured_config)
    actions = [save_figure] * phase + [kill]
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.samples.save_figure", lambda *how: actions.pop(0)(*how))
        with pytest.raises(Killed):
            train(pictured_config, run)
    assert len(pictures(run)) == phase
    left = f"phase{phase + 1}.png.{platform.node()}-{2**22 + 1}.partial"  # no process has this id
    (run.samples / left).touch()
    train(pictured_config, run)
    assert pictures(run) == pictures(whole)
    metrics = [(one.path / "metrics.jsonl").read_bytes() for one in (run, whole)]
    assert metrics[0] == metrics[1]
    for name in OF_METHOD:
        ours, theirs = (checkpoint.load(one.checkpoint_file(name)) for one in (run, whole))
        torch.testing.assert_close(ours["ema"], theirs["ema"], rtol=0, atol=0)
    (run.path / "log.txt").unlink()
    train(pictured_config, run)  # a picture that is there is not drawn again
    assert "picture of samples" not in (run.path / "log.txt").read_text()


def test_picture_of_fewer_updates_does_not_stay(pictured_config, monkeypatch):
    """Training went on, and was killed before the new picture."""
    config = replace(pictured_config, phases=["nsgf"])
    run, other = train(config), train(config)
    earlier = pictures(run)
    longer = change(config, {"nsgf.iterations": 30})
    with monkeypatch.context() as patch:
        patch.setattr("nsgf.samples.save_figure", kill)
        with pytest.raises(Killed):
            train(longer, run)
    assert pictures(run) == {}
    train(longer, run)
    assert pictures(run) == pictures(train(longer, other)) != earlier


def test_no_picture_of_a_run_without_previews_or_without_its_data(
    pictured_config, tiny, tiny_run, own_data
):
    train(pictured_config, tiny_run)
    assert not tiny_run.samples.exists()
    run = train(replace(pictured_config, phases=["nsgf"]))
    run.preview_file("nsgf").unlink()
    train(replace(tiny, phases=["nsgf"]), run)
    assert pictures(run) == {}
    config = shipped("points", *own_data["points"], "--smoke", "--device=cpu", "--phases=[nsgf]")
    config = replace(config, out_dir=tiny.out_dir)
    run = train(config)
    run.preview_file("nsgf").unlink()
    train(change(config, {"data.path": "gone"}), run)
    assert "nsgf: no picture of samples (" in (run.path / "log.txt").read_text()


def test_picture_that_fails_is_one_line(pictured_config, monkeypatch):
    def broken(*_):
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr("nsgf.samples.preview_samples", broken)
    run = train(pictured_config)
    assert (run.path / "log.txt").read_text().count("no picture of samples (no memory)") == 3
    assert all(run.checkpoint_file(phase).exists() for phase in OF_METHOD)
