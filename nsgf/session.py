"""What every phase of a training process needs."""

from dataclasses import dataclass, field

import torch

from nsgf.checkpoint import RunFolder
from nsgf.config import Config
from nsgf.distributed import World
from nsgf.stopping import StopRequest
from nsgf.tracking import Tracker


@dataclass
class Session:
    """One process that trains one run."""

    config: Config
    run: RunFolder
    tracker: Tracker
    device: torch.device
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)
