"""Seeds of random streams, and torch's default settings inside of public Python functions.

A random stream is a sequence of random numbers with a name. The run's seed and the name determine
all numbers of the stream. Results of public Python functions do not depend on the caller's settings
of torch.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from nsgf.system.errors import naming
from nsgf.system.process import GENERATORS


def derive_seed(seed: int, *names: str | int) -> int:
    """Return the seed of the stream ``names``, an integer in [0, 2**63). Streams with different
    names are independent, so phases do not affect each other's random numbers."""
    text = repr((int(seed), *names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@contextmanager
def keep_random_numbers(cards: Sequence[int | torch.device] = ()) -> Iterator[None]:
    """Context that restores the global generators of NumPy, and of torch for CPU and ``cards``.

    Use it only around short work that draws from the global generators, such as making a network.
    It holds the lock of the process. If another thread draws without this lock, this thread takes
    numbers from the same generators."""
    with GENERATORS:
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
    """Context or decorator of a public Python function. Messages call settings by ``names``, the
    names of the function's arguments. The caller's settings of torch have no effect, except
    settings of cuDNN. The caller's current card stays the same."""
    card = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        with naming(names), torch_defaults(), torch.inference_mode(False):
            yield
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.set_device(card)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Context with torch's defaults for device and autocast, which are settings of a thread. It
    does not change the gradient mode, so it does not use ``torch.inference_mode(False)``, which
    switches gradients on. The default dtype belongs to the process and does not change. Every
    tensor of the package states its dtype."""
    with ExitStack() as held:
        if torch.empty(0).device.type != "cpu":  # only then, because it slows down torch
            held.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            held.enter_context(torch.autocast(kind, enabled=False))
        yield
