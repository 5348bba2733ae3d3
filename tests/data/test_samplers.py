"""Streams of samples, also with classes: a function of seed and position, however they are cut."""

from dataclasses import replace

import pytest
import torch

from nsgf.data import (
    INDICES,
    TIMES,
    ClassSampler,
    LabelDropout,
    PointSampler,
    RowSampler,
    class_labels,
    gaussian,
)
from nsgf.data.images import ImageSet, to_unit_range
from nsgf.data.samplers import DROPPED
from nsgf.system.errors import UserError
from nsgf.user_data import load_data
from tests.conftest import shipped


def image_sampler(images, seed, **how):
    return RowSampler(images, seed, to_unit_range, **how)


IMAGES = torch.arange(160).to(torch.uint8).view(40, 1, 2, 2)
STREAMS = [
    lambda seed=3: PointSampler(gaussian((2,)), seed),
    lambda seed=3: image_sampler(IMAGES, seed, flip=True),
]


NUMBERED = torch.arange(50, dtype=torch.uint8).view(-1, 1, 1, 1)
"""Images of one pixel whose value is their number."""


def numbers(batch):
    return ((batch.flatten() + 1) * 127.5).round().int().tolist()


def test_epoch_is_without_replacement_and_the_next_is_shuffled_anew():
    """Also where a batch begins in one epoch and ends in the next."""
    sampler = image_sampler(NUMBERED, seed=0)
    stream = numbers(torch.cat([sampler.sample(n) for n in (20, 60, 70)]))
    epochs = [stream[:50], stream[50:100], stream[100:]]
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_order_of_images_is_that_of_earlier_versions():
    """Runs of the same seed stay comparable."""
    sampler = image_sampler(NUMBERED, seed=7)
    assert numbers(sampler.at(range(6))) == [20, 27, 45, 1, 44, 33]
    assert numbers(sampler.at(range(50, 56))) == [42, 1, 5, 22, 24, 46]


@pytest.mark.parametrize("make", STREAMS)
def test_stream_does_not_depend_on_batch_sizes(make):
    """Sample i follows only from seed and i, across epochs and blocks, with flips."""
    sampler, whole = make(), make().sample(700)
    assert torch.equal(whole, torch.cat([sampler.sample(n) for n in (1, 259, 440)]))
    assert not torch.equal(whole, make(seed=4).sample(700))
    assert torch.equal(sampler.at(range(250, 600)), whole[250:600])
    assert sampler.position == 700  # reading moves nothing
    sampler.position = 30
    assert torch.equal(sampler.sample(20), whole[30:50])


@pytest.mark.parametrize(("law", "low", "high"), [(TIMES, 0, 1), (INDICES, 0, 2**62)])
def test_times_and_indices_fill_their_range(law, low, high):
    draws = PointSampler(law, seed=1).sample(4000).double()
    assert draws.shape == (4000,)
    assert low <= draws.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < draws.max() <= high
    assert draws.mean() == pytest.approx((low + high) / 2, rel=0.05)
    assert len(draws.unique()) > 3990  # of 16 bits at most 1,700 differ, and some are 0 or 1


def flips(epochs, count=200):
    """Numbers of the images of some epochs, and whether each was mirrored: (epochs, count)."""
    images = torch.stack([torch.arange(count), torch.full((count,), 255)], dim=-1)
    sampler = image_sampler(images.to(torch.uint8).view(count, 1, 1, 2), seed=0, flip=True)
    levels = ((sampler.sample(epochs * count).flatten(1) + 1) * 127.5).round()
    return levels.amin(1).long().view(epochs, count), (levels[:, 0] == 255).view(epochs, count)


def test_coins_of_a_flip_do_not_follow_the_order_of_the_images():
    """Else an epoch would mirror the first images of the set, or always the same ones."""
    order, mirrored = flips(epochs=8)
    places = torch.arange(200.0)
    for row, coins in zip(order.double(), mirrored, strict=True):
        assert 70 < int(coins.sum()) < 130
        for values in (row, places):  # the mean of 100 of the numbers 0 to 199 has an error of 6
            assert abs(float(values[coins].mean() - values[~coins].mean())) < 35
    for one in range(8):
        for other in range(one):
            assert (mirrored[one] == mirrored[other]).float().mean() < 0.7
    by_image = [coins[row.argsort()] for row, coins in zip(order, mirrored, strict=True)]
    times = torch.stack(by_image).sum(0)
    assert 0.5 < float(times.double().var()) / 2 < 2  # binomial: 8 x 1/4


def test_rows_come_as_they_are_and_in_the_order_of_images():
    rows = torch.arange(50.0, dtype=torch.float64).view(-1, 1).expand(-1, 3).contiguous()
    drawn = RowSampler(rows, seed=7).at(range(60))
    assert drawn.dtype == torch.float64
    assert drawn[:, 2].int().tolist() == numbers(image_sampler(NUMBERED, seed=7).at(range(60)))


# --- classes ---

TOLD = replace(shipped("digits/onecall").data, conditional=True)


def streams():
    """Images of one pixel, 100 c + 0 .. 6 in class c of 3."""
    images = torch.cat([100 * c + torch.arange(7) for c in range(3)]).to(torch.uint8)
    numbered = images.view(-1, 1, 1, 1)
    rows = torch.arange(21).view(3, 7)
    return [image_sampler(numbered, c, chosen=own) for c, own in enumerate(rows)]


@pytest.mark.parametrize("run", [1, 4, 5])
def test_stream_of_classes_does_not_depend_on_how_it_is_cut(run):
    """Each sample has the class of its position, and each class its own order."""
    whole, labels = ClassSampler(streams(), run).at(range(90)), class_labels(range(90), 3, run)
    assert labels.tolist() == [i // run % 3 for i in range(90)]
    assert labels.dtype == torch.int32  # 64 bits would stay on the CPU
    assert [number // 100 for number in numbers(whole)] == labels.tolist()
    assert torch.equal(whole[labels == 1], streams()[1].at(range(30)))
    for cut in (range(31), range(31, 33), range(13, 41)):
        assert torch.equal(ClassSampler(streams(), run).at(cut), whole[cut.start : cut.stop])


@pytest.mark.parametrize("mixed", [False, True])
def test_every_digit_is_of_its_class_and_the_last_group_of_all(mixed):
    data, cut = load_data(TOLD, 0), range(5, 335)
    real = to_unit_range(data.images).flatten(1)
    drawn = data.target_by_class("x", mixed=mixed).at(cut).flatten(1)
    found, told = data.labels[torch.cdist(drawn, real).argmin(1)], class_labels(cut, 10 + mixed)
    assert data.classes == 10
    assert torch.equal(found[told < 10], told[told < 10].long())
    assert not mixed or len(found[told == 10].unique()) > 5


def test_streams_of_classes_differ_and_need_the_setting():
    """Else the same places of all classes would come together."""
    data = load_data(TOLD, 0)
    one, other = (data.target_by_class(name).at(range(50)) for name in ("x", "y"))
    assert not torch.equal(one, other)
    assert load_data(replace(TOLD, conditional=False), 0).classes == 0
    for label, stream in enumerate(data.target_by_class("x")._streams):  # their work is linear
        assert torch.equal(stream._chosen, (data.labels == label).nonzero()[:, 0])


def test_class_without_images_is_one_line(monkeypatch):
    real = ImageSet.labels
    monkeypatch.setattr(ImageSet, "labels", lambda *given: real(*given).clamp(max=8))
    with pytest.raises(UserError, match=r"^data\.conditional = true: 1 class"):
        load_data(TOLD, 0)


def test_labels_are_left_out_by_seed_and_position():
    labels = class_labels(range(4000), 10)
    (kept,) = LabelDropout(10, 0).at(range(4000), labels)
    dropped = kept == 10
    assert torch.equal(kept[~dropped], labels[~dropped])
    assert float(dropped.float().mean()) == pytest.approx(DROPPED, abs=0.02)
    (again,) = LabelDropout(10, 0).at(range(100, 120), labels[100:120])
    assert torch.equal(again, kept[100:120])
    assert not torch.equal(LabelDropout(10, 1).at(range(4000), labels)[0], kept)
