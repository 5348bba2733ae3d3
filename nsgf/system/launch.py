"""How this process was started."""

import os

STARTED_BY = os.getppid()
"""The process that started this one; another number now means that it is gone."""


def is_launched() -> bool:
    """Whether torchrun started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ


def launched_rank() -> int:
    """Which of torchrun's processes this is; 0 if it started none."""
    return int(os.environ["RANK"]) if is_launched() else 0
