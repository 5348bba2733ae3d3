"""The run folder: its files, the newest run of an experiment, and protection from foreign folders.

A run folder holds ``config.yaml``, ``facts.json`` (facts about data and network),
``versions.json``, ``checkpoints/``, ``pool/``, ``metrics.jsonl``, ``costs.jsonl``, ``log.txt`` and
``samples/``. ``evaluate`` adds ``metrics.json``. ``restart.json`` exists while a command resets
trained phases.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Container
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from nsgf.config.files import FACTS_FILE, read_layer, read_recipe, stored_facts
from nsgf.config.layers import FACTS, Layer, nest, saved_values, sections_of
from nsgf.config.schema import PHASE_NUMBERS, Config, DataConfig, PhaseName
from nsgf.config.values import dump_yaml
from nsgf.run.checkpoint import (
    check_phase,
    load_good,
    previous_file,
    read_good_header,
    unused_file,
)
from nsgf.system.errors import UserError, cause, one_line
from nsgf.system.files import (
    Plain,
    ensure_writable,
    fields,
    parse_object,
    read_object,
    remove_leftovers,
    sync_folder,
    write_text,
)
from nsgf.system.output import format_bytes
from nsgf.version import versions

if TYPE_CHECKING:
    from nsgf.models import UserNetwork

CHECKOUT = Path(__file__).parents[2]
IN_FOLDER = ("none", "tensorboard")
"""Trackers that write into the run folder only."""
FOREIGN = "wandb"
"""Folder of files that wandb writes. They may be links. This program writes nothing into this
folder."""


class Weights(NamedTuple):
    """The averaged weights of a phase's network."""

    file: Path
    state: Plain
    """Tensors by name."""
    config: Plain
    """Settings of the training, by section."""
    progress: str
    """Finished and configured updates at the time of saving, e.g. ``300 of 100000``."""
    precision: object = None
    """Precision of training; None: not known."""


class Restart(NamedTuple):
    """Phases that start again, and the new settings of the run. ``restart.json`` holds both until
    the settings are saved and the old checkpoints are renamed. If the process is killed before
    that, the next training of this run completes the restart."""

    phases: list[str]
    settings: Plain
    """All settings in nested sections."""


class RunFolder:
    """The paths of one run's files."""

    results_name: str | None = None
    """Folder in ``out_dir`` for the results of a read-only run; None: the run folder."""
    network: "UserNetwork | None" = None
    """The caller's network for a run with ``model.network``. It is not saved in a file."""

    def __init__(self, path: Path) -> None:
        path = path.absolute()  # a caller may change the working directory
        self.path = path
        self.config_file = path / "config.yaml"
        self.restart_file = path / "restart.json"
        self.pool = path / "pool"
        self.samples = path / "samples"

    def checkpoint_file(self, phase: PhaseName) -> Path:
        """Return the checkpoint of a phase, e.g. ``checkpoints/phase2_nsf.pt``."""
        return self.path / "checkpoints" / f"{phase_stem(phase)}.pt"

    def preview_file(self, phase: PhaseName) -> Path:
        """Return the picture at the end of a phase, e.g. ``samples/phase2_nsf.png``."""
        return self.samples / f"{phase_stem(phase)}.png"

    def has_checkpoint(self, phase: PhaseName) -> bool:
        """Whether a phase has its newest or its previous checkpoint."""
        file = self.checkpoint_file(phase)
        return file.exists() or previous_file(file).exists()

    def read_settings(self) -> Layer:
        """Return the saved settings and facts. Raise UserError if they are damaged or wrong, or
        come from a version with different settings."""
        restart = self.read_restart()
        try:
            if restart:
                settings = read_layer(restart.settings)
            else:
                settings = read_recipe(self.config_file).settings
            return settings | stored_facts(self.path)
        except UserError as error:
            version = read_object(self.path / "versions.json").get("nsgf", "an unknown version")
            raise UserError(f"{self.config_file}, written by nsgf {version}: {error}") from error

    def read_restart(self) -> Restart | None:
        """Return the restart that a killed process has left incomplete; None if there is no such
        restart. Raise UserError if the file is damaged."""
        file = self.restart_file
        try:
            return Restart(*fields(parse_object(file.read_bytes()), phases=[str], settings=dict))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{file}: damaged ({cause(error)}); remove it, and repeat the last command"
            ) from error

    def weights(self, phase: PhaseName) -> Weights:
        """Return the averaged weights of a phase, from its newest readable checkpoint.

        Raises:
            Unreadable: the file is damaged.
            UserError: the file is missing, belongs to another phase, or cannot be read by the
            system.
        """
        file = self.checkpoint_file(phase)
        payload, remark = load_good(file)
        check_phase(file, payload, phase)
        try:
            config = payload["config"]
            return Weights(
                file,
                payload["ema"],
                config,
                f"{payload['step']} of {config[phase]['iterations']}{remark}",
                payload.get("precision"),
            )
        except (KeyError, TypeError) as error:
            raise UserError(
                f"checkpoint {file} does not fit the network ({one_line(error)})"
            ) from error

    @classmethod
    def create(cls, config: Config) -> "RunFolder":
        """Make the folder ``OUT_DIR/EXP-YYYYmmdd_HHMMSS``, or ``OUT_DIR/EXP-smoke-YYYYmmdd_HHMMSS``
        for a smoke run, and write the configuration into it.

        The date in the name is never older than the date of an existing run, even if the clock was
        set back. Raise UserError if the folder cannot be written."""
        base = ensure_writable(config.out_path)
        times = [time for time, *_ in dated_folders(base, config.exp, config.smoke)]
        times.append(f"{datetime.now():%Y%m%d_%H%M%S}")
        stem = f"{folder_stem(config.exp, config.smoke)}-{max(times)}"
        for number in count(1):
            path = base / (stem if number == 1 else f"{stem}_{number}")
            with suppress(FileExistsError):  # another process may have made this folder
                path.mkdir()
                break
        run = cls.prepare(path)
        run.write_config(config)
        return run

    @classmethod
    def prepare(cls, path: Path) -> "RunFolder":
        """Make a run folder if needed, and return it. Raise UserError if it cannot be written."""
        ensure_writable(path / "checkpoints")
        sync_folder(path)
        sync_folder(path.parent)
        return cls(path)

    def write_config(self, config: Config) -> None:
        """Save the configuration, and facts and versions beside it."""
        write_facts(self.path, config)
        write_text(self.config_file, dump_config(config))
        write_text(self.path / "versions.json", json.dumps(provenance(), indent=2) + "\n")

    def set_aside(self, phase: PhaseName) -> Path:
        """Rename a phase's checkpoint to the first free ``*.previousN.pt``."""
        file = self.checkpoint_file(phase)
        # this file is older than the checkpoint that is set aside
        previous_file(file).unlink(missing_ok=True)
        aside = file.replace(unused_file(file, "previous"))
        sync_folder(file.parent)
        return aside

    def remove_leftovers(self) -> None:
        """Remove temporary files that killed processes left in the run folder, and in its folders
        of checkpoints, pool and samples (:func:`nsgf.system.files.remove_leftovers`). Further
        folders may belong to other programs."""
        for folder in (self.path, self.path / "checkpoints", self.pool, self.samples):
            remove_leftovers(folder)


def write_facts(folder: Path, config: Config) -> None:
    """Write the facts of a configuration, if there are any, as ``facts.json``."""
    facts = {key: saved_values(config)[key] for key in FACTS}
    if any(facts.values()):
        write_text(folder / FACTS_FILE, json.dumps(nest(facts), indent=2) + "\n")


def phase_stem(phase: PhaseName) -> str:
    """Return the stem of a phase's files, e.g. ``phase2_nsf`` or ``phase1_peer``."""
    return f"phase{PHASE_NUMBERS.get(phase, 1)}_{phase}"


def results_folder(out: Path, run: RunFolder) -> Path:
    """Return the folder for a run's results. This is the run folder if it lies in the folder
    ``out``, else ``OUT_DIR/RUN``. Results of an exported run go to ``OUT_DIR/exported-NAME``."""
    home = run.path.resolve()
    if run.results_name:
        return out / run.results_name
    parents = {home.parent, run.path.parent.resolve()}  # the two paths differ for a link
    return run.path if out.resolve() in parents else out / home.name


def dump_config(config: Config) -> str:
    """Return the configuration as YAML."""
    return dump_yaml(sections_of(config))


def folder_stem(exp: str, smoke: bool) -> str:
    """Return the part before the date in the names of an experiment's run folders."""
    return f"{exp}-smoke" if smoke else exp


def dated_folders(out_dir: Path, exp: str, smoke: bool) -> list[tuple[str, int, Path]]:
    """Return (time, number within that second, path) of each run folder, the oldest first."""
    stamp = re.compile(re.escape(folder_stem(exp, smoke)) + r"-(\d{8}_\d{6})(?:_(\d+))?")
    return sorted(
        (name[1], int(name[2] or 1), path)
        for path in out_dir.glob(f"{exp}-*")
        if (name := stamp.fullmatch(path.name))
    )


def newest_run(
    out_dir: Path, exp: str, *, smoke: bool = False, method: str | None = None, resume: bool = False
) -> tuple[RunFolder, str]:
    """Find the newest run of an experiment that has a readable checkpoint. Return the run, and a
    line that names the run and says why newer runs are skipped.

    With ``resume``, a run that has a pool but no checkpoint also counts. If there is no such run, a
    run that has only settings counts. ``method`` None: any method. Raise UserError if no run is
    found."""
    begun = []
    skipped = ""
    for _, _, path in reversed(dated_folders(out_dir, exp, smoke)):
        run = RunFolder(path)
        if not run.config_file.is_file():
            continue
        try:
            check_links(path)
            settings = run.read_settings()
            if method not in (None, settings.get("method")):
                raise UserError(f"method {settings.get('method')}")
            begun.append(run)
            saved = [phase for phase in settings.get("phases", []) if run.has_checkpoint(phase)]
            if saved:
                read_good_header(run.checkpoint_file(saved[0]))
            elif not (resume and run.pool.exists()):
                raise UserError("no checkpoint")
        except (UserError, OSError) as error:
            skipped += f"; skipped {path.name} ({cause(error).removeprefix(f'{path}: ')})"
            continue
        return run, f"run {path}{skipped}"
    if resume and begun:
        return begun[0], f"run {begun[0].path}"
    hint = "train one, or name its folder with --run DIR"
    if not smoke and dated_folders(out_dir, exp, True):
        hint = "add --smoke to use the smoke run, or train one"
    raise UserError(f"no run of {folder_stem(exp, smoke)} in {out_dir}{skipped}: {hint}")


def check_links(folder: Path, home: Path | None = None) -> None:
    """Raise UserError if a folder has a pipe, or a link that leads out of ``home``. Without
    ``home``, links must not lead out of the folder. A pipe would block a reader. A link could make
    the program write files elsewhere."""
    home = home or folder.resolve()
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if FOREIGN in name.parts[:-1]:
            continue
        if path.is_fifo() or (path.is_symlink() and not path.resolve().is_relative_to(home)):
            raise UserError(
                f"{folder}: {name} is a pipe or a link out of that folder; replace it by a copy"
            )


def drop_unsafe_settings(saved: Layer, by_user: Container[str]) -> Layer:
    """Return the saved settings of a run, with unsafe values replaced. The folder may come from
    another person. So it must not turn on a tracking service, or allow downloads into a folder
    outside of the working directory. Only the user's settings (``by_user``) may do this."""
    safe = dict(saved)
    if saved.get("tracking.tracker") not in (None, *IN_FOLDER):
        safe["tracking.tracker"] = "none"
    root = Path(os.path.abspath(os.path.expanduser(saved.get("data.root", DataConfig.root))))
    if not (
        "data.root" in by_user or "data.download" in by_user or root.is_relative_to(Path.cwd())
    ):
        safe["data.download"] = False
    return safe


def provenance() -> dict[str, object]:
    """Return versions, machine, and git commit, for ``versions.json``. The commit ends in
    ``-dirty`` if files differ from the commit. It is None if the package does not run from a git
    checkout."""
    import torch

    from nsgf.system.hardware import available_cores

    commit = None
    if (CHECKOUT / ".git").exists():
        command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=40"]
        command.append("--exclude=*")
        # git may be missing, or the folder may belong to another user
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=10)
            commit = said.decode().strip()
    return {
        **versions(),
        "commit": commit,
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": available_cores(),
            "memory": format_bytes(psutil.virtual_memory().total),
            "cards": [*map(torch.cuda.get_device_name, range(torch.cuda.device_count()))],
        },
    }
