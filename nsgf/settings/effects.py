"""Find out whether a setting has an effect, for a command and a configuration.

Further files declare which settings are used, and this file reads these declarations. A setting in
the schema may have conditions on further settings (``OnlyIf``). A phase and a leg of sampling
declare which settings they read (``Phase.reads``, ``Leg.reads``). A flow and a data set declare
which settings they use (``Flow.uses``, ``Target.uses``).
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsgf.config.layers import KEYS, SETTINGS, Layer
from nsgf.config.schema import OF_PHASES
from nsgf.config.values import format_value
from nsgf.system.errors import UserError, list_names, name_setting

if TYPE_CHECKING:
    from nsgf.experiment import Experiment  # loads torch

_TRAINING = " ".join({key.partition(".")[0] for key in KEYS} - {"evaluation", "compare"})
_RUN = (
    "exp method smoke seed device out_dir data.root data.path data.source data.source_path "
    "data.download train.precision "
)
USES = {
    **{"train": _TRAINING, "preflight": _TRAINING},
    "compare": f"{_TRAINING} evaluation compare",
    **{"sample": f"{_RUN} sampling", "evaluate": f"{_RUN} sampling evaluation"},
    "report": f"{_RUN} sampling",
    "report --compare": "compare figures out out_dir print-config",
    "export": "exp out_dir smoke sampling run config print-config to half",
    "list": "out_dir",
}
"""Settings and sections that each command uses. For the commands in STRICT, the values also contain
the options."""
ON_RUNS = ("sample", "evaluate", "report")
"""Commands that draw samples of a run and train nothing."""
SAVES = {"train": "evaluation", "preflight": "evaluation"}
"""Settings and sections that a command does not use itself, but saves for later commands."""
UNUSED = {"evaluate": ("sampling.num_samples",), "compare": ("evaluation.bits_images",)}
"""Settings that a command does not use, although it uses the rest of their section."""
STRICT = ("report --compare", "export", "list")
"""Commands that refuse an option if they do not use it."""


def is_used(command: str, key: str) -> bool:
    """Whether a command uses a setting or an option."""
    is_listed = f"{key}.".startswith(tuple(f"{name}." for name in USES[command].split()))
    return is_listed and key not in UNUSED.get(command, ())


def accepts(command: str, key: str) -> bool:
    """Whether a command uses a setting, or saves it for later commands."""
    return is_used(command, key) or key.partition(".")[0] in SAVES.get(command, "").split()


def check_effects(
    command: str, layer: Layer, experiments: "Sequence[Experiment]", *, only_file: bool = False
) -> list[str]:
    """Check that the user's settings have an effect on a command.

    Args:
        layer: the settings of flags or arguments.
        experiments: the experiment, or the experiments of all methods of a comparison. A setting
            has an effect if at least one experiment uses it.
        only_file: whether ``sample`` writes only a file of samples, without a picture.

    Returns:
        Lines about settings without effect. These are settings of another command, or settings of a
        phase, a stage of sampling or a network that the experiment does not have. They raise no
        error, so that a script may use the same flags for all commands and methods.

    Raises:
        UserError: a setting has no effect because of the value of another setting.
    """
    problems = []
    unused = defaultdict(list)
    for key, value in layer.items():
        if key not in KEYS or value is None:  # null removes a value
            continue
        absent = [find_absent_part(experiment, key) for experiment in experiments]
        if not accepts(command, key):
            unused[f"on {command}"].append(key)
        elif command == "sample" and is_unread(experiments[0], key, only_file):
            unused["on sample, which reads no data here"].append(key)
        elif all(absent):
            unused[f"with {absent[0]}"].append(key)
        elif all(obstacles := [find_obstacle(experiment, key) for experiment in experiments]):
            problems.append((key, f"with {obstacles[0]}"))
    if problems:
        texts = [
            f"{name_setting(key, format_value(layer[key]))}: has no effect {reason}; leave it out"
            for key, reason in problems
        ]
        raise UserError("; ".join(texts))
    return [f"no effect {reason}: {list_names(keys)}" for reason, keys in unused.items()]


def refuse_training(layer: Layer) -> None:
    """Raise UserError if a setting has no effect on a trained run."""
    settings = [key for key in layer if key in KEYS and key not in UNUSED["evaluate"]]
    names = [key for key in settings if not accepts("evaluate", key)]
    if names:
        raise UserError(f"{list_names(names)}: no effect on a trained run; leave out")


def find_ineffective(
    command: str, keys: Collection[str], experiments: "Sequence[Experiment]"
) -> list[str]:
    """Return the settings in a file that have no effect on a command."""
    return [
        key
        for key in keys
        if key in SETTINGS
        and not (
            accepts(command, key)
            and any(not find_obstacle(experiment, key) for experiment in experiments)
        )
    ]


def is_unread(experiment: "Experiment", key: str, only_file: bool) -> bool:
    """Whether a setting says where the data lie, and sampling does not read these data. Sampling
    reads points, because it draws them beside the samples. It never reads images."""
    is_place = key in ("data.root", "data.download", "data.path")
    return is_place and (only_file or experiment.target.is_images)


def find_obstacle(experiment: "Experiment", key: str) -> str:
    """Find the setting because of which ``key`` has no effect on training and sampling. Return it
    as ``KEY VALUE``. Return an empty text if ``key`` has an effect."""
    from nsgf.sinkhorn import FLOW_SETTINGS, FLOWS  # loads torch

    if absent := find_absent_part(experiment, key):
        return absent
    config = experiment.config
    target = experiment.target
    section, _, name = key.rpartition(".")
    for condition in SETTINGS[key].conditions if key in SETTINGS else ():
        if not condition.holds(config):
            return f"{condition.key} {format_value(SETTINGS[condition.key].get(config))}"
    if key == "data.download" and name not in target.uses:
        return f"data.name {config.data.name}"
    if section == "data" and name in target.unread and config.data.path:
        return f"data.path {Path(config.data.path).name}"
    if section == "sinkhorn" and name in FLOW_SETTINGS.difference(FLOWS[config.flow.kind].uses):
        return f"flow.kind {config.flow.kind}"
    if key == "sinkhorn.first_blur" and config.flow.steps == 1:
        return "flow.steps 1"
    return ""


def find_absent_part(experiment: "Experiment", key: str) -> str:
    """Find out whether the experiment has the phase, the stage of sampling, or the network to which
    a setting belongs. If not, return the method or the data that lack it, as ``KEY VALUE``. If so,
    return an empty text."""
    # imported here, because these modules load torch
    from nsgf.phases import PHASES
    from nsgf.sampling.sampler import SAMPLING_SETTINGS

    config = experiment.config
    section, _, name = key.rpartition(".")
    method = f"method {config.method or format_value(config.phases)}"
    if section in OF_PHASES:
        return "" if section in config.phases else method
    if section in {read.partition(".")[0] for phase in PHASES.values() for read in phase.reads}:
        reads = {read for phase in experiment.phases() for read in phase.active_reads}
        return "" if reads & {section, key} else method
    if section == "sampling" and name in SAMPLING_SETTINGS:
        reads = {read for leg, _ in experiment.method.legs for read in leg.reads}
        return "" if name in reads else method
    for_images = section == "model.unet" or key == "model.checkpoint_activations"
    if for_images or section == "model.mlp":
        if config.model.network:
            return f"model.network {config.model.network}"
        return "" if for_images == experiment.target.is_images else f"data.name {config.data.name}"
    return ""
