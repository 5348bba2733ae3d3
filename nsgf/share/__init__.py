"""Exported runs: folders to share, with a model card. ``nsgf export`` writes them; they are read
from a folder or from the Hugging Face hub.

    config.json              format, version, all settings, updates of each phase, checksums
    phase1_nsgf.safetensors  averaged weights of a phase, one file each, float32 or float16
    README.md, *.png         the model card and its pictures

No file can run code. File names come from the phases, never from the folder.
"""

import hashlib
import json
import os
import shlex
import shutil
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from nsgf.checks import check
from nsgf.config.files import PRETRAINED, read_facts, read_layer, read_plain
from nsgf.config.schema import Config, PhaseName
from nsgf.config.settings import (
    Layer,
    build,
    change,
    drop_machine_settings,
    nest,
    values,
)
from nsgf.config.values import expand_path
from nsgf.data import class_names, data_shape, is_image_set
from nsgf.metrics.evaluate import changed_sampling
from nsgf.metrics.measures import WORST_COLUMNS, is_measure, name_of, report
from nsgf.phases import Phase, find_unused, find_way, get_phases
from nsgf.phases.base import load_network
from nsgf.report import render
from nsgf.run.checkpoint import newer_format_error
from nsgf.run.folder import RunFolder, Weights, check_links, phase_stem
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import (
    UserError,
    cause,
    list_names,
    one_line,
    printable,
    shorten_paths,
    wrong_setting,
)
from nsgf.system.files import (
    ensure_writable,
    fields,
    read_object,
    replacing,
    replacing_folder,
    write_text,
)
from nsgf.version import __version__

FORMAT = 1
MARK = "nsgf_export"
"""Key of ``config.json`` that holds the format."""
CONFIG_FILE = "config.json"
DOWNLOADED = [CONFIG_FILE, "*.safetensors", "README.md"]


def weights_file(phase: PhaseName) -> str:
    """Return the file name of a phase's weights, e.g. ``phase2_nsf.safetensors``."""
    return f"{phase_stem(phase)}.safetensors"


def find_folder(path: str | PathLike[str]) -> Path:
    """Return the local folder for a path. ``hf://OWNER/NAME`` is downloaded. The name of a
    pretrained run means that run, unless there is a run with this path. Raise UserError if the
    address is wrong, huggingface_hub is not installed, or the download fails."""
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
    index = folder / CONFIG_FILE  # other programs use this name too
    is_export = index.is_file() and MARK in index.read_text("utf-8", "replace")
    is_run = is_export or (folder / "config.yaml").is_file()
    return folder if is_run else PRETRAINED.get(str(path), folder)


def open_run(folder: Path) -> RunFolder:
    """Return the run or exported run in a folder. Raise UserError if there is none, or if it is
    damaged or has links out of the folder."""
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
    """An exported run. Settings are read at once; weights are read when they are used."""

    def __init__(self, folder: Path) -> None:
        """Raise UserError if the folder is damaged or foreign, or a setting is wrong."""
        super().__init__(folder)
        file = folder / CONFIG_FILE
        home = folder.resolve()
        if home.parent.name == "snapshots":  # the hub's cache keeps files beside its snapshots
            home = home.parents[1]
        check_links(folder, home)
        index = read_plain(file)
        mark = index.get(MARK)
        if type(mark) is int and mark > FORMAT:
            raise newer_format_error(str(file), mark, FORMAT)
        try:
            _, settings, self._updates, self._sums = fields(
                index, **{MARK: int}, settings=dict, updates=dict, files=dict
            )
            saved = build({**read_layer(settings), **read_facts(settings)})
            check(saved)
        except (ValueError, UserError) as error:
            raise UserError(
                f"{file}: is no exported run, or damaged ({error}); it must have {MARK}, settings, "
                "updates and files"
            ) from error
        kind = "pretrained" if folder in PRETRAINED.values() else "exported"
        self.results_name = f"{kind}-{folder.resolve().name}"
        self._saved = values(drop_machine_settings(saved))

    def read_settings(self) -> Layer:
        return self._saved

    def has_checkpoint(self, phase: PhaseName) -> bool:
        """Whether the exported run has weights of a phase."""
        return weights_file(phase) in self._sums

    def weights(self, phase: PhaseName) -> Weights:
        """Return the weights of a phase in float32. Raise UserError if their file is missing or
        damaged."""
        file = self.path / weights_file(phase)
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self._sums.get(file.name):
                raise ValueError(f"its checksum differs from {CONFIG_FILE}")
            state = load_tensors(content)
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{file} cannot be read ({cause(error)}); export it again") from error
        for key, part in state.items():  # of an export with --half
            state[key] = part.float() if part.dtype == torch.float16 else part
        return Weights(file, state, nest(self._saved), str(self._updates.get(phase)))


def export_run(config: Config, run: RunFolder, to: Path, half: bool = False) -> list[str]:
    """Write averaged weights of each trained phase, all settings and a model card. The folder is
    written under a temporary name and then renamed.

    Args:
        config: the run's settings.
        run: the run folder, which does not change.
        to: the folder to write; it must be new or empty.
        half: round tensors to float16 if all their values fit, and set ``train.precision`` to auto,
            so that the machine of the reader chooses the precision.

    Returns:
        Lines for the user: the files, and how to use them.

    Raises:
        UserError: the run has no weights, its files are damaged or do not fit its settings,
            ``to`` is not empty, or cannot be written.
    """
    if half:
        config = change(config, {"train.precision": "auto"})
    to = to.resolve()
    phases = [phase for phase in get_phases(config.phases) if run.has_checkpoint(phase.name)]
    if not phases:
        raise wrong_setting("run", run.path, "has no checkpoint yet; train it first")
    if to.exists() and (not to.is_dir() or os.listdir(to)):
        raise wrong_setting("to", to, "is not empty; name an empty folder or a new one")
    ensure_writable(to.parent, "to")
    with replacing_folder(to) as partial:
        updates: dict[str, str] = {}
        for phase in phases:
            trained = load_network(phase, config, run, torch.device("cpu"))
            updates[phase.name] = trained.progress
            if trained.precision == "fp32" and not half:  # auto continues in it
                config = change(config, {"train.precision": "fp32"})
            state = {}
            for name, part in trained.network.state_dict().items():
                state[name] = part.clone(memory_format=torch.contiguous_format)  # may be shared
                if half and part.is_floating_point() and part.half().isfinite().all():
                    state[name] = state[name].half()
            with replacing(partial / weights_file(phase.name)) as stream:
                stream.write(save(state, {"format": "pt"}))
        pictures = copied_pictures(config, run, phases, partial)
        write_text(partial / "README.md", card(config, run, updates, pictures, half))
        files = sorted(partial.iterdir())
        index = {
            MARK: FORMAT,
            "library_name": "nsgf",
            "version": __version__,
            "settings": nest(values(drop_machine_settings(config))),
            "updates": updates,
            "weights": "float16" if half else "float32",
            "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        }
        text = json.dumps(index, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(partial / CONFIG_FILE, f"{text}\n")
    return [
        *(str(to / name) for name in sorted(os.listdir(to))),
        f"read it with nsgf.load({str(to)!r}); share it with: "
        f"hf upload OWNER/NAME {shlex.quote(str(to))}",
    ]


def copied_pictures(config: Config, run: RunFolder, phases: list[Phase], folder: Path) -> list[str]:
    """Copy the pictures of ``nsgf sample``, or else of the last phase; return their names. Skip
    pictures that are older than a checkpoint, because they show other weights, and those that show
    a user's own data."""
    newest = max(file.stat().st_mtime for file in run.path.glob("checkpoints/*.pt"))
    current = {file.name for file in run.samples.glob("*.png") if file.stat().st_mtime >= newest}
    found = sorted(current & {"grid.png", "trajectory.png"})
    found = found or sorted(current & {f"{phase_stem(phases[-1].name)}.png"})
    if config.data.path and "grid.png" not in found:
        found = []
    for name in found:
        shutil.copyfile(run.samples / name, folder / name)
    return found


def card(
    config: Config, run: RunFolder, updates: dict[str, str], pictures: list[str], half: bool = False
) -> str:
    """Return the text of ``README.md`` with the hub's front matter. ``updates``: training progress
    by phase; ``pictures``: names of the pictures in the folder."""
    # measures of the same sampler; columns are left out, which have values of single rows
    measures = read_object(run.path / "metrics.json")
    way = find_way(config, updates.__contains__)
    its: dict[str, str | None] = {phase.name: updates.get(phase.name) for phase in way.networks}
    unused = find_unused(config, way)
    its |= unused
    # measures of earlier versions have no "sampling"
    if (measures.get("updates"), measures.get("sampling")) != (its, changed_sampling(config)):
        measures = {}
    least, most = way.possible_calls(config)
    names = class_names(config.data)
    text = render(
        "share/card.md.j2",
        config=config,
        flow=build_flow(config),
        way=way,
        is_image=is_image_set(config.data),
        shape=data_shape(config.data),
        names=names,
        listed=list_names(names),
        takes_calls=least < most and not way.find_fixed_calls(config),
        updates=updates,
        rows=updates | unused,
        half=half,
        pictures=pictures,
        numbers=[
            {"type": key, "name": name_of(key), "value": value}
            for key, value in measures.items()
            if is_measure(key) and isinstance(value, float)
        ],
        measures=report({key: measures[key] for key in measures if key != WORST_COLUMNS}),
        version=__version__,
    )
    return shorten_paths(printable(text))
