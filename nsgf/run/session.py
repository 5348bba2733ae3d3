"""The objects that training needs, in one record."""

from dataclasses import dataclass, field

import torch

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import StopRequest
from nsgf.system.distributed import World


@dataclass
class Session:
    """Everything that a phase needs for training, in one process."""

    config: Config
    run: RunFolder
    log: RunLog
    device: torch.device
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)

    def should_stop(self) -> bool:
        """Return whether any process must stop. All processes must call it together."""
        if stops := self.world.any(self.stop.reason is not None):
            self.stop.follow()
        return stops
