"""Read files of experiments, methods and runs as layers of settings, with dotted keys."""

import difflib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from nsgf.config.settings import FACTS, KEYS, Layer, is_inherited, look_up, spread_optim
from nsgf.config.values import load_yaml, read_value, to_plain
from nsgf.system.errors import UserError, cause, name_setting, one_line

REMOVED = {"evaluation.classifier", "evaluation.inception", *FACTS}
"""Keys that files of earlier runs have, and that are no settings. They are ignored."""
FACTS_FILE = "facts.json"
OTHER_NAMES = {
    "optim.iterations": "iters n_iters num_iters max_iters train_iters epochs n_epochs num_epochs "
    "max_epochs num_train_epochs duration total_kimg total_steps max_steps max_train_steps",
    "optim.iterations flow.steps": "num_steps n_steps",
    "sampling.straight_steps": "num_steps n_steps integration_steps num_inference_steps "
    "ddpm_num_inference_steps sampling_steps",
    "optim.batch_size": "batch batchsize bs batch_gpu train_batch_size per_device_train_batch_size",
    "sampling.batch_size": "batch batchsize bs max_batch_size eval_batch_size batch_size_fid",
    "optim.lr": "learning_rate base_lr",
    "optim.schedule": "lr_scheduler lr_schedule scheduler",
    "optim.warmup_steps": "warmup lr_warmup_steps num_warmup_steps",
    "optim.clip_norm": "grad_clip max_grad_norm gradient_clip_val",
    "optim.ema_decay": "ema use_ema ema_rate ema_max_decay",
    "train.precision": "mixed_precision amp fp16 bf16 use_fp16",
    "train.accumulate": "gradient_accumulation_steps accumulate_grad_batches accum_iter",
    "train.checkpoint_every": "save_step save_steps save_every save_interval save_model_epochs "
    "checkpointing_steps snap dump",
    "train.log_every": "log_interval logging_steps tick",
    "train.preview": "save_images_epochs validation_epochs",
    "model.checkpoint_activations": "gradient_checkpointing",
    "model.unet.channels": "num_channel num_channels model_channels base_channels cbase",
    "model.unet.mult": "channel_mult dim_mults cres",
    "model.unet.res_blocks": "num_res_blocks layers_per_block",
    "model.unet.attention": "attention_resolutions attn_resolutions",
    "model.unet.heads": "num_heads",
    "model.mlp.width": "hidden_dim hidden_size",
    "data.name": "dataset dataset_name",
    "data.path": "data data_dir train_data_dir",
    "data.size": "resolution image_size img_size",
    "data.flip": "xflip random_flip augment",
    "data.conditional": "cond class_cond",
    "sinkhorn.blur": "eps epsilon reg",
    "sinkhorn.batch_size": "sinkhorn_batch particles n_particles num_particles",
    "sampling.num_samples": "n samples n_samples num_images num_gen",
    "sampling.label": "class class_idx class_labels",
    "sampling.guidance": "guidance_scale cfg_scale",
    "sampling.solver": "integration_method ode_solver",
    "sampling.tolerance": "tol rtol atol",
    "tracking.tracker": "report_to log_with logger wandb use_wandb tensorboard",
    "method": "model",
    "device": "gpu gpus gpu_id cuda",
    "seed": "seeds random_seed random_state",
    "out_dir": "output output_dir save_dir log_dir logging_dir results_dir",
    "run": "network ckpt checkpoint input_dir",
    "resume": "resume_from_checkpoint",
    "print-config": "dry_run",
}
"""Names in other programs of settings and options; the first line that fits a command holds."""


class Experiment(NamedTuple):
    """The settings of an experiment's file."""

    settings: Layer
    methods: dict[str, Layer]
    """Settings for each method, which win over the others."""
    facts: Layer
    """What a run found, from the file of facts beside it, or from the settings, where earlier
    versions wrote it; None or empty for other files."""


def config_folder() -> Path:
    """Return the folder of the shipped YAML files, in an installed wheel or beside the package."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def experiments() -> list[str]:
    """Return the names of the shipped experiments."""
    return sorted(file.stem for file in config_folder().glob("*.yaml"))


def methods() -> list[str]:
    """Return the names of the shipped methods."""
    return sorted(file.stem for file in config_folder().glob("methods/*.yaml"))


def pretrained_runs() -> dict[str, Path]:
    """Return the folders of the exported runs that the package ships, by name."""
    files = sorted(Path(__file__).parents[1].glob("pretrained/*/config.json"))
    return {file.parent.name: file.parent for file in files}


def read_experiment(file: Path) -> Experiment:
    """Return the settings of an experiment's file, or of a run.

    Raises:
        UserError: see :func:`read_plain`; or a key is unknown, a value has a wrong type, or the
            file names no experiment.
    """
    plain = read_plain(file)
    sections = plain.pop("methods", {})
    settings = read_layer(plain)
    if "exp" not in settings:
        raise UserError(f"config {file}: must name its experiment, for example exp: {file.stem}")
    if not isinstance(sections, dict):
        raise UserError(f"config {file}: methods = {sections!r}: must hold a section for each one")
    own = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(f"config {file}: methods.{name} = {section!r}: must be a section")
        try:
            own[str(name)] = read_layer(section)
        except UserError as error:
            raise UserError(f"methods.{name}.{error}") from error
    beside = file.with_name(FACTS_FILE)
    return Experiment(settings, own, read_facts(read_plain(beside) if beside.exists() else plain))


def read_layer(sections: Mapping[Any, Any], prefix: str = "") -> Layer:
    """Return the settings of nested sections, with values of the declared types. Raise UserError if
    a key is unknown, or a value has a wrong type."""
    layer: Layer = {}
    for name, value in sections.items():
        key = f"{prefix}{name}"
        if key in KEYS:
            layer[key] = read_value(key, KEYS[key].kind, value)
        elif isinstance(value, dict) and key not in REMOVED:
            layer |= read_layer(value, f"{key}.")
        elif key not in REMOVED:
            refuse_unknown(key, KEYS)
    return layer


def read_facts(sections: dict[str, Any]) -> Layer:
    """Return the facts in nested sections: of the file of facts, or of the settings of a run that
    an earlier version began. Raise UserError if they are damaged."""
    facts = {key: look_up(sections, key, item.default) for key, item in FACTS.items()}
    for key, value in facts.items():
        if value is not None and not isinstance(value, FACTS[key].kind):
            raise UserError(f"{key}: damaged; train a new run")
    return facts


def method_layers(experiment: Experiment, method: str | None = None) -> tuple[Layer, Layer]:
    """Return two layers: the settings of a method, and the settings of an experiment for it.

    The second layer wins over the first. ``optim`` is already spread to the phases of both.
    ``method`` is a shipped method, a YAML file, or a section of the experiment; None: the method
    that the experiment names, if any.

    Raises:
        UserError: the method does not exist, or the settings are complete and name another method.
    """
    settings = experiment.settings
    wanted = method or settings.get("method")
    if not wanted:
        return {}, spread_optim(settings)
    is_file = wanted.endswith((".yaml", ".yml"))
    name = Path(wanted).stem if is_file else wanted
    if "phases" in settings and method and name != settings.get("method"):
        own = settings.get("method", "no method")
        raise UserError(f"method = {method}: must be {own}, the method of these settings")
    base = {**settings, **experiment.methods.get(name, {}), "method": name}
    if not is_file and name not in methods():
        if "phases" in base:
            return {}, spread_optim(base)
        near = difflib.get_close_matches(name, methods(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        must = f"must be one of {', '.join(methods())}, or a YAML file{hint}"
        raise UserError(f"method = {name}: {must}")
    file = Path(wanted).expanduser() if is_file else config_folder() / "methods" / f"{name}.yaml"
    below = read_layer(read_plain(file))
    if "phases" not in below:
        raise UserError(f"method {file}: must name its phases, for example phases: [nsgf]")
    return spread_optim(below), spread_optim(base)


def read_plain(file: Path) -> dict[str, Any]:
    """Return keys and plain values of a YAML file in UTF-8, unchecked.

    Raises:
        UserError: the file cannot be read, or is not YAML with keys and plain values.
    """
    try:
        if not file.is_file():
            raise UserError(f"config {file}: no such file")
        content = load_yaml(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"config {file}: cannot be read ({cause(error)})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config {file}: cannot be read ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"config {file}: must hold keys and values, not {content!r}")
    return content


def from_arguments(arguments: Mapping[str, Any], overrides: Any = None) -> Layer:
    """Return the arguments of a Python call that are not None, by dotted key, over ``overrides``.
    Raise UserError for an unknown key or a wrong value."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UserError(f"{name_setting('overrides', overrides)}: must be a dictionary of settings")
    given = {**(overrides or {}), **{k: v for k, v in arguments.items() if v is not None}}
    for key in REMOVED & given.keys():
        refuse_unknown(key, KEYS)
    return read_layer({str(key): to_plain(str(key), value) for key, value in given.items()})


def refuse_unknown(
    name: str,
    known: Collection[str],
    command: str = "train",
    flags: Mapping[str, str] | None = None,
) -> NoReturn:
    """Raise UserError for an unknown flag, which begins with dashes, or an unknown key of a file.

    Args:
        name: the flag or the key.
        known: all flags that the command uses, or all keys.
        command: the command whose help lists the flags.
        flags: short flags by key, to suggest in place of ``--KEY``.
    """
    dashes, kind = ("--", "flag") if name.startswith("--") else ("", "key")
    key = name.removeprefix("--")
    section, _, last = key.rpartition(".")
    keys = [each.removeprefix("--") for each in known]
    likely = [each for each in keys if not is_inherited(each)]
    nearest = [each for each in keys if _letters(each) == _letters(key)]
    nearest = nearest or [each for each in likely if each.endswith(f".{key.replace('-', '_')}")]
    for ours, names in OTHER_NAMES.items():
        if not nearest and _letters(last) in map(_letters, names.split()):
            meant = [f"{section}.{each.rpartition('.')[2]}".lstrip(".") for each in ours.split()]
            meant = meant if section else ours.split()
            nearest = [each for each in keys if each in meant]
    if not nearest and any(each.startswith(f"{key}.") for each in keys):
        raise UserError(f"{name} is a section; set its keys, as in {name}.KEY")
    within = [each for each in keys if each.startswith(f"{section}.")] if section else likely
    parts = {_letters(each.rpartition(".")[2]): each for each in within}
    for text, among in ((last, parts), (key, {_letters(each): each for each in keys})):
        close = difflib.get_close_matches(_letters(text), among, 1, 0.8)
        nearest = nearest or [among[each] for each in close]
    shown = dict.fromkeys((flags or {}).get(each, dashes + each) for each in nearest)
    hint = (
        f"did you mean {' or '.join(shown)}?" if shown else f"nsgf {command} --help all lists them"
    )
    raise UserError(f"{name}: unknown {kind}; {hint}")


def _letters(name: str) -> str:
    """Return a name in small letters without dots, dashes and underscores."""
    return re.sub("[-_.]", "", name).lower()
