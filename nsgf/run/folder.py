"""The run folder: names of its files, and safe writing.

A run folder holds ``config.yaml``, ``versions.json``, ``checkpoints/``, ``pool/``,
``metrics.jsonl``, ``costs.jsonl``, ``log.txt``, ``samples/`` and, later, ``metrics.json``.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import psutil
from torch import nn

from nsgf.config.files import Content, read_settings
from nsgf.config.schema import Config, PhaseName, family
from nsgf.config.yaml_loader import dump_yaml
from nsgf.system.errors import UserError, cause, suggest
from nsgf.system.hardware import provenance

OwnNetwork = nn.Module | Callable[[], nn.Module]
"""A caller's network, x (B, *shape), t (B,) and with classes labels (B,), 0 to K, K for none, to
(B, *shape), of which each phase trains a copy; or a function that makes one."""


class RunFolder:
    """The paths of one run's files."""

    results_name: str | None = None
    """Folder in ``out_dir`` for results of a run that is only read; None: the run's own."""
    network: OwnNetwork | None = None
    """The caller's network, which no file holds, for a run with ``model.network``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.pool = path / "pool"
        self.samples = path / "samples"

    def checkpoint_file(self, phase: PhaseName) -> Path:
        """Return the checkpoint of a phase, e.g. ``checkpoints/phase2_nsf.pt``."""
        return self.path / "checkpoints" / f"{phase_stem(phase)}.pt"

    def has_checkpoint(self, phase: PhaseName) -> bool:
        """Whether a phase has its newest checkpoint or the one before."""
        file = self.checkpoint_file(phase)
        return file.exists() or previous_file(file).exists()

    def read_settings(self) -> Content:
        """Return the run's saved settings, nested. Raise UserError if they cannot be read, or are
        wrong."""
        return read_settings(self.config_file)

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """Make the folder ``OUT_DIR/EXP-YYYYmmdd_HHMMSS`` with the configuration in it; that of a
        smoke run is ``OUT_DIR/EXP-smoke-YYYYmmdd_HHMMSS``.

        The new run is never older by name than an existing run, even if the clock went back. Raise
        UserError if the folder cannot be written."""
        base, name = Path(config.out_dir).expanduser(), folder_stem(config.exp, config.smoke)
        times = [time for time, _, _ in dated_folders(base, name)]
        stem = f"{name}-{max([f'{datetime.now():%Y%m%d_%H%M%S}', *times])}"
        free = (base / (stem + suffix) for suffix in ("", *(f"_{n}" for n in range(2, 100))))
        run = cls.prepare(next(path for path in free if not path.exists()))
        run.write_config(config)
        return run

    @classmethod
    def prepare(cls, path: Path) -> "RunFolder":
        """Return the run folder at this path, and make it if there is none. Raise UserError if it
        cannot be written."""
        ensure_writable(path / "checkpoints")
        for folder in (path, path.parent):
            sync_folder(folder)
        return cls(path)

    def write_config(self, config: Config, comment: str = "") -> None:
        """Save the configuration below ``comment``, and the versions beside it."""
        write_text(self.config_file, comment + dump_config(config))
        write_text(self.path / "versions.json", json.dumps(provenance(), indent=2) + "\n")

    def set_aside(self, phase: PhaseName) -> Path:
        """Rename a phase's checkpoint to the first free ``*.previousN.pt``."""
        file = self.checkpoint_file(phase)
        previous_file(file).unlink(missing_ok=True)  # it belongs to the one set aside
        aside = file.replace(unused_file(file, "previous"))
        sync_folder(file.parent)
        return aside


def previous_file(file: Path) -> Path:
    """Return the file of the checkpoint before the newest: ``phase2_nsf.earlier.pt``."""
    return file.with_suffix(".earlier.pt")


def unused_file(file: Path, name: str) -> Path:
    """Return the first unused name of ``*.NAME1.pt``, ``*.NAME2.pt``, ... beside a checkpoint."""
    number = 1
    while (free := file.with_suffix(f".{name}{number}.pt")).exists():
        number += 1
    return free


def phase_stem(phase: PhaseName) -> str:
    """Return the stem of a phase's files, e.g. ``phase2_nsf`` or ``phase1_peer``."""
    return f"phase{family(phase).index(phase) + 1}_{phase}"


def name_within(config: Config, run: RunFolder) -> str:
    """Return a run folder's path below ``out_dir``: ``compare-2d/moons/nsgf-seed0``."""
    home, path = Path(config.out_dir).expanduser().resolve(), run.path.resolve()
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name


def results_folder(config: Config, run: RunFolder) -> Path:
    """Return the folder for a run's results: its own, or ``OUT_DIR/RUN`` if ``out_dir`` is not the
    folder that holds the run. Results of an exported run go to ``OUT_DIR/exported-NAME``."""
    home, out = run.path.resolve(), Path(config.out_dir).expanduser()
    if run.results_name:
        return out / run.results_name
    parents = {home.parent, run.path.absolute().parent.resolve()}  # differ for a link
    return run.path if out.resolve() in parents else out / home.name


def ensure_writable(folder: Path, key: str = "out_dir", names: Iterable[str] = ()) -> Path:
    """Create a folder if needed, check that files can be written into it, also as ``names``, and
    return it. Raise UserError if no file can be written; it names the setting ``key`` of the
    folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
        for name in names:
            with _temporary(folder / name) as partial:
                partial.touch()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({cause(error)}); name another with {suggest(key, 'DIR')}"
        ) from error
    return folder


def dump_config(config: Config) -> str:
    """Return the configuration as YAML."""
    return dump_yaml(asdict(config))


def write_text(file: Path, text: str) -> None:
    """Replace a file as a whole."""
    with replacing(file) as stream:
        stream.write(text.encode())


def append_text(file: Path, text: str) -> None:
    """Add a text to the end of a file."""
    with _naming(file), file.open("a", encoding="utf-8") as stream:
        stream.write(text)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Add the file's name to system errors without a name, such as a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Yield a stream for a new version of a file, which replaces the old version once it is
    completely on the disk. A failure leaves the old file. A link is replaced, not followed."""
    with _temporary(file) as partial:
        with partial.open("x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
        sync_folder(file.parent)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for new files, which takes the place of ``folder``, a new or empty one, once
    all are written. A failure leaves nothing new."""
    folder = folder.resolve()
    with _temporary(folder) as partial:
        partial.mkdir()
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
        sync_folder(folder.parent)


def link_or_copy(file: Path, other: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    with _temporary(other) as partial:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)
        partial.replace(other)


@contextmanager
def _temporary(file: Path) -> Iterator[Path]:
    """Yield a temporary name beside a file, unique to this process, since two processes may write
    the same file. Remove it at the end, and leftovers of processes that no longer exist.
    """
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    for left in file.parent.glob(f"{escape(file.name)}.*.partial"):
        process = left.suffixes[-2][1:]
        is_ours = process.isdecimal() or not left.is_dir()  # a user's folder may have such a name
        if left == partial or (is_ours and not is_running(process)):
            _remove(left)
    try:
        with _naming(file):
            yield partial
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all its files, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_running(process: str) -> bool:
    """Whether a text is the id of a running process."""
    return process.isdecimal() and len(process) < 10 and psutil.pid_exists(int(process))


def sync_folder(folder: Path) -> None:
    """Flush new and renamed files of a folder to the disk, where the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def folder_stem(exp: str, smoke: bool) -> str:
    """Return the beginning of the names of an experiment's run folders."""
    return f"{exp}-smoke" if smoke else exp


def dated_folders(out_dir: Path, stem: str) -> list[tuple[str, int, Path]]:
    """Return the run folders with a stem, the oldest first: the time in their name, the number
    within that second, the folder."""
    stamp = re.compile(re.escape(stem) + r"-(\d{8}_\d{6})(?:_(\d+))?")
    named = ((stamp.fullmatch(path.name), path) for path in out_dir.glob(f"{stem}-*"))
    return sorted((name[1], int(name[2] or 1), path) for name, path in named if name)


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
