"""``nsgf export``: write the averaged weights of a run as a folder to share, with a model card."""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from nsgf.commands.evaluate import changed_sampling
from nsgf.config.layers import drop_machine_settings, nest, saved_values
from nsgf.config.schema import PhaseName, SamplingConfig
from nsgf.experiment import Experiment
from nsgf.metrics.measures import WORST_COLUMNS, is_measure, name_of, report
from nsgf.phases.base import load_network
from nsgf.report import render
from nsgf.run.folder import RunFolder, phase_stem
from nsgf.share import CONFIG_FILE, EXPORT_FORMAT, MARK, weights_file
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import list_names, printable, shorten_paths, wrong_setting
from nsgf.system.files import (
    Plain,
    ensure_writable,
    read_object,
    replacing,
    replacing_folder,
    write_text,
)
from nsgf.version import __version__


def export_run(experiment: Experiment, run: RunFolder, to: Path, half: bool = False) -> list[str]:
    """Write averaged weights of each trained phase, all settings and a model card. The folder is
    written under a temporary name and then renamed.

    Args:
        experiment: the run's settings.
        run: the run folder, which does not change.
        to: the folder to write, which must be new or empty.
        half: round tensors to float16 if all their values fit, and set ``train.precision`` to auto,
            so that the machine of the reader chooses the precision.

    Returns:
        Lines for the user: the files, and how to use them.

    Raises:
        UserError: the run has no weights, its files are damaged or do not fit its settings,
            or ``to`` is not empty or cannot be written.
    """
    if half:
        experiment = experiment.change({"train.precision": "auto"})
    to = to.resolve()
    phases = [phase for phase in experiment.phases() if run.has_checkpoint(phase.name)]
    if not phases:
        raise wrong_setting("run", run.path, "has no checkpoint yet; train it first")
    if to.exists() and (not to.is_dir() or os.listdir(to)):
        raise wrong_setting("to", to, "is not empty; name an empty folder or a new one")
    ensure_writable(to.parent, "to")
    with replacing_folder(to) as partial:
        updates: dict[str, str] = {}
        for phase in phases:
            trained = load_network(phase, run, torch.device("cpu"))
            updates[phase.name] = trained.progress
            if trained.precision == "fp32" and not half:  # the setting auto could select bf16
                experiment = experiment.change({"train.precision": "fp32"})
            with replacing(partial / weights_file(phase.name)) as stream:
                stream.write(save(_exported_state(trained.network, half), {"format": "pt"}))
        shows_data = bool(experiment.config.data.path)
        pictures = copy_pictures(run, phases[-1].name, shows_data, partial)
        write_text(partial / "README.md", card(experiment, run, updates, pictures, half))
        write_text(
            partial / CONFIG_FILE,
            _index(
                nest(saved_values(drop_machine_settings(experiment.config))), partial, updates, half
            ),
        )
    return [
        *(str(to / name) for name in sorted(os.listdir(to))),
        f"read it with nsgf.load({str(to)!r}); share it with: "
        f"hf upload OWNER/NAME {shlex.quote(str(to))}",
    ]


def _exported_state(network: torch.nn.Module, half: bool) -> dict[str, Tensor]:
    """Return copies of the tensors of a network. With ``half``, a tensor whose values all fit into
    float16 is converted to float16."""
    state = {}
    for name, part in network.state_dict().items():
        # a copy, because tensors may share memory
        state[name] = part.clone(memory_format=torch.contiguous_format)
        if half and part.is_floating_point() and part.half().isfinite().all():
            state[name] = state[name].half()
    return state


def _index(settings: Plain, folder: Path, updates: dict[str, str], half: bool) -> str:
    """Return the text of CONFIG_FILE: all settings, and the checksums of the files in the folder.
    ``updates``: training progress by phase."""
    files = sorted(folder.iterdir())
    index = {
        MARK: EXPORT_FORMAT,
        "library_name": "nsgf",
        "version": __version__,
        "settings": settings,
        "updates": updates,
        "weights": "float16" if half else "float32",
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
    }
    return f"{json.dumps(index, indent=2, ensure_ascii=False, allow_nan=False)}\n"


def copy_pictures(run: RunFolder, last: PhaseName, shows_data: bool, folder: Path) -> list[str]:
    """Copy the pictures of ``nsgf sample``. If there are none, copy the picture of the phase
    ``last``. Return the names of the pictures. Skip pictures that are older than a checkpoint,
    because they show earlier weights. If ``shows_data`` is true and there is no
    current ``grid.png``, copy nothing, because the remaining pictures may show a user's data."""
    newest = max(file.stat().st_mtime for file in run.path.glob("checkpoints/*.pt"))
    current = {file.name for file in run.samples.glob("*.png") if file.stat().st_mtime >= newest}
    names = sorted(current & {"grid.png", "trajectory.png"})
    names = names or sorted(current & {f"{phase_stem(last)}.png"})
    if shows_data and "grid.png" not in names:
        return []
    for name in names:
        shutil.copyfile(run.samples / name, folder / name)
    return names


def card(
    experiment: Experiment,
    run: RunFolder,
    updates: dict[str, str],
    pictures: list[str],
    half: bool = False,
) -> str:
    """Return the text of ``README.md`` with the hub's front matter. ``updates``: training progress
    by phase; ``pictures``: names of the pictures in the folder."""
    config = experiment.config
    target = experiment.target
    method = experiment.trained_method(updates.__contains__)
    unused = experiment.unused_networks(method)
    sampled: dict[str, str | None] = {
        phase.name: updates.get(phase.name) for phase in method.networks
    }
    measures = _current_measures(run, {**sampled, **unused}, config.sampling)
    least, most = method.possible_calls(config.sampling)
    names = target.class_names
    text = render(
        "share/card.md.j2",
        config=config,
        flow=build_flow(config.flow.kind, config.sinkhorn),
        method=method,
        is_image=target.is_images,
        shape=target.shape,
        names=names,
        listed=list_names(names),
        takes_calls=least < most and not method.find_fixed_calls(config.sampling, target.classes),
        updates=updates,
        rows=updates | unused,
        half=half,
        pictures=pictures,
        numbers=[
            {"type": key, "name": name_of(key), "value": value}
            for key, value in measures.items()
            if is_measure(key) and isinstance(value, float)
        ],
        measures=report(measures),
        version=__version__,
    )
    return shorten_paths(printable(text))


def _current_measures(
    run: RunFolder, progress: Mapping[str, str | None], sampling: SamplingConfig
) -> Plain:
    """Return the content of ``metrics.json`` without the columns, because these contain values of
    single rows. Return nothing if the measures belong to a sampler with different settings or
    weights. ``progress``: training progress of the sampler's networks by phase."""
    measures = read_object(run.path / "metrics.json")
    # earlier versions stored no "sampling"
    measured = (measures.get("updates"), measures.get("sampling"))
    if measured != (progress, changed_sampling(sampling)):
        return {}
    return {key: value for key, value in measures.items() if key != WORST_COLUMNS}
