"""The objects that training needs, in one record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nsgf.config.schema import Config, PhaseName
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import StopRequest
from nsgf.system.distributed import World

OnLog = Callable[[PhaseName, int, float | None, Callable[[], Path]], None]
"""(phase, step, mean loss, save), where ``save`` writes a checkpoint and returns the run folder."""


@dataclass
class Session:
    """Everything that a phase needs for training, in one process."""

    config: Config
    run: RunFolder
    log: RunLog
    device: torch.device
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)
    on_log: OnLog | None = None
    """Called after each line of the log's metrics. It cannot change the results."""

    def should_stop(self) -> bool:
        """Return whether any process must stop. All processes must call it together."""
        if stops := self.world.any(self.stop.reason is not None):
            self.stop.follow()
        return stops
