"""Training on samples and with a network of the caller."""

import functools
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import product
from pathlib import Path
from signal import SIGINT, default_int_handler, getsignal, raise_signal, signal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from scipy import sparse
from torch import nn
from torch.utils.data import DataLoader, StackDataset, TensorDataset

import nsgf
from nsgf import UserError
from nsgf.api import samples as user_samples
from nsgf.api import train as training
from nsgf.api.samples import to_arrays
from nsgf.cli import main
from nsgf.run import checkpoint
from nsgf.system.output import show
from tests.conftest import records
from tests.test_api import SMALL
from tests.user_data.user_files import own_points

POINTS = torch.from_numpy(own_points(40, 3))
PIXELS = np.random.default_rng(0).integers(256, size=(40, 1, 8, 8), dtype=np.uint8)
LABELS = torch.arange(40) % 2


def train(folder, overrides=None, **how):
    return nsgf.train(out_dir=folder, overrides={**SMALL, **(overrides or {})}, quiet=True, **how)


FRAME = pd.DataFrame(POINTS[:, :2].numpy(), columns=["height", "weight"]).assign(kind="a")
PICTURES = [Image.fromarray(one[0]) for one in PIXELS]
FLOATS = np.random.default_rng(0).uniform(-1, 1, (40, 1, 8, 8)).astype("f4")
NANOSECONDS = 1_700_000_000_000_000_000 + 15 * torch.arange(20)[:, None]
MASKED = np.ma.masked_less(POINTS.numpy(), -5)


@pytest.mark.parametrize(
    ("key", "data", "same"),
    [
        ("images", torch.from_numpy(FLOATS).bfloat16(), FLOATS),
        ("points", POINTS.numpy()[::-1].astype(">f8"), POINTS.flip(0)),
        ("points", np.ma.asarray(POINTS.numpy()), POINTS),
    ],
)
def test_arrays_may_have_any_memory_layout(key, data, same):
    arrays, expected = (to_arrays("data", values)[key] for values in (data, same))
    rounding = 1.01 if key == "images" and "bfloat16" in str(data.dtype) else 0  # of 255 bytes
    np.testing.assert_allclose(arrays.astype(float), expected.astype(float), rtol=0, atol=rounding)


def test_a_run_of_tensors_is_the_run_of_their_file(tmp_path):
    """Bit for bit, also resumed, with samples in the units of the data."""
    np.save(tmp_path / "own.npy", POINTS.numpy())
    ours = train(tmp_path, data=POINTS, iterations=2)
    other = train(
        tmp_path, {"data.path": tmp_path / "own.npy", "optim.iterations": 2}, exp="points"
    )
    assert torch.equal(ours.sample(30, seed=0), other.sample(30, seed=0))
    ours, other = (nsgf.train(resume=run.path, iterations=4, quiet=True) for run in (ours, other))
    samples = ours.sample(300, seed=0)
    assert torch.equal(samples, other.sample(300, seed=0))
    assert ((samples.mean(0) - POINTS.mean(0)).abs() < 2 * POINTS.std(0)).all()


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame.astype({"weight": "category"}),
        pl.from_pandas,
        lambda frame: pa.table(frame),
    ],
)
def test_a_table_in_memory_is_that_of_its_file(convert, tmp_path):
    """With the names of its columns, of which some may be chosen."""
    frame = FRAME.rename(columns={"height": "Größe, in cm"})
    frame.to_csv(tmp_path / "x.csv", index=False)
    how = {"iterations": 1, "overrides": {**SMALL, "data.columns": "2,1"}}
    ours, other = (
        nsgf.train(data, out_dir=tmp_path / "runs", quiet=True, **how)
        for data in (convert(frame), tmp_path / "x.csv")
    )
    assert ours.config.data.found == other.config.data.found
    assert ours.config.data.found.names == ["weight", "Größe, in cm"]
    assert torch.equal(ours.sample(9, seed=0), other.sample(9, seed=0))


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["weight", "a, b"], ["weight", "a, b"]),
        (("a, b",), ["a, b"]),
        (pd.Index(["weight"]), ["weight"]),
        (np.array(["weight", "a, b"]), ["weight", "a, b"]),
        ([3, 1], ["weight", "a, b"]),
        (range(1, 4, 2), ["a, b", "weight"]),
        (np.int64(3), ["weight"]),
        (3, ["weight"]),
        ("weight", ["weight"]),
        ('weight,"a, b"', ["weight", "a, b"]),
        ([" a,\n b "], ["a, b"]),
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_columns_are_names_or_numbers(columns, names, is_file, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train_phases", raise_config)
    data = FRAME[["height", "kind", "weight"]].rename(columns={"height": "a, b"})
    if is_file:
        data.to_csv(tmp_path / "x.csv", index=False)
        data = tmp_path / "x.csv"
    with pytest.raises(Begun) as begun:
        train(tmp_path, data=data, columns=columns, held_out=0.4, blur=0.25)
    config = begun.value.args[0].config
    assert config.data.found.names == names
    assert config.data.held_out == 0.4
    assert config.sinkhorn.blur == 0.25


class Begun(Exception):
    pass


def raise_config(config, *_, **__):
    raise Begun(config)


def test_numbers_of_a_table_are_those_of_its_array():
    """Also of 32 bits, which a text file would hold with fewer digits."""
    for kind in ("float32", "float16", "int64", "Int64", "uint8"):
        frame = (FRAME.drop(columns="kind").abs() / 2).round().astype(kind)
        frame = frame / frame.dtypes.iloc[0].type(3) if "float" in kind else frame
        points = to_arrays("data", frame)["points"]
        assert points.dtype.names == ("height", "weight")
        same = frame.to_numpy("float64")
        assert np.array_equal(np.stack([points[name] for name in points.dtype.names], 1), same)


@pytest.mark.e2e
def test_a_named_index_of_a_table_in_memory_is_a_column(tmp_path, capsys):
    frame = FRAME.drop(columns="kind").set_index("weight")
    frame.to_parquet(tmp_path / "x.parquet")
    how = {"iterations": 1, "overrides": SMALL, "out_dir": tmp_path}
    runs = [nsgf.train(data, **how) for data in (frame, pa.table(frame), tmp_path / "x.parquet")]
    assert capsys.readouterr().out.count("columns from the index: weight") == 3
    for run in runs:
        assert run.config.data.found == runs[0].config.data.found
        assert run.config.data.found.names == ["height", "weight"]


def test_objects_that_are_numbers_are_numbers():
    rows = POINTS.tolist()
    for values in (np.array(rows, dtype=object), pd.Series(rows), FRAME[["height"]].astype(object)):
        points = to_arrays("data", values)["points"]
        same = POINTS.numpy() if points.ndim == 2 else FRAME["height"]
        assert np.array_equal(points if points.ndim == 2 else points["height"], same)


@pytest.mark.e2e
def test_a_run_without_constant_columns_is_resumed_sampled_and_measured(tmp_path, capsys):
    frame = FRAME.drop(columns="kind").assign(nothing=0, age=np.arange(40) ** 2, one=1.0)
    frame.to_csv(tmp_path / "x.csv", index=False)
    for data in (frame, tmp_path / "x.csv"):
        run = nsgf.train(data, out_dir=tmp_path, overrides=SMALL, iterations=2)
        assert "2 of 5: nothing, one" in capsys.readouterr().out
        run = nsgf.train(resume=run.path, data=data, iterations=4, quiet=True)
        assert run.sample(5, seed=0).shape == (5, 3)
        assert run.evaluate()
        place = ["--run", str(run.path), "--device", "cpu"]
        assert (
            main(["sample", *place, "--num-samples", "4", "--out", str(tmp_path / "x.out.csv")])
            == 0
        )
        lines = (tmp_path / "x.out.csv").read_text().split()
        assert lines[0] == "height,weight,age"
        assert len(lines) == 5
        (tmp_path / "x.out.csv").unlink()
        assert run.report(tmp_path / "page.html")


def test_data_of_a_run_are_found_beside_it(tmp_path):
    """In the folder that a file names, also once the run is renamed; others leave no file.

    Past mistake: The path of a run's data went through the name of the run's folder, so a renamed
    run lost its data.
    """
    (tmp_path / "own.yaml").write_text(f"exp: points\nout_dir: {tmp_path}/runs\n")
    run = nsgf.train(config=tmp_path / "own.yaml", data=POINTS, overrides=SMALL, quiet=True)
    (file,) = (tmp_path / "runs" / ".data").iterdir()
    with pytest.raises(UserError, match=r"^data: holds other points"):
        nsgf.train(resume=run.path, data=POINTS + 1, quiet=True)
    assert list(file.parent.iterdir()) == [file]
    nsgf.train(resume=run.path, data=POINTS, quiet=True, iterations=5)
    moved = run.path.rename(tmp_path / "runs" / "renamed")
    assert nsgf.train(resume=moved, quiet=True, iterations=6).config.data.path == str(file)


def test_a_refused_call_leaves_the_data_of_others(tmp_path, monkeypatch):
    """Of one that begins and ends while the refused one is at work.

    Past mistake: A refused call removed a file that other calls shared. 12 of 16 correct calls
    failed in a race of three.
    """
    runs = []

    def refuse(*_):
        monkeypatch.undo()
        runs.append(train(tmp_path, data=POINTS))
        raise UserError("optim.lr = -1")

    monkeypatch.setattr(user_samples, "resolve", refuse)
    with pytest.raises(UserError, match="lr"):
        train(tmp_path, data=POINTS)
    (file,) = (tmp_path / ".data").iterdir()
    assert runs[0].config.data.path == str(file)


def test_data_may_be_a_place_and_the_first_argument(tmp_path, monkeypatch):
    """As ``--data.path`` takes them: images or points by what is there."""
    monkeypatch.chdir(tmp_path)
    np.save("own.npy", POINTS.numpy())
    np.savez("points.npz", points=POINTS, other=PIXELS)
    np.savez("own.npz", images=PIXELS, labels=LABELS)
    Path("2d").mkdir()  # names of experiments win
    Path("faces").mkdir()
    for number, picture in enumerate(PICTURES):
        picture.save(f"faces/{number}.png")
    ours = train("runs", exp=POINTS, iterations=2)
    for place in ("own.npy", Path("own.npy"), "points.npz"):
        other = nsgf.train(place, out_dir="runs", overrides=SMALL, iterations=2, quiet=True)
        assert torch.equal(ours.sample(9, seed=0), other.sample(9, seed=0))
    for how in ({"data": "own.npz"}, {"exp": "images", "data": "faces"}):
        run = train("runs", {"data.size": 8}, **how)
        assert (run.shape, run.config.exp) == ((1, 8, 8), "images")
    assert user_samples.split_data("2d", None) == ("2d", None)


def test_names_of_classes_may_be_objects():
    """As those of pandas."""
    words = ["b", "a"] * 20
    for names in (np.array(words, dtype=object), pd.Series(words, dtype="category")):
        assert to_arrays("data", PIXELS, names)["labels"].tolist() == words
    for kind in ("Int64", "category", "int8"):
        labels = to_arrays("data", PIXELS, pd.Series([1, 0] * 20).astype(kind))["labels"]
        assert labels.dtype == np.int64
        assert labels.tolist() == [1, 0] * 20
    assert (
        to_arrays("data", StackDataset(torch.from_numpy(PIXELS), words))["labels"].tolist() == words
    )


def test_labels_make_a_run_conditional(tmp_path):
    """The rate is that of every phase."""
    run = train(tmp_path, data=TensorDataset(torch.from_numpy(PIXELS) / 127.5 - 1, LABELS), lr=2e-3)
    assert run.config.nsgf.lr == run.config.nsf.lr == 2e-3
    assert (run.config.data.conditional, run.config.method) == (True, "nsgf++h")
    assert run.config.nsf.coupling == "independent"
    file = tmp_path / "told.yaml"
    file.write_text("exp: images\ndata: {conditional: true}\n")
    with pytest.raises(UserError, match=r"^data\.conditional = true"):
        train(tmp_path, data=PIXELS, config=file)
    assert run.sample(3, label=1).shape == (3, 1, 8, 8)
    again = nsgf.train(resume=run.path, data=PIXELS, labels=LABELS, quiet=True)
    assert torch.equal(again.sample(3, seed=0), run.sample(3, seed=0))


@pytest.mark.parametrize(
    "how",
    [
        {"data": POINTS, "labels": LABELS},
        {"data": TensorDataset(POINTS, LABELS)},
        {"data": POINTS, "labels": pd.Series(["b", "a"] * 20, dtype="category")},
        {"data": FRAME.assign(kind=["b", "a"] * 20), "overrides": {"data.label": "kind"}},
    ],
)
def test_points_have_classes_too(how, tmp_path):
    run = train(tmp_path, **{"iterations": 2, **how})
    data = run.config.data
    names = data.found.class_names
    assert data.conditional
    assert names in (["0", "1"], ["a", "b"])
    one, other = (run.sample(4, 0, label=name) for name in names)
    assert one.shape == (4, len(data.found.names))
    assert not torch.equal(one, other)
    both = run.sample(4, 0)
    torch.testing.assert_close(both, torch.where(torch.arange(4)[:, None] % 2 == 0, one, other))
    assert nsgf.train(resume=run, iterations=3, quiet=True).progress == {"nsgf": "3 of 3"}


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ({"data": POINTS, "exp": "images"}, "data: "),
        ({"data": POINTS, "exp": __file__}, "data: .*twice"),
        ({"data": "nothing.csv"}, r"data = .*nothing\.csv: no such file"),
        ({"exp": "~/nowhere"}, "data = .*nowhere: "),
        ({"exp": "twod"}, "exp = twod: .*2d"),
        ({"data": "nothing", "labels": LABELS}, "labels: "),
        ({"data": POINTS.log()}, "data: row 1, coordinate 1"),
        ({"data": PIXELS[..., :3]}, r"data: .*8, 3\)"),
        ({"data": np.where(PIXELS == 7, np.nan, FLOATS)}, "data: .*nan"),
        ({"data": MASKED}, "data: .*masked"),
        ({"data": StackDataset(MASKED)}, "data: .*masked"),
        ({"data": PIXELS, "labels": np.ma.masked_equal(LABELS.numpy(), 1)}, "labels: .*masked"),
        ({"data": PIXELS, "labels": ["cat", np.nan] * 20}, "labels: .*names"),
        ({"data": DataLoader(TensorDataset(POINTS))}, r"data: DataLoader .*loader\.dataset"),
        ({"data": StackDataset(PICTURES)}, "data: .*Image.*transform="),
        ({"data": FRAME}, "data: row 1, kind"),
        ({"data": FRAME[["height"]].mask(FRAME["height"] < -5)}, "data: row .*, height"),
        ({"data": pd.concat([FRAME, FRAME], axis=1)}, "data: .*height"),
        ({"data": FRAME, "columns": [1, "weight"]}, "data: columns"),
        *(
            ({"data": FRAME, "columns": columns}, "columns = ")
            for columns in ([], ["age"], [""], [0], [1.0], [None], {"height"}, [True, False, False])
        ),
        ({"exp": "2d", "columns": ["a"]}, "columns = a: "),
        ({"data": POINTS, "held_out": 1}, "held_out = 1.0: "),
        ({"data": POINTS, "held_out": "many"}, "held_out = many: "),
        ({"data": POINTS, "blur": 0}, "blur = 0.0: "),
        ({"data": POINTS, "blur": [0.5]}, "blur = .0.5.: "),
        ({"data": FRAME[:0]}, r"data: .*\(0, 3\)"),
        ({"data": FRAME.to_records(index=False)}, "data: row 1, kind: 'a' is text"),
        ({"data": pl.from_pandas(FRAME).lazy()}, r"data: LazyFrame .*collect"),
        ({"data": sparse.csr_matrix(POINTS)}, r"data: csr_matrix .*toarray"),
        ({"data": POINTS.to_sparse()}, "data: the tensor is sparse"),
        ({"data": SimpleNamespace(X=POINTS, obsm={}, obs=FRAME)}, r"data: .*x\.obsm"),
        ({"data": [[1.0, 2.0], [3.0]] * 20}, "data: list: rows of different lengths"),
        ({"data": [date(2020, 1, 1)] * 20}, r"data: list holds objects \(date\)"),
        ({"data": np.full((20, 2), None)}, "data: row 1, coordinate 1: missing"),
        ({"data": np.array([["a", 1.5]] * 20, object)}, "data: row 1, coordinate 1: 'a'"),
        ({"data": NANOSECONDS}, "data: coordinate 1: .*round"),
        ({"data": NANOSECONDS.numpy().astype("u8")}, "data: coordinate 1: .*round"),
        ({"data": pl.DataFrame({"a": NANOSECONDS[:, 0].numpy()})}, "data: a: .*round"),
        ({"data": torch.ones(20, 2)}, "data: constant .*coordinate 1, coordinate 2"),
        ({"data": TensorDataset(POINTS, POINTS[:, 0])}, "data: row 1, labels: .*whole number"),
        ({"data": POINTS, "labels": LABELS[:9]}, "data: labels: .*40 points"),
        ({"data": POINTS, "labels": ["cat", np.nan] * 20}, "labels: .*names"),
        ({"data": POINTS, "labels": LABELS, "overrides": {"data.label": "1"}}, "labels: .*twice"),
        ({"data": FRAME, "overrides": {"data.label": "kind"}}, "data: column kind.*one class"),
        (
            {"data": TensorDataset(torch.from_numpy(PIXELS), LABELS), "labels": LABELS},
            "data: .*lab",
        ),
        ({"data": PIXELS, "labels": LABELS[:9]}, "labels: .*40"),
        ({"data": POINTS, "method": "otcmf"}, "method = otcmf.*otcfm"),
        ({"data": POINTS, "batch_size": 0}, "batch_size = 0: "),
        ({"data": POINTS, "lr": -1.0}, "lr = -1.0: "),
    ],
)
def test_wrong_data_are_refused_by_their_argument(how, key, tmp_path):
    with pytest.raises(UserError, match=f"^[^-]*{key}"):
        train(tmp_path, **how)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def raise_at_the_end(update):
    if update.step == SMALL["optim.iterations"]:
        raise_signal(SIGINT)


class MyUNet(nn.Module):
    """One level down and up, with the time and perhaps a class, and code that reads a tensor."""

    def __init__(self, width=8, classes=0):
        super().__init__()
        self.first, self.down = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 2, 2)
        self.time, self.norm = nn.Linear(1, width), nn.GroupNorm(torch.tensor(2).item(), width)
        self.up, self.last = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(2 * width, 1, 1)
        self.label = nn.Embedding(classes + 1, width) if classes else None

    def forward(self, x, t, labels=None):
        skip = self.norm(self.first(x))
        given = self.time(t[:, None])
        if self.label is not None:
            given = given + self.label(labels)
        low = torch.relu(self.down(skip) + given[:, :, None, None])
        return self.last(torch.cat([skip, self.up(low)], 1))


class OwnState(MyUNet):
    """Registers a buffer in its first call."""

    def forward(self, x, t):
        self.register_buffer("scale", torch.ones(1))
        return super().forward(x, t)


class Flat(nn.Linear):
    """Returns another shape."""

    def __init__(self):
        super().__init__(64, 64)

    def forward(self, x, t):
        return super().forward(x.flatten(1))


class TimeFirst(MyUNet):
    """As networks of other libraries."""

    def forward(self, t, x):
        return super().forward(x, t)


def with_norm(norm):
    network = MyUNet()
    network.norm = norm
    return network


def with_buffer(buffer):
    network = MyUNet()
    network.register_buffer("mask", buffer)
    return network


def hooked(before=None, after=None):
    """A network whose inputs or answer a function changes."""
    network = MyUNet()
    if before:
        network.register_forward_pre_hook(lambda _, given: before(*given))
    if after:
        network.register_forward_hook(lambda _, given, answer: after(answer))
    return network


def with_random_part():
    part = torch.randn(8, 8)
    return hooked(lambda x, t: (x + part, t))


def interrupted_by(stop):
    """A maker of a network that calls ``stop`` in its third update."""

    def make():
        model, calls = MyUNet(), []

        def count(*_):
            calls.append(model.training)
            if sum(calls) == 3:
                stop()

        model.register_forward_pre_hook(count)
        return model

    return make


def train_own(folder, network, overrides=None, **how):
    settings = {"nsf.starts": 8, **(overrides or {})}
    return train(folder, settings, data=PIXELS, network=network, **how)


def test_a_network_is_interrupted_resumed_and_exported(tmp_path, capsys):
    """Bit for bit as without an interruption; a module that is passed stays as it was.

    Past mistake: A caller's function that makes a network was called on the meta device to count
    its weights, where ordinary code (`.item()`) fails.
    """

    def interrupt():
        raise KeyboardInterrupt

    whole = train_own(tmp_path / "whole", MyUNet).sample(5, seed=0)
    assert whole.shape == (5, 1, 8, 8)
    with pytest.raises(KeyboardInterrupt):
        train_own(tmp_path, interrupted_by(interrupt), {"train.checkpoint_every": 1})
    (folder,) = map(str, tmp_path.glob("images-*"))
    assert main(["train", "--run", folder, "--resume"]) == 2
    assert "model.network = MyUNet: " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"does not fit .* pass the network"):
        nsgf.train(resume=folder, network=MyUNet(16), quiet=True)
    network = MyUNet()
    before = [part.clone() for part in network.state_dict().values()]
    run = nsgf.train(resume=folder, network=network, quiet=True)
    assert "continues after step 2 of 4" in (run.path / "log.txt").read_text()
    assert torch.equal(run.sample(5, seed=0), whole)
    assert all(map(torch.equal, before, network.state_dict().values()))

    assert main(["export", "--run", folder, "--to", str(tmp_path / "out")]) == 2
    run.report(tmp_path / "r.html")
    assert "nsgf train" not in (tmp_path / "r.html").read_text()  # of another network
    run.export(tmp_path / "out")
    for place in (folder, tmp_path / "out"):
        assert torch.equal(nsgf.load(place, network=MyUNet()).sample(5, seed=0), whole)
        for other in (None, MyUNet(16), hooked(lambda x, t: (x.mul_(2), t))):
            with pytest.raises(UserError, match="network"):
                nsgf.load(place, network=other)


def test_a_network_of_another_class_is_refused(tmp_path):
    """The names and shapes of all weights agree, but the class may compute something else."""

    class Renamed(MyUNet):
        pass

    run = train_own(tmp_path, MyUNet)
    words = "model.network: the checkpoint has MyUNet, this command Renamed"
    for folder in (run.path, run.export(tmp_path / "exported")):
        with pytest.raises(UserError, match=words):
            nsgf.load(folder, network=Renamed())
    with pytest.raises(UserError, match=r"MyUNet.*Renamed"):
        nsgf.train(resume=run.path, network=Renamed(), iterations=6, quiet=True)


@pytest.fixture
def ours():
    """The handler of Ctrl-C that Python sets; shells start background processes without it."""
    before = signal(SIGINT, default_int_handler)
    yield default_int_handler
    signal(SIGINT, before)


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path, ours):
    """In the main thread, unless the caller handles it.

    Past mistake: Only an unfinished loop raised a stop, so a stop in the last step was lost and a
    loop over seeds continued after Ctrl-C.
    """
    stopped = interrupted_by(lambda: raise_signal(SIGINT))
    with pytest.raises(KeyboardInterrupt, match=r"nsgf: step 3 of 4\); .*network=") as caught:
        train_own(tmp_path, stopped)
    folder = re.search("resume='(.*)'", str(caught.value))[1]
    assert nsgf.train(resume=folder, network=MyUNet(), quiet=True).progress["nsgf"] == "4 of 4"
    assert getsignal(SIGINT) is ours
    with pytest.raises(KeyboardInterrupt, match=r"SIGINT.* complete"):  # in the last update
        train(tmp_path, data=POINTS, method="otcfm", callback=raise_at_the_end)

    def refuse(*_):
        raise RuntimeError("the caller's own handler")

    signal(SIGINT, refuse)
    try:
        with pytest.raises(RuntimeError, match="own handler"):
            train_own(tmp_path, stopped)
    finally:
        signal(SIGINT, ours)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(train, tmp_path, data=POINTS).result()
    assert other.progress["nsgf"] == "4 of 4"


def test_a_callback_sees_the_training_and_does_not_change_it(tmp_path, capsys):
    """Bit for bit; its samples are those of the averaged weights of now, also of own networks."""
    seen, shown = [], []

    def watch(update):
        print("loss", update.loss)
        show("printed by the package")
        torch.rand(3), np.random.rand()  # noqa: NPY002
        seen.append((update.phase, update.step, update.loss))
        shown.append(update.run().sample(4, seed=0))

    settings = {"nsf.starts": 8, "model.unet.dropout": 0.3, "optim.ema_decay": 0.5}
    how = {"data": PIXELS, "method": "nsgf++h"}
    run = train(tmp_path / "watched", settings, callback=watch, **how)
    printed = capsys.readouterr().out
    assert printed.count("loss ") == printed.count("printed by the package") == 8
    assert [place[:2] for place in seen] == [*product(("nsgf", "nsf"), (1, 2, 3, 4))]
    assert [loss for *_, loss in seen] == [line["loss"] for line in records(run)]
    assert not any(map(torch.equal, shown, shown[1:]))
    assert torch.equal(shown[-1], run.sample(4, seed=0))
    plain = train(tmp_path, settings, **how)
    for phase in ("nsgf", "nsf"):
        files = [one.folder.checkpoint_file(phase) for one in (run, plain)]
        ours, same = (checkpoint.load(file)["model"] for file in files)
        assert all(map(torch.equal, ours.values(), same.values()))
    own = train_own(tmp_path, MyUNet, callback=lambda update: shown.append(update.run()))
    assert torch.equal(shown[-1].sample(4, seed=0), own.sample(4, seed=0))


@pytest.mark.parametrize(
    ("method", "phase", "step", "used"),
    [
        ("nsgf++", "nsgf", 2, {"nsgf": "2 of 4", "nsf": "not used", "predictor": "not used"}),
        ("nsgf++", "nsgf", 4, {"nsgf": "4 of 4", "nsf": "not used", "predictor": "not used"}),
        ("nsgf++", "nsf", 3, {"nsgf": "4 of 4", "nsf": "not used", "predictor": "not used"}),
        ("nsgf++h", "nsf", 3, {"nsgf": "4 of 4", "nsf": "3 of 4"}),
        ("otcfm", "peer", 4, {"peer": "4 of 4"}),
    ],
)
def test_a_callback_that_returns_false_ends_training_with_a_run(
    method, phase, step, used, tmp_path, capsys
):
    """It samples with the networks that are trained; a resumed one is that of a single session."""

    def until(update):
        return (update.phase, update.step) != (phase, step)

    how = {"data": POINTS, "method": method, "overrides": {"nsf.starts": None, **SMALL}}
    run = nsgf.train(out_dir=tmp_path, callback=until, **how)
    assert run.progress == used
    log = (run.path / "log.txt").read_text()
    assert ("nsf: not begun" in log) == (phase == "nsgf" and step == 4)
    assert run.sample(3, seed=0).isfinite().all()
    again = f"nsgf.train(resume={str(run.path)!r})"
    is_whole = "peer" in used
    for said in (capsys.readouterr().out, (run.path / "log.txt").read_text()):
        assert (again in said) == (not is_whole)
    whole = nsgf.train(out_dir=tmp_path, quiet=True, **how)
    resumed = nsgf.train(resume=run.path, quiet=True)
    assert torch.equal(resumed.sample(5, seed=0), whole.sample(5, seed=0))


class Mine(Exception):
    """An exception of a caller."""


@pytest.mark.parametrize("kind", [Mine, KeyboardInterrupt, SystemExit])
def test_an_exception_of_a_callback_leaves_a_run_to_use_and_to_resume(kind, tmp_path):
    def fails(update):
        if update.step == 3:
            raise kind("mine")

    with pytest.raises(kind, match="mine"):
        train(tmp_path, data=POINTS, callback=fails)
    [folder] = tmp_path.glob("points-*")
    assert nsgf.load(folder).progress["nsgf"] == "3 of 4"
    resumed = nsgf.train(resume=folder, quiet=True)
    whole = train(tmp_path, data=POINTS)
    assert torch.equal(resumed.sample(5, seed=0), whole.sample(5, seed=0))


def test_random_numbers_of_the_caller_stay(tmp_path):
    """Past mistake: The promise held for torch's generator only: torchcfm moved NumPy's."""
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run = train_own(tmp_path, MyUNet, {"nsf.starts": None}, method="otcfm")
    for folder in (run.path, run.export(tmp_path / "out")):
        nsgf.load(folder, network=MyUNet)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_a_network_is_given_classes(tmp_path):
    settings = {"nsf.starts": None, "generator.batch_size": 12}
    run = train_own(
        tmp_path, MyUNet(classes=2), settings, labels=np.arange(40) % 2, method="onecall"
    )
    assert not torch.equal(run.sample(4, 0, label=0), run.sample(4, 0, label=1))


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (MyUNet(classes=2), "network: fails with .*NoneType"),
        (TimeFirst(), r"network: .*forward\(t, x\) must be forward\(x, t\)"),
        (Flat(), r"network: .*returns \[2, 64\]"),
        (MyUNet().requires_grad_(False), "network: .*grad"),
        (OwnState(), "network: .*scale"),
        (with_norm(nn.BatchNorm2d(8)), "network: .*running_mean"),
        (hooked(lambda x, t: (x.mul_(2), t)), "network: .*changes its inputs"),
        (with_norm(nn.LazyConv2d(8, 1)), "network: .*Lazy"),
        (hooked(lambda x, t: (x, t.mul_(1000))), "network: .*changes its inputs"),
        (hooked(after=torch.Tensor.detach), "network: .*grad"),
        (with_buffer(torch.tensor([-torch.inf])), "network: .*mask is not finite"),
        (with_buffer(torch.zeros(1).expand(4)), "network: .*mask"),
        (with_random_part, "network: .*register_buffer"),
        *(
            (network, "network: must be a torch.nn.Module")
            for network in ("unet", 3, MyUNet().state_dict(), [MyUNet()], Path("unet.pt"), dict)
        ),
        (lambda: 3, "network: .*returns int"),
        (lambda: MyUNet, "network: .*returns type"),
        (lambda x, t: x, "network: must be a torch.nn.Module.*arguments"),
        (functools.partial(nn.Linear, 3), "network: must be a torch.nn.Module.*arguments"),
        (nn.Linear(3, 2), "network: .*positional arguments"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(network, what, tmp_path):
    """Past mistake: The average of weights copied the buffers of a caller's network. Running
    statistics of a skipped update stayed not finite.

    Past mistake: A network class drew random features that no checkpoint holds, so sampling made
    another network. Only one network of a class was made and checked.
    """
    with pytest.raises(UserError, match=what):
        train_own(tmp_path, network)
    assert not list(tmp_path.glob("images-*"))
