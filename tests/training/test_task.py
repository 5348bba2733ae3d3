import threading
import time
from contextlib import closing

import pytest
import torch

from nsgf.system.distributed import World
from nsgf.training.task import DEPTH, Batch, load_batches
from tests.training.toys import CPU


class Numbers:
    """Sample i is the number i."""

    model = None

    def __init__(self):
        self.done = threading.Semaphore(0)

    def draw(self, positions):
        self.done.release()
        return (torch.tensor(list(positions), dtype=torch.float32),)

    def batch(self, *drawn):
        return Batch((drawn[0],), -drawn[0])


def threads():
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


@pytest.mark.parametrize("prefetch", [False, True])
def test_each_batch_has_its_own_samples(prefetch):
    with closing(load_batches(Numbers(), 5, CPU, World(), 3, prefetch=prefetch)) as batches:
        for step in range(3, 8):
            batch, expected = next(batches), torch.arange(5 * step, 5 * step + 5.0)
            assert torch.equal(batch.inputs[0], expected)
            assert torch.equal(batch.target, -expected)


def test_a_limited_number_of_batches_is_drawn_ahead_until_the_end():
    numbers, before = Numbers(), threads()
    with closing(load_batches(numbers, 2, CPU, World(), prefetch=True)) as batches:
        next(batches)
        assert all(numbers.done.acquire(timeout=5) for _ in range(1 + DEPTH))
        assert threads() == before + 1
        time.sleep(0.02)
        assert not numbers.done.acquire(blocking=False)
    assert threads() == before
