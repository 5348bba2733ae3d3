"""Read exported runs, from a folder or from the Hugging Face hub.

    config.json              format, version, all settings, updates of each phase, checksums
    phase1_nsgf.safetensors  averaged weights of a phase, one file each, float32 or float16
    README.md, *.png         the model card and its pictures

No file can run code. File names come from the phases, never from the folder.
"""

import hashlib
import re
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from nsgf.checks import check
from nsgf.config.files import pretrained_runs, read_facts, read_layer, read_plain
from nsgf.config.schema import Config, PhaseName
from nsgf.config.settings import (
    Layer,
    build,
    drop_machine_settings,
    find_contradictions,
    nest,
    values,
)
from nsgf.config.values import expand_path
from nsgf.phases import Phase
from nsgf.phases.base import FREE_IN_SAMPLING, SharedRun, TrainedNetwork, outline, restored_network
from nsgf.run.checkpoint import is_finite, newer_format_error
from nsgf.run.folder import RunFolder, check_links, phase_stem
from nsgf.system.errors import UserError, cause, name_setting, one_line

FORMAT = 1
MARK = "nsgf_export"
"""Key of ``config.json`` that holds the format."""
CONFIG_FILE = "config.json"
DOWNLOADED = [CONFIG_FILE, "*.safetensors", "README.md"]
ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def weights_file(phase: PhaseName) -> str:
    """Return the name of the file of a phase's weights, e.g. ``phase2_nsf.safetensors``."""
    return f"{phase_stem(phase)}.safetensors"


def checksum(content: bytes) -> str:
    """Return the SHA-256."""
    return hashlib.sha256(content).hexdigest()


def find_folder(path: str | PathLike[str]) -> Path:
    """Return the local folder for a path: of ``hf://OWNER/NAME``, or of a pretrained run if no run
    has its name as path, or the path itself. Raise UserError if the address is wrong,
    huggingface_hub is not installed, or the download fails."""
    if isinstance(path, str) and path.startswith("hf://"):
        named = ADDRESS.fullmatch(path)
        if not named:
            raise UserError(f"{path}: must be hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
        try:
            from huggingface_hub import snapshot_download

            found = snapshot_download(named[1], revision=named[2], allow_patterns=DOWNLOADED)
            return Path(found)
        except ImportError as error:
            raise UserError(f"{path}: needs huggingface_hub; pip install -e .[hub]") from error
        except Exception as error:  # the hub, its transport and the system raise many types
            why = one_line(error)[:300]
            raise UserError(f"{path}: cannot be downloaded from the hub ({why})") from error
    folder = expand_path("run", path)
    index = folder / CONFIG_FILE  # other programs use this name too
    is_export = index.is_file() and MARK in index.read_text("utf-8", "replace")
    is_run = is_export or (folder / "config.yaml").is_file()
    return folder if is_run else pretrained_runs().get(str(path), folder)


def open_run(folder: Path) -> RunFolder:
    """Return the run or exported run in a folder. Raise UserError if there is none, if it is
    damaged, or if it has links out of its folder."""
    run = RunFolder(folder)
    if run.config_file.is_file():
        check_links(folder)
        return run
    if (folder / CONFIG_FILE).is_file():
        return ExportedRun(folder)
    known = ", ".join(pretrained_runs())
    wrong = name_setting("run", folder)
    raise UserError(f"{wrong}: no run folder (it has no config.yaml); pretrained runs: {known}")


class ExportedRun(SharedRun):
    """An exported run. Settings are read at once, weights only when they are used."""

    def __init__(self, folder: Path) -> None:
        """Raise UserError if the folder is damaged or foreign, or a setting is wrong."""
        super().__init__(folder)
        file, home = folder / CONFIG_FILE, folder.resolve()
        if home.parent.name == "snapshots":  # the hub's cache keeps files beside its snapshots
            home = home.parents[1]
        try:
            check_links(folder, home)
            index: dict[str, Any] = read_plain(file)
        except OSError as error:
            raise UserError(f"{file} cannot be read ({cause(error)})") from error
        if type(index.get(MARK)) is not int:
            raise UserError(f"{folder}: is no exported run (its {CONFIG_FILE} has no {MARK})")
        if index[MARK] > FORMAT:
            raise newer_format_error(str(file), index[MARK], FORMAT)
        if not all(isinstance(index.get(key), dict) for key in ("settings", "updates", "files")):
            raise UserError(f"{file} is damaged: it must have settings, updates and files")
        try:
            settings = index["settings"]
            saved = build({**read_layer(settings), **read_facts(settings)})
            check(saved)
        except UserError as error:
            raise UserError(f"{file}: {error}") from error
        kind = "pretrained" if folder in pretrained_runs().values() else "exported"
        self.results_name = f"{kind}-{folder.resolve().name}"
        self._saved = values(drop_machine_settings(saved))
        self._updates: dict[str, str] = index["updates"]
        self._sums: dict[str, str] = index["files"]

    def read_settings(self) -> Layer:
        return self._saved

    def has_checkpoint(self, phase: PhaseName) -> bool:
        """Whether the exported run has the weights of a phase."""
        return weights_file(phase) in self._sums

    def load(self, phase: Phase, config: Config, device: torch.device) -> TrainedNetwork:
        """Return the network of a phase in float32, in eval mode and without gradients. Raise
        UserError if its file is missing, damaged, or does not fit the settings."""
        file = self.path / weights_file(phase.name)
        frozen = set(phase.follows) - FREE_IN_SAMPLING
        texts = find_contradictions(nest(self._saved), config, frozen)
        if texts:
            raise UserError(f"cannot use {file}: " + "; ".join(texts))
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UserError(f"{file} cannot be read ({cause(error)}); export it again") from error
        if checksum(content) != self._sums.get(file.name):
            raise UserError(f"{file} is damaged: its checksum differs from {CONFIG_FILE}")
        try:
            state = load_tensors(content)
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{file} cannot be read ({one_line(error)})") from error
        for key, part in state.items():  # of an export with --half
            state[key] = part.float() if part.dtype == torch.float16 else part
        wanted = outline(phase, config, self.network).state_dict()
        its, ours = (
            {name: f"{list(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
            for tensors in (state, wanted)
        )
        for name in sorted(its.keys() | ours.keys()):  # before weights are allocated
            if its.get(name) != (own := ours.get(name)):
                problem = f"{name} is {its.get(name, 'missing')}, not {own or 'expected'}"
                raise UserError(f"{file} does not fit the network of {CONFIG_FILE} ({problem})")
        if not is_finite(
            {phase.name: state}
        ):  # after the check of dtypes: torch cannot compare 8-bit floats
            raise UserError(f"{file}: has values that are not finite")
        model = restored_network(phase, config, state, device, self.network)
        return TrainedNetwork(model, str(self._updates.get(phase.name)), config.train.precision)
