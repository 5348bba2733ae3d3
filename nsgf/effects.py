"""Which settings have an effect on a command, and with a configuration.

Each setting declares what it needs where it is defined; this file only reads the declarations:
conditions on other settings (``OnlyIf`` in the schema); the settings that a phase (``Phase.reads``)
or a leg of sampling (``Leg.reads``) reads; those that a flow (``Flow.uses``) or a data set
(``Target.uses``) uses.
"""

from collections.abc import Collection, Sequence

from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import KEYS, SETTINGS, Layer
from nsgf.config.values import format_value
from nsgf.system.errors import UserError, name_setting

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
SAVES = {"train": "evaluation", "preflight": "evaluation"}
"""Settings and sections that a command only saves, for later commands."""
UNUSED = {"evaluate": ("sampling.num_samples",)}
"""Settings that a command does not use, although it uses their section."""
PLACES = ("data.root", "data.download")
"""Settings about places of data, which scripts may give to every command."""
STRICT = ("report --compare", "export", "list")
"""Commands that also refuse options that they do not use."""


def is_used(command: str, key: str) -> bool:
    """Whether a command uses a setting or an option."""
    is_listed = f"{key}.".startswith(tuple(f"{each}." for each in USES[command].split()))
    return is_listed and key not in UNUSED.get(command, ())


def accepts(command: str, key: str) -> bool:
    """Whether a command uses a setting, or saves it for later commands."""
    return is_used(command, key) or key.partition(".")[0] in SAVES.get(command, "").split()


def check_effects(command: str, layer: Layer, configs: Sequence[Config]) -> list[str]:
    """Raise UserError if a setting that the user gives has no effect on a command. Return lines
    about places of data that the command does not read.

    Args:
        layer: the settings of flags or arguments.
        configs: the settings that hold, or those of each method of a comparison.
    """
    notes = []
    problems = []
    for key in filter(KEYS.__contains__, layer):
        if reason := find_obstacle(command, key, configs):
            text = f"{name_setting(key, format_value(layer[key]))}: has no effect {reason}"
            if command == "sample" and key in PLACES:
                notes.append(text)
            else:
                problems.append(f"{text}; leave it out")
    if problems:
        raise UserError("; ".join(problems))
    return notes


def find_ineffective(command: str, keys: Collection[str], configs: Sequence[Config]) -> list[str]:
    """Return those settings of a file that have no effect on a command."""
    return [key for key in keys if key in SETTINGS and find_obstacle(command, key, configs)]


def find_obstacle(command: str, key: str, configs: Sequence[Config]) -> str:
    """Return why a setting has no effect on a command, such as ``with method otcfm``; empty if it
    has one. For a comparison, one of its methods must use the setting."""
    from nsgf.data import is_image_set  # loads torch

    if not accepts(command, key):
        return f"on {command}"
    if command == "sample" and key in (*PLACES, "data.path") and is_image_set(configs[0].data):
        return "on sample, which reads no images"
    obstacles = [obstacle_in(config, key) for config in configs]
    return f"with {obstacles[0]}" if all(obstacles) else ""


def obstacle_in(config: Config, key: str) -> str:
    """Return the setting, as ``KEY VALUE``, because of which another one has no effect on training
    and sampling; empty if it has one."""
    # these load torch
    from nsgf.data import is_image_set, target_set
    from nsgf.phases import PHASES, find_way, get_phases
    from nsgf.sampling.sampler import SAMPLING_SETTINGS
    from nsgf.sinkhorn import FLOW_SETTINGS, FLOWS

    section, _, name = key.rpartition(".")
    if section == "optim":  # of every phase
        return ""
    method = f"method {config.method or format_value(config.phases)}"
    for condition in SETTINGS[key].conditions:
        if not condition.holds(config):
            return f"{condition.key} {format_value(SETTINGS[condition.key].get(config))}"
    if section in OF_PHASES:
        return "" if section in config.phases else method
    if key == "data.download" and name not in target_set(config.data).uses:
        return f"data.name {config.data.name}"
    if section == "sinkhorn" and name in FLOW_SETTINGS.difference(FLOWS[config.flow.kind].uses):
        return f"flow.kind {config.flow.kind}"
    if section in {read.partition(".")[0] for phase in PHASES.values() for read in phase.reads}:
        reads = {read for phase in get_phases(config.phases) for read in phase.reads_in(config)}
        return "" if reads & {section, key} else method
    if section == "sampling" and name in SAMPLING_SETTINGS:
        reads = {read for leg, _ in find_way(config).legs for read in leg.reads}
        return "" if name in reads else method
    is_images = is_image_set(config.data)
    for_images = section == "model.unet" or key == "model.checkpoint_activations"
    if for_images or section == "model.mlp":
        if config.model.network:
            return f"model.network {config.model.network}"
        return "" if for_images == is_images else f"data.name {config.data.name}"
    return ""
