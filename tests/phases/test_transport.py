import pytest
import torch

from nsgf.data import PointSampler, class_labels
from nsgf.data.points import Gaussian
from nsgf.phases.lines import CachedStarts

CPU = torch.device("cpu")


def walked(kept: int | None, calls: list[int] | None = None) -> CachedStarts:
    def walk(x):
        if calls is not None:
            calls.append(len(x))
        return x + 100

    return CachedStarts(PointSampler(Gaussian((1, 2, 2)), 0), walk, CPU, kept)


def test_kept_starts_are_walked_once_and_come_again():
    calls: list[int] = []
    starts = walked(300, calls)
    first = starts.at(range(300))
    assert calls == [256, 256]
    assert torch.equal(starts.at(range(310, 890)), torch.cat([first[10:], first[:290]]))
    assert calls == [256, 256]
    assert torch.equal(walked(300).at(range(890, 905)), torch.cat([first[290:], first[:5]]))


@pytest.mark.parametrize("kept", [None, 300])
def test_steps_are_told_the_class_of_each_start(kept):
    def walk(x, labels):
        return torch.zeros_like(x) + labels.view(-1, 1, 1, 1)

    source = PointSampler(Gaussian((1, 2, 2)), 0)
    starts = CachedStarts(source, walk, CPU, kept, classes=3).at(range(250, 950))
    assert torch.equal(starts[:, 0, 0, 0].int(), class_labels(range(250, 950), 3))


def test_without_a_number_all_starts_are_new():
    calls: list[int] = []
    starts = walked(None, calls)
    assert not torch.equal(starts.at(range(10)), starts.at(range(300, 310)))
    starts.at(range(10))
    assert calls == [10, 10, 10]
