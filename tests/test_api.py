"""The names that the package offers to programs."""

import json
import math
import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nsgf
from nsgf import UserError
from nsgf.commands.sample import sample_run
from nsgf.commands.train import train
from nsgf.data.images import to_bytes
from nsgf.experiment import Experiment
from tests.conftest import CPU

SMALL = {
    "optim.iterations": 4,
    "optim.batch_size": 8,
    "pool.num_batches": 2,
    "sinkhorn.batch_size": 8,
    "model.mlp.width": 16,
    "train.preview": False,
    "device": "cpu",
}


def test_every_name_that_is_offered_is_there():
    assert {*nsgf._PLACES, "UserError", "__version__"} == set(nsgf.__all__) == set(dir(nsgf))
    assert all(hasattr(nsgf, name) for name in nsgf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sampler'"):
        _ = nsgf.sampler


def test_samples_are_those_of_the_command_and_new_unless_seeded(small, small_run):
    sample_run(Experiment(replace(small, seed=5)), small_run)
    saved = np.load(small_run.samples / "samples-seed5.npz", allow_pickle=False)["x"]
    run = nsgf.load(small_run.path)
    assert np.array_equal(run.sample(20, seed=5).numpy(), saved)
    torch.manual_seed(1)
    one, other = run.sample(20), run.sample(20)
    assert not torch.equal(one, other)
    torch.manual_seed(1)
    assert torch.equal(run.sample(20), one)


@pytest.mark.e2e
def test_images_are_clamped_unless_raw_values_are_wanted(digits_run):
    """Networks that are hardly trained leave [-1, 1]."""
    run = nsgf.load(digits_run[1].path)
    x, raw = run.sample(6, seed=0), run.sample(6, seed=0, raw=True)
    assert raw.abs().max() > 1
    assert torch.equal(x, raw.clamp(-1, 1))


def test_samples_do_not_depend_on_their_number_or_batches(small_run, capsys):
    """Loading and sampling write and print nothing."""
    before = {path: path.stat().st_mtime_ns for path in small_run.path.rglob("*")}
    run = nsgf.load(str(small_run.path))
    every = run.sample(20, seed=1)
    assert every.shape == (20, *run.shape) == (20, 2)
    torch.testing.assert_close(run.sample(7, seed=1), every[:7])
    torch.testing.assert_close(run.sample(20, seed=1, batch_size=3), every)
    assert {path: path.stat().st_mtime_ns for path in small_run.path.rglob("*")} == before
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("solver", ["heun", "dopri5"])
def test_only_samples_of_dopri5_depend_on_their_batch(small_run, solver):
    """As the docstring says."""
    settings = {"sampling.solver": solver}
    settings |= {"sampling.tolerance": 0.1} if solver == "dopri5" else {}
    run = nsgf.load(small_run.path, overrides=settings)
    alone, together = (run.sample(20, seed=1, batch_size=size) for size in (1, 20))
    assert torch.allclose(alone, together, atol=1e-5) == (solver != "dopri5")
    assert "dopri5" in nsgf.Run.sample.__doc__


@pytest.mark.parametrize(("nfe", "steps", "straight"), [(3, 1, 1), (20, 3, 16)])
def test_calls_are_shared_as_in_the_comparison(small_run, nfe, steps, straight):
    """One for the predictor, at most T = 3 and half of the others for NSGF."""
    run = nsgf.load(small_run.path)
    config = run.config
    settings = {"sampling.nsgf_steps": steps, "sampling.straight_steps": straight}
    by_hand = nsgf.load(small_run.path, overrides=settings)
    assert by_hand.sampler(torch.randn(2, 2)).nfe == nfe
    assert torch.equal(run.sample(8, 0, nfe=nfe), by_hand.sample(8, 0))
    assert run.config == config
    assert run.sampler(torch.randn(2, 2)).nfe == 3 + 1 + 4  # as configured, before and after


def test_networks_can_be_called(small_run):
    """Past mistake: The wrapper around a network in eval mode was itself in training mode, so
    `network.training` was wrong.
    """
    run = nsgf.load(small_run.path)
    assert set(run.networks) == {"nsgf", "nsf", "predictor"}
    assert run.progress == dict.fromkeys(run.networks, "12 of 12")
    x, t = torch.randn(5, 2), torch.rand(5)
    assert run.networks["nsgf"](x, t).shape == (5, 2)
    assert run.networks["predictor"](x).shape == (5,)
    for network in run.networks.values():
        assert not network.training
        assert not any(part.requires_grad for part in network.parameters())


def test_a_run_does_what_the_commands_do(small_run, tmp_path, monkeypatch):
    """Past mistake: A shorter check of types dropped the conversion of numpy's whole numbers:
    "nfe = 9: must be a whole number".
    """
    run = nsgf.load(small_run.path)
    assert run.evaluate()["w2"] == json.loads((run.path / "metrics.json").read_text())["w2"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run.report("~/page.html").read_text().lower().startswith("<!doctype html>")
    exported = nsgf.load(run.export("~/out"))
    assert torch.equal(
        exported.sample(np.int64(5), np.int32(0), nfe=np.int64(9)), run.sample(5, 0, nfe=9)
    )
    for work in (exported.report, exported.export):
        with pytest.raises(UserError, match="was exported"):
            work(tmp_path / "x.html")
    with pytest.raises(UserError, match=r"^file = .*\.html"):
        run.report(tmp_path / "x.pdf")


def test_samples_are_shown(small_run, tmp_path, monkeypatch):
    """As PIL images: a list of single ones, a grid, or a plot of points."""
    run = nsgf.load(small_run.path)
    assert run.show(20, seed=0, nfe=5).size[0] > 300
    assert run.show(20, seed=0) != run.show(20, seed=1)
    with pytest.raises(UserError, match="images"):
        run.images(2)
    images = {channels: torch.rand(4, channels, 8, 8) * 2 - 1 for channels in (1, 3)}
    monkeypatch.setattr(nsgf.Run, "shape", (1, 8, 8))
    for given in images.values():
        monkeypatch.setattr(nsgf.Run, "sample", lambda *_, given=given, **how: given)
        pictures = run.images(4)
        assert np.array_equal(pictures[3], to_bytes(given)[3].permute(1, 2, 0).squeeze().numpy())
        run.save_images(tmp_path / "a.png", given)
        assert np.array_equal(run.show(4), Image.open(tmp_path / "a.png"))
        for wrong in (2 * given, given[:0]):
            with pytest.raises(UserError, match="samples"):
                run.save_images(tmp_path / "a.png", wrong)
        with pytest.raises(UserError, match="file"):
            run.save_images(tmp_path / "a.jpg", given)


def test_a_run_is_opened_on_another_device(small_run):
    run = nsgf.load(small_run.path, overrides={"sampling.solver": "heun"})
    assert torch.equal(run.to(CPU).sample(5, seed=0), run.sample(5, seed=0))
    with pytest.raises(UserError, match="device = cuda:99"):
        run.to("cuda:99")


def test_an_open_run_stands_for_its_folder(small_run):
    """Opened again, it shows updates that were trained since."""
    run = nsgf.load(small_run.path, overrides={"sampling.solver": "heun"})
    longer = nsgf.train(resume=run, overrides={"nsf.iterations": 14}, quiet=True)
    assert longer.path == run.path
    assert longer.progress["nsf"] == "14 of 14"
    assert run.progress["nsf"] == "12 of 12"
    again = nsgf.load(run)
    assert again.progress == longer.progress
    assert again.config.sampling.solver == "euler"
    exported = nsgf.load(run.export(small_run.path.parent / "exported"))
    assert nsgf.load(exported).path == exported.path
    with pytest.raises(UserError, match="exported"):
        nsgf.train(resume=exported)


def test_an_open_run_brings_the_network_of_the_caller(tmp_path):
    how = {"network": Sixteen, "overrides": {**SMALL, "phases": ["nsgf"]}, "quiet": True}
    run = nsgf.train("2d", out_dir=tmp_path, **how)
    assert torch.equal(nsgf.load(run).sample(5, seed=0), run.sample(5, seed=0))
    longer = nsgf.train(resume=run, iterations=6, quiet=True)
    assert longer.progress["nsgf"] == "6 of 6"
    with pytest.raises(UserError, match="network"):
        nsgf.load(run, network=torch.nn.Linear(3, 2))


@pytest.mark.parametrize("minutes", [0.5, "0.5", np.float32(0.5), torch.tensor(0.5)])
def test_minutes_may_be_any_number(minutes, tmp_path, monkeypatch):
    class Begun(Exception):
        pass

    def fit_minutes(_, minutes, *__, **___):
        raise Begun(repr(minutes))

    monkeypatch.setattr("nsgf.api.train.fit_minutes", fit_minutes)
    with pytest.raises(Begun, match=r"^0\.5$"):
        nsgf.train("2d", minutes=minutes, out_dir=tmp_path, quiet=True)


@pytest.mark.parametrize(
    "minutes", ["2m", "90s", "1h", "", "nan", "-1", math.nan, math.inf, 0, -2, True, [1], "1e400"]
)
def test_wrong_minutes_are_refused(minutes, tmp_path):
    with pytest.raises(UserError, match=r"^minutes = "):
        nsgf.train("2d", minutes=minutes, out_dir=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "how", "key"),
    [
        ({}, {"n": 0}, "n = 0"),
        ({}, {"n": 4, "seed": -1}, "seed = -1"),
        ({}, {"n": 4, "nfe": 2}, "nfe = 2: must be a whole number >= 3"),
        *(({}, {"n": 4, "nfe": nfe}, f"nfe = {nfe}: must be") for nfe in (9.0, "many", True, [9])),
        *(({}, {"n": n}, f"n = {n}: must be") for n in (-3, 64.0, "many", True, [4])),
        ({}, {"n": 4, "nfe": 10**9}, "nfe = 1000000000: "),
        ({"sampling.straight_steps": 10**9}, {"n": 4}, "sampling.straight_steps = 1000000000: "),
        ({"sampling.solver": "dopri5"}, {"n": 4, "nfe": 10}, "nfe = 10: sampling.solver"),
        ({"sampling.stepz": 3}, {"n": 4}, "sampling.stepz"),
        ({"device": "tpu"}, {"n": 4}, "device = tpu"),
    ],
)
def test_wrong_settings_are_refused(small_run, overrides, how, key):
    with pytest.raises(UserError, match=re.escape(key)):
        nsgf.load(small_run.path, overrides=overrides).sample(**how)


def test_training_in_a_program(tmp_path, capsys):
    """Quiet; a resume trains on."""
    settings = {**SMALL, "out_dir": tmp_path, "phases": ("nsgf",)}
    run = nsgf.train("2d", dataset="moons", overrides=settings, quiet=True)
    assert capsys.readouterr() == ("", "")
    assert run.path.parent == tmp_path
    assert run.config.data.name == "moons"
    assert run.progress == {"nsgf": "4 of 4"}
    longer = nsgf.train(resume=run.path, overrides={"nsgf.iterations": 6})
    assert longer.path == run.path
    assert longer.progress == {"nsgf": "6 of 6"}
    assert "nsgf: step 6 of 6" in capsys.readouterr().out


class Sixteen(torch.nn.Linear):
    """Enters an autocast context that was made outside of the training."""

    context = torch.autocast("cpu", torch.bfloat16)

    def __init__(self):
        super().__init__(3, 2)

    def forward(self, x, t):
        with self.context:
            return super().forward(torch.cat([x, t[:, None]], 1)).float()


@pytest.mark.parametrize("network", [None, Sixteen])
def test_training_in_bf16_is_that_of_the_command(network, tmp_path):
    """A context around the training would keep the first weights in 16 bits."""
    settings = {**SMALL, "phases": ("nsgf",), "train.precision": "fp32" if network else "bf16"}
    how = {"network": network, "overrides": settings, "quiet": True}
    run = nsgf.train("2d", out_dir=tmp_path / "a", **how)
    config = replace(run.config, out_dir=str(tmp_path / "b"))
    folder = train(Experiment(config), network=network)
    losses = [(path / "metrics.jsonl").read_bytes() for path in (run.path, folder.path)]
    assert losses[0] == losses[1]


def test_open_run_does_not_depend_on_the_working_directory(small_run, tmp_path, monkeypatch):
    """As a notebook changes it, or a callback.

    Past mistake: An open run kept a relative path, and nothing worked after `os.chdir`.
    """
    monkeypatch.chdir(small_run.path.parent)
    run = nsgf.load(small_run.path.name)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    run.to("cpu").evaluate()
    run.report(tmp_path / "page.html")
    run.export(tmp_path / "exported")
    assert (run.path, run.config.out_dir) == (small_run.path, str(small_run.path.parent))
    assert nsgf.load("mnist").config.data.root == str(elsewhere / "data")
    how = {"callback": lambda _: os.chdir(tmp_path), "overrides": SMALL, "quiet": True}
    assert nsgf.train("2d", out_dir="own", **how).path.parent == elsewhere / "own"
    assert [file.name for file in elsewhere.iterdir()] == ["own"]


def test_training_from_a_file_until_the_time_is_over(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("exp: own\ndata: {name: moons}\nmodel: {mlp: {width: 8}}\nphases: [nsgf]\n")
    for how, key in (({}, "exp=NAME"), ({"exp": "2d", "iterations": 2.5}, "iterations = 2.5")):
        with pytest.raises(UserError, match=key):
            nsgf.train(**how, out_dir=tmp_path)
    settings = {**SMALL, "out_dir": tmp_path, "train.max_hours": 1e-9}
    with pytest.raises(
        UserError, match=r"max_hours = 1e-09 is over, .*nsgf\.train\(resume='.*/own-"
    ):
        nsgf.train(config=file, overrides=settings, quiet=True)


def test_lines_of_the_readme_run(tmp_path, monkeypatch):
    """As they stand there, with fewer updates."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n)+", text, re.MULTILINE)
    code = "".join(block for block in blocks if "import nsgf" in block or "matcher" in block)
    train = nsgf.train

    def short_train(x, iterations):
        return train(x, iterations=min(iterations, 4), overrides=SMALL)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nsgf, "train", short_train, raising=False)
    names = {}
    exec(textwrap.dedent(code), names)
    assert names["points"].shape == (64, 2)
    assert names["ut"].shape == (256, 2)
    assert (tmp_path / "ring.png").exists()
    assert (tmp_path / "my-model" / "config.json").exists()


def trained_on(rows, out_dir, **others):
    settings = {**SMALL, "optim.iterations": 300, "optim.batch_size": 128, **others}
    return nsgf.train(rows, method="icfm", out_dir=out_dir, overrides=settings)


def test_density_of_a_trained_run_integrates_to_one(tmp_path):
    """And it is that of a Gaussian, the law of the rows, in the units of the rows."""
    rows = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0)).double()
    rows[:, 1] = (rows[:, 1] + rows[:, 0]) * 30 + 500
    run = trained_on(rows, tmp_path)
    axes = [torch.linspace(-6, 6, 61), torch.linspace(200, 800, 61)]
    found = run.log_prob(torch.cartesian_prod(*axes), steps=10, batch_size=4000)
    cell = 12 / 60 * 600 / 60
    assert float(found.value.exp().sum()) * cell == pytest.approx(1, abs=0.01)
    assert (found.error == 0).all()
    law = torch.distributions.MultivariateNormal(
        torch.tensor([0.0, 500.0]).double(), torch.tensor([[1.0, 30.0], [30.0, 1800.0]]).double()
    )
    test = law.sample((500,))
    difference = run.log_prob(test, steps=10).value - law.log_prob(test)
    assert -0.2 < float(difference.mean()) < 0.03  # minus the Kullback-Leibler divergence
    assert float(difference.std()) < 0.4


def test_density_changes_with_the_units_of_columns(tmp_path):
    """And not with batches. A table and an array of numpy are samples too."""
    rows = np.random.default_rng(0).normal(size=(300, 3))
    scale = np.array([1.0, 1000.0, 0.01])
    small = {"optim.iterations": 5}
    one, other = (
        trained_on(part, tmp_path / name, **small)
        for name, part in {"one": rows, "other": rows * scale}.items()
    )
    expected = one.log_prob(rows, steps=5).value - math.log(10)
    found = other.log_prob(torch.from_numpy(rows * scale), steps=5, batch_size=7).value
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_density_of_a_class_uses_its_label(tmp_path):
    settings = {"smoke": True, "data.conditional": True, "device": "cpu", "peer.lr": 0.1}
    run = nsgf.train("digits", method="icfm", out_dir=tmp_path, overrides=settings)
    x = run.sample(4, seed=0)
    how = {"steps": 1, "probes": 2, "seed": 0}
    of_class = run.log_prob(x, "3", **how)
    assert torch.equal(run.log_prob(x, [3, 3, 3, 3], **how).value, of_class.value)
    assert torch.equal(run.log_prob(x, torch.tensor([3] * 4), **how).value, of_class.value)
    assert not torch.allclose(run.log_prob(x, 4, **how).value, of_class.value)
    assert (of_class.error > 0).all()
    chosen = nsgf.load(run, overrides={"sampling.label": 3})
    assert torch.equal(chosen.log_prob(x, **how).value, of_class.value)
    for labels in (None, 10, "ten", [0, 1]):
        with pytest.raises(UserError, match="labels: must be"):
            run.log_prob(x, labels, **how)
    with pytest.raises(UserError, match="floats"):
        run.log_prob(to_bytes(x), 3, **how)


def test_networks_in_16_bits_have_the_density_of_float32(tmp_path):
    settings = {"smoke": True, "device": "cpu"}
    run = nsgf.train("digits", method="otcfm", out_dir=tmp_path, overrides=settings)
    x = run.sample(3, seed=0)
    rounded = nsgf.load(run, overrides={"train.precision": "bf16"})
    assert not torch.equal(rounded.sample(3, seed=0), x)
    how = {"steps": 2, "probes": 2, "seed": 0}
    assert torch.equal(rounded.log_prob(x, **how).value, run.log_prob(x, **how).value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"probes": 1}, "probes = 1"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"labels": 0}, "labels: have no effect"),
        ({"x": torch.zeros(2, 3)}, r"x is \(2, 3\)"),
    ],
)
def test_wrong_arguments_of_a_density_are_refused(small_run, how, words):
    run = nsgf.load(small_run.path, overrides={"sampling.tau": 0.5})
    assert run.log_prob(torch.zeros(2, 2), steps=1).value.isfinite().all()
    with pytest.raises(UserError, match=words):
        run.log_prob(**{"x": torch.zeros(2, 2), **how})


def test_run_with_a_time_predictor_has_no_density(small_run):
    with pytest.raises(UserError, match="no ODE"):
        nsgf.load(small_run.path).log_prob(torch.zeros(2, 2))
