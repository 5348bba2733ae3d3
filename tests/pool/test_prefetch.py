import threading
import time

import pytest
import torch
from torch import nn

from nsgf.pool import Prefetch
from nsgf.training.trainers import NSGFTrainer
from tests.pool.test_trajectories import counting_pool


def threads() -> int:
    return sum(thread.name.startswith("pool-prefetch") for thread in threading.enumerate())


@pytest.fixture
def pool():
    return counting_pool()


@pytest.fixture
def prefetch(pool):
    made = Prefetch(pool.sample, torch.Generator().manual_seed(0))
    yield made
    made.close()


def test_same_batches_in_the_same_order(pool, prefetch):
    direct = torch.Generator().manual_seed(0)
    for size in (5, 5, 5, 5, 5, 3, 3, 5):  # a change of size loses no batch either
        for got, expected in zip(prefetch.next(size), pool.sample(size, direct), strict=True):
            assert torch.equal(got, expected)


def test_generator_stands_after_the_batches_handed_out(pool):
    """Not after those drawn ahead: a checkpoint taken now must resume with the next batch."""
    direct, followed = (torch.Generator().manual_seed(0) for _ in range(2))
    prefetch = Prefetch(pool.sample, followed)
    for _ in range(4):
        prefetch.next(5)
        pool.sample(5, direct)
        assert torch.equal(followed.get_state(), direct.get_state())
    prefetch.close()


def test_batches_are_drawn_ahead(pool):
    drawn = threading.Semaphore(0)

    def draw(size, generator):
        drawn.release()
        return pool.sample(size, generator)

    prefetch = Prefetch(draw, torch.Generator())
    prefetch.next(4)
    assert all(drawn.acquire(timeout=5) for _ in range(3))  # one handed out, two waiting
    time.sleep(0.02)
    assert not drawn.acquire(blocking=False)
    prefetch.close()


def test_errors_reach_the_caller_and_no_batch_is_skipped(pool):
    failures = iter([False, False, True, *[False] * 20])

    def draw(size, generator):
        batch = pool.sample(size, generator)
        if next(failures):
            raise OSError("the disk went away")
        return batch

    prefetch, direct = Prefetch(draw, torch.Generator().manual_seed(0)), torch.Generator()
    direct.manual_seed(0)
    for _ in range(2):
        assert torch.equal(prefetch.next(5).x, pool.sample(5, direct).x)
    with pytest.raises(OSError, match="went away"):
        prefetch.next(5)
    assert torch.equal(prefetch.next(5).x, pool.sample(5, direct).x)
    prefetch.close()


def test_close_ends_the_thread(pool):
    before = threads()
    prefetch = Prefetch(pool.sample, torch.Generator())
    prefetch.next(4)
    assert threads() == before + 1
    prefetch.close()
    assert threads() == before


def test_trainer_sees_the_same_batches_and_state_with_prefetch(pool):
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = []

        def forward(self, x, t):
            self.x.append(x)
            return x

    def trainer(prefetch):
        return NSGFTrainer(Seen(), pool, 0, torch.device("cpu"), prefetch=prefetch)

    direct, ahead, resumed = trainer(False), trainer(True), trainer(True)
    for _ in range(3):
        assert float(direct.loss(6)) == float(ahead.loss(6))
    resumed.loss(6)  # draws ahead of the state that it is then given
    resumed.set_random_state(ahead.random_state())
    expected = float(direct.loss(6))
    assert float(ahead.loss(6)) == float(resumed.loss(6)) == expected
    assert torch.equal(direct.model.x[-1], resumed.model.x[-1])
    for one in (ahead, resumed, direct):
        one.close()
    assert threads() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_cuda_are_pinned_and_the_same(pool):
    generator, direct = (torch.Generator().manual_seed(0) for _ in range(2))
    prefetch = Prefetch(pool.sample, generator, pin=True)
    for _ in range(4):
        batch = prefetch.next(5)
        assert all(part.is_pinned() for part in batch)
        assert torch.equal(batch.x.to("cuda", non_blocking=True).cpu(), pool.sample(5, direct).x)
    prefetch.close()
