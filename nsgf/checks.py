"""What makes a configuration valid."""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from nsgf.conditional_checks import conditional_problems
from nsgf.config.describe import yaml_words
from nsgf.config.leaves import is_path, leaves, plain_type, range_of
from nsgf.config.schema import FAMILIES, OF_PHASES, ONE_CALL, PHASES, Config, DataConfig
from nsgf.data import DATA_SETS, NOISE, OWN_SETS, ImageSet, data_shape, is_image_set, target_set
from nsgf.models.unet import GROUPS
from nsgf.system.errors import UserError

OF_OWN_DATA = ("path", "size", "fit", "color")
"""Keys of the section ``data`` that say what own data are read, and how."""
MAX_PATH = 4096
"""Characters of a text; Linux takes no longer path."""
MAX_NAME = 100
"""Characters of exp: it begins the name of a folder."""


def check(config: Config) -> None:
    """
    Raises:
        UserError: one line that names each wrong key, its value and what is allowed.
    """
    refuse_nulls(config)
    problems = [*_joined(config, _out_of_range(config)), *_phase_problems(config)]
    problems += [*_data_problems(config), *_name_problems(config)]
    problems += [*_text_problems(config), *_sampling_problems(config), *_compare_problems(config)]
    problems += _unused_problems(config)
    problems += conditional_problems(config)
    if is_image_set(config.data.name):
        problems += [*_unet_problems(config), *_predictor_problems(config)]
    if problems:
        raise UserError("; ".join(problems))


def refuse_nulls(config: Config) -> None:
    """The parser lets null through for every type.

    Raises:
        UserError: keys without a value whose type has no null.
    """
    found = [
        (key, "null: must have a value")
        for key, value, item in leaves(config)
        if value is None and type(None) not in get_args(plain_type(item))
    ]
    if found:
        raise UserError("; ".join(_joined(config, found)))


def _joined(config: Config, found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Join keys with what is wrong with them: a setting that phases have in common once, for those
    that are trained if it is wrong for one of them."""
    same: dict[tuple[str, str], list[str]] = {}
    for key, problem in found:
        same.setdefault((key.rpartition(".")[2], problem), []).append(key)
    idle = set(OF_PHASES) - set(config.phases or ())
    for (_, problem), keys in same.items():
        named = [key for key in keys if key.partition(".")[0] not in idle] or keys
        yield f"{', '.join(named)} = {problem}"


def check_places(config: Config) -> None:
    """What must hold before ``exp``, ``out_dir`` and ``data.path`` are looked for.

    Raises:
        UserError: they, or another text, are no names or paths, a number is out of its range, or a
            key has no value.
    """
    refuse_nulls(config)
    problems = [
        *_joined(config, _out_of_range(config)),
        *_name_problems(config),
        *_text_problems(config),
    ]
    if problems:
        raise UserError("; ".join(problems))


def _out_of_range(config: Config) -> Iterator[tuple[str, str]]:
    for key, value, item in leaves(config):
        allowed = range_of(item)
        for number in value if isinstance(value, list) else [value]:
            if allowed is None or isinstance(number, bool) or not isinstance(number, int | float):
                continue
            reason = allowed.refusal(number)
            if reason:
                yield key, f"{value}: must be {reason}"
                break


def _phase_problems(config: Config) -> Iterator[str]:
    families = (*FAMILIES, ONE_CALL[1:])
    allowed = dict.fromkeys(names[: end + 1] for names in families for end in range(len(names)))
    if tuple(config.phases) not in allowed:
        wanted = ", ".join(f"[{','.join(names)}]" for names in allowed)
        yield f"phases = {config.phases}: must be one of {wanted}"
    if not re.fullmatch(r"auto|cpu|mps|xpu|cuda(:[0-9]{1,2})?", config.device):
        yield f"device = {config.device}: must be auto, cpu, cuda, cuda:N, mps or xpu"


def _name_problems(config: Config) -> Iterator[str]:
    if not config.exp or any(not (c.isalnum() or c in "-_") for c in config.exp):
        yield f"exp = {config.exp!r}: must be letters, digits, '-' and '_' (it names a folder)"
    if len(config.exp) > MAX_NAME:
        yield f"exp = {config.exp}: must have at most {MAX_NAME} characters (it names a folder)"


def _text_problems(config: Config) -> Iterator[str]:
    for key, value, item in leaves(config):
        if isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_PATH):
            yield f"{key} = {value!r}: must be at most {MAX_PATH} printable characters"
        elif is_path(item) and value is not None:
            try:
                expanded(key, value)
            except UserError as error:
                yield str(error)


def expanded(key: str, path: str) -> str:
    """A path of the user's with ``~`` written out.

    Raises:
        UserError: it is empty or not printable, or of a user who does not exist.
    """
    if not path or not path.isprintable():
        raise UserError(f"{key} = {path!r}: must be a path of printable characters")
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise UserError(f"{key} = {path}: no such user; ./~ names a folder called ~") from error


def _data_problems(config: Config) -> Iterator[str]:
    is_image = is_image_set(config.data.name)
    if config.data.source == config.data.name:
        yield f"data.source = {config.data.source}: must differ from data.name"
    target, source = target_set(config.data), DATA_SETS.get(config.data.source)
    if source and "source" in target.uses and source.shape != target.shape:
        yield (
            f"data.source = {source.name}: must be {NOISE} for {target.name}, whose points have "
            f"{target.shape[0]} coordinates, not {source.shape[0]}"
        )
    for key in ("inception", "classifier"):
        if not is_image and getattr(config.evaluation, key):
            yield f"evaluation.{key} = true: must be false for {config.data.name}, which are points"
    if isinstance(target, ImageSet) and not target.read_labels and config.evaluation.classifier:
        yield "evaluation.classifier = true: must be false for images without enough of each class"
    if config.peer.method == "sbcfm" and config.peer.sigma == 0:
        yield "peer.sigma = 0: must be > 0 for peer.method sbcfm"


def _unused_problems(config: Config) -> Iterator[str]:
    """Settings that would silently have no effect."""
    name = config.data.name
    unused = {"root", "source", "fake", "flip", *OF_OWN_DATA} - target_set(config.data).uses
    why = {"root": f", {name} reads no files"}
    if name in OWN_SETS:
        why = {"root": f", {name} are read from data.path"}
    else:
        why["path"] = f" for {name}; own data are --exp images and --exp points"
    for key in sorted(unused):
        value, usual = getattr(config.data, key), getattr(DataConfig(), key)
        if value != usual:
            rest = why.get(key, f" for {name}")
            yield f"data.{key} = {yaml_words(value)}: must be {yaml_words(usual)}{rest}"
    yield from _unused_couplings(config)
    if config.phases[-1:] == list(ONE_CALL[1:]):
        yield from _one_call_problems(config)
    for phase in config.phases:
        parts, size = config.train.accumulate, getattr(config, phase).batch_size
        if parts > size >= 1:
            yield f"train.accumulate = {parts}: must be <= {phase}.batch_size = {size}"
            break


def _one_call_problems(config: Config) -> Iterator[str]:
    if config.train.accumulate > 1:
        yield (
            f"train.accumulate = {config.train.accumulate}: must be 1 with phase generator, whose "
            "transport problems are those of a whole batch; use a smaller --batch-size, or "
            "--model.checkpoint_activations true"
        )
    if 1 <= config.generator.batch_size < 4:
        yield f"generator.batch_size = {config.generator.batch_size}: must be >= 4, two halves"
    begins = config.generator.init == "nsgf"
    if begins and config.phases != list(ONE_CALL):
        yield f"generator.init = nsgf: needs that phase; say --phases [{','.join(ONE_CALL)}]"
    if begins and not config.generator.residual:
        yield "generator.init = nsgf: begins with a velocity; say --generator.residual true"
    if not config.generator.blurs:
        yield "generator.blurs = []: must have at least one"


def _unused_couplings(config: Config) -> Iterator[str]:
    nsf, peer = config.nsf, config.peer
    if nsf.coupling_batch and nsf.coupling != "ot":
        yield (
            f"nsf.coupling_batch = {nsf.coupling_batch}: has no effect with nsf.coupling "
            f"{nsf.coupling}; say --nsf.coupling_batch null"
        )
    if nsf.starts and nsf.source == "prior":
        yield (
            f"nsf.starts = {nsf.starts}: has no effect with nsf.source prior; say --nsf.starts null"
        )
    if peer.coupling_batch and peer.method != "otcfm":
        yield (
            f"peer.coupling_batch = {peer.coupling_batch}: has no effect with peer.method "
            f"{peer.method}; say --peer.method otcfm"
        )


def refuse_unused(config: Config, asked: set[str]) -> None:
    """How files are obtained may differ from the default in the settings of a run that reads none,
    but must not be asked for there.

    Args:
        config: the experiment.
        asked: keys of the section ``data`` that the command line sets.

    Raises:
        UserError: one of them would silently have no effect.
    """
    name = config.data.name
    unused = sorted(asked & {"download"} - target_set(config.data).uses)
    if unused:
        raise UserError(f"--data.{unused[0]}: has no effect for data.name {name}; leave it out")


def _sampling_problems(config: Config) -> Iterator[str]:
    sampling = config.sampling
    if sampling.omega is not None and sampling.solver != "euler":
        yield (
            f"sampling.omega = {sampling.omega}: must be null with sampling.solver "
            f"{sampling.solver}, or say --sampling.solver euler"
        )
    if sampling.tau is not None and PHASES[1] not in config.phases:
        yield (
            f"sampling.tau = {sampling.tau}: needs phase {PHASES[1]}, which is not among phases = "
            f"{config.phases}; say --sampling.tau null"
        )


def _compare_problems(config: Config) -> Iterator[str]:
    for key in ("methods", "targets", "nfe"):
        values = getattr(config.compare, key)
        if len(set(values)) < len(values):
            yield f"compare.{key} = {values}: must not name one twice"
        if not values and key != "targets":
            yield f"compare.{key} = []: must name at least one"


def _unet_problems(config: Config) -> Iterator[str]:
    unet, size = config.model.unet, data_shape(config.data)[1]
    if not unet.mult:
        yield "model.unet.mult = []: must have at least one level"
        return
    if unet.channels % GROUPS:
        yield f"model.unet.channels = {unet.channels}: must be a multiple of {GROUPS} (GroupNorm)"
    halvings = len(unet.mult) - 1
    if size % 2**halvings:
        yield (
            f"model.unet.mult = {unet.mult}: {len(unet.mult)} levels need an image size divisible "
            f"by {2**halvings}, {config.data.name} has {size}"
        )
        return
    resolutions = [size >> level for level in range(len(unet.mult))]
    for pixels in unet.attention:
        if pixels not in resolutions:
            yield f"model.unet.attention = {unet.attention}: must be out of {resolutions} (pixels)"
            break
    widths = {unet.channels * unet.mult[-1]}  # the middle block always has attention
    widths |= {
        unet.channels * unet.mult[resolutions.index(pixels)]
        for pixels in unet.attention
        if pixels in resolutions
    }
    if unet.heads >= 1 and any(width % unet.heads for width in widths):
        yield f"model.unet.heads = {unet.heads}: must divide the attention widths {sorted(widths)}"


def _predictor_problems(config: Config) -> Iterator[str]:
    channels, size = config.model.predictor_channels, data_shape(config.data)[1]
    if not channels or size >> len(channels) < 1:
        yield (
            f"model.predictor_channels = {channels}: must have 1 to {int(math.log2(size))} layers "
            f"(each halves the {size} pixels of {config.data.name})"
        )
