"""Export a run: ``nsgf export``. The folder is written beside its place and then renamed."""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors

from nsgf.config.files import drop_machine_settings
from nsgf.config.schema import Config
from nsgf.phases import Phase, get_phases
from nsgf.phases.base import load_network
from nsgf.run.folder import RunFolder, replacing, sync_folder, write_text
from nsgf.share.card import CARD_FILE, card, copied_pictures
from nsgf.share.exported import (
    CONFIG_FILE,
    FORMAT,
    MARK,
    checksum,
    read_index,
    weights_file,
)
from nsgf.system.errors import UserError, cause
from nsgf.version import __version__

CPU = torch.device("cpu")


def export_run(config: Config, run: RunFolder, to: Path) -> list[str]:
    """Write averaged weights of each trained phase, all settings and a model card.

    Args:
        config: the run's settings.
        run: its folder, which is only read.
        to: the folder to write; an earlier export that nobody has changed is replaced.

    Returns:
        Lines for people: the files, and how they are used.

    Raises:
        UserError: the run has no weights, damaged ones, or settings of its own for them; ``to``
            holds something else, or cannot be written. What was there before is still there.
    """
    to = to.expanduser().resolve()
    _refuse_foreign(to)
    phases = [phase for phase in get_phases(config.phases) if run.has_checkpoint(phase.name)]
    if not phases:
        raise UserError(f"run = {run.path}: has no checkpoint yet; train it first")
    try:
        with _replacing_folder(to) as folder:
            updates: dict[str, str] = {
                phase.name: _write_weights(folder, phase, config, run) for phase in phases
            }
            shown = copied_pictures(run, phases, folder)
            write_text(folder / CARD_FILE, card(config, run, updates, shown))
            _write_index(folder, config, updates)
    except OSError as error:
        raise UserError(
            f"{to} cannot be written ({cause(error)}); name another folder with --to DIR"
        ) from error
    return [
        *(str(to / name) for name in sorted(os.listdir(to))),
        f"read it with nsgf.load({str(to)!r}); share it with: "
        f"hf upload OWNER/NAME {shlex.quote(str(to))}",
    ]


def _write_weights(folder: Path, phase: Phase, config: Config, run: RunFolder) -> str:
    """Write the averaged weights of a phase, and return its progress."""
    trained = load_network(phase, config, run, CPU)
    state = {name: part.contiguous() for name, part in trained.network.state_dict().items()}
    with replacing(folder / weights_file(phase.name)) as stream:
        stream.write(save_tensors(state, {"format": "pt"}))
    return trained.progress


def _write_index(folder: Path, config: Config, updates: dict[str, str]) -> None:
    """Write ``config.json``: settings, progress and checksums of the other files."""
    index = {
        MARK: FORMAT,
        "library_name": "nsgf",
        "version": __version__,
        "settings": asdict(drop_machine_settings(config)),
        "updates": updates,
        "files": {file.name: checksum(file.read_bytes()) for file in sorted(folder.iterdir())},
    }
    write_text(folder / CONFIG_FILE, json.dumps(index, indent=2, ensure_ascii=False) + "\n")


def _refuse_foreign(to: Path) -> None:
    """Raise UserError if there is something other than an empty folder or an unchanged export."""
    try:
        if not to.exists() or (to.is_dir() and not os.listdir(to)):
            return
        if not (to / CONFIG_FILE).is_file():
            raise UserError(f"--to {to}: holds something else; name an empty folder or a new one")
        sums = read_index(to)["files"]
        for name in sorted(set(os.listdir(to)) - {CONFIG_FILE}):
            if name not in sums or checksum((to / name).read_bytes()) != sums[name]:
                raise UserError(f"--to {to}: {name} is not as an export left it; move it away")
    except OSError as error:
        raise UserError(f"--to {to}: cannot be read ({cause(error)})") from error


@contextmanager
def _replacing_folder(to: Path) -> Iterator[Path]:
    """Yield a new folder beside ``to`` that takes its place at the end; what fails leaves ``to`` as
    it was. A killed export leaves its folder, which the next one removes."""
    to.parent.mkdir(parents=True, exist_ok=True)
    partial, old = (to.with_name(f".{to.name}.{kind}") for kind in ("partial", "old"))
    if old.exists() and not to.exists():  # killed between the two renames
        old.rename(to)
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if to.exists():
            to.rename(old)
        partial.rename(to)
        sync_folder(to.parent)
    finally:
        if old.exists() and not to.exists():
            old.rename(to)
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
