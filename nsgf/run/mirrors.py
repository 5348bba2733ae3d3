"""Which tracker mirrors a run: what ``tracking.tracker`` names.

A tracker gets what the run folder has anyway. It may be away, or fail, and no run ends by that. A
package that is not installed is said before anything is written, where this command or a new run
asks for it; a run that goes on with what its own settings say does without, and logs a line.
"""

from collections.abc import Callable
from importlib.util import find_spec

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder
from nsgf.run.log import Mirror
from nsgf.run.tensorboard_mirror import TensorBoardMirror
from nsgf.run.wandb_mirror import open_wandb
from nsgf.system.errors import UserError, one_line


def require_tracker(config: Config) -> None:
    """
    Raises:
        UserError: the tracker that is asked for is an extra that is not installed.
    """
    name = config.tracking.tracker
    if name == "tensorboard" and find_spec(name) is None:
        raise UserError(
            f"tracking.tracker = {name}: needs {name}; pip install {name}, or say --tracker none"
        )


def open_mirror(config: Config, run: RunFolder, log: Callable[[str], None]) -> Mirror | None:
    """The tracker's run of a run folder, begun or continued, which is one line in the log.

    None where nothing is tracked, or that failed.
    """
    name = config.tracking.tracker
    if name == "none":
        return None
    if name != "tensorboard":
        return open_wandb(config, run, log)
    try:
        mirror = TensorBoardMirror(config, run)
    except Exception as error:  # trackers raise many types, not all of them their own
        log(f"{name}: not used ({one_line(error)})")
        return None
    log(f"tensorboard: show it with: tensorboard --logdir {run.path / 'tensorboard'}")
    return mirror
