"""The tracker of a run, from ``tracking.tracker``. A tracker that fails does not end a run."""

from collections.abc import Callable
from importlib.util import find_spec

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder
from nsgf.run.log import Mirror
from nsgf.run.tensorboard_mirror import TensorBoardMirror
from nsgf.run.wandb_mirror import open_wandb
from nsgf.system.errors import UserError, one_line


def require_tracker(config: Config) -> None:
    """Raise UserError if the tracker's package is not installed."""
    name = config.tracking.tracker
    if name == "tensorboard" and find_spec(name) is None:
        raise UserError(
            f"tracking.tracker = {name}: needs {name}; pip install {name}, or say --tracker none"
        )


def open_mirror(config: Config, run: RunFolder, log: Callable[[str], None]) -> Mirror | None:
    """Return the tracker's run of a run folder, begun or continued, and log a line about it; None
    if nothing is tracked or the tracker failed."""
    name = config.tracking.tracker
    if name == "none":
        return None
    if name != "tensorboard":
        return open_wandb(config, run, log)
    try:
        mirror = TensorBoardMirror(config, run)
    except Exception as error:  # trackers raise many types
        log(f"{name}: not used ({one_line(error)})")
        return None
    log(f"tensorboard: show it with: tensorboard --logdir {run.path / 'tensorboard'}")
    return mirror
