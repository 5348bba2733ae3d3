from dataclasses import asdict

import pytest

from nsgf.config.leaves import Range, find_contradictions
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


def test_settings_that_do_not_change_earlier_results_may_differ():
    flags = "--data.download=false --sampling.straight_steps=3 --train.log_every=7 --nsf.lr=1"
    flags += " --nsgf.iterations=9 --out-dir=x --device=cpu --pool.storage=disk"
    flags += " --pool.build_batch=3 --model.checkpoint_activations=true"
    now = shipped("mnist", *flags.split())  # which reads and downloads files
    assert find_contradictions(asdict(shipped("mnist")), now, FROZEN, running="nsgf") == []


def test_optimizer_settings_are_fixed_while_their_phase_is_unfinished():
    saved, now = asdict(shipped("digits")), shipped("digits", "--nsgf.lr=1e-5")
    assert find_contradictions(saved, now, FROZEN) == []
    (text,) = find_contradictions(saved, now, FROZEN, running="nsgf")
    assert text == "nsgf.lr: the checkpoint has 0.001, this command 1e-05"


def test_sampling_may_use_another_seed_but_not_another_flow():
    now = shipped("digits", "--seed=1", "--pool-batches=3", "--flow.eta=0.1")
    (text,) = find_contradictions(asdict(shipped("digits")), now, set(FROZEN) - FREE_IN_SAMPLING)
    assert text.startswith("flow.eta")


def test_settings_missing_in_a_checkpoint_count_as_defaults():
    saved = asdict(shipped("digits"))
    del saved["sinkhorn"]["target_batch"], saved["model"]
    assert find_contradictions(saved, shipped("digits"), ["sinkhorn"]) == []
    now = shipped("digits", "--sinkhorn.target_batch=9", "--model.unet.channels=64")
    found = find_contradictions(saved, now, ["sinkhorn", "model.unet.channels"])
    assert found[0] == "sinkhorn.target_batch: the checkpoint has None, this command 9"
    assert found[1] == "model.unet.channels: the checkpoint has 32, this command 64"
