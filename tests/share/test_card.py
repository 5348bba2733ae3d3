"""The model card: front matter that the hub reads, measures and pictures of these weights only."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nsgf.config.values import load_yaml
from nsgf.phases import get_phases
from nsgf.run.folder import RunFolder
from nsgf.share.export import card, copied_pictures
from tests.conftest import shipped

UPDATES = {"nsgf": "12 of 12", "nsf": "12 of 12", "predictor": "12 of 12"}
PHASES = get_phases(["nsgf", "nsf", "predictor"])
CLASSES = ("--data.conditional=true", "--batch-size=22", "--generator.targets=null")


def front_matter(text: str) -> dict:
    empty, front, _ = text.split("---\n", 2)
    assert empty == ""
    return load_yaml(front)


def with_measures(run: RunFolder, **changes: object) -> RunFolder:
    measures = {"updates": UPDATES, "w2": 0.25, "nfe": 8.0, **changes}
    (run.path / "metrics.json").write_text(json.dumps(measures))
    return run


def test_measures_of_the_same_weights_are_shown(small, small_run):
    """A text of the file stays in its line."""
    text = card(small, with_measures(small_run, w2_x="x\n\n# Title\x1b[1m"), UPDATES, [])
    (model,) = front_matter(text)["model-index"]
    (result,) = model["results"]
    assert result["metrics"] == [{"type": "w2", "name": "W2 ↓", "value": 0.25}]
    assert "    W2 ↓     0.25\n" in text
    assert "\n# Title" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"guidance": 2.0}, True),
        ({"guidance": 1.0}, False),
        ({}, False),
        ({"guidance": 2.0, "updates": {"generator": "6 of 12"}}, False),
        ({"guidance": 2.0, "updates": 3}, False),
    ],
)
def test_measures_of_other_weights_or_guidance_are_not(small_run, changes, is_same):
    config = shipped("digits/onecall", *CLASSES, "--sampling.guidance=2")
    updates = {"generator": "12 of 12"}
    text = card(config, with_measures(small_run, **{"updates": updates, **changes}), updates, [])
    assert ("model-index" in front_matter(text)) == is_same
    assert ("Not measured with these weights" in text) != is_same


def test_the_card_says_what_was_trained(small, small_run):
    text = card(small, small_run, UPDATES, ["grid.png"])
    for words in ("| nsf | 12 of 12 | 16 | 0.001 |", "![grid.png](grid.png)", "(64, 2), points"):
        assert words in text
    assert front_matter(text)["license"] == "mit"
    assert "pipeline_tag" not in front_matter(text)
    affine = replace(small, phases=["nsf"], nsf=replace(small.nsf, source="affine"))
    assert "affine map" in card(affine, small_run, {}, [])
    assert "affine map" not in text
    peer = replace(small, phases=["peer"], smoke=True)
    other = card(replace(peer, data=replace(peer.data, fake=True)), small_run, {}, [])
    for words in ("**smoke run**", "**random**", "`icfm`"):
        assert words in other
        assert words not in text


def test_images_have_a_task_a_shape_and_calls(small_run):
    text = card(shipped("digits"), small_run, {"nsgf": "1 of 2"}, [])
    assert front_matter(text)["pipeline_tag"] == "unconditional-image-generation"
    assert "(64, 1, 8, 8), images in [-1, 1]" in text
    assert "nfe=10" in text
    adaptive = shipped("digits", "--sampling.solver=dopri5")
    assert "nfe=10" not in card(adaptive, small_run, {}, [])


def test_generator_is_described_as_it_was_trained(small_run):
    flags = ("--generator.blurs=[1,0.25]", *CLASSES, "--sampling.guidance=2")
    text = card(shipped("digits/onecall", *flags), small_run, {"generator": "2 of 2"}, [])
    for words in ("blur 1.0, 0.25 ", "22 samples", 'seed=0, label="0")', "10 classes, `0, 1, 2"):
        assert words in text
    for untrue in ("icfm", "particles", "nfe="):
        assert untrue not in text
    both = {"nsgf": "2 of 2", "generator": "2 of 2"}
    text = card(shipped("2d/onecall+"), small_run, both, [])
    assert "blur 0.25, 1024 particles, 1024 targets, 10 steps." in text
    assert "blur 0.1 (relative to the mean cost), 512 samples, 512 targets." in text
    assert "label=" not in text


def test_pictures_of_the_command_come_before_the_last_phase_s(small_run, tmp_path):
    """Pictures of earlier weights are not copied."""
    samples = small_run.samples
    samples.mkdir(exist_ok=True)
    for name in ("grid", "trajectory", "phase2_nsf", "phase3_predictor"):
        (samples / f"{name}.png").write_bytes(name.encode())
    assert copied_pictures(small_run, PHASES, tmp_path) == ["grid.png", "trajectory.png"]
    assert Path(tmp_path, "grid.png").read_bytes() == b"grid"
    os.utime(samples / "grid.png", (1, 1))
    os.utime(samples / "trajectory.png", (1, 1))
    assert copied_pictures(small_run, PHASES, tmp_path) == ["phase3_predictor.png"]
    os.utime(samples / "phase3_predictor.png", (1, 1))
    assert copied_pictures(small_run, PHASES, tmp_path) == []
