"""A pretended CUDA card for machines that have none: values are real, the rules are a card's.

    with pretended_card(capability=(7, 5)) as card, card.counted(PhaseLoop, "_update") as updates:
        main(["train", "--exp", "2d", "--smoke", "--device", "cuda"])

All tensors stay in main memory; the card keeps a list of the memory that it pretends to hold. Two
modes of torch ask it: one answers Python's questions (``device``, ``to``, ``cpu``, ``numpy``,
factories with ``device=``), the other sees every operation, backward included. They find

- operations on tensors of two devices: :class:`MixedDevices`;
- tensors that one stream made and another uses without waiting for it, that are given back while
  another stream may still use them (no ``record_stream``), or that are read in main memory before
  they have arrived: :class:`StreamRace`;
- everything for which the host waits.

torch's own FakeTensorMode does not serve: its tensors have no values, on which Sinkhorn's loops
branch, and their autograd asks the driver for the current stream.

What it cannot see: kernels and their speed, 16-bit numerics (the CPU's autocast stands in for
CUDA's; their lists differ), memory, cuDNN, NCCL, ``torch.compile``, and that a host writes into
pinned memory which is still being copied.
"""

import functools
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.conftest import CPU

CARD = torch.device("cuda", 0)


class MixedDevices(RuntimeError):
    """Stands for CUDA's "Expected all tensors to be on the same device"."""


class StreamRace(RuntimeError):
    """Memory is used before it is written, or may be written while it is used."""


class Stream:
    """Stands for torch.cuda.Stream: counts its launches, and knows which launches of other streams
    end before its own next one begins."""

    def __init__(self, card, *_):
        self.card, self.clock = card, 0
        self.seen: Counter[Stream] = Counter()

    def state(self):
        return self.seen | Counter({self: self.clock})

    def record_event(self):
        event = Event(self.card)
        event.record(self)
        return event

    def wait_event(self, event):
        self.seen |= event.state

    def wait_stream(self, other):
        self.seen |= other.state()


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, card):
        self.card = card

    def record(self, stream):
        self.state = stream.state()

    def synchronize(self):
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

    def __init__(self):
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

    @property
    def waits(self):
        """Waits of this thread, by kind."""
        return self._of_thread.__dict__.setdefault("waits", Counter())

    @contextmanager
    def counted(self, owner, name):
        """Count the ``calls`` of a function, and the ``waits`` inside it of the calling thread."""
        real, total = getattr(owner, name), SimpleNamespace(calls=0, waits=Counter())

        def function(*args, **kwargs):
            before = self.waits.copy()
            try:
                return real(*args, **kwargs)
            finally:
                total.calls += 1
                total.waits += self.waits - before

        with patch.object(owner, name, function):
            yield total

    def wait(self, kind, state=None):
        """The host waits for what is launched, or for ``state``."""
        self._done |= self.stream.state() if state is None else state
        self.waits[kind] += 1

    def fault(self, error):
        self.faults.append(error)
        raise error

    @property
    def stream(self):
        """The current one of this thread."""
        return self._of_thread.__dict__.get("stream", self.default_stream)

    @contextmanager
    def use(self, stream):
        """In place of torch.cuda.stream."""
        before, self._of_thread.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self._of_thread.stream = before

    def launch(self, name, *read):
        """An operation on the current stream, of which ``read`` are the inputs."""
        stream = self.stream
        stream.clock += 1
        for key in filter(self._memory.__contains__, map(key_of, read)):
            memory = self._memory[key]
            if not self._is_done(memory.maker, memory.made, stream):
                self.fault(StreamRace(f"{name}: made on another stream, not waited for"))
            if stream is not memory.home and stream not in memory.recorded:
                memory.users[stream] = stream.clock
                self._lent[key] = memory
        for key, memory in list(self._lent.items()):
            if memory.storage.expired():
                del self._lent[key]
                if not all(self._is_done(*use, memory.home) for use in memory.users.items()):
                    self.fault(StreamRace("memory was given back without record_stream"))

    def _is_done(self, stream, clock, before):
        """Whether a launch of ``stream`` ends before the next one of ``before`` begins."""
        return stream is before or clock <= max(before.seen[stream], self._done[stream])

    def record_stream(self, tensor, stream):
        memory = self._memory[key_of(tensor)]
        memory.recorded.add(stream)
        memory.users.pop(stream, None)

    def has(self, tensor):
        return tensor.layout is torch.strided and key_of(tensor) in self._memory

    def take(self, value):
        """The tensors in ``value`` are now written by the current stream."""
        for tensor in tensors_in((value,)):
            key, stream = key_of(tensor), self.stream
            if (memory := self._memory.get(key)) is None:
                self._memory[key] = Memory(_weak(tensor), stream, stream, stream.clock)
            else:
                memory.maker, memory.made = stream, stream.clock
        return value

    def pin(self, tensor):
        self._pinned[key_of(tensor)] = _weak(tensor)
        return tensor

    def bring(self, copy, source, *, blocking):
        """A copy between main memory and the card; who waits for it."""
        down = self.has(source)
        self.launch("copy", source)
        if blocking or key_of(copy if down else source) not in self._pinned:
            self.wait("to host" if down else "to card")
        elif down:
            self.arriving[key_of(copy)] = (self.stream, self.stream.clock)
        return copy if down else self.take(copy)

    def check_arrived(self, tensor):
        """Of a tensor in main memory that is read."""
        stream, clock = self.arriving.pop(key_of(tensor), (self.stream, 0))
        if clock > self._done[stream]:
            self.fault(StreamRace("read before it has arrived"))


def key_of(tensor):
    return tensor.untyped_storage()._cdata


def _weak(tensor):
    return StorageWeakRef(tensor.untyped_storage())


def tensors_in(values):
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


aten = torch.ops.aten
SIZED = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
}
"""Their results have sizes that the host waits for."""
READ = {aten._local_scalar_dense.default, aten.equal.default}
"""Their results are numbers of the host's."""
NO_KERNEL = {"detach", "alias", "set_", "resize_"}
INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
"""Take indices from main memory too; of a mask the host waits for the number of ones."""


class _Operations(TorchDispatchMode):
    """Sees every operation with the tensors it reads and writes."""

    def __init__(self, card):
        super().__init__()
        self.card, self.creating = card, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, card = kwargs or {}, self.card
        inputs = list(tensors_in((*args, *kwargs.values())))
        with card.lock:
            mine = [tensor for tensor in inputs if card.has(tensor)]
            for tensor in inputs if card.arriving else ():
                card.check_arrived(tensor)
            if not mine and not self.creating:
                return func(*args, **kwargs)
            name = func.__name__.partition(".")[0]
            if func is aten.copy_.default and len(mine) == 1:
                non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
                out = func(*args, **kwargs)
                card.bring(args[0], args[1], blocking=not non_blocking)
                return out
            if name in INDEXED:
                inputs = self._without_indices(*args[:3])
            # what works value by value takes numbers along from main memory
            takes = torch.Tag.pointwise in func.tags or name.startswith("_foreach")
            takes |= name in INDEXED and card.has(args[0])
            if not all(card.has(one) or (takes and one.ndim == 0) for one in inputs):
                places = [(tuple(tensor.shape), card.has(tensor)) for tensor in inputs]
                card.fault(MixedDevices(f"{name}: tensors (shape, on the card) {places}"))
            out = func(*args, **kwargs)
            if name not in NO_KERNEL and not _is_view(func):
                card.launch(name, *mine)
            if func in READ or func in SIZED:
                card.wait("size" if func in SIZED else "number")
            if not _is_view(func) and func not in READ:
                card.take(out)
            return out

    def _without_indices(self, x, indices, values=None):
        """``x`` and ``values``, once the host has waited for the indices and masks."""
        for index in tensors_in(indices):
            if not self.card.has(index) or (
                index.dtype is torch.bool and (values is None or values.ndim)
            ):
                self.card.wait("index")
        return [x] if values is None else [x, values]


@functools.cache
def _is_view(func):
    """Whether the operation returns an alias of an input and writes nothing."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


class _Functions(TorchFunctionMode):
    """Answers what Python asks of tensors, and makes those that are wanted on the card."""

    def __init__(self, card, operations):
        super().__init__()
        self.card, self.operations = card, operations

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _ANSWERS:
            with self.card.lock:
                return _ANSWERS[func](self.card, func, *args, **kwargs)
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": "cpu"}
        if "generator" in kwargs:
            self.card.fault(MixedDevices(f"{func.__name__}: a generator of the CPU's"))
        if func in (torch.tensor, torch.as_tensor):
            return _to(self.card, Tensor.to, func(*args, **kwargs), CARD)
        self.operations.creating = True
        try:
            return func(*args, **kwargs)
        finally:
            self.operations.creating = False


def _to(card, func, x, *args, **kwargs):
    copy = kwargs.pop("copy", False)
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
    options = {"memory_format": layout} if layout else {}
    down, up = card.has(x), device is not None and device.type == "cuda"
    if device is None or down == up:
        place = () if device is None or device.type == "cuda" else (device,)
        return func(x, *place, dtype=dtype or x.dtype, copy=copy, **options)
    with torch._C._DisableTorchDispatch():  # all of it is one copy
        result = func(x, dtype=dtype or x.dtype, copy=True, **options)
    if down and non_blocking:
        card.pin(result)
    return card.bring(result, x, blocking=not non_blocking)


def _read(card, func, x, *args, **kwargs):
    if card.has(x):
        if func is not Tensor.tolist:
            card.fault(MixedDevices("can't convert cuda:0 device type tensor to numpy"))
        card.wait("to host")
    card.check_arrived(x)
    return func(x, *args, **kwargs)


_ANSWERS = {
    Tensor.device.__get__: lambda card, func, x: CARD if card.has(x) else func(x),
    Tensor.is_cuda.__get__: lambda card, func, x: card.has(x),
    Tensor.to: _to,
    Tensor.type_as: lambda card, func, x, other: _to(
        card, Tensor.to, x, CARD if card.has(other) else CPU, other.dtype
    ),
    Tensor.cpu: lambda card, func, x: _to(card, Tensor.to, x, CPU),
    Tensor.pin_memory: lambda card, func, x: card.pin(x.clone()),
    **dict.fromkeys((Tensor.numpy, Tensor.__array__, Tensor.tolist), _read),
}


class _Autocast(torch.amp.autocast_mode.autocast):
    """CUDA's becomes the CPU's in bfloat16: its float16 is ten times slower."""

    def __init__(self, device_type, dtype=None, **options):
        on_card = device_type == "cuda"
        kind = "cpu" if on_card else device_type
        super().__init__(kind, torch.bfloat16 if on_card else dtype, **options)


@contextmanager
def pretended_card(capability=(9, 0)):
    """Within: ``torch.cuda`` has one card, in this thread and in those that begin with
    ``torch.cuda.set_device``.

    Raises:
        MixedDevices, StreamRace: at the fault, and at the end where something caught it there.
    """
    card = Card()
    entered = threading.local()

    def enter_modes(_=None):
        if not hasattr(entered, "stack"):
            entered.stack = ExitStack()
            operations = entered.stack.enter_context(_Operations(card))
            entered.stack.enter_context(_Functions(card, operations))

    with ExitStack() as patches:
        for owner, replaced in _replacements(card, capability, enter_modes).items():
            patches.enter_context(patch.multiple(owner, create=True, **replaced))
        enter_modes()
        try:
            yield card
        finally:
            entered.stack.close()
    if card.faults:
        raise card.faults[0]


def _replacements(card, capability, enter_modes):
    """What of torch's speaks to the driver, by its owner."""
    group = torch._C._group_tensors_by_device_and_dtype
    about = SimpleNamespace(name="Pretended card", total_memory=16 << 30, multi_processor_count=40)

    def grouped(lists, with_indices=False):
        return {
            (CARD if card.has(values[0][0]) else device, dtype): (values, indices)
            for (device, dtype), (values, indices) in group(lists, with_indices).items()
        }

    def answers(value):
        return lambda *_, **__: value

    cuda = {
        "is_available": answers(True),
        "_lazy_init": answers(None),
        "device_count": answers(1),
        "current_device": answers(0),
        "set_device": enter_modes,
        "get_device_capability": answers(capability),
        "get_device_name": answers(about.name),
        "synchronize": lambda device=None: card.wait("device"),
        "get_device_properties": answers(about),
        "mem_get_info": answers((about.total_memory, about.total_memory)),
        "empty_cache": answers(None),
        "reset_peak_memory_stats": answers(None),
        "max_memory_allocated": answers(0),
        "is_current_stream_capturing": answers(False),
        "Stream": functools.partial(Stream, card),
        "Event": functools.partial(Event, card),
        "current_stream": lambda device=None: card.stream,
        "stream": card.use,
        "default_generators": (torch.Generator(),),
        "manual_seed_all": answers(None),
    }
    checks = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    return {
        torch.cuda: cuda,
        torch: {"autocast": _Autocast},
        Tensor: {"record_stream": lambda tensor, stream: card.record_stream(tensor, stream)},
        torch.optim.Optimizer: dict.fromkeys(checks, answers(None)),
        torch._C: {"_group_tensors_by_device_and_dtype": grouped},
    }
