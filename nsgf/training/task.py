"""The task of a phase: a network, its batches and its loss.

Every phase is a regression: the network learns to map the inputs of a :class:`Batch` to the target.
Sample i of a phase depends only on the run's seed and on i. So a range of positions identifies a
batch, which can be drawn ahead, again, or in parts.

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
    """Desired outputs, (B, ...); (M, ...) for a loss that compares whole batches."""

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


NetworkCall = Callable[..., Tensor]
"""Maps the inputs of a batch to the network's outputs, float32, (B, ...)."""


class Task(ABC):
    """A network with its batches and its loss."""

    model: nn.Module
    """The network to train."""
    reads_disk: bool = False
    """Whether drawing a batch waits for a disk."""
    divisible: bool = True
    """Whether the loss of a batch is the mean of the losses of its parts."""

    @abstractmethod
    def draw(self, positions: range) -> tuple[Tensor, ...]:
        """Return all random tensors for the samples at these positions. May run in a thread."""

    @abstractmethod
    def batch(self, *drawn: Tensor) -> Batch:
        """Return the regression problem for the tensors from :meth:`draw`, which are on the
        network's device by now, except int64 tensors."""

    def remarks(self) -> tuple[str, ...]:
        """Return lines for the log, after the last update of this process."""
        return ()

    def loss(self, forward: NetworkCall, batch: Batch) -> Tensor:
        """Return the mean loss of a batch or of a part of one. Default: the squared error."""
        return functional.mse_loss(forward(*batch.inputs), batch.target)
