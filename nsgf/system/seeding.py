"""Torch's global state: random numbers and default settings.

Named random streams: the run's seed and a name determine every random number. Public Python
functions run with torch's defaults, whatever the caller has set.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import torch

from nsgf.system.errors import naming


def derive_seed(seed: int, *names: str | int) -> int:
    """Return the seed of the stream ``names``, an integer in [0, 2**63). Streams with different
    names are independent, so phases do not affect each other's random numbers."""
    text = repr((int(seed), *names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's generators for the CPU and the device, for dropout and other libraries.

    ``torch.manual_seed`` seeds every device, which takes longer than a small update.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@contextmanager
def keep_random_numbers(cards: Sequence[int | torch.device] = ()) -> Iterator[None]:
    """Context that restores the global generators of NumPy, and of torch for CPU and ``cards``."""
    state = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(cards):
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def make_generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for the stream ``names``."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))


@contextmanager
def from_python(names: Mapping[str, str]) -> Iterator[None]:
    """Context, or decorator, of a public Python function: messages use the ``names`` of its
    arguments for settings, and the caller's settings of torch have no effect."""
    with naming(names), torch_defaults(), torch.inference_mode(False):
        yield


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Context with torch's defaults for dtype, device, autocast and TF32. It does not change the
    gradient mode: ``torch.inference_mode(False)`` switches gradients on."""
    dtype = torch.get_default_dtype()
    with ExitStack() as held:
        if torch.empty(0).device.type != "cpu":  # the context slows down each call of torch
            held.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            held.enter_context(torch.autocast(kind, enabled=False))
        held.enter_context(_default_tf32())
        held.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def _default_tf32() -> Iterator[None]:
    """Context with TF32 for cuDNN only. Torch has two interfaces for it. The older one raises an
    error if the caller used only the newer one (``fp32_precision``)."""
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    cudnn = backends.cudnn
    newer = []
    if hasattr(matmul, "fp32_precision"):
        newer = [matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn]
    values = [part.fp32_precision for part in newer]
    precision = "highest"
    allowed = True
    with suppress(RuntimeError):
        precision = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        allowed = cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32 = allowed
        for part, value in zip(newer, values, strict=True):
            part.fp32_precision = value
