"""Cooperation of the processes that ``torchrun`` starts.

Each process computes a contiguous part of the flows, or of the samples of a batch. Random numbers
do not depend on the number of processes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from nsgf.system.errors import UserError, one_line, wrong_setting
from nsgf.system.output import is_launched, local_processes

Value = TypeVar("Value")

PATIENCE = timedelta(minutes=5)
"""Longest wait for another process during updates. If a process dies, torchrun ends the remaining
processes. This limit is for a machine or a network that stops answering."""
LONG_PATIENCE = timedelta(hours=2)
"""Longest wait for a process that builds flows, draws samples or measures."""


@dataclass(frozen=True)
class World:
    """The processes of this run; without torchrun, a single process."""

    rank: int = 0
    """Number of this process, 0 to size - 1."""
    size: int = 1
    """Number of processes."""
    patient: Any = None
    """Process group in which a process waits at most LONG_PATIENCE for another process."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes checkpoints and logs."""
        return self.rank == 0

    def share(self, things: range) -> range:
        """Return this process's part of ``things``. The sizes of the parts differ by at most
        one."""
        first = len(things) * self.rank // self.size
        return things[first : len(things) * (self.rank + 1) // self.size]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over the processes, on its device."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
            value /= self.size
        return value

    def any(self, flag: bool, *, has_worked: bool = False) -> bool:
        """Return whether ``flag`` is true in any process. ``has_worked`` says that a process may
        have built flows before this call. If so, wait as long as :meth:`wait` does."""
        if has_worked:
            self.wait()
        return float(self.mean(torch.tensor(float(flag), dtype=torch.float32))) > 0

    def agree(self, value: Value) -> Value:
        """Return the ``value`` of the first process."""
        if self.size == 1:
            return value
        self.wait()
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes by rank. In all processes except the first, the list
        is empty."""
        if self.size == 1:
            return [value]
        self.wait()
        box = [value] * self.size
        distributed.gather_object(value, box if self.is_main else None, dst=0)
        return box if self.is_main else []

    def wait(self) -> None:
        """Wait until every process has called this method, but at most LONG_PATIENCE."""
        if self.size > 1:
            distributed.barrier(self.patient)


ALONE = World()
"""A single process."""


def check_shares(key: str, count: int, size: int) -> None:
    """Raise UserError if the setting ``key`` is below the number of processes."""
    if count < size:
        raise wrong_setting(key, count, f"must be >= the number of processes, {size}")


@contextmanager
def join(device: str) -> Iterator[World]:
    """Connect the processes, and yield the World of this process. Cards use NCCL, CPUs use gloo.
    Raise the errors of :func:`take_card`."""
    if not is_launched():
        yield ALONE
        return
    rank, size = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE"))
    backend = "cpu:gloo,cuda:nccl" if take_card(device) else "gloo"
    try:
        distributed.init_process_group(backend, timeout=PATIENCE)
        patient = distributed.new_group(backend="gloo", timeout=LONG_PATIENCE)
    # a variable of torchrun is wrong, or the network fails
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"torchrun: the processes cannot meet ({one_line(error)}); start them with torchrun, "
            "or unset WORLD_SIZE"
        ) from error
    yield (world := World(rank, size, patient))
    # an error skips these lines, because other processes may then wait until this process ends
    if local_processes(size) < size:  # the job runs on several machines
        with suppress(RuntimeError):  # another process failed, and reports the error
            # wait for the first process, because torchrun on the remaining machines must not end
            # early
            world.wait()
    distributed.destroy_process_group()


def take_card(device: str) -> bool:
    """Make the card of this process torch's current card. Return False if the device is the CPU.
    Raise UserError if there are more processes than cards, or if ``device`` names a single card."""
    if device.startswith("cuda:"):
        raise wrong_setting("device", device, "each process needs its own card; use cuda")
    if device == "cpu" or not torch.cuda.is_available():
        return False
    if (local := int(os.environ["LOCAL_RANK"])) >= torch.cuda.device_count():
        raise UserError(
            f"torchrun: process {local + 1} on a machine with {torch.cuda.device_count()} "
            "CUDA devices; use a smaller --nproc-per-node, or --device cpu"
        )
    torch.cuda.set_device(local)
    return True
