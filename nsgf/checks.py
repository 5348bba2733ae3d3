"""Check a configuration: ranges from the schema, and rules between settings."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import SETTINGS, Layer
from nsgf.config.values import format_value, is_path
from nsgf.data import (
    DATA_SETS,
    NOISE,
    ImageSet,
    class_names,
    class_number,
    data_classes,
    data_shape,
    target_set,
)
from nsgf.models import MOST_VALUES
from nsgf.models.unet import GROUPS
from nsgf.phases import WAYS, find_way, find_ways, get_phases
from nsgf.phases.generator import count_groups, nearest_multiple
from nsgf.system.errors import UserError, list_names, name_setting, suggest

EXP = re.compile(r"[\w-]{1,100}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
NEEDS = (
    ("nsf.coupling_batch", "nsf.coupling", "ot"),
    ("nsf.starts", "nsf.source", "nsgf"),
    ("peer.coupling_batch", "peer.method", "otcfm"),
    ("sampling.omega", "sampling.solver", "euler"),
    ("evaluation.inception_weights", "evaluation.features", "inception"),
)
"""Settings that have an effect only with this value of another one."""

Rule = tuple[bool, str, str]
"""Whether a setting is wrong, its key, and the message after ``KEY = VALUE:``."""


def check(config: Config) -> None:
    """Raise UserError if any setting is wrong; its one-line message names each wrong setting."""
    check_values(config)
    rules = [*_general_rules(config), *_data_rules(config), *_class_rules(config)]
    if isinstance(target_set(config.data), ImageSet):
        rules += _network_rules(config)
    _refuse(config, rules)


def check_training(config: Config) -> None:
    """Raise UserError if a phase would be trained that the method of the configuration does not
    have. The settings have passed :func:`check`."""
    if unused := config.phases[len(find_way(config).trains) :]:
        remedy = f"{suggest('nsf.source', 'nsgf')} or {suggest('sampling.tau', 'T')}"
        shown = f"{name_setting('phases', format_value(config.phases))}: no sample uses"
        raise UserError(f"{shown} {list_names(unused)}; add phase predictor, or use {remedy}")


def check_values(config: Config) -> None:
    """Raise UserError if a value is outside of its range, whatever the other settings are."""
    wrong = []
    for key, item in SETTINGS.items():
        value, allowed = item.get(config), item.range
        for number in value if isinstance(value, list) else (value,):
            if allowed and isinstance(number, int | float) and number not in allowed:
                wrong.append((True, key, f"must be {allowed}"))
        if isinstance(value, str) and not value.isprintable():
            wrong.append((True, key, "must be printable characters"))
        if item.is_path and value is not None and not is_path(value):
            wrong.append((True, key, "must be a path (~NAME of an existing user)"))
    if not EXP.fullmatch(config.exp):
        wrong.append((True, "exp", "must be 1 to 100 letters, digits, '-' and '_'"))
    _refuse(config, wrong)


def _refuse(config: Config, rules: Iterable[Rule]) -> None:
    wrong = [(key.partition("."), must) for is_wrong, key, must in rules if is_wrong]
    phases = config.phases or ()
    trained = {name for (section, _, name), _ in wrong if section in phases}
    untrained = {*OF_PHASES} - {*phases}  # --lr sets these too; do not repeat the same error
    lines = [
        f"{name_setting(''.join(key), format_value(SETTINGS[''.join(key)].get(config)))}: {must}"
        for key, must in wrong
        if key[0] not in untrained or key[2] not in trained
    ]
    if lines:
        raise UserError("; ".join(lines))


def _general_rules(config: Config) -> Iterator[Rule]:
    ways = [way for way in WAYS if way.names == config.phases]
    if not ways:
        wanted = ", ".join(dict.fromkeys(format_value(way.names) for way in WAYS))
        yield True, "phases", f"must be one of {wanted}"
    misfits = [way.misfits(config) for way in ways if not find_ways(config)]
    for key, allowed in min(misfits, key=len, default={}).items():
        yield True, key, f"must be {allowed} with phases {format_value(config.phases)}"
    yield not DEVICE.fullmatch(config.device), "device", "must be auto, cpu, cuda or cuda:N"

    for key, other, needed in NEEDS:
        useless = SETTINGS[key].get(config) is not None and SETTINGS[other].get(config) != needed
        yield useless, key, f"must be null unless {other} is {needed}"
    if config.nsf.source == "affine" and "nsf" in config.phases:
        yield config.nsf.init != "random", "nsf.init", "must be random with nsf.source affine"
        wrong = config.flow.schedule == "constant" and config.flow.eta > 1
        yield wrong, "flow.eta", "must be <= 1 with nsf.source affine"
        wrong = config.data.source != NOISE
        yield wrong, "nsf.source", f"must not be affine with data.source {config.data.source}"
        size = math.prod(data_shape(config.data))
        few = f"must not be affine for samples of {size} values, more than {MOST_VALUES}"
        yield size > MOST_VALUES, "nsf.source", few
    peer, generator = config.peer, config.generator
    yield peer.method == "sbcfm" and peer.sigma == 0, "peer.sigma", "must be > 0 for sbcfm"

    for key, values in (("methods", config.compare.methods), ("nfe", config.compare.nfe)):
        wrong = not values or len(set(values)) < len(values)
        yield wrong, f"compare.{key}", "must name at least one, and none twice"
    targets = config.compare.targets
    yield len(set(targets)) < len(targets), "compare.targets", "must name none twice"

    sizes = {phase: getattr(config, phase).batch_size for phase in config.phases}
    phase, least = min(sizes.items(), key=lambda item: item[1], default=("", math.inf))
    split = config.train.accumulate
    yield split > least, "train.accumulate", f"must be <= {phase}.batch_size = {least}"
    if "generator" in config.phases:
        whole = "must be 1 with phase generator, whose transport problems need the whole batch"
        yield split > 1, "train.accumulate", whole
        yield generator.batch_size < 4, "generator.batch_size", "must be >= 4, two halves"
        yield not generator.blurs, "generator.blurs", "must have at least one"


def _data_rules(config: Config) -> Iterator[Rule]:
    data, target = config.data, target_set(config.data)
    source = DATA_SETS.get(data.source)
    if "source" in target.uses:
        wrong = source is not None and source.shape != target.shape
        wanted = f"must be {NOISE} for {target.name}, which has another number of coordinates"
        yield wrong, "data.source", wanted
    yield data.source == data.name, "data.source", "must differ from data.name"
    files = ("path", "size", "skip_broken", "header", "columns", "held_out", "key")
    for name in ("root", "source", "fake", "flip", *files):
        usual = SETTINGS[f"data.{name}"].default
        useless = name not in target.uses and getattr(data, name) != usual
        yield useless, f"data.{name}", f"must be {format_value(usual)} for {data.name}"
    has_features = config.evaluation.features not in ("auto", "none")
    points = f"must be auto or none for {data.name}, which are points"
    yield has_features and not isinstance(target, ImageSet), "evaluation.features", points


def _network_rules(config: Config) -> Iterator[Rule]:
    """Yield the rules for the UNet and for the time predictor for images."""
    unet, channels = config.model.unet, config.model.predictor_channels
    height, width = data_shape(config.data)[1:]
    size, both = min(height, width), f"{height} x {width}"
    layers = f"must have 1 to {int(math.log2(size))} layers, each halves {both} pixels"
    yield not channels or size >> len(channels) < 1, "model.predictor_channels", layers
    parts = 2 ** max(0, len(unet.mult) - 1)
    levels = f"must have 1 level or more that halve the image's {both} pixels evenly"
    yield not unet.mult or bool(height % parts or width % parts), "model.unet.mult", levels
    groups = f"must be a multiple of {GROUPS} (GroupNorm)"
    yield bool(unet.channels % GROUPS), "model.unet.channels", groups
    sides = {height >> level: unet.channels * mult for level, mult in enumerate(unet.mult)}
    unknown = not set(unet.attention) <= set(sides)
    yield unknown, "model.unet.attention", f"must be out of {list(sides)} (pixels of height)"
    # the middle block, on the lowest level, always has attention
    widths = {sides[side] for side in (*unet.attention, *list(sides)[-1:]) if side in sides}
    uneven = any(width % unet.heads for width in widths)
    yield uneven, "model.unet.heads", f"must divide the attention widths {sorted(widths)}"


def _class_rules(config: Config) -> Iterator[Rule]:
    """Return the rules of networks that are given classes, and of those that are not."""
    data, label, sampling = config.data, config.sampling.label, config.sampling
    if not data.conditional:
        unused = "has no effect unless the run is trained with data.conditional"
        yield label is not None, "sampling.label", unused
        yield sampling.guidance != 1, "sampling.guidance", unused
        return
    classes, names, key = data_classes(data), list_names(class_names(data)), "data.conditional"
    yield not classes, key, f"must be false for {data.name}, which has no classes"
    yield data.fake, key, "must be false with data.fake, whose images have no classes"
    for phase in get_phases(config.phases):
        wanted = f"must be false with phase {phase.name}, whose network knows no classes"
        yield not phase.takes_classes, key, wanted
    yield sampling.omega is not None, "sampling.omega", "must be null with data.conditional"
    wrong = label is not None and bool(classes) and class_number(data, label) is None
    number = f"if no name is a number, its number, 0 to {classes - 1}"
    wanted = f"must be a class ({names}) or, {number}; null: all"
    yield wrong, "sampling.label", wanted
    wrong = "nsgf" in config.phases and config.pool.num_batches < classes and not config.smoke
    yield wrong, "pool.num_batches", f"must be >= {classes}, a flow for each class"
    for key, value in _for_classes(config).items():
        wanted = f"must be {format_value(value)} for {classes} classes, which it must not mix"
        yield SETTINGS[key].get(config) != value, key, wanted


def _for_classes(config: Config) -> dict[str, Any]:
    """Return the nearest settings with which classes are not mixed and have equal shares."""
    classes, nsf, own = data_classes(config.data), config.nsf, config.generator
    wanted: dict[str, Any] = {}
    if classes and "nsf" in config.phases:
        wanted["nsf.coupling"] = "independent"
        wanted["nsf.starts"] = nsf.starts and nearest_multiple(nsf.starts, classes)
        if nsf.coupling != "independent":
            wanted["nsf.coupling_batch"] = None
    if classes and "peer" in config.phases:
        wanted["peer.coupling_batch"] = None
    if classes and "reflow" in config.phases:
        wanted["reflow.pairs"] = nearest_multiple(config.reflow.pairs, classes)
    if classes and "generator" in config.phases:
        unit = 2 * count_groups(config)
        for key, count in (("batch_size", own.batch_size), ("targets", own.targets)):
            wanted[f"generator.{key}"] = count and nearest_multiple(count, unit)
    return wanted


def fit_to_classes(config: Config) -> tuple[Layer, tuple[str, ...]]:
    """Return settings that replace those unfit for ``data.conditional``, and a note."""
    wanted = _for_classes(config)
    chosen = {key: value for key, value in wanted.items() if SETTINGS[key].get(config) != value}
    told = ", ".join(f"{key} {format_value(value)}" for key, value in chosen.items())
    told = f"method {config.method}: chosen for {data_classes(config.data)} classes: {told}"
    return chosen, (told,) if chosen else ()
