"""Named random streams: every random number of a run follows from the run's seed and a name."""

import hashlib

import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """Seed of the stream ``names`` under the run's ``seed``.

    Streams with different names are independent, so a phase can draw more or fewer numbers
    without moving what any other phase draws.

    Returns:
        An integer in [0, 2**63).
    """
    text = repr((int(seed), *names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def make_generator(seed: int, *names: str | int) -> torch.Generator:
    """CPU generator of the stream ``names`` under the run's ``seed``."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))
