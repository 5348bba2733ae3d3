"""The state of a pretended card: its memory, the order of its streams, and the host's waits. See
:mod:`tests.system.pretended_card`."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import nsgf

ROOT = str(Path(nsgf.__file__).parent)
CARD, CPU = torch.device("cuda", 0), torch.device("cpu")


class MixedDevices(RuntimeError):
    """Stands for CUDA's "Expected all tensors to be on the same device"."""


class StreamRace(RuntimeError):
    """Memory is used before it is written, or may be written while it is used."""


class Stream:
    """Stands for torch.cuda.Stream: counts its launches, and knows which launches of other streams
    end before its own next one begins."""

    def __init__(self, card: "Card", *_: object) -> None:
        self.card, self.clock = card, 0
        self.seen: Counter[Stream] = Counter()

    def state(self) -> "Counter[Stream]":
        return self.seen | Counter({self: self.clock})

    def record_event(self) -> "Event":
        event = Event(self.card)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        self.seen |= event.state

    def wait_stream(self, other: "Stream") -> None:
        self.seen |= other.state()


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, card: "Card") -> None:
        self.card = card

    def record(self, stream: Stream) -> None:
        self.state = stream.state()

    def synchronize(self) -> None:
        self.card.wait("event", self.state)


@dataclass
class Memory:
    """A piece of the card's memory."""

    storage: StorageWeakRef
    """Keeps the storage's address from being another's, but not its content."""
    home: Stream
    """Where it is allocated, and used again once it is given back."""
    maker: Stream
    made: int
    users: "Counter[Stream]" = field(default_factory=Counter)
    """Last use by streams other than its home, unless recorded."""
    recorded: set[Stream] = field(default_factory=set)


class Card:
    """Memory, streams and faults of the pretended card, and how often the host waited."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.faults: list[Exception] = []
        self.lock = threading.RLock()
        self.default_stream = Stream(self)
        self._done: Counter[Stream] = Counter()
        """Launches whose end the host has waited for."""
        self._memory: dict[int, Memory] = {}
        self._lent: dict[int, Memory] = {}
        """Memory that streams other than its home have used."""
        self._pinned: dict[int, StorageWeakRef] = {}
        self.arriving: dict[int, tuple[Stream, int]] = {}
        """Main memory that the card is still writing."""
        self._of_thread = threading.local()

    # --- what is counted ---

    @property
    def counts(self) -> "Counter[str]":
        """Waits of this thread, by kind."""
        return self._of_thread.__dict__.setdefault("counts", Counter())

    @contextmanager
    def counted(self, owner: Any, name: str) -> Iterator["Counter[str]"]:
        """Count the ``calls`` of a function, and the waits inside it of the calling thread."""
        real, total = getattr(owner, name), Counter[str]()

        def function(*args: Any, **kwargs: Any) -> Any:
            before = self.counts.copy()
            try:
                return real(*args, **kwargs)
            finally:
                total.update(self.counts - before + Counter(calls=1))

        with patch.object(owner, name, function):
            yield total

    def wait(self, kind: str, state: "Counter[Stream] | None" = None) -> None:
        """The host waits for what is launched, or for ``state``."""
        self._done |= self.stream.state() if state is None else state
        self.counts[f"wait: {kind}"] += 1

    def fault(self, error: Exception) -> None:
        self.faults.append(error)
        raise error

    # --- streams ---

    @property
    def stream(self) -> Stream:
        """The current one of this thread."""
        return self._of_thread.__dict__.get("stream", self.default_stream)

    @contextmanager
    def use(self, stream: Stream | None) -> Iterator[None]:
        """In place of torch.cuda.stream."""
        before, self._of_thread.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self._of_thread.stream = before

    def launch(self, name: str, *read: Tensor) -> None:
        """An operation on the current stream, of which ``read`` are the inputs."""
        stream = self.stream
        stream.clock += 1
        for tensor in read:
            self._check_made(tensor, stream, name)
        for key, memory in list(self._lent.items()):
            if memory.storage.expired():
                del self._lent[key]
                if not all(self._is_done(*use, memory.home) for use in memory.users.items()):
                    self.fault(StreamRace("memory was given back without record_stream"))

    def _is_done(self, stream: Stream, clock: int, before: Stream) -> bool:
        """Whether a launch of ``stream`` ends before the next one of ``before`` begins."""
        return stream is before or clock <= max(before.seen[stream], self._done[stream])

    def _check_made(self, tensor: Tensor, stream: Stream, name: str) -> None:
        key = key_of(tensor)
        if (memory := self._memory.get(key)) is None:
            return
        if not self._is_done(memory.maker, memory.made, stream):
            self.fault(StreamRace(f"{name}: made on another stream, not waited for; {site()}"))
        if stream is not memory.home and stream not in memory.recorded:
            memory.users[stream] = stream.clock
            self._lent[key] = memory

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        memory = self._memory[key_of(tensor)]
        memory.recorded.add(stream)
        memory.users.pop(stream, None)

    # --- what is where ---

    def has(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and key_of(tensor) in self._memory

    def device(self, tensor: Tensor) -> torch.device:
        return CARD if self.has(tensor) else CPU

    def take(self, value: Any) -> Any:
        """The tensors in ``value`` are now written by the current stream."""
        for tensor in tensors_in((value,)):
            key, stream = key_of(tensor), self.stream
            if (memory := self._memory.get(key)) is None:
                self._memory[key] = Memory(_weak(tensor), stream, stream, stream.clock)
            else:
                memory.maker, memory.made = stream, stream.clock
        return value

    def pin(self, tensor: Tensor) -> Tensor:
        self._pinned[key_of(tensor)] = _weak(tensor)
        return tensor

    def bring(self, copy: Tensor, source: Tensor, *, blocking: bool) -> Tensor:
        """A copy between main memory and the card; who waits for it."""
        down = self.has(source)
        self.launch("copy", source)
        if blocking or key_of(source if not down else copy) not in self._pinned:
            self.wait("to host" if down else "to card")
        elif down:
            self.arriving[key_of(copy)] = (self.stream, self.stream.clock)
        return copy if down else self.take(copy)

    def check_arrived(self, tensor: Tensor) -> None:
        """Of a tensor in main memory that is read."""
        stream, clock = self.arriving.pop(key_of(tensor), (self.stream, 0))
        if clock > self._done[stream]:
            self.fault(StreamRace(f"read before it has arrived; {site()}"))


def key_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def tensors_in(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def site() -> str:
    """The innermost line of the package on the stack."""
    frame = sys._getframe()
    while frame and not frame.f_code.co_filename.startswith(ROOT):
        frame = frame.f_back  # type: ignore[assignment]
    if not frame:
        return "outside"
    return f"{frame.f_code.co_filename[len(ROOT) + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}"
