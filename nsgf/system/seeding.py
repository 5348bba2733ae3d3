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


def seed_torch(seed: int, device: torch.device) -> None:
    """Let torch's own generator of the device, and that of the CPU, begin anew.

    For what takes no generator: dropout, other libraries. ``torch.manual_seed`` would do it for
    every device, in twice the time of a small update's Adam.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def make_generator(seed: int, *names: str | int) -> torch.Generator:
    """CPU generator of the stream ``names`` under the run's ``seed``."""
    return torch.Generator().manual_seed(derive_seed(seed, *names))
