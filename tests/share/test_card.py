"""The model card: front matter that the hub reads, measures and pictures of these weights alone."""

import json
import os
from dataclasses import replace

import pytest

from nsgf.config.schema import Config
from nsgf.config.yaml_loader import load_yaml
from nsgf.phases import get_phases
from nsgf.run.folder import RunFolder
from nsgf.share.card import card, copied_pictures
from tests.conftest import shipped

UPDATES = {"nsgf": "12 of 12", "nsf": "12 of 12", "predictor": "12 of 12"}
PHASES = get_phases(["nsgf", "nsf", "predictor"])


def front_matter(text: str) -> dict:
    empty, front, _ = text.split("---\n", 2)
    assert empty == ""
    return load_yaml(front)


def with_measures(run: RunFolder, **changes: object) -> RunFolder:
    measures = {"updates": UPDATES, "w2": 0.25, "nfe": 8.0, **changes}
    (run.path / "metrics.json").write_text(json.dumps(measures))
    return run


def test_measures_of_the_same_weights_are_told(small, small_run):
    text = card(small, with_measures(small_run), UPDATES, [])
    (model,) = front_matter(text)["model-index"]
    (result,) = model["results"]
    assert result["metrics"] == [{"type": "w2", "value": 0.25}]
    assert "    w2       0.25\n" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"updates": {"nsgf": "6 of 12"}},
        {"updates": {}},
        {"updates": 3},
        {"weights": "last"},
    ],
)
def test_measures_of_other_weights_are_not(small, small_run, changes):
    text = card(small, with_measures(small_run, **changes), UPDATES, [])
    assert "model-index" not in front_matter(text)
    assert "Not measured with these weights" in text


def test_words_of_a_file_stay_in_their_line(small, small_run):
    text = card(small, with_measures(small_run, nfe="x\n\n# Title\x1b[1m"), UPDATES, [])
    assert "\n# Title" not in text
    assert "\x1b" not in text


def test_the_card_says_what_was_trained(small, small_run):
    text = card(small, small_run, UPDATES, ["grid.png"])
    assert "| nsf | 12 of 12 | 16 | 0.001 |" in text
    assert "![grid.png](grid.png)" in text
    assert "`8gaussians`, made from `gaussian` samples" in text
    assert front_matter(text)["license"] == "mit"
    assert "pipeline_tag" not in front_matter(text)


def test_images_have_a_task_and_a_shape(small_run):
    digits = shipped("digits")
    text = card(digits, small_run, {"nsgf": "1 of 2"}, [])
    assert front_matter(text)["pipeline_tag"] == "unconditional-image-generation"
    assert "(64, 1, 8, 8), images in [-1, 1]" in text


def test_what_is_not_the_real_thing_says_so(small, small_run):
    plain = card(small, small_run, UPDATES, [])
    peer: Config = replace(small, phases=["peer"], smoke=True)
    text = card(replace(peer, data=replace(peer.data, fake=True)), small_run, {}, [])
    for words in ("**smoke run**", "**random**", "`icfm`, compared with", "8gaussians by `icfm`\n"):
        assert words in text
        assert words not in plain
    assert "Sinkhorn flow:" in plain
    assert "Sinkhorn flow:" not in text


@pytest.fixture
def pictured(small_run) -> RunFolder:
    small_run.samples.mkdir(exist_ok=True)
    for name in ("grid", "trajectory", "phase2_nsf", "phase3_predictor"):
        (small_run.samples / f"{name}.png").write_bytes(name.encode())
    return small_run


def test_pictures_of_the_command_come_first(pictured, tmp_path):
    assert copied_pictures(pictured, PHASES, tmp_path) == ["grid.png", "trajectory.png"]
    assert (tmp_path / "grid.png").read_bytes() == b"grid"


def test_else_that_of_the_last_phase(pictured, tmp_path):
    (pictured.samples / "grid.png").unlink()
    (pictured.samples / "trajectory.png").unlink()
    assert copied_pictures(pictured, PHASES, tmp_path) == ["phase3_predictor.png"]


def test_pictures_of_earlier_weights_stay(pictured, tmp_path):
    for file in pictured.samples.iterdir():
        os.utime(file, (1, 1))
    assert copied_pictures(pictured, PHASES, tmp_path) == []


def of_digits(small_run, *flags: str) -> str:
    """The card of a generator of digits."""
    config = shipped("digits/onecall", *flags)
    return card(config, small_run, {phase: "2 of 2" for phase in config.phases}, [])


def test_generator_is_told_as_it_was_trained(small_run):
    text = of_digits(small_run)
    assert "# digits: digits with one network call\n" in text
    assert "Method: a generator that is called once" in text
    assert "blur 0.2 (relative to the mean cost), 256 samples, 1796 targets." in text
    for untrue in ("icfm", "compared with", "particles", "nfe=", "label=", "classes"):
        assert untrue not in text
    text = of_digits(small_run, "--generator.blurs=[1,0.25]")
    assert "blur 1.0, 0.25 (relative to the mean cost), 256 samples" in text


def test_generator_that_began_as_a_velocity_has_both_flows(small_run):
    config = shipped("2d/onecall+")
    text = card(config, small_run, {"nsgf": "2 of 2", "generator": "2 of 2"}, [])
    assert "| generator | 2 of 2 | 512 | 0.001 |" in text
    assert "blur 0.25, 1024 particles, 1024 targets, 10 steps.\nSinkhorn flow of gen" in text
    assert "blur 0.1 (relative to the mean cost), 512 samples, 512 targets." in text
    assert "icfm" not in text


def test_classes_are_asked_for_by_label(small_run):
    flags = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")
    text = of_digits(small_run, *flags, "--sampling.guidance=2")
    assert "run.sample(64, seed=0, label=0)  # of class 0, of 0 to 9\n" in text
    assert "told one of 10 classes, guidance 2." in text


@pytest.mark.parametrize(
    ("flag", "is_told"),
    [("--sampling.solver=euler", True), ("--sampling.solver=dopri5", False)],
)
def test_calls_are_asked_for_where_they_can_be(small_run, flag, is_told):
    assert ("nfe=10" in card(shipped("digits", flag), small_run, {}, [])) == is_told


@pytest.mark.parametrize(
    ("measured", "is_same"), [({"guidance": 2.0}, True), ({"guidance": 1.0}, False), ({}, False)]
)
def test_measures_with_classes_are_those_of_their_guidance(small_run, measured, is_same):
    flags = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")
    config = shipped("digits/onecall", *flags, "--sampling.guidance=2")
    updates = {"generator": "12 of 12"}
    run = with_measures(small_run, updates=updates, **measured)
    text = card(config, run, updates, [])
    assert ("w2  " in text) == is_same
    assert ("    guidance  2\n" in text) == is_same
    assert ("Not measured with these weights" in text) != is_same
