"""Load the batches of a phase to the network's device, ahead of time where that is faster."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import record_function

from nsgf.config.schema import Config
from nsgf.data import is_image_set
from nsgf.system.distributed import World
from nsgf.training.task import Batch, Task

DEPTH = 2
"""Number of batches drawn ahead: one is ready while the next is being made."""


class Loaded(NamedTuple):
    """Tensors of one batch that are being copied to the device."""

    tensors: tuple[Tensor, ...]
    arrived: torch.cuda.Event | None
    """Event after the copies; None: the copies are complete."""


def should_prefetch(config: Config, task: Task, device: torch.device) -> bool:
    """Whether a thread should draw the batches: for a pool on disk, and for images on a card. For
    points a thread costs more time than it saves."""
    return task.reads_disk or (device.type == "cuda" and is_image_set(config.data.name))


class Batches:
    """The batches of a phase. Batch k has the samples k B to (k + 1) B - 1, divided among the
    processes."""

    def __init__(
        self,
        task: Task,
        batch_size: int,
        device: torch.device,
        world: World,
        *,
        prefetch: bool = False,
    ) -> None:
        """With ``prefetch`` a thread draws batches until :meth:`close`; for a card it also copies
        them from pinned memory on a separate stream."""
        self._task, self._size, self._device, self._world = task, batch_size, device, world
        self._thread = ThreadPoolExecutor(1, "batches") if prefetch else None
        self._ahead: deque[tuple[int, Future[Loaded]]] = deque()
        self._stream = torch.cuda.Stream(device) if prefetch and device.type == "cuda" else None
        if self._thread is not None and self._stream is not None:
            self._thread.submit(torch.cuda.set_device, device)
            # the task may still be computing data for its batches
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def at(self, step: int) -> Batch:
        """Return the batch of update ``step`` (0, 1, ...)."""
        loaded = self._load(step) if self._thread is None else self._next(step, self._thread)
        if loaded.arrived is not None:
            with record_function("transfer"):  # the part that computation does not hide
                current = torch.cuda.current_stream(self._device)
                current.wait_event(loaded.arrived)
                for tensor in loaded.tensors:
                    if tensor.is_cuda:
                        tensor.record_stream(current)  # keep its memory until this stream is done
        return self._task.batch(*loaded.tensors)

    def close(self) -> None:
        """Stop the thread and drop its batches."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        if self._stream is not None:  # the caller may free what the stream still reads
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._ahead.clear()

    def _next(self, step: int, thread: ThreadPoolExecutor) -> Loaded:
        if self._ahead and self._ahead[0][0] != step:  # not the next batch
            for _, future in self._ahead:
                future.cancel()
            self._ahead.clear()
        first = self._ahead[-1][0] + 1 if self._ahead else step
        for number in range(first, step + 1 + DEPTH):
            self._ahead.append((number, thread.submit(self._load, number)))
        return self._ahead.popleft()[1].result()

    def _load(self, step: int) -> Loaded:
        positions = self._world.share(range(step * self._size, (step + 1) * self._size))
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            drawn = self._task.draw(positions)
            with record_function("transfer"):
                tensors = tuple(self._move(part) for part in drawn)
            arrived = self._stream.record_event() if self._stream else None
        return Loaded(tensors, arrived)

    def _move(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device, except int64 tensors: these are seeds, which the CPU reads.
        Labels, which networks read, are int32."""
        if tensor.dtype == torch.int64:
            return tensor
        if tensor.device.type == "cpu" and self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)
