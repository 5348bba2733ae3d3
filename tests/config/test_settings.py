import pytest

from nsgf.config.schema import Range
from nsgf.config.settings import build, find_contradictions, nest, values
from nsgf.phases import get_phase
from nsgf.phases.base import FREE_IN_SAMPLING
from tests.conftest import shipped

FROZEN = get_phase("nsgf").follows


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(1), (1, 10**9), (0, 10**9 + 1), ">= 1 and <= 1000000000"),
        (Range(above=0, maximum=1), (1e-9, 1), (0, 1.1), "> 0 and <= 1"),
        (Range(0, below=1), (0, 0.99), (-0.1, 1), ">= 0 and < 1"),
    ],
)
def test_range_contains_its_values_and_prints_its_bounds(allowed, inside, outside, words):
    assert all(number in allowed for number in inside)
    assert not any(number in allowed for number in (*outside, float("nan"), float("inf")))
    assert str(allowed) == words


def test_values_build_the_same_configuration():
    config = shipped("cifar10")
    config.data.found = {"samples": 3}
    again = build(values(config))
    assert (again, again.data.found) == (config, {"samples": 3})


RESUMED = [  # flags, arguments of the comparison with a checkpoint of digits, begin of the text
    ("--data.root=x --sampling.straight_steps=3 --train.log_every=7 --nsf.lr=1", {}, ""),
    ("--nsgf.iterations=9 --out-dir=x --device=cpu --pool.storage=disk", {}, ""),
    ("--pool.build_batch=3 --model.checkpoint_activations=true", {}, ""),
    ("--nsgf.lr=1e-5", {"running": None}, ""),
    ("--nsgf.lr=1e-5", {}, "nsgf.lr: the checkpoint has 0.001, this command 1e-05"),
    ("--seed=1 --pool-batches=3", {"frozen": {*FROZEN} - FREE_IN_SAMPLING, "running": None}, ""),
    ("--flow.eta=0.1", {"frozen": {*FROZEN} - FREE_IN_SAMPLING}, "flow.eta"),
    ("--seed=1", {}, "seed"),
]


@pytest.mark.parametrize(("flags", "how", "text"), RESUMED)
def test_settings_that_change_earlier_results_must_agree(flags, how, text):
    exp = "mnist" if "data.root" in flags else "digits"
    now, saved = shipped(exp, *flags.split()), nest(values(shipped(exp)))
    found = find_contradictions(saved, now, **{"frozen": FROZEN, "running": "nsgf", **how})
    assert len(found) == bool(text)
    assert "".join(found).startswith(text)


def test_facts_must_agree_and_missing_settings_count_as_defaults():
    saved = nest(values(shipped("digits")))
    del saved["sinkhorn"]["target_batch"], saved["model"]
    assert find_contradictions(saved, shipped("digits"), ["sinkhorn"]) == []
    now = shipped("digits", "--sinkhorn.target_batch=9", "--model.unet.channels=64")
    now.data.found, now.model.network = {"samples": 3}, "Mine"
    frozen = ["sinkhorn", "model.unet.channels", "data", "model.network"]
    assert find_contradictions(saved, now, frozen) == [
        "sinkhorn.target_batch: the checkpoint has None, this command 9",
        "model.unet.channels: the checkpoint has 32, this command 64",
        "data.found: the checkpoint has {}, this command {'samples': 3}",
        "model.network: the checkpoint has None, this command Mine",
    ]
