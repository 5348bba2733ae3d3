"""Which settings have an effect on a command, and with a configuration.

Each setting declares what it needs where it is defined; this file only reads the declarations:
conditions on other settings (``OnlyIf`` in the schema); the settings that a phase (``Phase.reads``)
or a leg of sampling (``Leg.reads``) reads; those that a flow (``Flow.uses``) or a data set
(``Target.uses``) uses.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import KEYS, SETTINGS, Layer
from nsgf.config.values import format_value
from nsgf.system.errors import UserError, list_names, name_setting

_TRAINING = " ".join({key.partition(".")[0] for key in KEYS} - {"evaluation", "compare"})
_RUN = "exp method smoke seed device out_dir data.root data.path data.download train.precision "
USES = {
    **{"train": _TRAINING, "preflight": _TRAINING},
    "compare": f"{_TRAINING} evaluation compare",
    **{"sample": f"{_RUN} sampling", "evaluate": f"{_RUN} sampling evaluation"},
    "report": f"{_RUN} sampling",
    "report --compare": "compare figures out out_dir print-config",
    "export": "exp out_dir smoke sampling run config print-config to half",
    "list": "out_dir",
}
"""Settings and sections that each command uses, and the options of STRICT commands."""
ON_RUNS = ("sample", "evaluate", "report")
"""Commands that draw samples of a run and train nothing."""
SAVES = {"train": "evaluation", "preflight": "evaluation"}
"""Settings and sections that a command only saves, for later commands."""
UNUSED = {"evaluate": ("sampling.num_samples",)}
"""Settings that a command does not use, although it uses their section."""
STRICT = ("report --compare", "export", "list")
"""Commands that also refuse options that they do not use."""


def is_used(command: str, key: str) -> bool:
    """Whether a command uses a setting or an option."""
    is_listed = f"{key}.".startswith(tuple(f"{each}." for each in USES[command].split()))
    return is_listed and key not in UNUSED.get(command, ())


def accepts(command: str, key: str) -> bool:
    """Whether a command uses a setting, or saves it for later commands."""
    return is_used(command, key) or key.partition(".")[0] in SAVES.get(command, "").split()


def check_effects(
    command: str, layer: Layer, configs: Sequence[Config], *, only_file: bool = False
) -> list[str]:
    """Check that the settings that the user gives have an effect on a command.

    Args:
        layer: the settings of flags or arguments.
        only_file: whether ``sample`` writes only a file of samples, without a picture.
        configs: the settings that hold, or those of each method of a comparison, of which one must
            use the setting.

    Returns:
        Lines about settings of other commands, and of parts that method and data do not have, so
        that scripts may give the same flags to all of them.

    Raises:
        UserError: another setting makes a setting useless.
    """
    problems = []
    unused = defaultdict(list)
    for key, value in layer.items():
        if key not in KEYS or value is None:  # null takes a value back
            continue
        absent = [find_absent_part(config, key) for config in configs]
        if not accepts(command, key):
            unused[f"on {command}"].append(key)
        elif command == "sample" and is_unread(configs[0], key, only_file):
            unused["on sample, which reads no data here"].append(key)
        elif all(absent):
            unused[f"with {absent[0]}"].append(key)
        elif all(obstacles := [find_obstacle(config, key) for config in configs]):
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


def find_ineffective(command: str, keys: Collection[str], configs: Sequence[Config]) -> list[str]:
    """Return those settings of a file that have no effect on a command."""
    return [
        key
        for key in keys
        if key in SETTINGS
        and (not accepts(command, key) or all(find_obstacle(config, key) for config in configs))
    ]


def is_unread(config: Config, key: str, only_file: bool) -> bool:
    """Whether a setting names a place of data that sampling does not read: it reads points for a
    picture beside the samples, and never images."""
    from nsgf.data import is_image_set  # loads torch

    is_place = key in ("data.root", "data.download", "data.path")
    return is_place and (only_file or is_image_set(config.data))


def find_obstacle(config: Config, key: str) -> str:
    """Return the setting, as ``KEY VALUE``, because of which another one has no effect on training
    and sampling; empty if it has one."""
    # these load torch
    from nsgf.data import target_set
    from nsgf.sinkhorn import FLOW_SETTINGS, FLOWS

    if absent := find_absent_part(config, key):
        return absent
    section, _, name = key.rpartition(".")
    for condition in SETTINGS[key].conditions if key in SETTINGS else ():
        if not condition.holds(config):
            return f"{condition.key} {format_value(SETTINGS[condition.key].get(config))}"
    target = target_set(config.data)
    if key == "data.download" and name not in target.uses:
        return f"data.name {config.data.name}"
    if section == "data" and name in target.unread and config.data.path:
        return f"data.path {Path(config.data.path).name}"
    if section == "sinkhorn" and name in FLOW_SETTINGS.difference(FLOWS[config.flow.kind].uses):
        return f"flow.kind {config.flow.kind}"
    return ""


def find_absent_part(config: Config, key: str) -> str:
    """Return the method or the data, as ``KEY VALUE``, without the phase, stage of sampling or
    network that a setting belongs to; empty if there is one."""
    # these load torch
    from nsgf.data import is_image_set
    from nsgf.phases import PHASES, find_way, get_phases
    from nsgf.sampling.sampler import SAMPLING_SETTINGS

    section, _, name = key.rpartition(".")
    method = f"method {config.method or format_value(config.phases)}"
    if section in OF_PHASES:
        return "" if section in config.phases else method
    if section in {read.partition(".")[0] for phase in PHASES.values() for read in phase.reads}:
        reads = {read for phase in get_phases(config.phases) for read in phase.reads_in(config)}
        return "" if reads & {section, key} else method
    if section == "sampling" and name in SAMPLING_SETTINGS:
        reads = {read for leg, _ in find_way(config).legs for read in leg.reads}
        return "" if name in reads else method
    for_images = section == "model.unet" or key == "model.checkpoint_activations"
    if for_images or section == "model.mlp":
        if config.model.network:
            return f"model.network {config.model.network}"
        return "" if for_images == is_image_set(config.data) else f"data.name {config.data.name}"
    return ""
