import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nsgf.commands.evaluate import evaluate_run
from nsgf.commands.sample import changed_settings, sample_run
from nsgf.commands.sample_files import BatchReader, write_animation, write_samples
from nsgf.commands.train import train
from nsgf.config.layers import change
from nsgf.config.schema import DataConfig, DataFacts
from nsgf.data.images import to_bytes
from nsgf.experiment import Experiment
from nsgf.run import checkpoint
from nsgf.run.folder import RunFolder, results_folder
from nsgf.sampling.sampler import Samples
from nsgf.system.errors import UserError
from nsgf.user_data import find_target
from tests.conftest import shipped

LINE = DataFacts(16, [1], "x", names=["a"], mean=[0.0], scale=[1.0])


def test_points_are_sampled_to_files(small, small_run):
    lines = sample_run(Experiment(small), small_run)
    assert lines[0].startswith("20 samples, NFE 8, after updates: nsgf 12 of 12, nsf")  # 3 + 1 + 4
    saved = np.load(small_run.samples / "samples.npz", allow_pickle=False)
    assert (saved["x"].shape, saved["tau"].shape, saved["nfe"]) == ((20, 2), (20,), 8)
    assert {path.name for path in small_run.samples.iterdir()} == {"samples.npz", "trajectory.png"}


def test_unfinished_networks_and_earlier_checkpoints_are_named(small, small_run):
    """Past mistake: A run whose last phase had no checkpoint was sampled as if it were finished:
    "after updates: nsgf 5 of 5".
    """
    longer = replace(small, nsf=replace(small.nsf, iterations=500))
    payload = checkpoint.load(small_run.checkpoint_file("nsf"))
    payload["config"]["nsf"]["iterations"] = 500
    checkpoint.save(small_run.checkpoint_file("nsf"), payload)
    file = small_run.checkpoint_file("nsgf")
    file.unlink()
    line = sample_run(Experiment(longer), small_run)[0]
    assert f"nsgf 10 of 12; {file.name} is missing" in line
    assert "nsf 12 of 500" in line
    for number in (3, 2):  # without the predictor the trained straight flow is not used either
        for file in small_run.path.glob(f"checkpoints/phase{number}*"):
            file.unlink()
        assert "nsgf 10 of 12" in (line := sample_run(Experiment(longer), small_run)[0])
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
    experiment = Experiment(replace(small, sampling=replace(small.sampling, **sampling)))
    assert changed_settings(experiment, small_run) == name
    experiment = experiment.change({"phases": ["nsgf", "nsf"], "seed": 1})
    assert changed_settings(experiment, small_run) == f"-seed1-phases_nsgf+nsf{name}"
    experiment = experiment.change({"train.precision": "bf16", "seed": small.seed})
    assert changed_settings(experiment, small_run) == f"-precision_bf16-phases_nsgf+nsf{name}"


@pytest.mark.parametrize("command", [sample_run, evaluate_run])
def test_folder_that_cannot_be_written_is_known_before_sampling(
    command, small, small_run, monkeypatch, tmp_path
):
    monkeypatch.setattr(Experiment, "load_sampler", lambda *_: pytest.fail("loaded"))
    (tmp_path / "out").touch()  # a file in place of a folder
    with pytest.raises(UserError, match=r"out.*cannot be written"):
        command(Experiment(replace(small, out_dir=str(tmp_path / "out"))), small_run)


def test_results_of_a_read_only_run_go_to_another_folder(small, small_run, tmp_path):
    """Nothing is written in the run folder."""
    before = {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))}
    other = replace(small, out_dir=str(tmp_path / "mine"))
    folder = tmp_path / "mine" / small_run.path.name
    names = ("samples.npz", "trajectory.png")
    assert sample_run(Experiment(other), small_run)[1:] == [
        str(folder / "samples" / name) for name in names
    ]
    assert evaluate_run(Experiment(other), small_run)[0] == folder / "metrics.json"
    assert {path: path.stat().st_mtime_ns for path in sorted(small_run.path.rglob("*"))} == before


def test_results_go_into_the_run_however_its_folder_is_named(small, small_run, monkeypatch):
    monkeypatch.chdir(small_run.path.parent)
    link = small_run.path.with_name("link")
    link.symlink_to(small_run.path)
    for path in (link, Path(small_run.path.name), small_run.path):
        assert results_folder(Path(), RunFolder(path)) == path.absolute()


def test_images_are_sampled_to_a_grid(digits_run, tmp_path):
    """Past mistake: Samples and pictures were opened under their final names, so a link in a
    copied folder had its target overwritten.
    """
    config, run = digits_run
    results = tmp_path / run.path.name / "samples"
    files = [results / name for name in ("samples.npz", "grid.png", "trajectory.png")]
    assert sample_run(Experiment(replace(config, out_dir=str(tmp_path))), run)[1:] == list(
        map(str, files)
    )
    assert np.load(files[0])["x"].shape == (9, 1, 8, 8)


def test_samples_go_to_one_file_or_folder(small, small_run, digits_run, tmp_path):
    """The same samples in each form, with the NFE that was wanted, and nothing else."""
    table, array = tmp_path / "new" / "x.csv", tmp_path / "x.npz"
    lines = sample_run(Experiment(small), small_run, nfe=6, out=str(table))
    assert (lines[0][:17], lines[1:]) == ("20 samples, NFE 6", [str(table)])
    sample_run(Experiment(small), small_run, nfe=6, out=str(array))
    (head, *rows), saved = csv.reader(table.open()), np.load(array)
    assert head == ["x1", "x2"]
    assert np.array_equal(np.array(rows, "f4"), saved["x"])
    assert saved["nfe"] == 6
    assert not small_run.samples.exists()

    config, run = digits_run
    with pytest.raises(UserError, match="DIR/"):
        sample_run(Experiment(config), run, out=str(tmp_path / "images.csv"))
    sample_run(Experiment(config), run, out=f"{tmp_path}/images/")
    sample_run(Experiment(config), run, out=str(tmp_path / "images.npz"))
    files = sorted((tmp_path / "images").iterdir())
    assert [file.name for file in files] == [f"{number:06d}.png" for number in range(9)]
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    expected = to_bytes(torch.from_numpy(np.load(tmp_path / "images.npz")["x"]))
    assert np.array_equal(pixels[:, None], expected)


def test_moving_picture_ends_with_the_same_samples(small, small_run, digits_run, tmp_path):
    """Of one coordinate there is none."""
    config, run = digits_run
    sample_run(Experiment(config), run, out=str(tmp_path / "x.npz"))
    grids = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "nsgf.commands.sample_files.save_animation", lambda samples, *_: grids.append(samples)
        )
        sample_run(Experiment(config), run, out=str(tmp_path / "x.webp"))
    assert np.array_equal(grids[0].path[-1], np.load(tmp_path / "x.npz")["x"])
    sample_run(Experiment(small), small_run, out=str(tmp_path / "x.gif"))
    with Image.open(tmp_path / "x.gif") as picture:
        assert picture.n_frames == 1 + 3 + 4
    diverged = replace(grids[0], finite=False)
    with pytest.raises(UserError, match="not finite"):
        write_animation(find_target(small.data), diverged, tmp_path / "z.gif")
    line = change(small, {"data.name": "points", "data.path": "x", "data.found": LINE})
    with pytest.raises(UserError, match=r"FILE.parquet for this"):
        sample_run(Experiment(line), small_run, out=str(tmp_path / "y.gif"))


def test_columns_have_the_names_of_the_data(own_data, tmp_path, monkeypatch):
    """Past mistake: `sample` needed the data of an exported run, only to draw them beside the
    samples. Whoever received the folder got an error.
    """
    config = shipped("points", *own_data["points"], "--smoke", "--device=cpu", "--phases=[nsgf]")
    facts = replace(config.data.found, names=["a, b", "c", "d"])
    config = replace(config, data=replace(config.data, found=facts), out_dir=str(tmp_path))
    run = train(Experiment(config))
    config = replace(config, data=replace(config.data, path="gone"))  # only for the picture
    sample_run(Experiment(config), run, out=str(tmp_path / "x.csv"))
    with pytest.raises(UserError, match="--out FILE"):
        sample_run(Experiment(config), run)
    assert next(csv.reader((tmp_path / "x.csv").open())) == ["a, b", "c", "d"]
    drawn = []
    monkeypatch.setattr(
        "nsgf.commands.sample.save_figure", lambda figure, file: drawn.append(figure)
    )
    sample_run(Experiment(change(config, {"data.path": None})), run)  # as in an export
    ((panel,),) = (figure.axes for figure in drawn)
    assert panel.get_xlabel() == "a, b (of 3 coordinates)"
    shown = np.asarray(panel.collections[-1].get_offsets())
    assert abs(np.median(shown[:, 0]) + 5) < 1  # in its units


def test_a_table_keeps_all_digits(tmp_path):
    """Also of microseconds in seconds since 1970."""
    facts = DataFacts(16, [2], "x", names=["a", "b"], mean=[1.7e9, 0.1], scale=[1e-3, 1e-9])
    target = find_target(DataConfig(name="points", path="x", found=facts))
    x = torch.randn(20, 2)
    write_samples(target, BatchReader([Samples(x=x, nfe=1)]), 20, tmp_path / "x.csv", ".csv")
    written = np.loadtxt(tmp_path / "x.csv", delimiter=",", skiprows=1)
    assert np.array_equal(written, target.in_units(x))


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
    monkeypatch.setattr(Experiment, "load_sampler", lambda *_: pytest.fail("loaded"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv").touch()
    with pytest.raises(UserError, match=words):
        sample_run(Experiment(small), small_run, **how)


def test_folder_of_images_is_written_whole_or_not_at_all(digits_run, tmp_path, monkeypatch):
    """Also if it exists, empty. A folder that only looks like a leftover stays."""
    config, run = digits_run
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
            sample_run(Experiment(config), run, out=f"{tmp_path}/images/")
    assert sorted(os.listdir(tmp_path)) == ["images", "images.my.partial"]
    sample_run(Experiment(config), run, out=f"{tmp_path}/images.npz/")
    assert len(os.listdir(tmp_path / "images.npz")) == 9


def test_names_too_long_for_the_file_system_are_known_before_sampling(
    told_run, tmp_path, monkeypatch
):
    """Names of classes are parts of names of files."""
    monkeypatch.setattr(Experiment, "load_sampler", lambda *_: pytest.fail("loaded"))
    config, run = told_run
    experiment = Experiment(config)
    long_names = replace(experiment.target, class_names=("a", "b" * 250))
    monkeypatch.setitem(vars(experiment), "target", long_names)
    with pytest.raises(UserError, match="out=DIR"):
        sample_run(experiment, run, out=f"{tmp_path}/images/")
    assert not list(tmp_path.iterdir())
