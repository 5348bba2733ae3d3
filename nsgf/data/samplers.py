"""Samplers: streams of samples, with ``sample(n)`` for any n.

Sample i of a stream depends only on the stream's seed and on i, not on the batches. So any part can
be drawn again. A stream is computed page by page. A page is a block of draws from a distribution,
or an epoch of a finite set. Sample i of a stream for K classes has class (i // run) mod K, so
``run`` successive samples have the same class. Class K stands for no class.

n: number of samples; *shape: shape of one sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nsgf.config.schema import Shape
from nsgf.data.points import TIMES, PointSet
from nsgf.system.seeding import make_generator

DRAW_BLOCK = 256
"""Number of successive draws of a distribution that share one generator."""
DROPPED = 0.1
"""Fraction of the labels of flows and lines that training drops (Ho and Salimans 2022)."""


class Sampler(ABC):
    """A seekable stream of samples of mu0 or mu*."""

    shape: Shape
    position = 0

    @abstractmethod
    def at(self, positions: range) -> Tensor:
        """Return the samples at these positions. The stream's position does not change.  (n,
        *shape)"""

    def sample(self, n: int) -> Tensor:
        """Return the next ``n`` samples.  (n, *shape)"""
        positions = range(self.position, self.position + n)
        self.position = positions.stop
        return self.at(positions)


@dataclass(eq=False)
class PointSampler(Sampler):
    """Independent draws from a distribution."""

    distribution: PointSet
    seed: int

    def __post_init__(self) -> None:
        self.shape = self.distribution.shape
        self._page_number = -1

    def at(self, positions: range) -> Tensor:
        parts = []
        for number, cut in pages(positions, DRAW_BLOCK):
            if number != self._page_number:
                self._page = self.distribution.draw(DRAW_BLOCK, make_generator(self.seed, number))
                self._page_number = number
            parts.append(self._page[cut])
        return torch.cat(parts)


@dataclass(eq=False)
class RowSampler(Sampler):
    """Samples of a finite set. Each epoch is a new permutation of all samples."""

    rows: Tensor
    """All rows, (N, *shape). They are never changed."""
    seed: int
    convert: Callable[[Tensor], Tensor] = lambda rows: rows
    """Function that converts rows for networks."""
    flip: bool = False
    """Whether to mirror half of the images."""
    chosen: Tensor | None = None
    """Indices of the rows to draw, int64, (M,); None: all."""
    check: Callable[[], None] = lambda: None
    """Function that is called before rows are read. It raises an error if the rows have changed."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.rows.shape[1:])
        self._chosen = torch.arange(len(self.rows)) if self.chosen is None else self.chosen
        self._epoch = -1

    def at(self, positions: range) -> Tensor:
        indices = []
        coins = []
        count = len(self._chosen)
        for epoch, cut in pages(positions, count):
            if epoch != self._epoch:
                generator = make_generator(self.seed, "epoch", epoch)
                self._order = self._chosen[torch.randperm(count, generator=generator)]
                self._coins = torch.rand(count, generator=generator, dtype=torch.float32)
                self._epoch = epoch
            indices.append(self._order[cut])
            coins.append(self._coins[cut])
        self.check()
        batch = self.convert(self.rows[torch.cat(indices)])
        if self.flip:
            is_mirrored = torch.cat(coins).view(-1, 1, 1, 1) < 0.5
            batch = torch.where(is_mirrored, batch.flip(-1), batch)
        return batch


def class_labels(positions: range, classes: int, run: int = 1) -> Tensor:
    """Return the class of the sample at each position, (n,). Classes repeat in order. Each class
    has ``run`` successive samples. int32"""
    numbers = torch.arange(positions.start, positions.stop)
    return (numbers // run % classes).int()


class ClassSampler(Sampler):
    """Interleaves several streams, with ``run`` successive samples of each. Sample i comes from
    stream (i // run) mod (number of streams). Each stream is read in order.
    """

    def __init__(self, streams: Sequence[Sampler], run: int = 1) -> None:
        """``streams``: a stream for each class. All samples have the same shape."""
        self.shape = streams[0].shape
        self._streams = list(streams)
        self._run = run

    def at(self, positions: range) -> Tensor:
        owners, order = class_labels(positions, len(self._streams), self._run).sort(stable=True)
        numbers, counts = owners.unique_consecutive(return_counts=True)
        parts = []
        for number, rows in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
            turn, within = divmod(positions.start + int(rows[0]), self._run)
            first = turn // len(self._streams) * self._run + within
            parts.append(self._streams[number].at(range(first, first + len(rows))))
        return torch.cat(parts)[order.argsort()]


class LabelDropout:
    """Drop labels at random, so that the network also learns to work without labels."""

    def __init__(self, classes: int, seed: int) -> None:
        self._classes = classes
        self._coins = PointSampler(TIMES, seed)

    def at(self, positions: range, labels: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return a tuple with the labels of the samples at these positions, (n,). If there are no
        classes, the tuple is empty. With probability DROPPED, a label is replaced by K (no class).
        Seed and position determine whether a label is replaced. ``labels`` None: sample i has class
        i mod K."""
        if not self._classes:
            return ()
        labels = class_labels(positions, self._classes) if labels is None else labels
        dropped = self._coins.at(positions) < DROPPED
        return (labels.masked_fill(dropped, self._classes),)


def pages(positions: range, size: int) -> Iterator[tuple[int, slice]]:
    """Yield the number of each page that contains some of the successive ``positions``, and the
    slice of the page with these positions. ``size``: number of samples in a page."""
    start = positions.start
    while start < positions.stop:
        page, offset = divmod(start, size)
        end = min(size, offset + positions.stop - start)
        yield page, slice(offset, end)
        start += end - offset
