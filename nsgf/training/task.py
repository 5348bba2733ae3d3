"""The task of a phase, and the session of a training run. A task is a network with its batches and
its loss.

Every phase is a regression: the network learns to map the inputs of a :class:`Batch` to the target.
Sample i of a phase depends only on the run's seed and on i. So a range of positions identifies a
batch. A batch can be drawn in advance, a second time, or in parts.

B: batch size.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsgf.config.schema import Config, PhaseName
from nsgf.data import Target
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import StopRequest
from nsgf.system.distributed import ALONE, World
from nsgf.training.precision import Precision, pick_precision

Drawn = tuple[Tensor, ...]


class Batch(NamedTuple):
    """One regression problem."""

    inputs: tuple[Tensor, ...]
    """Arguments of the network, each (B, ...)."""
    target: Tensor
    """Desired outputs, (B, ...). A loss that compares whole batches may have (M, ...)."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.inputs[0])

    def split(self, parts: int) -> list["Batch"]:
        """Return at most ``parts`` batches. All batches except the last are equally large."""
        if parts == 1:
            return [self]
        inputs = zip(*(part.chunk(parts) for part in self.inputs), strict=True)
        return [*map(Batch, inputs, self.target.chunk(parts))]


NetworkCall = Callable[..., Tensor]
"""Maps the inputs of a batch to the network's outputs, float32, (B, ...)."""


class Task(ABC):
    """A network with its batches and its loss."""

    model: nn.Module
    """The network to train."""
    reads_disk: bool = False
    """Whether drawing a batch reads from a disk."""
    divisible: bool = True
    """Whether the loss of a batch is the mean of the losses of the batch's parts."""

    @abstractmethod
    def draw(self, positions: range) -> Drawn:
        """Return all random tensors for the samples at these positions. This method may run in a
        thread."""

    @abstractmethod
    def batch(self, *drawn: Tensor) -> Batch:
        """Return the regression problem for the tensors from :meth:`draw`, which are now on the
        network's device."""

    def remarks(self) -> tuple[str, ...]:
        """Return lines for the log after the last update of this process."""
        return ()

    def loss(self, forward: NetworkCall, batch: Batch) -> Tensor:
        """Return the mean loss of a batch or of a part of a batch. The default is the squared
        error."""
        return functional.mse_loss(forward(*batch.inputs), batch.target)


Loaded = tuple[Drawn, torch.cuda.Event | None]
"""Tensors of a batch, and the event after the copies to a card. The event is None if the tensors
are already copied."""
DEPTH = 2
"""Number of batches drawn in advance. A batch is ready while the next batch is being made."""


def load_batches(
    task: Task,
    batch_size: int,
    device: torch.device,
    world: World,
    start: int = 0,
    *,
    prefetch: bool,
) -> Generator[Batch, None, None]:
    """Yield the batches of the updates ``start``, ``start`` + 1, ..., endlessly. Batch k has the
    samples k B to (k + 1) B - 1, divided among the processes.

    With ``prefetch``, a thread draws batches until the generator is closed. For a card, it also
    copies them from pinned memory on a separate stream."""
    stream = torch.cuda.Stream(device) if prefetch and device.type == "cuda" else None

    def load(step: int) -> Loaded:
        positions = world.share(range(step * batch_size, (step + 1) * batch_size))
        with torch.cuda.stream(stream) if stream else nullcontext():
            drawn = task.draw(positions)
            if device.type == "cuda":  # a copy from pinned memory does not wait
                drawn = tuple(part if part.is_cuda else part.pin_memory() for part in drawn)
            tensors = tuple(part.to(device, non_blocking=True) for part in drawn)
            return tensors, stream.record_event() if stream else None

    def arrived(tensors: Drawn, event: Any) -> Drawn:
        """Let the computation wait for the copies of a batch, and return its tensors."""
        if event is not None:
            current = torch.cuda.current_stream(device)
            current.wait_event(event)
            for tensor in tensors:
                if tensor.is_cuda:
                    # keep the tensor's memory until the current stream has used the tensor
                    tensor.record_stream(current)
        return tensors

    if not prefetch:
        for step in count(start):
            yield task.batch(*load(step)[0])
    thread = ThreadPoolExecutor(1, "batches")
    context = copy_context()  # keeps the names for messages, and the silence
    ahead: deque[Future[Loaded]] = deque()
    if stream:
        thread.submit(torch.cuda.set_device, device)
        # wait until the task has computed the data of its batches
        stream.wait_stream(torch.cuda.current_stream(device))
    try:
        for step in count(start):
            while len(ahead) <= DEPTH:
                ahead.append(thread.submit(context.run, load, step + len(ahead)))
            # do not store the tensors in a variable, so that they are freed with the batch
            yield task.batch(*arrived(*ahead.popleft().result()))
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        if stream:  # the caller may free tensors that the stream still reads
            torch.cuda.current_stream(device).wait_stream(stream)


OnLog = Callable[[PhaseName, int, float | None, Callable[[], Path]], object]
"""Function of (phase, step, mean loss, save). ``save`` writes a checkpoint and returns the run
folder. If the function returns False, training ends after a checkpoint. Every other value lets
training continue."""


@dataclass
class Session:
    """Everything that a phase needs for training, in one process."""

    config: Config
    target: Target
    """The record of the data set."""
    run: RunFolder
    log: RunLog
    device: torch.device
    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)
    on_log: OnLog | None = None
    """Function that is called after each line of the log's metrics. It cannot change the
    results."""

    @property
    def precision(self) -> Precision:
        """Precision of the networks. Raise UserError if the card does not support it."""
        return pick_precision(self.config.train.precision, self.device, self.target.is_images)

    def should_stop(self) -> bool:
        """Return whether any process must stop. All processes must call this method together."""
        if stops := self.world.any(self.stop.reason is not None):
            self.stop.follow()
        return stops
