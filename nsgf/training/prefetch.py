"""Load the batches of a phase to the network's device, ahead of time where that is faster."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from nsgf.system.distributed import World
from nsgf.training.task import Batch, Task

Loaded = tuple[tuple[Tensor, ...], torch.cuda.Event | None]
"""Tensors of a batch, and the event after their copies to a card; None: they are complete."""
DEPTH = 2
"""Number of batches drawn ahead: one is ready while the next is being made."""


def load_batches(
    task: Task,
    batch_size: int,
    device: torch.device,
    world: World,
    start: int = 0,
    *,
    prefetch: bool = False,
) -> Generator[Batch, None, None]:
    """Yield the batches of the updates ``start``, ``start`` + 1, ... without end. Batch k has the
    samples k B to (k + 1) B - 1, divided among the processes.

    With ``prefetch`` a thread draws batches until the generator is closed; for a card it also
    copies them from pinned memory on a separate stream."""
    stream = torch.cuda.Stream(device) if prefetch and device.type == "cuda" else None

    def load(step: int) -> Loaded:
        positions = world.share(range(step * batch_size, (step + 1) * batch_size))
        with torch.cuda.stream(stream) if stream else nullcontext():
            drawn = task.draw(positions)
            with record_function("transfer"):
                tensors = tuple(_move(part, device) for part in drawn)
            return tensors, stream.record_event() if stream else None

    def arrived(tensors: tuple[Tensor, ...], event: Any) -> tuple[Tensor, ...]:
        """Let the computation wait for the copies of a batch, and return its tensors."""
        if event is not None:
            with record_function("transfer"):  # the part that computation does not hide
                current = torch.cuda.current_stream(device)
                current.wait_event(event)
                for tensor in tensors:
                    if tensor.is_cuda:
                        tensor.record_stream(current)  # keep its memory until this stream is done
        return tensors

    if not prefetch:
        for step in count(start):
            yield task.batch(*load(step)[0])
    thread = ThreadPoolExecutor(1, "batches")
    ahead: deque[Future[Loaded]] = deque()
    if stream:
        thread.submit(torch.cuda.set_device, device)
        # the task may still be computing data for its batches
        stream.wait_stream(torch.cuda.current_stream(device))
    try:
        for step in count(start):
            while len(ahead) <= DEPTH:
                ahead.append(thread.submit(load, step + len(ahead)))
            # no name holds the tensors, which are freed as soon as the batch does not need them
            yield task.batch(*arrived(*ahead.popleft().result()))
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        if stream:  # the caller may free what the stream still reads
            torch.cuda.current_stream(device).wait_stream(stream)


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device, except int64 tensors: these are seeds, which the CPU reads.
    Labels, which networks read, are int32."""
    if tensor.dtype == torch.int64:
        return tensor
    if tensor.device.type == "cpu" and device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
