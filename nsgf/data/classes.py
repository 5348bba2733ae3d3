"""Classes of samples: which one each sample of a stream has, and streams that keep to that.

Sample i of a stream for K classes has class (i // run) mod K, so that its class follows from its
position alone, as everything that is random does. Class K stands for no class.

Shapes: n samples, *shape one sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsgf.data.points import Times
from nsgf.data.samplers import PointSampler, Sampler

DROPPED = 0.1
"""Share of the labels of flows and lines that training leaves out (Ho and Salimans 2022)."""


def class_labels(positions: range, classes: int, run: int = 1) -> Tensor:
    """The classes of samples at these positions, ``run`` of each after one another.

    Whole numbers of 32 bits: those of 64 bits stay on the CPU (:mod:`nsgf.training.prefetch`).

    Returns:
        In [0, classes - 1], int32, (len(positions),).
    """
    numbers = torch.arange(positions.start, positions.stop)
    return (numbers // run % classes).int()


class ClassSampler(Sampler):
    """Samples of several streams in turn, ``run`` of each after one another: each stream is read in
    its own order, and sample i comes from stream (i // run) mod (number of streams).
    """

    def __init__(self, streams: Sequence[Sampler], run: int = 1) -> None:
        """``streams``: one for each class, of samples of the same shape, on the same device."""
        self.shape = streams[0].shape
        self._streams, self._run = list(streams), run

    def at(self, positions: range) -> Tensor:
        owners = class_labels(positions, len(self._streams), self._run)
        parts, places = [], []
        for number, stream in enumerate(self._streams):
            own = (owners == number).nonzero()[:, 0]
            if len(own):
                first = self._within(positions.start + int(own[0]))
                parts.append(stream.at(range(first, first + len(own))))
                places.append(own)
        order = torch.cat(places).argsort()
        whole = torch.cat(parts)
        return whole.index_select(0, order.to(whole.device))

    def _within(self, position: int) -> int:
        """Where in its own stream a sample is."""
        turn = position // self._run // len(self._streams)
        return turn * self._run + position % self._run


class LabelDropout:
    """Leaves out labels, so that a network also learns to answer without one."""

    def __init__(self, classes: int, seed: int) -> None:
        self._classes, self._coins = classes, PointSampler(Times(), seed)

    def __call__(self, labels: Tensor, positions: range) -> Tensor:
        """Labels (n,) of the samples at these positions, each with probability DROPPED replaced by
        K, no class; which ones follows from seed and position.  (n,)"""
        dropped = self._coins.at(positions) < DROPPED
        return labels.masked_fill(dropped, self._classes)


def class_rows(labels: Tensor, classes: int, most: int) -> Tensor | None:
    """Samples for a picture with a row for each class.

    Args:
        labels: (n,), in [0, classes - 1].
        classes: K.
        most: longest row.

    Returns:
        Indices of the first samples of each class, as many of all, (K, columns); None: a class has
        none.
    """
    counts = torch.bincount(labels.long(), minlength=classes)
    columns = min(int(counts.min()), most)
    if not columns:
        return None
    return torch.stack([(labels == c).nonzero()[:columns, 0] for c in range(classes)])


def nearest_multiple(count: int, unit: int) -> int:
    """The multiple of ``unit``, at least one of it, that is nearest to ``count``."""
    return max(1, (count + unit // 2) // unit) * unit
