"""Samplers: streams with ``sample(n)`` for any n.

Sample i of a stream depends only on the stream's seed and on i, however the stream is cut into
batches, so any part can be drawn again. Streams are made in pages: blocks of draws, or epochs of
images. Sample i of a stream for K classes has class (i // run) mod K. Class K stands for no class.

Shapes: n samples, *shape one sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nsgf.data.images import to_unit_range
from nsgf.data.points import TIMES, Gaussian, PointSet
from nsgf.system.seeding import make_generator

BLOCK = 256
"""Draws of a distribution that share one generator."""
DROPPED = 0.1
"""Share of the labels of flows and lines that training leaves out (Ho and Salimans 2022)."""


class Sampler(ABC):
    """A seekable stream of samples of mu0 or mu*."""

    shape: tuple[int, ...]
    position = 0

    @abstractmethod
    def at(self, positions: range) -> Tensor:
        """Return the samples at these positions; the stream does not move.  (n, *shape)"""

    def sample(self, n: int) -> Tensor:
        """Return the next ``n`` samples.  (n, *shape)"""
        positions = range(self.position, self.position + n)
        self.position = positions.stop
        return self.at(positions)


class PointSampler(Sampler):
    """Independent draws from a distribution."""

    def __init__(self, distribution: Gaussian | PointSet, seed: int) -> None:
        self.shape = distribution.shape
        self._distribution = distribution
        self._seed = seed
        self._page, self._page_number = torch.empty(0), -1

    def at(self, positions: range) -> Tensor:
        parts = []
        for number, cut in pages(positions, BLOCK):
            if number != self._page_number:
                self._page = self._distribution.draw(BLOCK, make_generator(self._seed, number))
                self._page_number = number
            parts.append(self._page[cut])
        return torch.cat(parts)


class RowSampler(Sampler):
    """Samples of a finite set without replacement within an epoch, a fresh permutation for each."""

    def __init__(
        self,
        rows: Tensor,
        seed: int,
        chosen: Tensor | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``rows``: (N, *shape), never changed; ``chosen``: indices of the rows to draw, int64,
        (M,), None for all; ``check``: called before rows are read, raises if they have changed."""
        self.shape = tuple(rows.shape[1:])
        self._rows, self._chosen = rows, chosen
        self._check = check
        self._count = len(rows) if chosen is None else len(chosen)
        self._seed = seed
        self._order, self._coins = torch.empty(0, dtype=torch.long), torch.empty(0)
        self._epoch = -1

    def at(self, positions: range) -> Tensor:
        return self._with_coins(positions)[0]

    def _with_coins(self, positions: range) -> tuple[Tensor, Tensor]:
        """Return the rows, (n, *shape), and for each a number from [0, 1), (n,)."""
        indices, coins = [], []
        for epoch, cut in pages(positions, self._count):
            if epoch != self._epoch:
                generator = make_generator(self._seed, "epoch", epoch)
                self._order = torch.randperm(self._count, generator=generator)
                self._coins = torch.rand(self._count, generator=generator)
                self._epoch = epoch
            indices.append(self._order[cut])
            coins.append(self._coins[cut])
        index = torch.cat(indices)
        if self._chosen is not None:
            index = self._chosen[index]
        self._check()
        return self._rows[index], torch.cat(coins)


class ImageSampler(RowSampler):
    """Sample uint8 images, converted to floats in [-1, 1]."""

    def __init__(self, images: Tensor, seed: int, *, flip: bool = False, **how: Any) -> None:
        """``images``: uint8, (N, C, H, W); with ``flip`` half of them are mirrored; ``how``: as
        :class:`RowSampler`."""
        super().__init__(images, seed, **how)
        self._flip = flip

    def at(self, positions: range) -> Tensor:
        images, coins = self._with_coins(positions)
        batch = to_unit_range(images)
        if self._flip:
            batch = torch.where((coins < 0.5).view(-1, 1, 1, 1), batch.flip(-1), batch)
        return batch


def class_labels(positions: range, classes: int, run: int = 1) -> Tensor:
    """Return the class of the sample at each position, (n,). Classes repeat in order, with ``run``
    successive samples each. int32, since int64 stays on the CPU (:mod:`nsgf.training.task`)."""
    numbers = torch.arange(positions.start, positions.stop)
    return (numbers // run % classes).int()


class ClassSampler(Sampler):
    """Several streams in turn, ``run`` successive samples of each: sample i comes from stream
    (i // run) mod (number of streams), and each stream is read in its own order.
    """

    def __init__(self, streams: Sequence[Sampler], run: int = 1) -> None:
        """``streams``: one for each class, with samples of one shape."""
        self.shape = streams[0].shape
        self._streams, self._run = list(streams), run

    def at(self, positions: range) -> Tensor:
        owners, places = class_labels(positions, len(self._streams), self._run).sort(stable=True)
        numbers, counts = owners.unique_consecutive(return_counts=True)
        parts = []
        for number, own in zip(numbers.tolist(), places.split(counts.tolist()), strict=True):
            turn, within = divmod(positions.start + int(own[0]), self._run)
            first = turn // len(self._streams) * self._run + within
            parts.append(self._streams[number].at(range(first, first + len(own))))
        return torch.cat(parts)[places.argsort()]


class LabelDropout:
    """Drop labels at random, so that the network also learns to work without labels."""

    def __init__(self, classes: int, seed: int) -> None:
        self._classes, self._coins = classes, PointSampler(TIMES, seed)

    def at(self, positions: range) -> tuple[Tensor, ...]:
        """Return labels of the samples at these positions, (n,), where sample i has class i mod K;
        nothing without classes."""
        if not self._classes:
            return ()
        return (self(class_labels(positions, self._classes), positions),)

    def __call__(self, labels: Tensor, positions: range) -> Tensor:
        """Return the labels of the samples at these positions, each replaced by K, no class, with
        probability DROPPED; which ones follows from seed and position.  (n,) -> (n,)"""
        dropped = self._coins.at(positions) < DROPPED
        return labels.masked_fill(dropped, self._classes)


def pages(positions: range, size: int) -> Iterator[tuple[int, slice]]:
    """Yield (number, slice) of the pages of ``size`` samples that together cover ``positions``,
    which are successive."""
    start, n = positions.start, len(positions)
    while n > 0:
        page, offset = divmod(start, size)
        count = min(n, size - offset)
        yield page, slice(offset, offset + count)
        start, n = start + count, n - count
