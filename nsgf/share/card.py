"""The model card of an exported run: what it is, how it was trained, measured and is used."""

from pathlib import Path
from typing import Any

from nsgf.config.schema import ONE_CALL, PEER_PHASES, PHASES, Config
from nsgf.config.yaml_loader import dump_yaml
from nsgf.data import data_classes, data_shape, is_image_set
from nsgf.metrics.evaluate import report
from nsgf.phases import Phase, get_phases
from nsgf.phases.generator import targets_of
from nsgf.run.folder import RunFolder, phase_stem, replacing
from nsgf.sampling.guidance import calls_per_answer
from nsgf.system.errors import printable, shorten_paths
from nsgf.system.json_reader import read_object
from nsgf.version import __version__

CARD_FILE = "README.md"
PNG = b"\x89PNG\r\n\x1a\n"
MEASURES = ("w2", "fid", "inception_score", "kid", "precision", "recall", "classifier_fid")
"""What the hub's front matter tells of ``metrics.json``."""
TAGS = ["nsgf", "optimal-transport", "sinkhorn", "gradient-flow", "arxiv:2401.14069"]


def copied_pictures(run: RunFolder, phases: list[Phase], folder: Path) -> list[str]:
    """Copy the pictures of a run that ``nsgf sample`` drew, or else that of its last phase; names.

    Those that are older than a checkpoint show other weights, and stay.
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


def card(config: Config, run: RunFolder, updates: dict[str, str], shown: list[str]) -> str:
    """The text of ``README.md``, with the hub's front matter.

    Args:
        config: all settings.
        run: its folder, whose measures are told if they are those of the same weights, and with
            classes of the same guidance.
        updates: training progress, by phase.
        shown: names of pictures beside it.
    """
    measures = same_measures(config, run, updates)
    parts = [
        f"---\n{dump_yaml(_front_matter(config, measures))}---\n",
        f"# {config.exp}: {config.data.name} {_title(config)}\n",
        _description(config),
        *(f"![{name}]({name})\n" for name in shown),
        _use(config),
        _training(config, updates),
        _measured(measures),
        CLOSING,
    ]
    return shorten_paths(printable("\n".join(parts)))


def same_measures(config: Config, run: RunFolder, updates: dict[str, str]) -> dict[str, Any]:
    """What ``metrics.json`` says, if it was measured on these averaged weights, and with classes
    under this guidance; else nothing."""
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


def _description(config: Config) -> str:
    shape = " x ".join(map(str, data_shape(config.data)))
    kind = "Images" if is_image_set(config.data.name) else "Points"
    fake = " Its training images were **random**, in place of the set." if config.data.fake else ""
    smoke = " A **smoke run**: it tried whether everything works." if config.smoke else ""
    return (
        f"{kind} ({shape}) like those of `{config.data.name}`, made from `{config.data.source}` "
        f"samples. Method: {_method(config)}, trained with nsgf {__version__}, an independent "
        f"reproduction of NSGF.{_told(config)}{fake}{smoke}\n"
    )


def _title(config: Config) -> str:
    """How samples are made, in a few words."""
    if _is_peer(config):
        return f"by `{config.peer.method}`"
    if _is_one_call(config):
        return "with one network call"
    return "by a neural Sinkhorn gradient flow"


def _method(config: Config) -> str:
    """What was trained, and where it comes from."""
    paper = "Neural Sinkhorn Gradient Flow ([arXiv 2401.14069](https://arxiv.org/abs/2401.14069))"
    if _is_peer(config):
        return f"`{config.peer.method}`, compared with {paper}"
    if _is_one_call(config):
        return (
            f"a generator that is asked once, trained by the velocity of {paper} after the idea of "
            "W-Flow ([arXiv 2605.11755](https://arxiv.org/abs/2605.11755))"
        )
    return paper


def _told(config: Config) -> str:
    """What networks are told besides the state."""
    classes = data_classes(config.data)
    if not classes:
        return ""
    return f" Networks are told one of {classes} classes, guidance {config.sampling.guidance:g}."


def _is_peer(config: Config) -> bool:
    return config.phases[-1] in PEER_PHASES


def _is_one_call(config: Config) -> bool:
    return config.phases[-1] == ONE_CALL[-1]


def _use(config: Config) -> str:
    shape = ", ".join(map(str, data_shape(config.data)))
    content = "images in [-1, 1]" if is_image_set(config.data.name) else "points"
    calls = ""
    if takes_calls(config):
        calls = "    x = run.sample(64, seed=0, nfe=10)   # with 10 network calls for each sample\n"
    classes, label = data_classes(config.data), ""
    if classes:
        label = f"    x = run.sample(64, seed=0, label=0)  # of class 0, of 0 to {classes - 1}\n"
    return (
        "## Use\n\n"
        "    import nsgf\n\n"
        '    run = nsgf.load("PATH")              # this folder, or hf://OWNER/NAME\n'
        f"    x = run.sample(64, seed=0)           # (64, {shape}), {content}\n"
        f"{label}{calls}"
    )


def takes_calls(config: Config) -> bool:
    """Whether samples can be asked for with a number of network calls: one call is one, adaptive
    steps choose theirs, and with guidance each is two."""
    chooses = config.sampling.solver == "dopri5"
    return not (_is_one_call(config) or chooses) and calls_per_answer(config) == 1


def _training(config: Config, updates: dict[str, str]) -> str:
    rows = [
        f"| {phase.name} | {updates[phase.name]} | {getattr(config, phase.name).batch_size} "
        f"| {getattr(config, phase.name).lr:g} |"
        for phase in get_phases(config.phases)
        if phase.name in updates
    ]
    return "\n".join(
        [
            "## Training\n",
            "| phase | updates | batch | learning rate |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            f"{_flows(config, updates)}Weights are averages over the updates. All settings: "
            "`config.json`.\n",
        ]
    )


def _flows(config: Config, updates: dict[str, str]) -> str:
    """The Sinkhorn flows that the phases learned from."""
    sinkhorn, own, told = config.sinkhorn, config.generator, ""
    if PHASES[0] in updates:
        told = (
            f"Sinkhorn flow: blur {sinkhorn.blur:g}, {sinkhorn.batch_size} particles, "
            f"{sinkhorn.targets} targets, {config.flow.steps} steps. "
        )
    if ONE_CALL[-1] in updates:
        blurs = ", ".join(f"{blur:g}" for blur in own.blurs)
        told += (
            f"Sinkhorn flow of generated samples: blur {blurs} (relative to the mean cost), "
            f"{own.batch_size} samples, {targets_of(own)} targets. "
        )
    return told


def _measured(measures: dict[str, Any]) -> str:
    if not measures:
        return "## Measures\n\nNot measured with these weights and settings (`nsgf evaluate`).\n"
    lines = "\n".join("    " + line.replace("\n", " ") for line in report(measures))
    return f"## Measures\n\n`nsgf evaluate` wrote:\n\n{lines}\n"


CLOSING = """## Licence and citation

The software is under the MIT licence; who shares the weights may choose another one above. The data
have terms of their own.

    @article{zhu2024neural,
      title   = {Neural Sinkhorn Gradient Flow},
      author  = {Zhu and Wang and Zhang and Zhao and Qian},
      journal = {arXiv preprint arXiv:2401.14069},
      year    = {2024}
    }
"""


def _time(file: Path) -> float:
    """When a file was written; before all others, if there is none."""
    return file.stat().st_mtime if file.is_file() else 0.0
