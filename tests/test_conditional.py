"""Runs whose networks are told classes, from training to samples, measures and exports."""

from dataclasses import replace

import numpy as np
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
