"""What every phase needs while it is trained."""

from dataclasses import dataclass, field

import torch

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder
from nsgf.run.log import RunLog
from nsgf.run.stop import StopRequest
from nsgf.system.distributed import World


@dataclass
class Session:
    """One process that trains a run."""

    config: Config
    run: RunFolder
    log: RunLog
    device: torch.device
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)

    def is_asked(self) -> bool:
        """Return whether any process was asked to stop. All processes must call it together."""
        asked = self.world.any(self.stop.reason is not None)
        if asked:
            self.stop.follow()
        return asked
