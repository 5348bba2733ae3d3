from dataclasses import asdict

import pytest

from nsgf.config.leaves import contradictions, is_free, leaves
from nsgf.config.schema import Config
from nsgf.phases import get_phase
from nsgf.phases.base import FREE_IN_SAMPLING
from tests.conftest import shipped

FROZEN = get_phase("nsgf").follows


def saved_and_now(name: str, *flags: str):
    return asdict(shipped(name)), shipped(name, *flags)


@pytest.mark.parametrize(
    "flag",
    [
        "--model.unet.channels=64",
        "--data.flip=true",
        "--sinkhorn.blur=2.0",
        "--sinkhorn.target_batch=1797",
        "--flow.eta=0.1",
        "--pool-batches=3",
        "--pool.dtype=float16",
        "--seed=1",
    ],
)
def test_other_architecture_or_data_contradicts_a_checkpoint(flag):
    saved, now = saved_and_now("digits", flag)
    (text,) = contradictions(saved, now, FROZEN)
    key = {"--pool-batches": "pool.num_batches"}.get(flag.split("=")[0], flag[2:].split("=")[0])
    assert text.startswith(f"{key}: the checkpoint has ")
    assert text.endswith(f"this command {now_value(now, key)}")


def now_value(config: Config, key: str):
    return {name: value for name, value, _ in leaves(config)}[key]


@pytest.mark.parametrize(
    "flag",
    [
        "--data.download=false",
        "--sampling.straight_steps=3",
        "--train.log_every=7",
        "--nsgf.iterations=9",
        "--nsf.lr=1",
        "--out-dir=x",
        "--device=cpu",
        "--pool.storage=disk",
        "--pool.build_batch=3",
        "--model.checkpoint_activations=true",
    ],
)
def test_what_changes_no_result_so_far_may_differ(flag):
    saved, now = saved_and_now("mnist", flag)  # which reads and downloads files
    assert contradictions(saved, now, FROZEN, running="nsgf") == []


def test_optimization_is_fixed_in_the_middle_of_its_phase():
    saved, now = saved_and_now("digits", "--nsgf.lr=1e-5")
    assert contradictions(saved, now, FROZEN) == []
    (text,) = contradictions(saved, now, FROZEN, running="nsgf")
    assert text == "nsgf.lr: the checkpoint has 0.001, this command 1e-05"


def test_samples_may_have_another_seed_but_not_another_flow():
    saved, now = saved_and_now("digits", "--seed=1", "--pool-batches=3", "--flow.eta=0.1")
    (text,) = contradictions(saved, now, set(FROZEN) - FREE_IN_SAMPLING)
    assert text.startswith("flow.eta")


def test_settings_a_checkpoint_lacks_contradict_it():
    saved, now = saved_and_now("digits", "--model.unet.channels=64")
    del saved["model"]
    assert any(
        text.startswith("model.unet.channels") for text in contradictions(saved, now, FROZEN)
    )


def test_setting_that_is_newer_than_a_checkpoint_had_its_default_there():
    saved, now = saved_and_now("digits")
    del saved["sinkhorn"]["target_batch"]
    assert contradictions(saved, now, FROZEN) == []
    (text,) = contradictions(saved, shipped("digits", "--sinkhorn.target_batch=9"), FROZEN)
    assert text == "sinkhorn.target_batch: the checkpoint has None, this command 9"


def test_leaves_that_may_change_are_marked_in_the_schema():
    free = {key for key, _, item in leaves(Config()) if is_free(item)}
    assert free == {
        *("data.root", "data.path", "data.download"),
        *("pool.storage", "pool.build_batch", "model.checkpoint_activations"),
    }
