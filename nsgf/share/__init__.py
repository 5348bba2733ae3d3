"""Exported runs, which are folders for sharing, with a model card. ``nsgf export`` writes these
folders. The program reads them from a disk or from the Hugging Face hub.

    config.json              format, version, all settings, updates of each phase, checksums
    phase1_nsgf.safetensors  averaged weights of a phase, one file each, float32 or float16
    README.md, *.png         the model card and its pictures

No file in the folder can run code. This module makes the file names from the names of the phases,
and takes no file name from the folder's content.
"""

import hashlib
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from nsgf.config.files import PRETRAINED, read_facts, read_layer, read_plain
from nsgf.config.layers import Layer, build, drop_machine_settings, nest, saved_values, values
from nsgf.config.schema import PhaseName
from nsgf.config.values import expand_path
from nsgf.run.checkpoint import newer_format_error
from nsgf.run.folder import RunFolder, Weights, check_links, phase_stem
from nsgf.system.errors import UserError, cause, one_line, wrong_setting
from nsgf.system.files import fields

EXPORT_FORMAT = 1
MARK = "nsgf_export"
"""Key of ``config.json`` that holds the format."""
CONFIG_FILE = "config.json"
DOWNLOADED = [CONFIG_FILE, "*.safetensors", "README.md"]


def weights_file(phase: PhaseName) -> str:
    """Return the file name of a phase's weights, e.g. ``phase2_nsf.safetensors``."""
    return f"{phase_stem(phase)}.safetensors"


def find_folder(path: str | PathLike[str]) -> Path:
    """Return the local folder for a path. If the path is ``hf://OWNER/NAME``, download the run. If
    the path is the name of a pretrained run and no run exists at this path, return the folder of
    the pretrained run. Raise UserError if the address is wrong, huggingface_hub is not installed,
    or the download fails."""
    if isinstance(path, str) and path.startswith("hf://"):
        name, _, revision = path.removeprefix("hf://").partition("@")
        try:
            from huggingface_hub import snapshot_download

            return Path(
                snapshot_download(name, revision=revision or None, allow_patterns=DOWNLOADED)
            )
        except Exception as error:  # the hub, its transport and the system raise many types
            raise UserError(
                f"{path}: cannot be downloaded from the hub ({one_line(error)[:300]}); it needs "
                "pip install -e '.[hub]'"
            ) from error
    folder = expand_path("run", path)
    index = folder / CONFIG_FILE  # other programs also write files with the name CONFIG_FILE
    is_export = index.is_file() and MARK in index.read_text("utf-8", "replace")
    is_run = is_export or (folder / "config.yaml").is_file()
    return folder if is_run else PRETRAINED.get(str(path), folder)


def open_run(folder: Path) -> RunFolder:
    """Return the run or exported run in a folder. Raise UserError if the folder has no run, if the
    run is damaged, or if links lead out of the folder."""
    run = RunFolder(folder)
    if run.config_file.is_file():
        check_links(folder)
        return run
    if (folder / CONFIG_FILE).is_file():
        return ExportedRun(folder)
    raise wrong_setting(
        "run",
        folder,
        f"no run folder (it has no config.yaml); pretrained runs: {', '.join(PRETRAINED)}",
    )


class ExportedRun(RunFolder):
    """An exported run. It reads the settings at once, and the weights when they are used."""

    def __init__(self, folder: Path) -> None:
        """Raise UserError if the folder is damaged or is no exported run, or if a setting is
        wrong."""
        super().__init__(folder)
        file = folder / CONFIG_FILE
        home = folder.resolve()
        if home.parent.name == "snapshots":  # the hub's cache keeps files beside its snapshots
            home = home.parents[1]
        check_links(folder, home)
        index = read_plain(file)
        mark = index.get(MARK)
        if type(mark) is int and mark > EXPORT_FORMAT:
            raise newer_format_error(str(file), mark, EXPORT_FORMAT)
        try:
            _, settings, self._updates, self._sums = fields(
                index, **{MARK: int}, settings=dict, updates=dict, files=dict
            )
            saved = build({**read_layer(settings), **read_facts(settings)})
        except (ValueError, UserError) as error:
            raise UserError(
                f"{file}: is no exported run, or damaged ({error}); it must have {MARK}, settings, "
                "updates and files"
            ) from error
        kind = "pretrained" if folder in PRETRAINED.values() else "exported"
        self.results_name = f"{kind}-{folder.resolve().name}"
        self._saved = drop_machine_settings(saved)

    def read_settings(self) -> Layer:
        return values(self._saved)

    def has_checkpoint(self, phase: PhaseName) -> bool:
        """Whether the exported run has weights of a phase."""
        return weights_file(phase) in self._sums

    def weights(self, phase: PhaseName) -> Weights:
        """Return the weights of a phase in float32. Raise UserError if the file is missing or
        damaged."""
        file = self.path / weights_file(phase)
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self._sums.get(file.name):
                raise ValueError(f"its checksum differs from {CONFIG_FILE}")
            state = load_tensors(content)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{file} cannot be read ({cause(error)}); export it again") from error
        for key, part in state.items():  # an export with --half stores float16
            state[key] = part.float() if part.dtype == torch.float16 else part
        return Weights(file, state, nest(saved_values(self._saved)), str(self._updates.get(phase)))
