"""Classes of samples: the class of each sample of a stream, and streams that keep to it.

Sample i of a stream for K classes has class (i // run) mod K, so that its class follows only from
its position, like all that is random. Class K stands for no class.

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
    """Return the classes of the samples at these positions, ``run`` successive samples of each.

    Returns:
        In [0, classes - 1], (len(positions),), int32: int64 stays on the CPU
        (:mod:`nsgf.training.prefetch`).
    """
    numbers = torch.arange(positions.start, positions.stop)
    return (numbers // run % classes).int()


class ClassSampler(Sampler):
    """Several streams in turn, ``run`` successive samples of each: sample i comes from stream
    (i // run) mod (number of streams), and each stream is read in its own order.
    """

    def __init__(self, streams: Sequence[Sampler], run: int = 1) -> None:
        """``streams``: one for each class, with samples of one shape on one device."""
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
        """Return the position of a sample in its own stream."""
        turn = position // self._run // len(self._streams)
        return turn * self._run + position % self._run


class LabelDropout:
    """Leaves out labels at random, so that a network also learns to work without one."""

    def __init__(self, classes: int, seed: int) -> None:
        self._classes, self._coins = classes, PointSampler(Times(), seed)

    def __call__(self, labels: Tensor, positions: range) -> Tensor:
        """Return the labels of the samples at these positions, each replaced by K, no class, with
        probability DROPPED; which ones follows from seed and position.  (n,) -> (n,)"""
        dropped = self._coins.at(positions) < DROPPED
        return labels.masked_fill(dropped, self._classes)


def class_rows(labels: Tensor, classes: int, most: int) -> Tensor | None:
    """Return the samples of a picture with a row for each class.

    Args:
        labels: (n,), in [0, classes - 1].
        classes: K.
        most: longest row.

    Returns:
        Indices of the first samples of each class, (K, columns); None if a class has none.
    """
    counts = torch.bincount(labels.long(), minlength=classes)
    columns = min(int(counts.min()), most)
    if not columns:
        return None
    return torch.stack([(labels == c).nonzero()[:columns, 0] for c in range(classes)])


def nearest_multiple(count: int, unit: int) -> int:
    """Return the positive multiple of ``unit`` that is nearest to ``count``."""
    return max(1, (count + unit // 2) // unit) * unit
