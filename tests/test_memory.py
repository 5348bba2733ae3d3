from dataclasses import replace

import pytest
import torch

from nsgf.errors import UserError
from nsgf.memory import check_device_memory, kept_bytes, training_memory
from nsgf.models import build_network
from tests.conftest import shipped

CUDA = torch.device("cuda")


def test_estimate_counts_weights_and_kept_activations_of_a_known_network():
    """MLP of width 8 and depth 1 on points: what SiLU and the linear maps keep is known."""
    config = shipped("2d", "--model.mlp.width=8", "--model.mlp.depth=1", "--batch-size=10")
    weights, needed = training_memory(config, "nsgf")
    assert weights == (34 * 8 + 8) + (8 * 2 + 2)
    kept = needed - weights * 20
    assert 10 * (34 + 8 + 8) * 4 <= kept <= 10 * (34 + 8 + 8 + 32 + 32 + 2) * 4 * 1.3


def test_activations_grow_with_the_batch_and_weights_do_not():
    needs = {}
    for batch in (8, 16):
        weights, needed = training_memory(shipped("cifar10", f"--batch-size={batch}"), "nsf")
        needs[batch] = needed - weights * 20
    assert 38e6 < weights < 38.6e6
    assert needs[16] == pytest.approx(2 * needs[8], rel=0.02)


def test_cifar10_at_the_papers_batch_needs_more_than_weights_alone():
    _, needed = training_memory(shipped("cifar10"), "nsgf")
    assert 5e9 < needed < 30e9


def test_recomputed_activations_leave_the_inputs_of_stages_and_the_largest_stage():
    """One level, one block: the stage in the middle that has attention is the largest of five."""
    flags = ("--model.unet.mult=[1]", "--batch-size=64")
    weights, plain = training_memory(shipped("digits", *flags), "nsgf")
    recompute = "--model.checkpoint_activations=true"
    _, less = training_memory(shipped("digits", *flags, recompute), "nsgf")
    kept, kept_less = ((needed - weights * 20) / 1.3 for needed in (plain, less))
    with torch.device("meta"):
        largest = build_network("nsgf", shipped("digits", *flags).model, (1, 8, 8), 0).middle[0]
        stage = kept_bytes(largest, torch.empty(64, 32, 8, 8), torch.empty(64, 128))
    tensor = 64 * 32 * 8 * 8 * 4
    assert stage + 5 * tensor < kept_less < stage + 10 * tensor < 0.6 * kept


def test_estimate_draws_no_random_numbers():
    before = torch.get_rng_state()
    training_memory(shipped("digits"), "predictor")
    assert torch.equal(before, torch.get_rng_state())
    assert next(build_network("nsgf", shipped("digits").model, (1, 8, 8), 0).parameters()).is_cpu


def test_update_that_does_not_fit_names_the_batch_that_does():
    config = shipped("cifar10")
    _, needed = training_memory(config, "nsf")
    with pytest.raises(UserError, match=r"nsf\.batch_size = 128: an update needs about") as caught:
        check_device_memory(config, "nsf", needed, CUDA, free=needed // 3)
    fitting = int(str(caught.value).rsplit(" ", 1)[1])
    smaller = replace(config, nsf=replace(config.nsf, batch_size=fitting))
    _, less = training_memory(smaller, "nsf")
    check_device_memory(smaller, "nsf", less, CUDA, free=needed // 3 + needed // 10)


def test_main_memory_is_not_the_devices():
    check_device_memory(shipped("cifar10"), "nsf", 10**15, torch.device("cpu"))
