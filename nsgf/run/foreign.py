"""Protection from run folders that somebody else made: links, pipes and unsafe settings."""

import os
from collections.abc import Container
from pathlib import Path

from nsgf.config.schema import DataConfig
from nsgf.config.settings import Layer
from nsgf.system.errors import UserError

IN_FOLDER = ("none", "tensorboard")
"""Trackers that write into the run folder only."""
FOREIGN = "wandb"
"""Folder of wandb's own files. They may be links; this program writes nothing into it."""


def check_links(folder: Path, home: Path | None = None) -> None:
    """Raise UserError if a folder has a pipe, or a link out of ``home`` (default: the folder
    itself). A pipe would block reading; through a link, files could be written elsewhere."""
    home = home or folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                raise UserError(
                    f"{folder}: {path.relative_to(folder)} is a link out of that folder; replace "
                    "the link by a copy"
                )
            if path.is_fifo():
                raise UserError(f"{folder}: {path.relative_to(folder)} is a pipe; remove it")
        if (Path(place) / "config.yaml").exists():
            folders[:] = [name for name in folders if name != FOREIGN]


def drop_unsafe_settings(saved: Layer, given: Container[str]) -> Layer:
    """Return the saved settings of a run without unsafe ones. The folder may come from somebody
    else, so only settings ``given`` by the user may turn on a tracking service, or downloads to a
    folder outside of the working directory."""
    safe = dict(saved)
    if saved.get("tracking.tracker") not in (None, *IN_FOLDER):
        safe["tracking.tracker"] = "none"
    root = Path(os.path.abspath(os.path.expanduser(saved.get("data.root", DataConfig.root))))
    is_asked = "data.root" in given or "data.download" in given
    if not is_asked and not root.is_relative_to(Path.cwd()):
        safe["data.download"] = False
    return safe
