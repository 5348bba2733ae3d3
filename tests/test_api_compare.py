"""One's own method in a comparison."""

import re

import numpy as np
import pytest
import torch

import nsgf
from nsgf import UserError
from nsgf.cli import main
from nsgf.commands import compare as engine
from nsgf.comparison import read_rows
from nsgf.comparison.trials import FunctionLeg
from nsgf.data import build_source
from nsgf.experiment import Experiment
from nsgf.metrics.measures import CLASS_KID, name_of
from nsgf.metrics.yardstick import Yardstick
from nsgf.sampling.sampler import Samples
from nsgf.user_data import load_data
from tests.conftest import CPU, shipped
from tests.metrics.test_features import Pixels
from tests.user_data.user_files import own_points

SMALL = {
    "smoke": True,
    "device": "cpu",
    "model.mlp.width": 16,
    "evaluation.num_samples": 32,
    "evaluation.w2_samples": 16,
    "sampling.batch_size": 20,
}


def compare(out_dir, draw, name="mine", num_samples=32, **how):
    how = {"against": ["nsgf", "1rf"], "nfe": [2, 3], "dataset": "moons", **how}
    small = {**SMALL, "evaluation.num_samples": num_samples}
    return nsgf.compare(
        "2d", methods={name: draw}, out_dir=out_dir, overrides=small, quiet=True, **how
    )


def test_own_method_is_measured_as_the_others(tmp_path, monkeypatch, capsys):
    """From the same noise, by the same measures, anew at each call, and shown everywhere."""
    asked = []
    generator = torch.Generator().manual_seed(3)  # numbers of the global one would be the caller's

    def draw(noise, nfe):
        asked.append((noise.clone(), nfe))
        return noise.mul_(nfe + torch.rand((), generator=generator).item()).double().numpy()

    before = torch.get_rng_state()
    found = compare(tmp_path, draw)
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr() == ("", "")
    config = shipped("2d", "--dataset=moons", "--num-samples=32", "--evaluation.w2_samples=16")
    noise = build_source(config.data.source, (2,), 0, "compare", "0").sample(32)
    assert [nfe for _, nfe in asked[:4]] == [2, 2, 3, 3]
    assert torch.equal(torch.cat([x for x, _ in asked[:2]]), noise)
    own = {row["nfe"]: row for row in found.rows if row["method"] == "mine"}
    assert [row["calls"] for row in own.values()] == [2, 3]
    assert {row["method"] for row in found.rows} == {"mine", "nsgf", "1rf", "floor"}

    monkeypatch.setattr(engine, "train", None)
    again = compare(tmp_path, lambda noise, _: noise)
    (row, *_) = again.rows
    yardstick = Yardstick(load_data(config.data, 0), config.evaluation, tmp_path, CPU, print)
    expected = yardstick.measure(yardstick.compared, noise, 0, 0)
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["w2"] != own[2]["w2"]
    assert again.table.index("| mine |") < again.table.index("| NSGF |")
    assert "| mine minus, " in again.table
    assert read_rows(again.folder / "table.csv")[0].method == "mine"
    assert "mine" in (again.folder / "report.html").read_text()
    assert (again.folder / "moons.png").stat().st_size > 0


def test_classes_are_compared_from_the_same_labels(tmp_path, monkeypatch):
    """Table.csv has each class, the table their mean; guidance is refused."""
    told, drawn, real = [], [], engine.generate
    monkeypatch.setattr("nsgf.metrics.yardstick.ImageNet", Pixels)
    monkeypatch.setattr(engine, "save_pictures", lambda *_: [])
    monkeypatch.setattr(engine, "generate", lambda *how: drawn.append(made := real(*how)) or made)

    def compare(draw, **others):
        flags = {"data.conditional": True, "evaluation.features": "imagenet"}
        flags |= {"smoke": True, "device": "cpu", "evaluation.num_samples": 100, **others}
        how = {"against": ["1rf", "2rf"], "nfe": [1], "out_dir": tmp_path, "quiet": True}
        return nsgf.compare("digits", methods={"mine": draw}, overrides=flags, **how)

    found = compare(lambda noise, _, labels: told.append(labels) or noise)
    assert torch.equal(torch.cat(told), torch.arange(100) % 10)
    assert len(drawn) == 3
    assert all(torch.equal(samples.labels, drawn[0].labels) for samples in drawn)
    classes = [f"{CLASS_KID} {digit}" for digit in range(10)]
    assert {row["method"] for row in found.rows} == {"mine", "1rf", "2rf", "floor", "pure noise"}
    for row in found.rows:
        assert row[CLASS_KID] == pytest.approx(sum(row[name] for name in classes) / 10)
    assert found.table.count(name_of(CLASS_KID)) == 2
    assert "class_kid" not in found.table
    monkeypatch.setattr(engine, "train", None)
    wrong = {r"sampling\.label": {"sampling.label": 3}, r'methods\["mine"\]': {}}
    wrong |= {r"sampling\.guidance = 2": {"sampling.guidance": 2.0}}
    for key, flags in wrong.items():
        with pytest.raises(UserError, match=f"^{key}"):
            compare(lambda noise, nfe: noise, **flags)


def test_own_method_is_compared_on_several_targets(tmp_path):
    """Floors of all targets are written before the second target is begun."""
    own = {"compare.targets": ["moons", "scurve"], **SMALL}
    how = {"against": ["nsgf"], "nfe": [2], "out_dir": tmp_path, "overrides": own, "quiet": True}
    found = nsgf.compare("2d", methods={"mine": lambda noise, _: noise}, **how)
    measured = {(row["target"], row["method"]) for row in found.rows}
    assert measured == {(to, by) for to in ("moons", "scurve") for by in ("mine", "nsgf", "floor")}


def test_measures_of_own_methods_stay_in_later_tables(tmp_path, monkeypatch):
    """Of calls and commands with the same numbers of samples, behind the methods of these.

    Past mistake: Measures of a caller's changed function were added to those of the earlier one,
    so one row showed two functions.
    """
    first = compare(tmp_path, lambda noise, _: noise, against=["nsgf"])
    monkeypatch.setattr(engine, "train", None)
    second = compare(tmp_path, lambda noise, _: 2 * noise, "other", against=["nsgf"], nfe=[2])
    words = ["compare", "--exp=2d", "--dataset=moons", "--methods=nsgf", "--compare.nfe=[2,3]"]
    words += [f"--{key}={value}" for key, value in SMALL.items() if key != "smoke"]
    assert main([*words, "--smoke", f"--out-dir={tmp_path}"]) == 0
    kept = read_rows(first.folder / "table.csv")
    assert [*dict.fromkeys(row.method for row in kept)] == ["nsgf", "mine", "other", "floor"]
    own = {(row["method"], row["nfe"]): row["w2"] for row in [*first.rows, *second.rows]}
    assert {(row.method, row.nfe): row.values["w2"] for row in kept} == own
    compare(tmp_path, lambda noise, _: 0 * noise, against=["nsgf"], nfe=[2])
    assert main([*words, "--smoke", f"--out-dir={tmp_path}"]) == 0
    later = {(row.method, row.nfe) for row in read_rows(first.folder / "table.csv")}
    assert ("mine", 2) in later
    assert ("mine", 3) not in later  # of the function before
    fewer = compare(tmp_path, lambda noise, _: noise, "other", against=["nsgf"], num_samples=16)
    assert {row["method"] for row in fewer.rows} == {"other", "nsgf", "floor"}


def test_methods_are_compared_on_tensors(tmp_path, monkeypatch):
    """Each data have their own measures, of one folder too.

    Past mistake: Floors were stored without the checksum of the data, so a second data set used
    the floors of the first.

    Past mistake: A caller's function had to answer in the program's units, and a perfect model
    had a W2 of 2,029.
    """
    data = torch.from_numpy(own_points(40, 3))
    how = {"nfe": [2], "out_dir": tmp_path, "overrides": SMALL, "quiet": True}

    def draw(noise, _):
        """Points in the units of ``data``, here those that are compared with."""
        return noise * data.std(0, correction=0) + data.mean(0)

    found = nsgf.compare(data, methods={"mine": draw}, against=["nsgf"], **how)
    assert {row["method"] for row in found.rows} == {"mine", "nsgf", "floor"}
    mine = {"mine": lambda noise, nfe: 9 * draw(noise, nfe)}
    other = nsgf.compare(data=data.numpy() * 9, methods=mine, against=["otcfm"], **how)
    w2 = [{row["method"]: row["w2"] for row in one.rows} for one in (found, other)]
    assert w2[1]["mine"] == pytest.approx(9 * w2[0]["mine"])
    assert w2[1]["floor"] == pytest.approx(9 * w2[0]["floor"])
    assert w2[0]["mine"] < 3 * w2[0]["floor"]
    monkeypatch.setattr(engine, "train", None)
    again = nsgf.compare(data=data, methods={"mine": draw}, against=["nsgf"], **how)
    assert again.rows[0]["w2"] == w2[0]["mine"]


@pytest.mark.parametrize(
    "methods",
    [
        ["nsgf", "1rf"],
        ("nsgf", "1rf"),
        (name for name in ("nsgf", "1rf")),
        "nsgf,1rf",
        np.array(["nsgf", "1rf"]),
    ],
)
def test_names_of_methods_mean_those_of_the_package(methods, tmp_path, monkeypatch):
    class Begun(Exception):
        pass

    def begin(comparison, _):
        raise Begun(comparison)

    monkeypatch.setattr("nsgf.api.compare.compare_methods", begin)
    how = {"columns": [3, 1], "held_out": 0.4, "blur": 0.3, "out_dir": tmp_path, "quiet": True}
    with pytest.raises(Begun) as begun:
        nsgf.compare(own_points(40, 3), methods=methods, **how)
    comparison = begun.value.args[0]
    assert [*comparison.methods] == ["nsgf", "1rf"]
    assert not comparison.functions
    config = comparison.methods["nsgf"]
    assert config.data.found.names == ["coordinate 3", "coordinate 1"]
    assert (config.data.held_out, config.sinkhorn.blur) == (0.4, 0.3)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"methods": max}, "methods: a function needs a name"),
        ({"methods": [max], "against": ["nsgf"]}, "methods: a function needs a name"),
        ({"methods": ["nsgf"], "against": ["1rf"]}, "methods: .*against"),
        ({"methods": ["nope"]}, "method = nope"),
        ({"methods": {"nsgf"}}, "methods = "),
        ({"methods": ""}, "methods = "),
        ({"methods": 3}, "methods = 3"),
        ({"methods": ["nsgf", "nsgf"]}, "methods = "),
        ({"against": "nsgf,nsgf"}, "against = "),
        ({"methods": "nsgf", "columns": ["age"]}, "columns = age"),
        ({"methods": "nsgf", "held_out": 2}, "held_out = 2"),
        ({"methods": "nsgf", "blur": -1}, "blur = -1"),
    ],
)
def test_wrong_names_of_methods_are_refused(how, words, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "train", None)
    with pytest.raises(UserError, match=words):
        nsgf.compare(own_points(40, 3), out_dir=tmp_path, quiet=True, **how)


def test_images_are_drawn_as_bytes_or_as_floats():
    config = shipped("digits")
    target = Experiment(config).target
    noise = torch.zeros(2, 1, 8, 8)
    for drawn in (torch.full_like(noise, 204, dtype=torch.uint8), torch.full_like(noise, 0.6)):
        draw = lambda *_, drawn=drawn: drawn  # noqa: E731
        leg = FunctionLeg("mine", draw, 3, target, config.sampling, config.flow)
        leg.carry(samples := Samples(noise, 0), None)
        assert torch.allclose(samples.x, torch.full_like(noise, 0.6))


@pytest.mark.parametrize(
    ("draw", "how", "words"),
    [
        (lambda x, _: x[:3], {}, 'methods["mine"]: returned (3, 2) at nfe = 2'),
        (lambda x, _: x / 0, {}, 'methods["mine"]: returned (20, 2) at nfe = 2'),
        (lambda x, _: None, {}, 'methods["mine"]: '),
        (lambda x, _: 1 / 0, {}, 'methods["mine"]: ZeroDivisionError: division'),
        (print, {"name": "1-RF"}, 'methods["1-RF"]: must be a function'),
        *(
            (print, {"name": name}, f'methods["{name}"]: must be')
            for name in ("nsgf", "floor", "a|b", "a" * 101)
        ),
        (print, {"nfe": []}, "nfe = []"),
        (print, {"against": []}, "against = []"),
        (print, {"seeds": 0}, "seeds = 0"),
    ],
)
def test_wrong_arguments_are_named_before_training(tmp_path, monkeypatch, draw, how, words):
    monkeypatch.setattr(engine, "train", None)
    with pytest.raises(UserError, match=re.escape(words)):
        compare(tmp_path, draw, **how)
