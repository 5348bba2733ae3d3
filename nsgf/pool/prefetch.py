"""Draw the next batches while the network trains on this one."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from nsgf.pool.trajectories import PoolBatch

DEPTH = 2
"""Batches drawn ahead: one ready while the next is being read."""

Draw = Callable[[int, torch.Generator], PoolBatch]
"""draw(batch_size, generator), for instance :meth:`TrajectoryPool.sample`."""


class Prefetch:
    """The batches of ``draw``, the same in the same order, from one background thread.

    The thread draws from a generator of its own. ``generator`` always stands where it would stand
    had the batches handed out so far been drawn from it directly, so a checkpoint that stores its
    state resumes with the first batch nobody has seen.
    """

    def __init__(self, draw: Draw, generator: torch.Generator, *, pin: bool = False) -> None:
        """
        Args:
            draw: where batches come from; called in the thread.
            generator: the stream to follow; change it from outside only before :meth:`rewind`.
            pin: put batches into pinned memory, from which copies to CUDA do not block.
        """
        self._draw, self._generator, self._pin = draw, generator, pin
        self._ahead = torch.Generator()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="pool-prefetch")
        self._pending: deque[Future[tuple[PoolBatch, Tensor]]] = deque()
        self._batch_size: int | None = None

    def next(self, batch_size: int) -> PoolBatch:
        """The next batch; raises what drawing it raised."""
        if batch_size != self._batch_size:
            self.rewind()
            self._batch_size = batch_size
        while len(self._pending) < DEPTH:
            self._pending.append(self._worker.submit(self._work, batch_size))
        try:
            batch, state = self._pending.popleft().result()
        except BaseException:
            self.rewind()  # the failed batch is the next one again
            raise
        self._pending.append(self._worker.submit(self._work, batch_size))
        self._generator.set_state(state)
        return batch

    def rewind(self) -> None:
        """Forget what was drawn ahead and go on from the state of ``generator``."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._batch_size = None
        # in the thread, and so after the draw that could no longer be cancelled
        self._worker.submit(self._ahead.set_state, self._generator.get_state()).result()

    def close(self) -> None:
        """End the thread; batches drawn ahead are dropped."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()

    def _work(self, batch_size: int) -> tuple[PoolBatch, Tensor]:
        batch = self._draw(batch_size, self._ahead)
        if self._pin:
            batch = PoolBatch(*(part.pin_memory() for part in batch))
        return batch, self._ahead.get_state()
