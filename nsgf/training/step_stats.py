"""What an update came to, read without making the device wait."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nsgf.training.task import Batch


class StepStats(NamedTuple):
    """Loss and gradient norm as numbers."""

    loss: float
    norm: float

    @property
    def is_finite(self) -> bool:
        """Whether the update was done; else it was skipped."""
        return math.isfinite(self.loss + self.norm)


class PendingStats:
    """Loss and gradient norm of one update on their way from the device.

    They are copied behind the update's own work. Whoever reads them one update later finds them
    there, and the device, which has the next update to do, is never idle.
    """

    def __init__(self, step: int, batch: Batch, loss: Tensor, norm: Tensor) -> None:
        """Of update ``step`` (1, 2, ...): mean loss, and gradient norm before clipping, scalars."""
        self.step, self.batch = step, batch
        on_card = loss.device.type == "cuda"  # elsewhere nothing says when a copy has arrived
        self._values = torch.stack([loss.detach(), norm]).to("cpu", non_blocking=on_card)
        self._copied = torch.cuda.Event() if on_card else None
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(loss.device))

    def read(self) -> StepStats:
        """Waits until the update is done."""
        if self._copied is not None:
            self._copied.synchronize()
        return StepStats(*self._values.tolist())


def describe_batch(batch: Batch) -> str:
    """Range, mean and spread of a batch's tensors, and how many values are not finite."""
    names = [f"input {number}" for number in range(1, len(batch.inputs) + 1)]
    tensors = zip([*names, "target"], [*batch.inputs, batch.target], strict=True)
    return "; ".join(f"{name} {_statistics(tensor)}" for name, tensor in tensors)


def _statistics(tensor: Tensor) -> str:
    values = tensor.detach().float()
    bad = int((~values.isfinite()).sum())
    good = values[values.isfinite()]
    if not len(good):
        return f"has no finite value among {bad}"
    spread = float(good.std(correction=0))
    text = f"{good.min():.3g} to {good.max():.3g}, mean {good.mean():.3g}, std {spread:.3g}"
    return f"{text}, {bad} values not finite" if bad else text


def mean_stats(readings: list[StepStats]) -> StepStats:
    """Mean loss and gradient norm."""
    losses, norms = zip(*readings, strict=True)
    return StepStats(math.fsum(losses) / len(losses), math.fsum(norms) / len(norms))
