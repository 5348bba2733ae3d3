from itertools import accumulate

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from nsgf.data import data_shape
from nsgf.phases import get_phase
from nsgf.system.errors import UserError
from nsgf.training.memory import (
    LiveBytes,
    TrainingMemory,
    check_device_memory,
    inference_bytes,
    kept_bytes,
    training_memory,
)
from tests.conftest import shipped

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_estimate_counts_weights_and_kept_activations_of_a_known_network():
    """MLP of width 8 and depth 1 on points: what SiLU and the linear maps keep is known."""
    config = shipped("2d", "--model.mlp.width=8", "--model.mlp.depth=1", "--batch-size=10")
    needed = training_memory(config, get_phase("nsgf"), CPU)
    assert needed.weights == (34 * 8 + 8) + (8 * 2 + 2)
    kept = needed.total - needed.weights * 20
    assert 10 * (34 + 8 + 8) * 4 <= kept <= 10 * (34 + 8 + 8 + 32 + 32 + 2) * 4 * 1.3


def test_total_is_of_one_part_and_smallest_of_one_sample():
    needed = TrainingMemory(1, fixed=100, activations=60, samples=6, precision="fp32", accumulate=3)
    assert (needed.total, needed.smallest) == (120, 110)


def test_activations_grow_with_the_batch_and_weights_do_not():
    small, large = (
        training_memory(shipped("cifar10", f"--batch-size={batch}"), get_phase("nsf"), CPU)
        for batch in (8, 16)
    )
    assert 38e6 < small.weights == large.weights < 38.6e6
    assert large.activations == pytest.approx(2 * small.activations, rel=0.02)
    assert large.smallest == pytest.approx(small.smallest, rel=0.02)


def test_parts_precision_and_processes_divide_the_activations():
    def needed(*flags, processes=1):
        return training_memory(shipped("digits", *flags), get_phase("nsf"), CPU, processes)

    whole = needed()
    assert needed("--accumulate=4").total == whole.fixed + whole.activations // 4
    assert needed("--precision=bf16").activations == pytest.approx(whole.activations / 2, rel=0.01)
    assert needed(processes=2).activations == pytest.approx(whole.activations / 2, rel=0.02)
    assert needed("--batch-size=3", "--accumulate=3").accumulate == 3


def test_cifar10_at_the_papers_batch_needs_more_than_weights_alone():
    assert 5e9 < training_memory(shipped("cifar10"), get_phase("nsgf"), CPU).total < 30e9


def test_recomputed_activations_leave_the_inputs_of_stages_and_the_largest_stage():
    """One level, one block: the stage in the middle that has attention is the largest of five."""
    flags = ("--model.unet.mult=[1]", "--batch-size=64")
    plain = training_memory(shipped("digits", *flags), get_phase("nsgf"), CPU)
    recompute = "--model.checkpoint_activations=true"
    less = training_memory(shipped("digits", *flags, recompute), get_phase("nsgf"), CPU)
    kept, kept_less = (needed.activations / 1.3 for needed in (plain, less))
    with torch.device("meta"):
        largest = get_phase("nsgf").build(shipped("digits", *flags).model, (1, 8, 8), 0).middle[0]
        stage = kept_bytes(largest, torch.empty(64, 32, 8, 8), torch.empty(64, 128))
    tensor = 64 * 32 * 8 * 8 * 4
    assert stage + 5 * tensor < kept_less < stage + 10 * tensor < 0.6 * kept


@pytest.mark.parametrize(("name", "batch"), [("2d", 64), ("digits", 16), ("mnist", 2)])
def test_what_asking_takes_is_near_what_the_allocator_gives_out(name, batch):
    """The profiler is told by the allocator of every byte; oneDNN has buffers of its own."""
    config, phase = shipped(name), get_phase("peer")
    model = phase.build(config.model, data_shape(config.data), 0).eval()
    inputs = phase.example(batch, data_shape(config.data)).inputs
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        model(*inputs)
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    events.sort(key=lambda event: event.start_ns())
    peak = max(accumulate(event.nbytes() for event in events)) / batch
    assert 0.95 * peak < inference_bytes(config, phase) < 1.4 * peak


def test_bytes_are_counted_while_somebody_holds_them():
    with LiveBytes() as live:
        x = torch.ones(10)
        view = x.view(2, 5)
        y = x + 1
        del x
        assert live.now == 80  # the view holds the first
        del view, y
        torch.ones(5)
    assert (live.now, live.peak) == (0, 80)


def test_estimate_draws_no_random_numbers():
    before = torch.get_rng_state()
    training_memory(shipped("digits"), get_phase("predictor"), CPU)
    inference_bytes(shipped("digits"), get_phase("peer"))
    assert torch.equal(before, torch.get_rng_state())
    assert next(get_phase("nsgf").build(shipped("digits").model, (1, 8, 8), 0).parameters()).is_cpu


def test_network_that_does_not_fit_with_one_sample_is_refused():
    """What fits in parts is left to training, which splits the batch by itself."""
    config = shipped("cifar10")
    needed = training_memory(config, get_phase("nsf"), CPU)
    check_device_memory("nsf", needed, CUDA, free=needed.smallest)
    assert needed.smallest < needed.total / 5
    with pytest.raises(UserError, match="nsf: even one sample at a time needs about"):
        check_device_memory("nsf", needed, CUDA, free=needed.smallest - 1)


def test_main_memory_is_not_the_devices():
    needed = training_memory(shipped("cifar10"), get_phase("nsf"), CPU)._replace(fixed=10**15)
    check_device_memory("nsf", needed, CPU)
