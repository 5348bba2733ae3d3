"""From a user's samples to a user's samples: source files, and the transport of given samples."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import nsgf
from nsgf import UserError
from nsgf.cli.commands import main
from nsgf.config.files import METHOD_NAMES
from nsgf.experiment import Experiment
from nsgf.metrics.distances import squared_way, straightness
from nsgf.models import AffineStartNetwork
from nsgf.settings.choices import SOURCE_INSPECTORS
from nsgf.user_data import load_data, load_source
from nsgf.user_data.files import split_rows
from nsgf.user_data.starts import labels_of, read_starts
from tests.user_data.user_files import inspected, write_images

SMALL = {
    "optim.iterations": 3,
    "optim.batch_size": 8,
    "pool.num_batches": 2,
    "sinkhorn.batch_size": 8,
    "model.mlp.width": 16,
    "train.preview": False,
    "device": "cpu",
}
UNITS = np.array([1.0, 100.0])
SHIFT = np.array([3.0, -2.0])
SOURCE = pd.DataFrame(np.random.default_rng(0).standard_normal((600, 2)) * UNITS, columns=[*"ab"])
TARGET = pd.DataFrame(
    (np.random.default_rng(1).standard_normal((700, 2)) + SHIFT) * UNITS, columns=[*"ab"]
)


def train(folder, data=TARGET, source=SOURCE, overrides=None, **how):
    return nsgf.train(
        data=data,
        source=source,
        out_dir=folder,
        overrides={**SMALL, **(overrides or {})},
        quiet=True,
        **how,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three updates with a source of its own."""
    return train(tmp_path_factory.mktemp("runs"), held_out=0.1)


def written(folder, source=SOURCE, target=TARGET, **settings):
    """The section of a run from one file to another."""
    for name, frame in (("source", source), ("target", target)):
        frame.to_csv(folder / f"{name}.csv", index=False)
    config = inspected("points", folder / "target.csv", **settings)
    config = replace(config, source="file", source_path=str(folder / "source.csv"))
    facts, notes = SOURCE_INSPECTORS["points"](config)
    return replace(config, found=replace(config.found, source=facts)), notes


# --- the source ---------------------------------------------------------------------------------


def test_source_has_the_units_of_the_target_and_streams_of_its_own(tmp_path):
    config, notes = written(tmp_path)
    data = load_data(config, 0)
    rows = data.source("x").at(range(600))
    expected = (SOURCE - TARGET.mean()).to_numpy() / TARGET.std(ddof=0).to_numpy()
    np.testing.assert_allclose(np.sort(rows[:, 0]), np.sort(expected[:, 0]), rtol=1e-5, atol=1e-5)
    assert not data.source("y").at(range(600)).equal(rows)
    assert not load_data(config, 1).source("x").at(range(600)).equal(rows)
    assert (
        data.with_seed(1)
        .source("x")
        .at(range(9))
        .equal(load_data(config, 1).source("x").at(range(9)))
    )
    assert "up to 3" in notes[0]
    assert "(a)" in notes[0]


def test_held_out_rows_of_source_and_target_are_not_trained_on(tmp_path):
    config, _ = written(tmp_path, held_out=0.2)
    data = load_data(config, 0)
    trained, held = (
        {tuple(row) for row in part.source("x").at(range(480)).tolist()}
        for part in (data, data.measured())
    )
    assert (len(trained), len(held)) == (480, 120)
    assert not trained & held


@pytest.mark.parametrize(
    ("columns", "source", "wrong"),
    [
        (["b", "a"], None, ""),
        (["c", "b", "a"], None, ""),
        (["a", "c"], None, "b is missing"),
        (["a", "b", "a"], None, "a occurs twice"),
        ([0, 1], "array", ""),
    ],
)
def test_columns_are_matched_by_name_or_without_names_by_number(tmp_path, columns, source, wrong):
    if source == "array":
        np.save(tmp_path / "source.npy", SOURCE.to_numpy())
        path = tmp_path / "source.npy"
    else:
        path = tmp_path / "source.csv"
        SOURCE.assign(c=1.5)[columns].to_csv(path, index=False)
    TARGET.to_csv(tmp_path / "target.csv", index=False)
    config = inspected("points", tmp_path / "target.csv")
    config = replace(config, source="file", source_path=str(path))
    if wrong:
        with pytest.raises(UserError, match=f"data.source = .*{wrong}"):
            SOURCE_INSPECTORS["points"](config)
        return
    facts, notes = SOURCE_INSPECTORS["points"](config)
    np.testing.assert_allclose(facts.mean, SOURCE.mean())
    assert any("left out: c" in note for note in notes) == ("c" in columns)


def test_a_line_asks_about_units_that_differ_by_more_than_ten(tmp_path):
    _, notes = written(tmp_path, source=SOURCE * [1, 20])
    assert re.search(r"b: the source spreads [12]\d times as widely as the target", notes[-1])


def test_constant_columns_of_the_source_stay(tmp_path):
    """They are no problem, because the target's units are used."""
    config, _ = written(tmp_path, source=SOURCE.assign(a=4.0))
    rows = load_data(config, 0).source("x").at(range(20))
    assert rows.shape == (20, 2)
    assert rows[:, 0].std() == 0


def test_flags_and_files_name_the_source(tmp_path, capsys):
    SOURCE.to_csv(tmp_path / "source.csv", index=False)
    TARGET.to_csv(tmp_path / "target.csv", index=False)
    flags = ["--exp=points", f"--data.path={tmp_path}/target.csv", "--print-config"]
    assert main(["train", *flags, f"--data.source={tmp_path}/source.csv"]) == 0
    text = capsys.readouterr().out
    assert "source: file\n" in text
    assert f"source_path: {tmp_path}/source.csv\n" in text
    assert main(["train", *flags, f"--data.source={tmp_path}/missing.csv"]) == 2
    assert "data.source = " in capsys.readouterr().err
    assert main(["train", *flags, "--data.source=8gaussians"]) == 2
    assert "must be gaussian or the path of points" in capsys.readouterr().err


def test_a_run_resumes_with_the_same_source_only(tmp_path, capsys):
    SOURCE.to_csv(tmp_path / "source.csv", index=False)
    target = tmp_path / "target.csv"
    TARGET.to_csv(target, index=False)
    run = train(tmp_path, target, tmp_path / "source.csv")
    (tmp_path / "source.csv").rename(tmp_path / "moved.csv")
    command = ["train", "--run", str(run.path), "--resume"]
    flags = [*command, "--train-iters=5"]
    assert main(flags) == 2
    assert "data.source" in capsys.readouterr().err
    moved = f"--data.source={tmp_path}/moved.csv"
    assert main([*flags, moved]) == 0
    assert main([*command, "--train-iters=6", "--data.source=gaussian"]) == 2
    assert f"{run.path} has data.source file" in capsys.readouterr().err
    SOURCE.iloc[:-1].to_csv(tmp_path / "moved.csv", index=False)
    assert main([*command, "--train-iters=7", moved]) == 2
    assert "holds other points than the run was begun with (600" in capsys.readouterr().err


def test_an_interrupted_run_with_a_source_ends_as_the_undisturbed_one(tmp_path):
    """Past the pool, in the middle of phase 1."""
    settings = {"optim.iterations": 9, "train.log_every": 3}
    whole = train(tmp_path / "a", overrides=settings)
    stopped = train(tmp_path / "b", overrides=settings, callback=lambda update: update.step < 3)
    assert stopped.progress["nsgf"].startswith("3 of 9")
    ended = nsgf.train(resume=stopped, quiet=True)
    assert ended.transport(SOURCE).equals(whole.transport(SOURCE))


# --- images and classes -------------------------------------------------------------------------


def shades(folder, low, count=24, classes=2, step=60):
    """Plain images of side 8 in folders of classes. The grey of class 0 is ``low`` and more; each
    class is brighter by ``step``."""
    for number in range(count):
        place = folder / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(20, size=(8, 8))
        Image.fromarray((low + step * (number % classes) + noise).astype(np.uint8)).save(
            place / f"{number:03}.png"
        )
    return folder


def image_config(folder, source, **settings):
    config = inspected("images", folder, **settings)
    config = replace(config, source="file", source_path=str(source))
    facts, notes = SOURCE_INSPECTORS["images"](config)
    return replace(config, found=replace(config.found, source=facts)), notes


def test_images_of_the_source_get_size_and_channels_of_the_target(tmp_path):
    target = shades(tmp_path / "target", 100)
    source = write_images(tmp_path / "source")  # colour, of many sizes
    config, notes = image_config(target, source)
    batch = load_data(config, 0).source("x").at(range(5))
    assert batch.shape == (5, 1, 8, 8)
    assert all(note.startswith("source: ") for note in notes)
    np.save(tmp_path / "source.npy", np.zeros((20, 3, 8, 8), np.uint8) + np.arange(8, dtype="u1"))
    with pytest.raises(UserError, match=r"data.source = .*must be \[1, 8, 8\]"):
        image_config(target, tmp_path / "source.npy")


def test_classes_are_paired_by_name(tmp_path):
    target = shades(tmp_path / "target", 100)
    source = shades(tmp_path / "source", 20, count=40)
    config, _ = image_config(target, source, conditional=True)
    data = load_data(config, 0)
    for sampler, low in ((data.source_by_class("x"), 20), (data.target_by_class("x"), 100)):
        greys = ((sampler.at(range(10)) + 1) * 127.5).mean((1, 2, 3))
        assert [int(grey > low + 40) for grey in greys] == [0, 1] * 5
    runs = data.source_by_class("x", run=3).at(range(6)).mean((1, 2, 3))
    assert runs[:3].max() < runs[3:].min()
    for number in range(2):
        (tmp_path / "source" / f"class{number}").rename(tmp_path / "source" / f"other{number}")
    with pytest.raises(UserError, match="classes other0, other1, must be those of the target"):
        image_config(target, source, conditional=True)


def test_starts_of_a_folder_have_its_classes(tmp_path):
    target = shades(tmp_path / "target", 100)
    config, _ = image_config(target, shades(tmp_path / "source", 20), conditional=True)
    record = load_data(config, 0).record
    starts = read_starts(config, record, shades(tmp_path / "new", 50, count=3))
    assert starts.names == ["000", "002", "001"]
    assert labels_of(starts, record, None).tolist() == [0, 0, 1]
    assert labels_of(starts, record, "class1").tolist() == [1, 1, 1]
    (tmp_path / "new" / "class1").rename(tmp_path / "new" / "strange")
    starts = read_starts(config, record, tmp_path / "new")
    with pytest.raises(UserError, match="class 'strange'; must be one of class0, class1"):
        labels_of(starts, record, None)


def test_random_samples_start_at_images_of_their_class(tmp_path):
    """With held-out images for measures."""
    target = shades(tmp_path / "target", 100, count=80)
    config, _ = image_config(
        target, shades(tmp_path / "source", 20, count=80), conditional=True, held_out=0.25
    )
    source = load_source(config, 0)
    held = source.measured()
    assert (source.count, held.count) == (60, 20)
    for data in (source, held):
        bright = data.of_class(1, "x").at(range(40)).mean((1, 2, 3))
        assert bright.min() > data.of_class(0, "x").at(range(40)).mean((1, 2, 3)).max()


# --- the transport of given samples -------------------------------------------------------------


def test_row_i_of_the_result_is_where_row_i_goes(run):
    frame = SOURCE.iloc[:30].set_index(pd.Index([f"cell {number}" for number in range(30)]))
    moved = run.transport(frame)
    assert moved.index.equals(frame.index)
    assert [*moved.columns] == ["a", "b"]
    assert run.transport(frame[::-1]).equals(moved[::-1]) or np.allclose(
        run.transport(frame[::-1]), moved[::-1], rtol=1e-5
    )
    # by the sampler itself
    record = Experiment(run.config).target
    x = record.from_units(torch.tensor(frame.to_numpy()))
    expected = record.in_units(run.sampler(x).x)
    np.testing.assert_allclose(moved.to_numpy(), expected)
    np.testing.assert_array_equal(run.transport(frame, batch_size=7).index, frame.index)


def test_the_result_has_the_type_of_the_argument(run):
    rows = SOURCE.to_numpy()[:9]
    expected = run.transport(SOURCE[:9]).to_numpy()
    array = run.transport(rows)
    assert (type(array), array.dtype) == (np.ndarray, np.float64)
    np.testing.assert_array_equal(array, expected)
    tensor = run.transport(torch.tensor(rows, dtype=torch.float32))
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(run.transport(rows.tolist()), expected)
    pa = pytest.importorskip("pyarrow")
    table = run.transport(pa.Table.from_pandas(SOURCE[:9]))
    assert isinstance(table, pa.Table)
    np.testing.assert_array_equal(table.to_pandas().to_numpy(), expected)


def test_a_trajectory_begins_at_the_rows_and_ends_at_the_result(run):
    rows = SOURCE.to_numpy()[:9]
    path = run.transport(rows, trajectory=True, nfe=4)
    assert path.shape == (9, 5, 2)
    np.testing.assert_allclose(path[:, 0], rows, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(path[:, -1], run.transport(rows, nfe=4))


@pytest.mark.parametrize(
    ("x", "wrong"),
    [
        (SOURCE[["a"]], "column b is missing"),
        (np.zeros((3, 3)), "column a is missing"),
        (np.full((3, 2), np.nan), "coordinate 1: missing"),
        (np.zeros((0, 2)), "has no rows"),
        ("day.csv", "x: "),
        (torch.zeros(3, 1, 8, 8), "x: "),
    ],
)
def test_wrong_samples_end_in_one_line(run, x, wrong):
    with pytest.raises(UserError, match=wrong):
        run.transport(x)


def test_rows_far_from_the_source_are_named(run, capsys):
    run.transport(SOURCE[:5])
    assert capsys.readouterr().out == ""
    run.transport(pd.concat([SOURCE[:5], SOURCE[:2] + 1e4]))
    assert "2 of 7 rows are more than 10 standard deviations" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "tsv", "npy", "parquet", "npz", "txt"])
def test_a_file_comes_back_as_the_same_kind(run, tmp_path, capsys, kind):
    rows = SOURCE[:12]
    file = tmp_path / f"new.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        rows.to_parquet(file)
    elif kind == "npy":
        np.save(file, rows.to_numpy())
    elif kind == "npz":
        np.savez(file, points=rows.to_numpy())
    else:
        rows.to_csv(file, index=False, sep="," if kind == "csv" else "\t")
    assert main(["sample", "--run", str(run.path), "--start", str(file)]) == 0
    place = Path(capsys.readouterr().out.splitlines()[-1])
    suffix = "csv" if kind == "txt" else kind
    assert place == run.path / "samples" / f"moved-new.{suffix}"
    expected = run.transport(rows).to_numpy()
    if suffix == "npy":
        moved = np.load(place)
    elif suffix == "npz":
        moved = np.load(place)["x"]
    elif suffix == "parquet":
        moved = pd.read_parquet(place)
    else:
        moved = pd.read_csv(place, sep="," if suffix == "csv" else "\t")
    np.testing.assert_allclose(moved, expected)


def test_trajectories_are_written_for_any_source(run, tiny_run, tmp_path, capsys):
    np.save(tmp_path / "new.npy", SOURCE.to_numpy()[:6])
    flags = ["--trajectory", "--out", f"{tmp_path}/path.npz"]
    start = ["--start", f"{tmp_path}/new.npy"]
    assert main(["sample", "--run", str(run.path), *start, *flags]) == 0
    path = np.load(tmp_path / "path.npz")["trajectory"]
    np.testing.assert_allclose(path[:, 0], SOURCE[:6], rtol=1e-5, atol=1e-4)
    flags = ["--trajectory", "--num-samples=5", "--out", f"{tmp_path}/gaussian.npy"]
    assert main(["sample", "--run", str(tiny_run.path), *flags]) == 0
    assert np.load(tmp_path / "gaussian.npy").shape[::2] == (5, 2)
    assert main(["sample", "--run", str(run.path), "--trajectory"]) == 2
    assert main(["sample", "--run", str(run.path), *flags[:2], "--out", "x.csv"]) == 2
    assert "must be FILE.npz or FILE.npy for trajectories" in capsys.readouterr().err


def test_given_noise_is_moved_by_a_run_from_noise(tiny_run):
    opened = nsgf.load(tiny_run.path)
    noise = torch.randn(7, 2)
    torch.testing.assert_close(opened.transport(noise), opened.sampler(noise).x)


def test_an_exported_run_moves_samples_without_its_files(run, tmp_path):
    run.export(tmp_path / "shared")
    text = (tmp_path / "shared" / "config.json").read_text()
    assert str(run.path.parent) not in text
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "made from 600 samples of a user's file" in card
    assert "run.transport(x)" in card
    assert "run.sample" not in card
    shared = nsgf.load(tmp_path / "shared")
    assert shared.transport(SOURCE).equals(run.transport(SOURCE))
    with pytest.raises(UserError, match=re.escape("data.source = null")):
        shared.sample(3)


def test_a_folder_of_images_is_moved_image_by_image(tmp_path, capsys):
    source, target = shades(tmp_path / "source", 20), shades(tmp_path / "target", 100)
    small = {"model.unet.channels": 32, "model.unet.mult": [1], "sampling.straight_steps": 2}
    run = train(tmp_path / "runs", target, source, small, method="icfm")
    assert main(["sample", "--run", str(run.path), "--start", str(source)]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    names = sorted(file.name for file in folder.iterdir())
    assert (len(names), names[1]) == (24, "000001-002.png")
    image = np.asarray(Image.open(source / "class0" / "002.png"))[None, None]
    np.testing.assert_array_equal(
        run.transport(image)[0, 0], np.asarray(Image.open(folder / names[1]))
    )
    floats = run.transport(torch.zeros(2, 1, 8, 8))
    assert floats.dtype == torch.float32
    assert floats.abs().max() <= 1
    with pytest.raises(UserError, match="x: floats outside"):
        run.transport(torch.full((2, 1, 8, 8), 2.0))


def test_a_source_file_has_no_density(run):
    with pytest.raises(UserError, match=r"data\.source is a file, whose density is not known"):
        run.log_prob(SOURCE)


# --- measures -----------------------------------------------------------------------------------


def test_the_way_is_one_for_optimal_pairs_and_the_straightness_that_of_the_path():
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    assert squared_way(x, x + 3, x + 3) == pytest.approx(1)
    shuffled = (x + 3)[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    # of independent pairs: (9 + 9 + 2 + 2) / (9 + 9)
    assert squared_way(x, shuffled, x + 3) == pytest.approx(22 / 18, rel=0.1)
    corner = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    assert straightness(corner) == pytest.approx(5 / 7)
    assert straightness([x, x]) == 1


def test_evaluate_measures_held_out_sources_once_each(run):
    metrics = run.evaluate()
    assert metrics["num_samples"] == 60
    # all held-out rows in any order, so the starts must belong to the samples
    held = SOURCE.iloc[split_rows(run.config.data, len(SOURCE))[1].numpy()]
    real = TARGET.iloc[split_rows(run.config.data, len(TARGET))[1].numpy()]
    record = Experiment(run.config).target
    x, y, z = (
        record.from_units(torch.tensor(rows.to_numpy()))
        for rows in (held, run.transport(held), real)
    )
    assert metrics["way"] == pytest.approx(squared_way(x, y, z), rel=0.2)
    assert 0.5 < metrics["straightness"] <= 1


# --- starts that are wrong, and starts of classes ------------------------------------------------


def test_a_broken_image_is_found_before_the_first_is_moved(tmp_path):
    target = shades(tmp_path / "target", 100)
    config, _ = image_config(target, shades(tmp_path / "source", 20))
    record = load_data(config, 0).record
    new = shades(tmp_path / "new", 50, count=3)
    (new / "class0" / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken\.png"):
        read_starts(config, record, new)
    starts = read_starts(replace(config, skip_broken=True), record, new)
    assert (starts.count, len(starts.at(range(3)))) == (3, 3)
    assert starts.names == ["000", "002", "001"]
    assert "class0/broken.png" in starts.notes[0]


def test_labels_of_starts_are_one_for_each_image(tmp_path):
    target = shades(tmp_path / "target", 100)
    config, _ = image_config(target, shades(tmp_path / "source", 20), conditional=True)
    record = load_data(config, 0).record
    images = np.zeros((2, 1, 8, 8), np.uint8)
    for labels in ([["class0", "class1"], ["class1", "class1"]], ["class0"]):
        np.savez(tmp_path / "new.npz", images=images, labels=np.array(labels))
        with pytest.raises(UserError, match="must be one for each of 2 images"):
            read_starts(config, record, tmp_path / "new.npz")


def test_noise_of_images_is_finite_floats(tmp_path):
    target = shades(tmp_path / "target", 100)
    config = inspected("images", target)
    record = load_data(config, 0).record
    for values in (np.full((2, 1, 8, 8), np.nan), np.zeros((2, 1, 8, 8), np.uint8)):
        np.save(tmp_path / "noise.npy", values)
        with pytest.raises(UserError, match=r"start = .*needs finite floats"):
            read_starts(config, record, tmp_path / "noise.npy")
    with pytest.raises(UserError, match=r"start = .*needs noise"):
        read_starts(config, record, target)


def test_numbers_as_titles_of_columns_stay_numbers(tmp_path):
    source = SOURCE.set_axis([0, 1], axis=1)
    run = train(tmp_path, TARGET.set_axis([0, 1], axis=1), source)
    assert run.transport(source[[1, 0]][:4]).columns.tolist() == [0, 1]


@pytest.mark.parametrize(
    "x", [np.zeros(2), "new.csv", torch.utils.data.TensorDataset(torch.zeros(3, 2))]
)
def test_samples_that_are_no_table_end_in_a_line_about_their_shape(run, x):
    with pytest.raises(UserError, match=r"x: an array of shape \(.*\), must be \(N, 2\)"):
        run.transport(x)


def test_classes_of_different_sizes_repeat_no_start(tmp_path):
    config, _ = image_config(
        shades(tmp_path / "target", 100), shades(tmp_path / "source", 20), conditional=True
    )
    data = load_source(config, 0)
    data.labels = torch.tensor([0] * 5 + [1] * (data.count - 5))
    assert data.count_different() == 10
    assert [data.count_different(label) for label in range(2)] == [5, data.count - 5]
    parts = [data.of_class(0, "x"), data.target_by_class("x")]
    assert [
        len(part.at(range(count)).unique(dim=0)) for part, count in zip(parts, (5, 10), strict=True)
    ] == [5, 10]


def test_an_experiment_reads_its_source_once(run):
    experiment = run._experiment
    assert experiment.load_data().source_data is experiment.source_data


def test_functions_of_a_comparison_get_the_source_in_the_units_of_the_data(tmp_path):
    given = []

    def stay(x, nfe):
        given.append(x)
        return x

    nsgf.compare(
        TARGET,
        source=SOURCE,
        methods={"stay": stay},
        against="icfm",
        nfe=[2],
        seeds=1,
        out_dir=tmp_path,
        overrides={"optim.iterations": 2, "optim.batch_size": 8, "device": "cpu"},
    )
    distances = torch.cdist(given[0].double(), torch.from_numpy(SOURCE.to_numpy()))
    assert distances.min(1).values.max() < 1e-3


def test_a_number_of_samples_has_no_effect_on_given_ones(run, tmp_path, capsys):
    SOURCE.to_csv(tmp_path / "new.csv", index=False)
    call = f"sample --run {run.folder.path} --start {tmp_path}/new.csv --out {tmp_path}/out.csv"
    assert main([*call.split(), "--num-samples", "5"]) == 0
    assert "no effect with start: sampling.num_samples" in capsys.readouterr().out


# --- methods ------------------------------------------------------------------------------------


def test_the_affine_map_is_optimal_between_gaussians():
    """T(x) = m + M (x - n), where M is symmetric and M S M = C (Peyre and Cuturi 2019, 2.6)."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    source, target = a @ a.T, b @ b.T
    mean, source_mean = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    network = AffineStartNetwork(torch.nn.Identity(), (3,))
    network.set_map(mean, target, 1.0, (source_mean, source))
    matrix = network.matrix.double()
    torch.testing.assert_close(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix).min() > 0
    torch.testing.assert_close(matrix @ source @ matrix, target, rtol=1e-4, atol=1e-4)
    start = network.start(source_mean.float()[None])[0]
    torch.testing.assert_close(start, mean.float(), rtol=1e-4, atol=1e-4)


POINT_METHODS = sorted(METHOD_NAMES)


@pytest.mark.e2e
@pytest.mark.parametrize("method", POINT_METHODS)
def test_every_method_moves_known_points_where_they_belong(tmp_path, method):
    """A shifted Gaussian by its shift, in columns of different units."""
    settings = {
        "optim.iterations": 400,
        "optim.batch_size": 256,
        "optim.lr": 3e-3,
        "optim.warmup_steps": 0,
        "pool.num_batches": 8,
        "sinkhorn.batch_size": 256,
        "model.mlp.width": 64,
    }
    run = train(tmp_path, overrides=settings, method=method)
    rows = SOURCE.to_numpy()[:200]
    ways = (run.transport(rows) - rows) / UNITS
    is_generator = method.startswith("onecall")
    np.testing.assert_allclose(ways.mean(0), SHIFT, atol=0.25)
    if not is_generator:  # a generator moves the distribution, not each point
        spread = (ways - SHIFT) ** 2
        assert spread.mean() ** 0.5 < (0.8 if method == "nsgf++" else 0.5)


@pytest.mark.e2e
@pytest.mark.parametrize("method", POINT_METHODS)
def test_every_method_brightens_dark_images(tmp_path, method):
    """From greys 20 to 40 to greys 140 to 160."""
    source = shades(tmp_path / "source", 20, count=40, classes=1)
    target = shades(tmp_path / "target", 140, count=40, classes=1)
    settings = {
        "optim.iterations": 60,
        "optim.batch_size": 16,
        "optim.lr": 2e-3,
        "optim.warmup_steps": 0,
        "reflow.pairs": 40,
        "pool.num_batches": 4,
        "sinkhorn.batch_size": 16,
        "nsf.starts": 64 if method == "nsgf++h" else None,
        "model.unet.channels": 32,
        "model.unet.mult": [1],
    }
    if method == "nsgf":  # constant steps end after two thirds of the way
        settings["flow.schedule"] = "harmonic"
    run = train(tmp_path / "runs", target, source, settings, method=method)
    dark = np.stack([np.asarray(Image.open(file)) for file in sorted(source.rglob("*.png"))])
    bright = run.transport(dark[:, None])
    assert bright.dtype == np.uint8
    assert 100 < bright.mean() - dark.mean() < 140


@pytest.mark.e2e
@pytest.mark.parametrize("method", ["nsgf", "otcfm"])
def test_each_class_moves_to_the_class_of_its_name(tmp_path, method):
    """Although it is farther away than the second class."""
    source = shades(tmp_path / "source", 20, count=40)
    target = shades(tmp_path / "target", 200, count=40, step=-60)
    settings = {
        "data.conditional": True,
        "flow.schedule": "harmonic",
        "optim.iterations": 80,
        "optim.batch_size": 16,
        "optim.lr": 2e-3,
        "optim.warmup_steps": 0,
        "pool.num_batches": 4,
        "sinkhorn.batch_size": 16,
        "model.unet.channels": 32,
        "model.unet.mult": [1],
    }
    run = train(tmp_path / "runs", target, source, settings, method=method)
    for number, expected in enumerate((210, 150)):
        files = sorted((source / f"class{number}").iterdir())
        images = np.stack([np.asarray(Image.open(file)) for file in files])
        moved = run.transport(images[:, None], label=f"class{number}")
        assert moved.mean() == pytest.approx(expected, abs=20)
