"""States that exist only once in a process, although threads may need different values.

Every tensor of the package states its dtype. Devices, autocast, gradients and silence are contexts
of one thread. Only the states below are shared by all threads.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

LOCK = threading.RLock()
"""Held while a setting below is read or written. This takes little time."""
GENERATORS = threading.RLock()
"""Held while the package draws from the global generators of torch and NumPy. This happens when a
network is made, and in an update of a network that draws random numbers."""
FIGURES = threading.RLock()
"""Held while a figure is drawn in a special style, because matplotlib has one style for all
threads."""
TRACKERS = threading.RLock()
"""Held while a tracker starts, because W&B changes the process. The states behind all these locks
exist only once for all threads. Without a lock, a thread could save a value that another thread has
set, and later restore this value as the caller's value. A thread takes these locks only in the
order FIGURES, GENERATORS, LOCK, so they cannot deadlock."""
UNCHANGED = object()


class SharedSetting:
    """A setting of the process that several threads request at once.

    The first request saves the caller's value. The end of the last request restores this value,
    unless other code changed the setting meanwhile. If threads request different values at once,
    the setting has the value that comes first in ``choices``.
    """

    def __init__(
        self,
        choices: tuple[Any, ...],
        read: Callable[[], Any],
        write: Callable[[Any], None],
        holds: Callable[[Any], bool],
    ) -> None:
        """``read`` returns the state, and ``write`` sets a state or a choice. ``holds`` returns
        whether a choice is already in effect. In this case, ``write`` is not called."""
        self._choices = choices
        self._read = read
        self._write = write
        self._holds = holds
        self._requests: list[Any] = []
        self._before: Any = None
        self._written: Any = UNCHANGED

    @contextmanager
    def request(self, choice: Any) -> Iterator[None]:
        """Context in which the setting has this value, or a value that comes earlier in the
        choices."""
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
    """Return the newer settings of matrix products, which old versions of torch lack."""
    backends: Any = torch.backends
    parts = (backends.cuda.matmul, getattr(backends.mkldnn, "matmul", None))
    return tuple(part for part in parts if hasattr(part, "fp32_precision"))


def _read_products() -> tuple[Any, ...]:
    """Return the old setting, and the newer settings. If the caller has used the newer settings,
    torch may be unable to read the old setting, which is then None."""
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
"""Whether cuDNN measures which convolution algorithm is the fastest."""


def exact_products() -> Any:
    """Return a context in which float32 matrix products are not rounded to fewer digits. All
    threads then compute exactly."""
    return PRODUCTS.request("highest")


@contextmanager
def fast_layers(device: torch.device) -> Iterator[None]:
    """Context for the float32 layers in training. A card searches for fast convolutions. It may
    round products to TF32, unless another thread needs exact products. A CPU computes exactly."""
    with ExitStack() as held:
        if device.type == "cuda":
            held.enter_context(CONVOLUTIONS.request(True))
        held.enter_context(PRODUCTS.request("high" if device.type == "cuda" else "highest"))
        yield
