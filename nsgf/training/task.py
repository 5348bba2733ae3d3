"""The task of a phase: a network, its batches and its loss.

Every phase is a regression: the network learns to map the inputs of a :class:`Batch` to its
target. Sample i of a phase's batches follows from the run's seed and i alone, so a batch is named
by positions and can be drawn ahead, again, or in parts.

Shapes: B batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


class Batch(NamedTuple):
    """One regression problem."""

    inputs: tuple[Tensor, ...]
    """Arguments of the network, each (B, ...)."""
    target: Tensor
    """Wanted outputs, (B, ...); for a loss that compares whole batches, (M, ...)."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])

    def split(self, parts: int) -> list["Batch"]:
        """Return at most ``parts`` batches, equally large except for the last."""
        if parts == 1:
            return [self]
        size = -(-self.size // parts)
        inputs = zip(*(part.split(size) for part in self.inputs), strict=True)
        return [
            Batch(part, target)
            for part, target in zip(inputs, self.target.split(size), strict=True)
        ]


Answer = Callable[..., Tensor]
"""A network as an update calls it: inputs of a batch to outputs, float32, (B, ...)."""
Loss = Callable[[Answer, Batch], Tensor]
"""A scalar, the mean over the samples of a batch."""


class Task(ABC):
    """A network with its batches and its loss."""

    model: nn.Module
    """The network to train."""
    reads_disk: bool = False
    """Whether drawing a batch waits for a disk."""
    divisible: bool = True
    """Whether the loss of a batch is the mean of those of its parts."""

    @abstractmethod
    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Return everything random of the samples at these positions. It may run in another
        thread."""

    @abstractmethod
    def batch(self, *drawn: Tensor) -> Batch:
        """Return the regression problem of the tensors from :meth:`draw`. They are on the network's
        device, except for int64 ones."""

    def remarks(self) -> tuple[str, ...]:
        """Return lines for the log about the updates of this process, after its last one."""
        return ()

    def loss(self, forward: Answer, batch: Batch) -> Tensor:
        """Return the loss, a mean over the batch: the squared error unless a phase overrides it.

        Args:
            forward: the network as an update calls it.
            batch: a batch, or a part of one.
        """
        return squared_error(forward, batch)


def squared_error(forward: Answer, batch: Batch) -> Tensor:
    """Return the mean squared error of the network's answers."""
    return functional.mse_loss(forward(*batch.inputs), batch.target)
