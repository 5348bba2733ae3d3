"""Several processes that work together, as ``torchrun`` starts them.

Work is cut by position: of n things, flows or samples of a batch, each process takes a contiguous
part. What is drawn does not depend on the number of processes, only who draws it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed

from nsgf.system.errors import UserError
from nsgf.system.hardware import OTHERS
from nsgf.system.launch import is_launched

Value = TypeVar("Value")

PATIENCE = timedelta(hours=2)
"""How long a process waits for another, e.g. for pictures that only the first one makes. One that
dies ends them all at once: torchrun sees to that."""


@dataclass(frozen=True)
class World:
    """The processes of this run; a single one unless torchrun says otherwise."""

    rank: int = 0
    """Which one this is, 0 .. size - 1."""
    size: int = 1
    """How many there are."""
    local_rank: int = 0
    """Which one this is on its machine; also its card."""

    @property
    def card(self) -> int | None:
        """The number of its card where several work together; None: the current one."""
        return self.local_rank if self.size > 1 else None

    @property
    def is_main(self) -> bool:
        """Whether this one writes checkpoints and logs."""
        return self.rank == 0

    def share(self, things: range) -> range:
        """This process's part of ``things``; parts differ by at most one."""
        cuts = [len(things) * rank // self.size for rank in (self.rank, self.rank + 1)]
        return things[cuts[0] : cuts[1]]

    def mean(self, value: Tensor) -> Tensor:
        """Mean of a tensor over the processes, on its device."""
        if self.size > 1:
            value = value.clone()
            distributed.all_reduce(value)
            value /= self.size
        return value

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is true in one of the processes."""
        return float(self.mean(torch.tensor(float(flag)))) > 0

    def agree(self, value: Value) -> Value:
        """What the first process says; the others' ``value`` is dropped."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """What all processes say, by rank, in the first one; nothing in the others."""
        if self.size == 1:
            return [value]
        box: list[Value] = [value] * self.size
        distributed.gather_object(value, box if self.is_main else None, dst=0)
        return box if self.is_main else []

    def wait(self) -> None:
        """Go on when every process has come here."""
        if self.size > 1:
            distributed.barrier()


def check_shares(counts: dict[str, int], size: int) -> None:
    """
    Raises:
        UserError: there are more processes than things, counted by the setting that says how many.
    """
    for key, count in counts.items():
        if count < size:
            raise UserError(f"{key} = {count}: must be >= the number of processes, {size}")


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world of this process, for as long as the context lasts: cards talk over NCCL, CPUs over
    gloo.

    Raises:
        UserError: more processes than cards, or one card for all of them.
    """
    if not is_launched():
        yield World()
        return
    rank, size, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    backend = "cpu:gloo,cuda:nccl" if take_card(device) else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    yield (world := World(rank, size, local))
    # neither after an error: the others may be waiting for this process, which only its end tells
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) < size:  # on several machines
        with suppress(RuntimeError):  # what is wrong with another process is for that one to tell
            world.any(False)  # until the first has measured: torchrun leaves machines early
    distributed.destroy_process_group()


def take_card(device: str) -> bool:
    """Make the card of this process, one of several, torch's current one; False: CPUs are used.

    Raises:
        UserError: more processes than cards, or one card for all of them.
    """
    if device in OTHERS:
        raise UserError(f"device = {device}: takes one process; start it without torchrun")
    if device.startswith("cuda:"):
        raise UserError(f"device = {device}: several processes need a card each; say --device cuda")
    if device == "cpu" or not torch.cuda.is_available():
        return False
    if (local := int(os.environ["LOCAL_RANK"])) >= torch.cuda.device_count():
        raise UserError(
            f"torchrun: process {local + 1} on a machine with {torch.cuda.device_count()} "
            "CUDA devices; use a smaller --nproc-per-node, or --device cpu"
        )
    torch.cuda.set_device(local)
    return True
