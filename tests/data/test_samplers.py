"""Streams of samples: a function of seed and position, however they are cut into batches."""

import pytest
import torch

from nsgf.data import ImageSampler, PointSampler, RandomIndices, RowSampler, Times
from nsgf.data.points import Gaussian

IMAGES = torch.arange(160).to(torch.uint8).view(40, 1, 2, 2)
STREAMS = [
    lambda seed=3: PointSampler(Gaussian((2,)), seed),
    lambda seed=3: ImageSampler(IMAGES, seed, flip=True),
]


def numbered(count: int) -> torch.Tensor:
    """Images of one pixel whose value is their number."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)


def numbers(batch: torch.Tensor) -> list[int]:
    return ((batch.flatten() + 1) * 127.5).round().int().tolist()


def test_epoch_is_without_replacement_and_the_next_is_shuffled_anew():
    """Also where a batch begins in one epoch and ends in the next."""
    sampler = ImageSampler(numbered(50), seed=0)
    stream = numbers(torch.cat([sampler.sample(n) for n in (20, 60, 70)]))
    epochs = [stream[:50], stream[50:100], stream[100:]]
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_order_of_images_is_that_of_earlier_versions():
    """Runs of the same seed stay comparable."""
    sampler = ImageSampler(numbered(50), seed=7)
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


@pytest.mark.parametrize(("law", "low", "high"), [(Times(), 0, 1), (RandomIndices(), 0, 2**62)])
def test_times_and_indices_fill_their_range(law, low, high):
    draws = PointSampler(law, seed=1).sample(4000).double()
    assert draws.shape == (4000,)
    assert low <= draws.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < draws.max() <= high
    assert draws.mean() == pytest.approx((low + high) / 2, rel=0.05)


def flips(epochs: int, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the images of some epochs, and whether each was mirrored: (epochs, count)."""
    images = torch.stack([torch.arange(count), torch.full((count,), 255)], dim=-1)
    sampler = ImageSampler(images.to(torch.uint8).view(count, 1, 1, 2), seed=0, flip=True)
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
    assert drawn[:, 2].int().tolist() == numbers(ImageSampler(numbered(50), seed=7).at(range(60)))
    assert sorted(drawn[:50, 0].tolist()) == list(range(50))
