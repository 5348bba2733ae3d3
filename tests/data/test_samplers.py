import pytest
import torch

from nsgf.data import ImageSampler, PointSampler, RandomIndices, RowSampler, Times
from nsgf.data.points import Gaussian
from nsgf.data.samplers import BLOCK


def numbered(count: int) -> torch.Tensor:
    """Images of one pixel whose value is their number."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)


def numbers(batch: torch.Tensor) -> list[int]:
    return ((batch.flatten() + 1) * 127.5).round().int().tolist()


def test_any_batch_size_in_any_order():
    """One sampler serves phases with different batch sizes (no cached loader)."""
    sampler = ImageSampler(torch.zeros(10, 3, 4, 4, dtype=torch.uint8), seed=0)
    for n in (7, 3, 1, 25, 10):
        assert sampler.sample(n).shape == (n, 3, 4, 4)


def test_epoch_is_without_replacement_and_the_next_is_shuffled_anew():
    sampler = ImageSampler(numbered(50), seed=0)
    epochs = [numbers(torch.cat([sampler.sample(n) for n in (20, 30)])) for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(50))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_order_of_images_is_that_of_earlier_versions():
    """Runs of the same seed stay comparable."""
    sampler = ImageSampler(numbered(50), seed=7)
    assert numbers(sampler.at(range(6))) == [20, 27, 45, 1, 44, 33]
    assert numbers(sampler.at(range(50, 56))) == [42, 1, 5, 22, 24, 46]


def test_chosen_rows_alone_are_drawn_and_shuffled():
    chosen = torch.tensor([3, 5, 8, 40])
    sampler = ImageSampler(numbered(50), seed=0, chosen=chosen)
    epochs = [numbers(sampler.sample(4)) for _ in range(8)]
    assert all(sorted(epoch) == chosen.tolist() for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 3


def test_batch_across_epochs_completes_the_first():
    sampler = ImageSampler(numbered(10), seed=0)
    stream = numbers(sampler.sample(25))
    assert sorted(stream[:10]) == sorted(stream[10:20]) == list(range(10))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ImageSampler(torch.arange(160).to(torch.uint8).view(40, 1, 2, 2), 3, flip=True),
        lambda: PointSampler(Gaussian((2,)), 3),
    ],
)
def test_stream_does_not_depend_on_batch_sizes(make):
    """Sample i follows from seed and i alone, across epochs and blocks, with flips."""
    sampler = make()
    assert torch.equal(make().sample(700), torch.cat([sampler.sample(n) for n in (1, 259, 440)]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PointSampler(Gaussian((2,)), seed=5),
        lambda: ImageSampler(torch.randint(256, (30, 1, 2, 2), dtype=torch.uint8), 5, flip=True),
    ],
)
def test_position_is_the_whole_state(make):
    torch.manual_seed(0)
    sampler = make()
    sampler.sample(17)
    state, expected = sampler.position, sampler.sample(20)
    assert sampler.position == 37
    torch.manual_seed(0)
    other = make()
    other.position = state
    assert torch.equal(other.sample(20), expected)


def test_successive_draws_differ_and_seeds_differ():
    sampler = PointSampler(Gaussian((2,)), seed=0)
    assert not torch.equal(sampler.sample(5), sampler.sample(5))
    assert not torch.equal(
        PointSampler(Gaussian((2,)), 0).sample(5), PointSampler(Gaussian((2,)), 1).sample(5)
    )


def test_values_are_scaled_to_plus_minus_one():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert sorted(ImageSampler(images, 0).sample(2).flatten().tolist()) == [-1.0, 1.0]


def test_flip_mirrors_about_half_left_to_right_only():
    image = torch.tensor([[0, 255], [51, 204]], dtype=torch.uint8).view(1, 1, 2, 2)
    plain = ImageSampler(image, 0).sample(1)[0]
    batch = ImageSampler(image.expand(400, -1, -1, -1), 0, flip=True).sample(400)
    mirrored = (batch == plain.flip(-1)).flatten(1).all(1)
    assert ((batch == plain).flatten(1).all(1) ^ mirrored).all()
    assert 150 < int(mirrored.sum()) < 250
    still = ImageSampler(image.expand(400, -1, -1, -1), 0, flip=False).sample(400)
    assert (still == plain).all()


def test_zero_samples_are_refused():
    with pytest.raises(ValueError, match="one or more"):
        ImageSampler(numbered(3), 0).sample(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PointSampler(Gaussian((2,)), seed=5),
        lambda: ImageSampler(torch.arange(30, dtype=torch.uint8).view(30, 1, 1, 1), 5, flip=True),
    ],
)
def test_reading_at_positions_moves_nothing(make):
    stream, whole = make(), make().sample(600)
    stream.sample(10)
    assert torch.equal(stream.at(range(250, 600)), whole[250:])
    assert torch.equal(stream.at(range(3, 5)), whole[3:5])
    assert torch.equal(stream.sample(20), whole[10:30])


@pytest.mark.parametrize(("law", "low", "high"), [(Times(), 0, 1), (RandomIndices(), 0, 2**62)])
def test_times_and_lots_fill_their_range(law, low, high):
    draws = PointSampler(law, seed=1).sample(4000).double()
    assert draws.shape == (4000,)
    assert low <= draws.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < draws.max() <= high
    assert draws.mean() == pytest.approx((low + high) / 2, rel=0.05)


@pytest.mark.gpu
def test_images_on_the_card_give_the_same_batches():
    images = torch.randint(256, (50, 3, 4, 4), dtype=torch.uint8)
    on_card = ImageSampler(images.cuda(), 5, flip=True).sample(120)
    assert on_card.is_cuda
    assert torch.equal(on_card.cpu(), ImageSampler(images, 5, flip=True).sample(120))


def test_no_block_of_noise_comes_twice():
    """Each block has draws of its own, also read backwards."""
    sampler = PointSampler(Gaussian((1,)), seed=0)
    first, second, third = sampler.sample(3 * BLOCK).split(BLOCK)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert not torch.equal(first, third)
    assert torch.equal(sampler.at(range(BLOCK)), first)
    assert len(torch.cat([first, second, third]).unique()) > 3 * BLOCK - 5


def flips(epochs: int, count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the images of some epochs, and whether each was mirrored: (epochs, count)."""
    images = torch.stack([torch.arange(count), torch.full((count,), 255)], dim=-1)
    sampler = ImageSampler(images.to(torch.uint8).view(count, 1, 1, 2), seed=0, flip=True)
    levels = ((sampler.sample(epochs * count).flatten(1) + 1) * 127.5).round()
    return levels.amin(1).long().view(epochs, count), (levels[:, 0] == 255).view(epochs, count)


def test_coins_of_a_flip_do_not_follow_the_order_of_the_images():
    """Else an epoch would mirror the first images of the set, or always the same ones."""
    order, mirrored = flips(epochs=8)
    for numbers, coins in zip(order.double(), mirrored, strict=True):
        assert 70 < int(coins.sum()) < 130
        # a mean of 100 of the numbers 0 to 199, which spread by 58: its error is 6
        assert abs(float(numbers[coins].mean() - numbers[~coins].mean())) < 35
        places = torch.arange(200.0)
        assert abs(float(places[coins].mean() - places[~coins].mean())) < 35
    for one in range(8):
        for other in range(one):
            assert (mirrored[one] == mirrored[other]).float().mean() < 0.7
    by_image = torch.stack(
        [coins[row.argsort()] for row, coins in zip(order, mirrored, strict=True)]
    )
    times = by_image.sum(0)
    assert 0.5 < float(times.double().var()) / 2 < 2  # binomial: 8 x 1/4


def test_images_are_not_flipped_unasked():
    images = torch.tensor([0, 255], dtype=torch.uint8).expand(40, 1, 1, 2)
    pixels = ImageSampler(images, 0).sample(40)
    assert (pixels == torch.tensor([-1.0, 1.0])).all()


def test_rows_come_as_they_are_and_in_the_order_of_images():
    rows = torch.arange(50.0, dtype=torch.float64).view(-1, 1).expand(-1, 3).contiguous()
    drawn = RowSampler(rows, seed=7).at(range(60))
    assert drawn.dtype == torch.float64
    assert drawn[:, 2].int().tolist() == numbers(ImageSampler(numbered(50), seed=7).at(range(60)))
    assert sorted(drawn[:50, 0].tolist()) == list(range(50))
