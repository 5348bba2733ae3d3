"""Samplers: streams that answer ``sample(n)`` for any n.

What a sampler returns is a function of its seed and of its position, the number of samples drawn
so far. Both are its whole state, and any part of a stream can be drawn again.
"""

from typing import Protocol

import torch
from torch import Tensor

from nsgf.data.images import to_unit_range
from nsgf.data.points import Distribution
from nsgf.seeding import derive_seed, make_generator


class Sampler(Protocol):
    """A seekable stream of samples of mu0 or mu*."""

    shape: tuple[int, ...]
    position: int

    def sample(self, n: int) -> Tensor:
        """The next ``n`` samples, float32 on the CPU, (n, *shape)."""
        ...


class PointSampler:
    """Independent draws from a distribution."""

    def __init__(self, distribution: Distribution, seed: int) -> None:
        self.shape = distribution.shape
        self.position = 0
        self._distribution = distribution
        self._seed = seed

    def sample(self, n: int) -> Tensor:
        _check_size(n)
        batch = self._distribution.draw(n, make_generator(self._seed, self.position))
        self.position += n
        return batch


class ImageSampler:
    """Images without replacement within an epoch, a fresh permutation for each epoch."""

    def __init__(self, images: Tensor, seed: int, *, flip: bool = False) -> None:
        """
        Args:
            images: uint8, (N, C, H, W), shared and never written.
            seed: seed of the permutations and flips.
            flip: mirror each image left to right with probability 1/2.
        """
        self.shape = tuple(images.shape[1:])
        self.position = 0
        self._images = images
        self._seed = seed
        self._flip = flip
        self._order = torch.empty(0, dtype=torch.long)
        self._order_epoch = -1

    def sample(self, n: int) -> Tensor:
        _check_size(n)
        start = self.position
        self.position += n
        batch = to_unit_range(self._images[self._indices(start, n)])
        if self._flip:
            coins = torch.rand(n, generator=make_generator(self._seed, "flip", start)) < 0.5
            batch = torch.where(coins.view(-1, 1, 1, 1), batch.flip(-1), batch)
        return batch

    def _indices(self, start: int, n: int) -> Tensor:
        """Image numbers at stream positions start .. start + n - 1.  (n,)"""
        parts, size = [], len(self._images)
        while n > 0:
            epoch, offset = divmod(start, size)
            part = self._permutation(epoch)[offset : offset + n]
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return torch.cat(parts)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._order_epoch:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "epoch", epoch))
            self._order = torch.randperm(len(self._images), generator=generator)
            self._order_epoch = epoch
        return self._order


def _check_size(n: int) -> None:
    if n < 1:
        raise ValueError(f"sample(n) needs n >= 1, got {n}")
