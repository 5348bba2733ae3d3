"""The model card of an exported run."""

from pathlib import Path
from typing import Any

from nsgf.config.schema import ONE_CALL, PEER_PHASES, Config
from nsgf.config.yaml_loader import dump_yaml
from nsgf.data import data_classes, data_shape, is_image_set
from nsgf.metrics.evaluate import report
from nsgf.phases import Phase
from nsgf.phases.generator import targets_of
from nsgf.run.folder import RunFolder, phase_stem, replacing
from nsgf.sampling.sampler import calls_per_velocity
from nsgf.system.errors import printable, shorten_paths
from nsgf.system.json_reader import read_object
from nsgf.version import __version__

CARD_FILE = "README.md"
PNG = b"\x89PNG\r\n\x1a\n"
MEASURES = ("w2", "fid", "inception_score", "kid", "precision", "recall", "classifier_fid")
"""Measures of ``metrics.json`` in the hub's front matter."""
TAGS = ["nsgf", "optimal-transport", "sinkhorn", "gradient-flow", "arxiv:2401.14069"]


def copied_pictures(run: RunFolder, phases: list[Phase], folder: Path) -> list[str]:
    """Copy the pictures that ``nsgf sample`` drew, or else the last phase's; return the names.

    Pictures that are older than a checkpoint show other weights and are not copied.
    """
    stems = [f"{phase_stem(phase.name)}.png" for phase in phases]
    trained = max(_time(run.checkpoint_file(phase.name)) for phase in phases)
    for names in (["grid.png", "trajectory.png"], stems[-1:]):
        found = {
            name: content
            for name in names
            if _time(run.samples / name) >= trained
            and (content := (run.samples / name).read_bytes()).startswith(PNG)
        }
        if found:
            break
    for name, content in found.items():
        with replacing(folder / name) as stream:
            stream.write(content)
    return list(found)


def card(config: Config, run: RunFolder, updates: dict[str, str], pictures: list[str]) -> str:
    """Return the text of ``README.md``, with the hub's front matter.

    Args:
        config: all settings.
        run: its folder. Its measures are shown if they are those of the same weights, and with
            classes of the same guidance.
        updates: training progress, by phase.
        pictures: names of pictures beside it.
    """
    from jinja2 import Environment, StrictUndefined

    engine = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = (Path(__file__).parent / "card.md.j2").read_text(encoding="utf-8")
    measures = same_measures(config, run, updates)
    is_image, (title, method) = is_image_set(config.data.name), _method(config)
    text = engine.from_string(template).render(
        config=config,
        front=dump_yaml(_front_matter(config, measures)),
        title=title,
        method=method,
        kind="Images" if is_image else "Points",
        is_image=is_image,
        shape=data_shape(config.data),
        classes=data_classes(config.data),
        takes_calls=takes_calls(config),
        targets=targets_of(config.generator),
        updates=updates,
        pictures=pictures,
        measures=[line.replace("\n", " ") for line in report(measures)] if measures else [],
        version=__version__,
    )
    return shorten_paths(printable(text))


def same_measures(config: Config, run: RunFolder, updates: dict[str, str]) -> dict[str, Any]:
    """Return ``metrics.json`` if it was measured with these averaged weights, and with classes with
    the same guidance; else nothing."""
    found = read_object(run.path / "metrics.json")
    its, guidance = found.get("updates"), found.get("guidance")
    same = isinstance(its, dict) and bool(its) and its.items() <= updates.items()
    if config.data.conditional:
        same = same and guidance == config.sampling.guidance
    return found if same and found.get("weights") == "ema" else {}


def _front_matter(config: Config, measures: dict[str, Any]) -> dict[str, Any]:
    front: dict[str, Any] = {"license": "mit", "library_name": "nsgf", "tags": TAGS}
    task = "other"
    if is_image_set(config.data.name) and not config.data.conditional:
        front["pipeline_tag"] = task = "unconditional-image-generation"
    numbers = [
        {"type": name, "value": value}
        for name in MEASURES
        if isinstance(value := measures.get(name), int | float)
    ]
    if numbers:
        data = {"name": config.data.name, "type": config.data.name}
        results = [{"task": {"type": task}, "dataset": data, "metrics": numbers}]
        front["model-index"] = [{"name": config.exp, "results": results}]
    return front


def _method(config: Config) -> tuple[str, str]:
    """Return how samples are made, for the title, and what was trained."""
    paper = "Neural Sinkhorn Gradient Flow ([arXiv 2401.14069](https://arxiv.org/abs/2401.14069))"
    if config.phases[-1] in PEER_PHASES:
        return f"by `{config.peer.method}`", f"`{config.peer.method}`, compared with {paper}"
    if config.phases[-1] == ONE_CALL[-1]:
        return "with one network call", (
            f"a generator that is asked once, trained by the velocity of {paper} after the idea of "
            "W-Flow ([arXiv 2605.11755](https://arxiv.org/abs/2605.11755))"
        )
    return "by a neural Sinkhorn gradient flow", paper


def takes_calls(config: Config) -> bool:
    """Whether samples can be drawn with a chosen number of network calls. A generator takes one
    call, adaptive steps choose theirs, and guidance doubles each."""
    is_free = config.phases[-1] != ONE_CALL[-1] and config.sampling.solver != "dopri5"
    return is_free and calls_per_velocity(config) == 1


def _time(file: Path) -> float:
    """Return when a file was written; 0 if there is none."""
    return file.stat().st_mtime if file.is_file() else 0.0
