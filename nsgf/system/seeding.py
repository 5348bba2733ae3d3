"""Torch's global state: random numbers and default settings.

Random streams have names: the run's seed and a name determine every random number. Public Python
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
    """Context or decorator of a public Python function. Messages call settings by the ``names`` of
    its arguments, and the caller's settings of torch have no effect."""
    with naming(names), torch_defaults(), torch.inference_mode(False):
        yield


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Context with torch's defaults for dtype, device, autocast and TF32. It does not change the
    gradient mode: ``torch.inference_mode(False)`` switches gradients on."""
    with ExitStack() as held:
        if torch.empty(0).device.type != "cpu":  # the context slows down each call of torch
            held.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            held.enter_context(torch.autocast(kind, enabled=False))
        # TF32 for cuDNN only. Torch has two interfaces for it; the older one raises an error if the
        # caller used only the newer one (fp32_precision)
        backends: Any = torch.backends
        cudnn = backends.cudnn
        if hasattr(backends.cuda.matmul, "fp32_precision"):
            for part in (backends.cuda.matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn):
                held.callback(setattr, part, "fp32_precision", part.fp32_precision)
        precision = "highest"
        allowed = True
        with suppress(RuntimeError):
            precision = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            allowed = cudnn.allow_tf32
        held.callback(torch.set_float32_matmul_precision, precision)
        held.callback(setattr, cudnn, "allow_tf32", allowed)
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = True
        held.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        yield
