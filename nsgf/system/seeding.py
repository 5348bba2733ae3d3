"""Named random streams: the run's seed and a name determine every random number."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


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
