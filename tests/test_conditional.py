"""Runs whose networks are told classes, from training to samples, measures and exports."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import nsgf
from nsgf import UserError
from nsgf.cli.arguments import parse
from nsgf.commands.evaluate import evaluate_run
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.experiment import Experiment
from nsgf.plots.samples import draw_rows
from nsgf.sampling.generate import generate
from tests.conftest import shipped


def sampled(config, **changes):
    return replace(config, sampling=replace(config.sampling, **changes))


def test_samples_come_class_by_class_with_their_labels(told_run, monkeypatch):
    config, run = told_run
    shown = []
    monkeypatch.setattr(
        "nsgf.commands.sample.draw_rows", lambda *how: shown.append(how) or draw_rows(*how)
    )
    sample_run(Experiment(config), run)
    saved = np.load(run.samples / "samples.npz")
    assert saved["labels"].tolist() == [i % 10 for i in range(23)]
    assert saved["class_names"].tolist() == [*"0123456789"]
    x = torch.from_numpy(saved["x"])
    drawn, names = shown[0]
    assert torch.equal(drawn.clamp(-1, 1), x[[c + 10 * k for c in range(10) for k in range(2)]])
    assert names == (*"0123456789",)
    assert torch.equal(nsgf.load(run.path).sample(23, seed=config.seed), x)


def test_label_of_a_command_line_is_that_of_all_samples(told_run, small_run, tmp_path):
    config, run = told_run
    asked = parse(["sample", "--run", str(run.path), "--label", "7"]).config
    sample_run(Experiment(asked), run)
    saved = np.load(run.samples / "samples-label7.npz")
    assert saved["labels"].tolist() == [7] * 23
    sample_run(Experiment(asked), run, out=str(tmp_path / "pictures"))
    assert (tmp_path / "pictures" / "000022-7.png").is_file()
    opened = nsgf.load(run.path)
    sevens = opened.sample(23, label="7", seed=config.seed)
    assert np.array_equal(sevens.numpy(), saved["x"])
    own = opened.sample(23, seed=config.seed)
    assert torch.allclose(own[[7, 17]], sevens[[7, 17]], atol=1e-5)
    assert not torch.allclose(own[[6, 16]], sevens[[6, 16]], atol=1e-5)
    with pytest.raises(UserError, match=r"label = 10: must be "):
        opened.sample(3, label=10)
    with pytest.raises(UserError, match=r"label = 1: must be"):
        nsgf.load(small_run.path).sample(3, label=1)
    with pytest.raises(UserError, match=r"sampling\.guidance"):
        nsgf.load(run.path, overrides={"sampling.guidance": 3.0}).sample(2, nfe=2)


def test_measures_have_all_classes(told_run, monkeypatch):
    config, run = told_run
    drawn, draw = [], generate

    def spy(*how, **named):
        drawn.append(draw(*how, **named))
        return drawn[-1]

    monkeypatch.setattr("nsgf.commands.evaluate.generate", spy)
    _, measures = evaluate_run(Experiment(sampled(config, guidance=2.0)), run)
    assert drawn[0].labels.tolist() == [i % 10 for i in range(24)]  # in batches of 8
    assert measures["nfe"] == measures["expected_nfe"] == 2
    assert measures["sampling"]["guidance"] == 2
    with pytest.raises(UserError, match=r"^sampling\.label = 3: "):
        evaluate_run(Experiment(sampled(config, label=3)), run)


@pytest.mark.e2e
@pytest.mark.parametrize("source", ["prior", "nsgf"])
def test_all_phases_learn_classes(source, tmp_path):
    flags = ["--data.conditional=true", "--smoke", "--device=cpu", f"--nsf.source={source}"]
    flags += ["--nsf.starts=20"] if source == "nsgf" else []
    config = shipped("digits/nsgf++", *flags, "--sampling.guidance=2", "--sampling.batch_size=3")
    config = replace(config, out_dir=str(tmp_path))
    run = train(Experiment(config))
    assert all(
        (run.samples / f"phase{n}_{name}.png").is_file()
        for n, name in enumerate(("nsgf", "nsf", "predictor"), start=1)
    )
    sampler, _ = Experiment(config).load_sampler(run)
    found = sampler(torch.randn(3, 1, 8, 8))
    assert found.nfe == sampler.expected_nfe == 2 * config.flow.steps + 1 + 2 * 2
    assert f"NFE {found.nfe:g}" in sample_run(Experiment(config), run)[0]


def test_settings_are_fitted_to_classes_that_a_file_asks_for(tmp_path):
    file = tmp_path / "classes.yaml"
    file.write_text("exp: digits\ndata: {conditional: true}\n")
    assert parse(["train", "--config", str(file)]).config.nsf.coupling == "independent"


def test_comparison_tells_what_it_chose_for_each_method():
    """Past mistake: A comparison printed the note about settings chosen for classes for its first
    method only.
    """
    words = ["compare", "--exp", "digits", "--data.conditional", "true"]
    notes = parse([*words, "--compare.methods=[nsgf++h,2rf,icfm]"]).notes
    assert [note.partition(" 10 ")[0] for note in notes] == [
        "method nsgf++h: chosen for",
        "method 2rf: chosen for",
    ]
    assert notes[1].endswith("reflow.pairs 4100")


# --- points -------------------------------------------------------------------------------------

SIDES = {"left": [-4.0, 0.0], "right": [4.0, 1.0]}
KINDS = np.array([*SIDES])[np.arange(400) % 4 // 3]
"""300 rows left, 100 rows right."""
TABLE = pd.DataFrame(
    [SIDES[kind] for kind in KINDS] + np.random.default_rng(0).standard_normal((400, 2)) / 2,
    columns=["a", "b"],
).assign(side=KINDS)
SMALL = {
    "data.label": "side",
    "sinkhorn.batch_size": 64,
    "pool.num_batches": 8,
    "model.mlp.width": 64,
    "sampling.num_samples": 6,
    "train.preview": False,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """A short run of a table with two classes."""
    return nsgf.train(
        TABLE,
        iterations=5,
        out_dir=tmp_path_factory.mktemp("sides"),
        overrides={**SMALL, "optim.batch_size": 8},
        quiet=True,
    )


@pytest.mark.e2e
@pytest.mark.parametrize("method", ["nsgf", "nsgf++h", "otcfm", "onecall"])
def test_points_of_a_class_lie_where_the_class_lies(method, tmp_path):
    updates = {"optim.batch_size": 66 if method == "onecall" else 64}
    run = nsgf.train(
        TABLE,
        method=method,
        iterations=300,
        out_dir=tmp_path,
        overrides={**SMALL, **updates},
        quiet=True,
    )
    for name, centre in SIDES.items():
        samples = run.sample(300, seed=0, label=name)
        torch.testing.assert_close(samples.mean(0), torch.tensor(centre).double(), atol=0.4, rtol=0)
        assert ((samples[:, 0] < 0) == (centre[0] < 0)).float().mean() > 0.99


def test_tables_of_samples_have_the_class_in_their_last_column(sides, tmp_path):
    experiment = Experiment(sides.config)
    expected = sides.sample(6, seed=sides.config.seed).numpy()
    for name, read in {
        "x.csv": pd.read_csv,
        "x.tsv": lambda file: pd.read_csv(file, sep="\t"),
        "x.parquet": pd.read_parquet,
    }.items():
        sample_run(experiment, sides.folder, out=str(tmp_path / name))
        table = read(tmp_path / name)
        assert [*table] == ["a", "b", "side"]
        assert table["side"].tolist() == ["left", "right"] * 3
        np.testing.assert_allclose(table[["a", "b"]], expected)
    sample_run(experiment, sides.folder, out=str(tmp_path / "x.npz"))
    saved = np.load(tmp_path / "x.npz")
    assert saved["labels"].tolist() == [0, 1] * 3
    assert saved["class_names"].tolist() == ["left", "right"]
    config = sampled(sides.config, label="right", guidance=2.0)
    sample_run(Experiment(config), sides.folder, out=str(tmp_path / "right.csv"))
    assert pd.read_csv(tmp_path / "right.csv")["side"].tolist() == ["right"] * 6


def test_a_run_of_points_with_classes_is_shared_and_measured(sides, tmp_path):
    """The densities of the classes differ."""
    text = sides.export(tmp_path / "out").joinpath("README.md").read_text()
    assert "one of 2 classes, `left, right`" in text
    again = nsgf.load(tmp_path / "out")
    assert torch.equal(again.sample(4, 0, label="left"), sides.sample(4, 0, label="left"))
    page = sides.report(tmp_path / "page.html").read_text()
    assert "Classes: left, right" in page
    assert "points of class left" in page
    x = torch.zeros(2, 2)
    left, right = (sides.log_prob(x, labels=name).value for name in SIDES)
    assert not torch.allclose(left, right)
    assert torch.allclose(sides.log_prob(x, labels=["left", "right"]).value[1], right[1])
    moved = sides.transport(TABLE[:4])  # left, left, left, right
    assert [*moved] == ["a", "b"]
    for name, part in {"left": slice(3), "right": slice(3, 4)}.items():
        np.testing.assert_allclose(moved[part], sides.transport(TABLE[:4], label=name)[part])


def test_a_label_column_without_classes_is_only_left_out(tmp_path):
    """With data.conditional false, the run is that of the coordinates."""
    how = {"iterations": 5, "out_dir": tmp_path, "quiet": True}
    settings = {**SMALL, "optim.batch_size": 8}
    plain = {**settings, "data.label": None, "data.columns": "a,b"}
    one = nsgf.train(TABLE, overrides={**settings, "data.conditional": False}, **how)
    other = nsgf.train(TABLE, overrides=plain, **how)
    assert not one.config.data.conditional
    assert torch.equal(one.sample(9, seed=0), other.sample(9, seed=0))
    with pytest.raises(UserError, match="label = left: "):
        one.sample(2, label="left")
