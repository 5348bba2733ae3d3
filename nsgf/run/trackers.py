"""Trackers send records and pictures of a run to Weights & Biases, or to files of TensorBoard.

``tracking.tracker`` selects the tracker. The package of a tracker is imported only if a run uses
the tracker. If a tracker fails, the run continues.
"""

import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import lexists
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nsgf.config.schema import OF_PHASES
from nsgf.config.values import dump_yaml
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError, one_line
from nsgf.system.files import Plain, write_text
from nsgf.system.output import Log
from nsgf.system.process import TRACKERS

INIT_SECONDS = 15.0
"""Longest wait for the W&B server."""
FINISH_SECONDS = 60.0
"""Longest wait for uploads at the end. Records that are not uploaded by then stay in the run
folder."""
WANDB_SETTINGS = ("wandb/settings", ".wandb/settings")
"""Files in the working directory that override the user's settings of wandb."""
SERVICE = "WANDB_SERVICE"
"""Variable in which wandb passes the address of its service to child processes."""


def open_tracker(name: str, settings: Plain, run: RunFolder, log: Log) -> "Tracker | None":
    """Return the tracker that ``tracking.tracker`` selects, and log a line. The tracker continues
    the run folder's earlier records. Return None if the tracker fails. ``settings`` has all
    settings by section. The tracker shows them to the user."""
    try:
        tracker: Tracker
        if name == "tensorboard":
            tracker = TensorBoardTracker(settings, run)
        else:
            tracker = WandbTracker(settings, run, is_offline=name == "wandb-offline")
    except Exception as error:  # trackers raise many types
        log(f"{name}: not used ({one_line(error)})")
        return None
    log(f"{name}: {tracker.place}")
    return tracker


class TensorBoardTracker:
    """Write files into ``tensorboard/`` of the run folder, in one folder per phase, because the
    steps of a phase start at 0.

    A resumed phase starts a new file at the step of its first record. From this step on,
    TensorBoard hides the records of the interrupted session.
    """

    def __init__(self, settings: Plain, run: RunFolder) -> None:
        """Raise ImportError if tensorboard is missing or damaged."""
        from torch.utils.tensorboard import SummaryWriter

        self._begin = SummaryWriter
        self._settings = settings
        self._folder = run.path / "tensorboard"
        self.place = f"show it with: tensorboard --logdir {self._folder}"
        """Place of the records, for the log."""
        self._writers: Plain = {}
        self._steps: dict[str, int] = {}

    def record(self, values: Plain) -> None:
        """Write the numbers of one record of metrics.jsonl or costs.jsonl to the disk at once."""
        phase = values["phase"]
        step = values["step"]
        writer = self._writer(phase, step)
        self._steps[phase] = step
        for key, value in values.items():
            if key not in ("phase", "step") and isinstance(value, int | float):
                writer.add_scalar(key, value, step)
        writer.flush()  # a killed run must keep the records before its checkpoint

    def picture(self, name: str, file: Path) -> None:
        """Write an image file; ``name`` is ``PHASE/WHAT``."""
        phase, _, what = name.partition("/")
        step = self._steps.get(phase, 0)
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGB"))
        self._writer(phase, step).add_image(what, pixels, step, dataformats="HWC")

    def close(self, failed: bool) -> None:
        """Close the files. These files cannot store ``failed``."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, phase: str, step: int) -> Any:
        if phase not in self._writers:
            writer = self._begin(self._folder / phase, purge_step=step)
            settings = dump_yaml(self._settings).replace("\n", "\n    ")
            writer.add_text("settings", f"    {settings}", step)
            self._writers[phase] = writer
        return self._writers[phase]


class WandbTracker:
    """A W&B run in which each phase has a separate step axis: ``nsgf/step`` for ``nsgf/*``."""

    def __init__(self, settings: Plain, run: RunFolder, is_offline: bool) -> None:
        """Raise an exception of any type if wandb cannot start or continue the W&B run.

        W&B is not used if the working directory has a settings file of W&B. A file from another
        person could send the user's key to another server.
        """
        import wandb

        if foreign := next(filter(lexists, WANDB_SETTINGS), None):
            raise UserError(
                f"{Path(foreign).absolute()} could send your key to another server; move your "
                "settings to ~/.config/wandb/settings and remove this file"
            )
        env = os.environ
        mode: Any = env.get("WANDB_MODE", "online")
        if is_offline:
            mode = "offline"
        # the last two folders name a run of a comparison, such as moons/nsgf-seed0
        name = "/".join(run.path.resolve().parts[-2:])
        with _unchanged_process(wandb):
            self._run = wandb.init(
                mode=mode,
                project=env.get("WANDB_PROJECT", "nsgf"),
                name=env.get("WANDB_NAME", name),
                group=env.get("WANDB_RUN_GROUP", settings["exp"]),
                id=run_id(run),
                resume="allow",
                reinit="create_new",  # a run of the caller's script stays wandb.run
                config=settings,
                allow_val_change=True,  # a resumed run may train longer
                dir=str(run.path),
                settings=wandb.Settings(
                    silent=True,
                    console="off",  # progress bars would fill W&B's copy of the terminal
                    init_timeout=INIT_SECONDS,
                    finish_timeout=FINISH_SECONDS,
                    disable_git=True,
                    save_code=False,  # a setting of the account could upload the user's script
                ),
            )
        if mode == "offline":  # W&B would warn that an offline run has no url
            self.place = f"kept offline; upload it with: wandb sync {Path(self._run.dir).parent}"
        else:
            self.place = self._run.url or mode
        for phase in OF_PHASES:
            self._run.define_metric(f"{phase}/step")
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def record(self, values: Plain) -> None:
        """Log a record under its phase: ``nsgf/loss``, ..."""
        phase = values["phase"]
        self._run.log({f"{phase}/{key}": value for key, value in values.items() if key != "phase"})

    def picture(self, name: str, file: Path) -> None:
        """Log an image file."""
        import wandb

        self._run.log({name: wandb.Image(str(file))})

    def close(self, failed: bool) -> None:
        """Finish the W&B run, as failed if training did not finish."""
        self._run.finish(exit_code=int(failed))


@contextmanager
def _unchanged_process(wandb: Any) -> Iterator[None]:
    """Context for the start of a W&B run. W&B then asks for no key and prints nothing. At its end,
    the context restores the settings of the process that W&B changes: the output of W&B,
    ``sys.exit``, ``sys.excepthook``, and an environment variable. The variable has the address of
    W&B's service, and child processes would use it."""
    with TRACKERS:
        exits = sys.exit, sys.excepthook
        address = os.environ.get(SERVICE)
        # setup reads the user's settings of W&B, unless the caller's script has called it before
        service = wandb.setup()
        wandb.termsetup(wandb.Settings(silent=True), None)
        try:
            yield
        finally:
            wandb.termsetup(service.settings, None)
            sys.exit, sys.excepthook = exits
            if address is None:
                os.environ.pop(SERVICE, None)


Tracker = TensorBoardTracker | WandbTracker
"""A tracker for one run. After a method has raised an exception, the tracker is no longer used."""


def run_id(run: RunFolder) -> str:
    """Return the id of the W&B run. The id is created once, and stored in ``wandb_id.txt``. Raise
    UserError if the file does not hold an id."""
    file = run.path / "wandb_id.txt"
    if not file.exists():
        write_text(file, uuid.uuid4().hex + "\n")
    text = file.read_text().strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):  # wandb uses the id in the names of folders
        raise UserError(f"{file} holds no id of a W&B run; remove it for a new one")
    return text
