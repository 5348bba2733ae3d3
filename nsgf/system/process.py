"""What only the whole process has, although its threads may need different values.

Every tensor of the package states its dtype. Devices, autocast, gradients and silence are contexts
of one thread. Only the states below are shared by all threads.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

LOCK = threading.RLock()
"""Held while one of the settings below is read or written, which is short."""
GENERATORS = threading.RLock()
"""Held while a thread draws from the global generators of torch and NumPy in place of the caller:
while a network is made, and in an update of a network that draws."""
FIGURES = threading.RLock()
"""Held while a figure is drawn in a style of its own, because matplotlib has one style."""
TRACKERS = threading.RLock()
"""Held while a tracker starts, because W&B changes the process. Libraries keep these states for all
threads and offer no other way. Without a lock, a thread would save as the caller's what another
thread has set. A thread takes these locks only in the order FIGURES, GENERATORS, LOCK, so they
cannot deadlock."""
UNCHANGED = object()


class SharedSetting:
    """A setting of the process that several threads request at once.

    The first request saves the caller's value, and the end of the last request restores it, unless
    somebody has set another one since. Of different values requested at once, the first of
    ``choices`` holds.
    """

    def __init__(
        self,
        choices: tuple[Any, ...],
        read: Callable[[], Any],
        write: Callable[[Any], None],
        holds: Callable[[Any], bool],
    ) -> None:
        """``read`` returns the state that ``write`` restores; ``write`` also takes a choice.
        ``holds``: whether a choice holds already, so that nothing is written."""
        self._choices = choices
        self._read = read
        self._write = write
        self._holds = holds
        self._requests: list[Any] = []
        self._before: Any = None
        self._written: Any = UNCHANGED

    @contextmanager
    def request(self, choice: Any) -> Iterator[None]:
        """Context in which the setting has this value, or an earlier one of the choices."""
        with LOCK:
            if not self._requests:
                self._before = self._read()
                self._written = UNCHANGED
            self._requests.append(choice)
            self._update()
        try:
            yield
        finally:
            with LOCK:
                self._requests.remove(choice)
                self._update()

    def _update(self) -> None:
        if self._requests:
            choice = min(self._requests, key=self._choices.index)
            if not self._holds(choice):
                self._write(choice)
                self._written = self._read()
        elif self._written is not UNCHANGED and self._read() == self._written:
            self._write(self._before)


def _product_settings() -> tuple[Any, ...]:
    """The newer settings of matrix products, which older versions of torch lack."""
    backends: Any = torch.backends
    parts = (backends.cuda.matmul, getattr(backends.mkldnn, "matmul", None))
    return tuple(part for part in parts if hasattr(part, "fp32_precision"))


def _read_products() -> tuple[Any, ...]:
    """Return the older setting, and the newer ones. The older one is None if it cannot be read,
    because the caller uses only the newer ones."""
    older = None
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    return older, [part.fp32_precision for part in _product_settings()]


def _write_products(state: Any) -> None:
    older, newer = (state, ()) if isinstance(state, str) else state
    if older is not None:
        torch.set_float32_matmul_precision(older)
    for part, value in zip(_product_settings(), newer, strict=False):
        part.fp32_precision = value


def _products_are(choice: str) -> bool:
    older, newer = _read_products()
    is_exact = older in ("highest", None) and not {"tf32", "bf16"}.intersection(newer)
    return is_exact == (choice == "highest")


PRODUCTS = SharedSetting(("highest", "high"), _read_products, _write_products, _products_are)
"""Precision of float32 matrix products, as in ``torch.set_float32_matmul_precision``."""
CONVOLUTIONS = SharedSetting(
    (True,),
    lambda: torch.backends.cudnn.benchmark,
    lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    lambda _: torch.backends.cudnn.benchmark,
)
"""Whether cuDNN measures which of its convolutions is the fastest."""


def exact_products() -> Any:
    """Return a context in which float32 matrix products are not rounded to fewer digits. Other
    threads then also compute exactly."""
    return PRODUCTS.request("highest")


@contextmanager
def fast_layers(device: torch.device) -> Iterator[None]:
    """Context for the float32 layers in training. A card may round them to TF32, unless another
    thread needs exact products, and searches for fast convolutions. A CPU computes exactly."""
    with ExitStack() as held:
        if device.type == "cuda":
            held.enter_context(CONVOLUTIONS.request(True))
        held.enter_context(PRODUCTS.request("high" if device.type == "cuda" else "highest"))
        yield
