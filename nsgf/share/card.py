"""The model card of an exported run."""

import shutil
from pathlib import Path
from typing import Any

from nsgf.config.schema import ONE_CALL, PEER_PHASES, Config
from nsgf.data import class_names, data_shape, is_image_set
from nsgf.metrics.evaluate import report
from nsgf.metrics.names import is_measure, name_of
from nsgf.phases import Phase
from nsgf.phases.generator import count_targets
from nsgf.run.folder import RunFolder, phase_stem
from nsgf.sampling.sampler import calls_per_velocity
from nsgf.system.errors import list_names, printable, shorten_paths
from nsgf.system.json_reader import read_object
from nsgf.version import __version__

CARD_FILE = "README.md"


def copied_pictures(run: RunFolder, phases: list[Phase], folder: Path) -> list[str]:
    """Copy the pictures of ``nsgf sample``, or else the last phase's; return their names.

    Pictures that are older than a checkpoint show other weights and are not copied.
    """
    checkpoints = [run.checkpoint_file(phase.name) for phase in phases]
    trained = max(file.stat().st_mtime for file in checkpoints if file.exists())

    def is_current(name: str) -> bool:
        file = run.samples / name
        return file.is_file() and file.stat().st_mtime >= trained

    last = f"{phase_stem(phases[-1].name)}.png"
    found = list(filter(is_current, ["grid.png", "trajectory.png"]))
    found = found or list(filter(is_current, [last]))
    for name in found:
        shutil.copyfile(run.samples / name, folder / name)
    return found


def card(
    config: Config, run: RunFolder, updates: dict[str, str], pictures: list[str], half: bool = False
) -> str:
    """Return the text of ``README.md``, with the hub's front matter.

    Args:
        config: all settings.
        run: its folder. Its measures are shown if they are those of the same weights, and with
            classes of the same guidance.
        updates: training progress, by phase.
        pictures: names of pictures beside it.
        half: whether the weights are rounded to float16.
    """
    from jinja2 import Environment, StrictUndefined

    engine = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = (Path(__file__).parent / "card.md.j2").read_text(encoding="utf-8")
    measures, last = same_measures(config, run, updates), config.phases[-1]
    is_free = last != ONE_CALL[-1] and config.sampling.solver != "dopri5"
    text = engine.from_string(template).render(
        config=config,
        is_peer=last in PEER_PHASES,
        is_one_call=last == ONE_CALL[-1],
        is_image=is_image_set(config.data.name),
        shape=data_shape(config.data),
        names=class_names(config.data),
        listed=list_names(class_names(config.data)).replace("`", "'"),
        takes_calls=is_free and calls_per_velocity(config) == 1,
        targets=count_targets(config.generator),
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
    """Return ``metrics.json`` if it was measured after these updates, and with classes under the
    same guidance; else nothing."""
    found = read_object(run.path / "metrics.json")
    its = found.get("updates")
    same = isinstance(its, dict) and bool(its) and its.items() <= updates.items()
    if config.data.conditional:
        same = same and found.get("guidance") == config.sampling.guidance
    # earlier versions could measure the last weights too
    return found if same and found.get("weights", "ema") == "ema" else {}
