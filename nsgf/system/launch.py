"""How torchrun started this process. It does not import torch, so that help is quick."""

import os

STARTED_BY = os.getppid()
"""Number of the parent process; a different one later means that the parent is gone."""


def is_launched() -> bool:
    """Whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def launched_rank() -> int:
    """Return the rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_launched() else 0
