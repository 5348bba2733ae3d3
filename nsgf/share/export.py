"""Export a run as a folder to share, with a model card: ``nsgf export``."""

import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from nsgf.config.schema import Config
from nsgf.config.settings import drop_machine_settings, nest, values
from nsgf.data import class_names, data_shape, is_image_set
from nsgf.metrics.evaluate import report
from nsgf.metrics.measures import is_measure, name_of
from nsgf.phases import Phase, find_way, get_phases
from nsgf.phases.base import load_network
from nsgf.run.folder import RunFolder, phase_stem
from nsgf.share.exported import CONFIG_FILE, FORMAT, MARK, checksum, weights_file
from nsgf.sinkhorn import build_flow
from nsgf.system.errors import UserError, cause, list_names, printable, shorten_paths
from nsgf.system.files import read_object, replacing, replacing_folder, write_text
from nsgf.version import __version__


def export_run(config: Config, run: RunFolder, to: Path, half: bool = False) -> list[str]:
    """Write averaged weights of each trained phase, all settings and a model card. The folder is
    written under a temporary name and then renamed.

    Args:
        config: the run's settings.
        run: its folder, which is only read.
        to: the folder to write; it must be new or empty.
        half: round the weights of a tensor to float16 if all its values fit, and set
            ``train.precision`` to auto, so that the reader's machine chooses the precision.

    Returns:
        Lines for people: the files, and how to use them.

    Raises:
        UserError: the run has no weights, its files are damaged or do not fit its settings,
            ``to`` is not empty, or cannot be written.
    """
    if half:
        config = replace(config, train=replace(config.train, precision="auto"))
    to = to.expanduser().resolve()
    phases = [phase for phase in get_phases(config.phases) if run.has_checkpoint(phase.name)]
    if not phases:
        raise UserError(f"run = {run.path}: has no checkpoint yet; train it first")
    try:
        if to.exists() and (not to.is_dir() or os.listdir(to)):
            raise UserError(f"to = {to}: is not empty; name an empty folder or a new one")
        to.parent.mkdir(parents=True, exist_ok=True)
        with replacing_folder(to) as partial:
            updates: dict[str, str] = {}
            for phase in phases:
                trained = load_network(phase, config, run, torch.device("cpu"))
                updates[phase.name] = trained.progress
                state = {
                    name: part.clone(memory_format=torch.contiguous_format)  # may be shared
                    for name, part in trained.network.state_dict().items()
                }
                for name, part in state.items() if half else ():
                    rounded = part.half() if part.is_floating_point() else part
                    state[name] = rounded if rounded.isfinite().all() else part
                with replacing(partial / weights_file(phase.name)) as stream:
                    stream.write(save(state, {"format": "pt"}))
            pictures = copied_pictures(run, phases, partial)
            write_text(partial / "README.md", card(config, run, updates, pictures, half))
            files = sorted(partial.iterdir())
            index = {
                MARK: FORMAT,
                "library_name": "nsgf",
                "version": __version__,
                "settings": nest(values(drop_machine_settings(config))),
                "updates": updates,
                "weights": "float16" if half else "float32",
                "files": {file.name: checksum(file.read_bytes()) for file in files},
            }
            text = json.dumps(index, indent=2, ensure_ascii=False, allow_nan=False)
            write_text(partial / CONFIG_FILE, text + "\n")
    except OSError as error:
        raise UserError(f"to = {to}: cannot be written ({cause(error)}); name another") from error
    return [
        *(str(to / name) for name in sorted(os.listdir(to))),
        f"read it with nsgf.load({str(to)!r}); share it with: "
        f"hf upload OWNER/NAME {shlex.quote(str(to))}",
    ]


def copied_pictures(run: RunFolder, phases: list[Phase], folder: Path) -> list[str]:
    """Copy the pictures of ``nsgf sample``, or of the last phase if there are none; return their
    names. Skip pictures that are older than a checkpoint: they show other weights."""
    checkpoints = [run.checkpoint_file(phase.name) for phase in phases]
    trained = max(file.stat().st_mtime for file in checkpoints if file.exists())
    current = {file.name for file in run.samples.glob("*.png") if file.stat().st_mtime >= trained}
    found = sorted(current & {"grid.png", "trajectory.png"})
    found = found or sorted(current & {f"{phase_stem(phases[-1].name)}.png"})
    for name in found:
        shutil.copyfile(run.samples / name, folder / name)
    return found


def card(
    config: Config, run: RunFolder, updates: dict[str, str], pictures: list[str], half: bool = False
) -> str:
    """Return the text of ``README.md`` with the hub's front matter. ``updates``: training progress
    by phase; ``pictures``: names of pictures beside it."""
    from jinja2 import Environment, StrictUndefined

    engine = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = (Path(__file__).parent / "card.md.j2").read_text(encoding="utf-8")
    measures, way = same_measures(config, run, updates), find_way(config)
    least, most = way.possible_calls(config)
    flow = build_flow(config)
    text = engine.from_string(template).render(
        config=config,
        flow=flow,
        title=way.title.format(config=config, flow=flow),
        text=way.text.format(config=config, flow=flow),
        is_image=is_image_set(config.data.name),
        shape=data_shape(config.data),
        names=class_names(config.data),
        listed=list_names(class_names(config.data)).replace("`", "'"),
        takes_calls=least < most and not way.find_fixed_calls(config),
        updates=updates,
        half=half,
        pictures=pictures,
        numbers=[
            {"type": key, "name": name_of(key), "value": value}
            for key, value in measures.items()
            if is_measure(key) and isinstance(value, float)
        ],
        measures=[line.replace("\n", " ") for line in report(measures)] if measures else [],
        version=__version__,
    )
    return shorten_paths(printable(text))


def same_measures(config: Config, run: RunFolder, updates: dict[str, str]) -> dict[str, Any]:
    """Return ``metrics.json`` if it was measured after these updates and, with classes, with the
    same guidance; otherwise an empty dictionary."""
    found = read_object(run.path / "metrics.json")
    its = found.get("updates")
    same = isinstance(its, dict) and bool(its) and its.items() <= updates.items()
    if config.data.conditional:
        same = same and found.get("guidance") == config.sampling.guidance
    # earlier versions could measure the last weights too
    return found if same and found.get("weights", "ema") == "ema" else {}
