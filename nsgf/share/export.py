"""Export a run as a folder to share: ``nsgf export``."""

import json
import os
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors

from nsgf.config.files import drop_machine_settings
from nsgf.config.schema import Config
from nsgf.phases import Phase, get_phases
from nsgf.phases.base import load_network
from nsgf.run.folder import RunFolder, replacing, sync_folder, write_text
from nsgf.share.card import CARD_FILE, card, copied_pictures
from nsgf.share.exported import CONFIG_FILE, FORMAT, MARK, checksum, weights_file
from nsgf.system.errors import UserError, cause
from nsgf.version import __version__


def export_run(config: Config, run: RunFolder, to: Path, half: bool = False) -> list[str]:
    """Write averaged weights of each trained phase, all settings and a model card. The folder is
    written beside its place and then renamed.

    Args:
        config: the run's settings.
        run: its folder, which is only read.
        to: the folder to write; it must be new or empty.
        half: whether weights are rounded to float16, where all values of a tensor fit, and
            ``train.precision`` becomes auto: samples take what suits the machine.

    Returns:
        Lines for people: the files, and how they are used.

    Raises:
        UserError: the run has no weights, damaged ones, or settings of its own for them; ``to``
            holds something, or cannot be written.
    """
    if half:
        config = replace(config, train=replace(config.train, precision="auto"))
    to = to.expanduser().resolve()
    phases = [phase for phase in get_phases(config.phases) if run.has_checkpoint(phase.name)]
    if not phases:
        raise UserError(f"run = {run.path}: has no checkpoint yet; train it first")
    partial = to.with_name(f".{to.name}.partial")
    try:
        if to.exists() and (not to.is_dir() or os.listdir(to)):
            raise UserError(f"--to {to}: holds something; name an empty folder or a new one")
        shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
        partial.mkdir(parents=True)
        updates: dict[str, str] = {
            phase.name: _write_weights(partial, phase, config, run, half) for phase in phases
        }
        pictures = copied_pictures(run, phases, partial)
        write_text(partial / CARD_FILE, card(config, run, updates, pictures, half))
        _write_index(partial, config, updates, half)
        if to.exists():
            to.rmdir()
        partial.rename(to)
        sync_folder(to.parent)
    except OSError as error:
        raise UserError(
            f"--to {to}: cannot be written ({cause(error)}); name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [
        *(str(to / name) for name in sorted(os.listdir(to))),
        f"read it with nsgf.load({str(to)!r}); share it with: "
        f"hf upload OWNER/NAME {shlex.quote(str(to))}",
    ]


def _write_weights(folder: Path, phase: Phase, config: Config, run: RunFolder, half: bool) -> str:
    """Write the averaged weights of a phase, and return its progress."""
    trained = load_network(phase, config, run, torch.device("cpu"))
    state = {
        name: part.clone(memory_format=torch.contiguous_format)  # weights may be shared
        for name, part in trained.network.state_dict().items()
    }
    if half:
        rounded = {name: part.half() for name, part in state.items() if part.is_floating_point()}
        state |= {name: part for name, part in rounded.items() if part.isfinite().all()}
    with replacing(folder / weights_file(phase.name)) as stream:
        stream.write(save_tensors(state, {"format": "pt"}))
    return trained.progress


def _write_index(folder: Path, config: Config, updates: dict[str, str], half: bool) -> None:
    """Write ``config.json``: settings, progress and checksums of the other files."""
    index = {
        MARK: FORMAT,
        "library_name": "nsgf",
        "version": __version__,
        "settings": asdict(drop_machine_settings(config)),
        "updates": updates,
        "weights": "float16" if half else "float32",
        "files": {file.name: checksum(file.read_bytes()) for file in sorted(folder.iterdir())},
    }
    write_text(folder / CONFIG_FILE, json.dumps(index, indent=2, ensure_ascii=False) + "\n")
