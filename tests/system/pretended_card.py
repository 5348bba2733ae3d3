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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.system.pretended_books import (
    CARD,
    CPU,
    Card,
    Event,
    MixedDevices,
    Stream,
    site,
    tensors_in,
)

aten = torch.ops.aten

INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""Take indices from main memory too; of a mask the host waits for the number of ones."""
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


class _Operations(TorchDispatchMode):
    """Sees every operation with the tensors it reads and writes."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card, self.creating = card, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
            if func in INDEXED:
                self._check_indices(func, *args[:3])
            elif len(mine) < len(inputs):
                self._check_devices(func, name, inputs)
            out = func(*args, **kwargs)
            if name not in NO_KERNEL and not _is_view(func):
                card.launch(name, *mine)
            if func in READ or func in SIZED:
                card.wait("size" if func in SIZED else "number")
            if not _is_view(func) and func not in READ:
                card.take(out)
            return out

    def _check_indices(self, func: Any, x: Tensor, indices: Any, values: Any = None) -> None:
        card = self.card
        indices = [index for index in indices if index is not None]
        if not card.has(x):
            card.fault(MixedDevices(f"{func}: of a tensor in main memory; {site()}"))
        if values is not None and not card.has(values) and values.ndim:
            card.fault(MixedDevices(f"{func}: values in main memory; {site()}"))
        for index in indices:
            if not card.has(index):
                card.wait("index to card")
            elif index.dtype is torch.bool and (values is None or values.ndim):
                card.wait("mask")

    def _check_devices(self, func: Any, name: str, inputs: list[Tensor]) -> None:
        """Numbers in main memory are taken along by what works value by value."""
        strangers = [tensor for tensor in inputs if not self.card.has(tensor)]
        takes = torch.Tag.pointwise in func.tags or name.startswith("_foreach")
        if not (takes and all(tensor.ndim == 0 for tensor in strangers)):
            shapes = [(tuple(tensor.shape), str(self.card.device(tensor))) for tensor in inputs]
            self.card.fault(MixedDevices(f"{name}: {shapes}; {site()}"))


@functools.cache
def _is_view(func: Any) -> bool:
    """Whether the operation returns an alias of an input and writes nothing."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


class _Functions(TorchFunctionMode):
    """Answers what Python asks of tensors, and makes those that are wanted on the card."""

    def __init__(self, card: Card, operations: _Operations) -> None:
        super().__init__()
        self.card, self.operations = card, operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ANSWERS:
            with self.card.lock:
                return _ANSWERS[func](self.card, func, *args, **kwargs)
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        kwargs = {**kwargs, "device": "cpu"}
        if "generator" in kwargs:
            self.card.fault(MixedDevices(f"{func.__name__}: a generator of the CPU's; {site()}"))
        if func in (torch.tensor, torch.as_tensor):
            return _to(self.card, Tensor.to, func(*args, **kwargs), CARD)
        self.operations.creating = True
        try:
            return func(*args, **kwargs)
        finally:
            self.operations.creating = False


def _to(card: Card, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
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


def _no_array(card: Card, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    if card.has(x):
        card.fault(MixedDevices(f"can't convert cuda:0 device type tensor to numpy; {site()}"))
    card.check_arrived(x)
    return func(x, *args, **kwargs)


def _to_list(card: Card, func: Any, x: Tensor) -> Any:
    if card.has(x):
        card.wait("to host")
    card.check_arrived(x)
    return func(x)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    Tensor.device.__get__: lambda card, func, x: CARD if card.has(x) else func(x),
    Tensor.is_cuda.__get__: lambda card, func, x: card.has(x),
    Tensor.to: _to,
    Tensor.type_as: lambda card, func, x, other: _to(
        card, Tensor.to, x, card.device(other), other.dtype
    ),
    Tensor.cpu: lambda card, func, x: _to(card, Tensor.to, x, CPU),
    Tensor.pin_memory: lambda card, func, x: card.pin(x.clone()),
    Tensor.numpy: _no_array,
    Tensor.__array__: _no_array,
    Tensor.tolist: _to_list,
}


@contextmanager
def pretended_card(capability: tuple[int, int] = (9, 0)) -> Iterator[Card]:
    """Within: ``torch.cuda`` has one card, in this thread and in those that begin with
    ``torch.cuda.set_device``.

    Raises:
        MixedDevices, StreamRace: at the fault, and at the end where something caught it there.
    """
    card = Card(capability)
    entered = threading.local()

    def enter_modes(_: object = None) -> None:
        if not hasattr(entered, "stack"):
            entered.stack = ExitStack()
            operations = entered.stack.enter_context(_Operations(card))
            entered.stack.enter_context(_Functions(card, operations))

    with ExitStack() as patches:
        for owner, replaced in _replacements(card, enter_modes):
            for name, value in replaced.items():
                patches.enter_context(patch.object(owner, name, value, create=True))
        enter_modes()
        try:
            yield card
        finally:
            entered.stack.close()
    if card.faults:
        raise card.faults[0]


def _replacements(card: Card, enter_modes: Callable[..., None]) -> list[tuple[Any, dict[str, Any]]]:
    """What of torch's speaks to the driver, by its owner."""
    group = torch._C._group_tensors_by_device_and_dtype
    about = SimpleNamespace(name="Pretended card", total_memory=16 << 30, multi_processor_count=40)

    class Autocast(torch.amp.autocast_mode.autocast):
        """CUDA's becomes the CPU's in bfloat16: its float16 is ten times slower."""

        def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True) -> None:
            on_card = device_type == "cuda"
            super().__init__(
                "cpu" if on_card else device_type, torch.bfloat16 if on_card else dtype, enabled
            )

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        return {
            (CARD if card.has(values[0][0]) else device, dtype): (values, indices)
            for (device, dtype), (values, indices) in group(lists, with_indices).items()
        }

    cuda = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": enter_modes,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_name": lambda device=None: about.name,
        "synchronize": lambda device=None: card.wait("device"),
        "get_device_properties": lambda device=None: about,
        "mem_get_info": lambda device=None: (about.total_memory, about.total_memory),
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 0,
        "is_current_stream_capturing": lambda: False,
        "Stream": functools.partial(Stream, card),
        "Event": functools.partial(Event, card),
        "current_stream": lambda device=None: card.stream,
        "stream": card.use,
        "default_generators": (torch.Generator(),),
        "manual_seed_all": lambda seed: None,
    }
    checks = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    return [
        (torch.cuda, cuda),
        (torch, {"autocast": Autocast}),
        (Tensor, {"record_stream": lambda tensor, stream: card.record_stream(tensor, stream)}),
        (torch.optim.Optimizer, dict.fromkeys(checks, lambda self: None)),
        (torch._C, {"_group_tensors_by_device_and_dtype": grouped}),
    ]
