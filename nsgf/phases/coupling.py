"""Pair starts and ends of lines by optimal transport within a batch or a larger group.

Shapes: n points in a group, *shape one point.
"""

import torch
from torch import Tensor

from nsgf.data import Sampler
from nsgf.data.samplers import pages
from nsgf.sinkhorn.exact import optimal_pairs


class Pairs:
    """Pairs of starts X0 and ends X1: independent, or optimally paired on ``device`` within groups
    of ``group`` successive samples.

    Pair i depends only on the streams and i, not on batches or processes, because a group is always
    paired as a whole.
    """

    def __init__(
        self, source: Sampler, target: Sampler, device: torch.device, group: int | None = None
    ) -> None:
        self._source, self._target, self._device = source, target, device
        self._group = group
        self._number, self._paired = -1, (torch.empty(0), torch.empty(0))

    def at(self, positions: range) -> tuple[Tensor, Tensor]:
        """Return X0 and X1 of the pairs at these positions, each (len(positions), *shape)."""
        if self._group is None:
            return self._source.at(positions), self._target.at(positions)
        parts = []
        for number, cut in pages(positions, self._group):
            start, end = self._pair_group(number, self._group)
            parts.append((start[cut], end[cut]))
        starts, ends = zip(*parts, strict=True)
        return torch.cat(starts), torch.cat(ends)

    def _pair_group(self, number: int, size: int) -> tuple[Tensor, Tensor]:
        """Pair a group; the last one is cached, since batches visit groups in order."""
        if number != self._number:
            whole = range(number * size, (number + 1) * size)
            start, end = (s.at(whole).to(self._device) for s in (self._source, self._target))
            self._paired, self._number = (start, end[optimal_pairs(start, end)]), number
        return self._paired
