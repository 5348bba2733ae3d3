"""A run folder may come from somebody else: what it holds must not lead a command out of it."""

import os
import stat
from dataclasses import replace
from pathlib import Path

from nsgf.config.schema import Config
from nsgf.run.checkpoint import RunFolder
from nsgf.system.errors import UserError

FOREIGN = "wandb"
"""Folder that wandb fills, with links to its own logs; this program writes nothing in it."""


def check_links(run: RunFolder) -> RunFolder:
    """The run folder, once nothing in it stands for a place outside.

    Writing ``log.txt`` must not append to whatever a link of that name points to, and reading a
    pipe would wait for its other end.

    Raises:
        UserError: it holds a link that leads out of it, or what is neither file nor folder.
    """
    home = run.path.resolve()
    for folder, folders, files in os.walk(run.path):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) and not path.resolve().is_relative_to(home):
                raise UserError(
                    f"run = {run.path}: {path.relative_to(run.path)} is a link out of the run "
                    "folder; put what it points to in its place"
                )
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UserError(
                    f"run = {run.path}: {path.relative_to(run.path)} is no regular file; remove it"
                )
        if Path(folder) == run.path:
            folders[:] = [name for name in folders if name != FOREIGN]
    return run


def at_home(config: Config, run: RunFolder, asked: set[str]) -> Config:
    """The configuration of a run that exists, without the places that only its own file names.

    ``out_dir`` is where the run lies now. Images are not downloaded into a folder outside of the
    working directory unless this command names the folder or asks for the download.

    Args:
        config: the run's settings with this command's on top.
        run: the run folder.
        asked: keys that this command sets: ``data.root``, ``data.download``.
    """
    config = replace(config, out_dir=str(_parent(run.path)))
    if asked or _is_below_here(Path(config.data.root)):
        return config
    return replace(config, data=replace(config.data, download=False))


def _parent(path: Path) -> Path:
    return path.parent if path.name and path.name != ".." else path.resolve().parent


def _is_below_here(root: Path) -> bool:
    return Path(os.path.abspath(root.expanduser())).is_relative_to(Path.cwd())
