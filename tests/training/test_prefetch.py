import threading
import time
from contextlib import closing

import pytest
import torch

from nsgf.system.distributed import World
from nsgf.training.prefetch import DEPTH, Batches, should_prefetch
from nsgf.training.task import Batch
from tests.conftest import shipped
from tests.training.toys import CPU


class Numbers:
    """Sample i is the number i."""

    model = None

    def __init__(self) -> None:
        self.drawn: list[range] = []
        self.done = threading.Semaphore(0)

    def draw(self, positions):
        self.drawn.append(positions)
        self.done.release()
        return (torch.tensor(list(positions), dtype=torch.float32),)

    def batch(self, *drawn):
        return Batch((drawn[0],), -drawn[0])


def threads() -> int:
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


@pytest.mark.parametrize("prefetch", [False, True])
def test_each_batch_has_its_own_samples(prefetch):
    with closing(Batches(Numbers(), 5, CPU, World(), prefetch=prefetch)) as batches:
        for step in (0, 1, 2, 3, 7, 8, 2, 2, 3):  # also after a jump, as when a run is resumed
            batch = batches.at(step)
            expected = torch.arange(5 * step, 5 * step + 5.0)
            assert torch.equal(batch.inputs[0], expected)
            assert torch.equal(batch.target, -expected)


def test_seeds_stay_on_the_host_and_labels_go_to_the_device():
    """A seed (int64) that was sent to a card would have to be waited for."""

    class Seeded(Numbers):
        def draw(self, positions):
            labels = torch.zeros(len(positions), dtype=torch.int32)
            return (*super().draw(positions), torch.tensor([positions.start]), labels)

        def batch(self, *drawn):
            assert drawn[0].is_meta
            assert int(drawn[1]) == 10
            assert drawn[2].is_meta
            return super().batch(*drawn)

    assert Batches(Seeded(), 5, torch.device("meta"), World()).at(2).target.is_meta


@pytest.mark.parametrize("size", [2, 7])
def test_processes_share_each_batch_without_gap_or_overlap(size):
    parts = [Batches(Numbers(), 7, CPU, World(rank, size)) for rank in range(size)]
    for step in range(3):
        together = torch.cat([part.at(step).target for part in parts])
        assert torch.equal(together, -torch.arange(7 * step, 7 * step + 7.0))


def test_a_limited_number_of_batches_is_drawn_ahead():
    numbers = Numbers()
    with closing(Batches(numbers, 2, CPU, World(), prefetch=True)) as batches:
        batches.at(0)
        assert all(numbers.done.acquire(timeout=5) for _ in range(1 + DEPTH))
        time.sleep(0.02)
        assert not numbers.done.acquire(blocking=False)


def test_close_ends_the_thread():
    before = threads()
    batches = Batches(Numbers(), 2, CPU, World(), prefetch=True)
    batches.at(0)
    assert threads() == before + 1
    batches.close()
    assert threads() == before


@pytest.mark.parametrize(
    ("exp", "device", "on_disk", "ahead"),
    [
        ("2d", "cuda", False, False),
        ("2d", "cuda", True, True),
        ("2d", "cpu", True, True),
        ("digits", "cuda", False, True),
        ("digits", "cpu", False, False),
    ],
)
def test_batches_are_prefetched_for_images_on_a_card_and_for_disks(exp, device, on_disk, ahead):
    """Points are drawn faster than a thread is asked."""
    task, device = Numbers(), torch.device(device)
    task.reads_disk = on_disk
    assert should_prefetch(shipped(exp), task, device) is ahead
