"""Protection from run folders that somebody else made: links, pipes and unsafe settings."""

import os
from dataclasses import replace
from pathlib import Path

from nsgf.config.schema import Config
from nsgf.run.folder import RunFolder
from nsgf.system.errors import UserError

IN_FOLDER = ("none", "tensorboard")
"""Trackers that write into the run folder only."""
FOREIGN = "wandb"
"""Folder of wandb's own files, which may be links; this program writes nothing in it."""


def check_links(folder: Path, home: Path | None = None) -> None:
    """Raise UserError if a folder has a pipe, which would block reading, or a link out of ``home``
    (default: the folder itself), through which files could be written elsewhere."""
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


def drop_unsafe_settings(config: Config, run: RunFolder, given: set[str]) -> Config:
    """Return the configuration of an existing run without unsafe settings from its file, since the
    folder may come from somebody else.

    ``out_dir`` becomes the run's present place. Only the current command, which sets the keys
    ``given``, can turn on a tracking service, or downloads to a folder outside of the working
    directory.
    """
    if "out_dir" not in given and run.results_name is None:
        path = run.path if run.path.name not in ("", "..") else run.path.resolve()
        config = replace(config, out_dir=str(path.parent))
    if "tracking.tracker" not in given and config.tracking.tracker not in IN_FOLDER:
        config = replace(config, tracking=replace(config.tracking, tracker="none"))
    root = Path(os.path.abspath(Path(config.data.root).expanduser()))
    if given & {"data.root", "data.download"} or root.is_relative_to(Path.cwd()):
        return config
    return replace(config, data=replace(config.data, download=False))
