"""What makes a configuration with classes valid, and settings of classes without them."""

from collections.abc import Iterator
from typing import Any

from nsgf.config.describe import yaml_words
from nsgf.config.files import Content, nested
from nsgf.config.leaves import leaves
from nsgf.config.schema import ONE_CALL, PHASES, Config
from nsgf.data import data_classes, target_set
from nsgf.data.classes import nearest_multiple
from nsgf.phases import get_phases
from nsgf.phases.generator import group_problems, groups_of


def fit_to_classes(config: Config) -> tuple[Content, tuple[str, ...]]:
    """Return settings that fit ``data.conditional`` where those of a file do not, and a line."""
    classes, nsf, own = data_classes(config.data), config.nsf, config.generator
    wanted: dict[str, Any] = {}
    if classes and PHASES[1] in config.phases:
        starts = nsf.starts and nearest_multiple(nsf.starts, classes)
        wanted = {"nsf.coupling": "independent", "nsf.coupling_batch": None, "nsf.starts": starts}
    if classes and ONE_CALL[-1] in config.phases:
        unit = 2 * groups_of(config)
        for key, count in (("batch_size", own.batch_size), ("targets", own.targets)):
            wanted[f"generator.{key}"] = count and nearest_multiple(count, unit)
    chosen = {k: wanted[k] for k, value, _ in leaves(config) if wanted.get(k, value) != value}
    told = ", ".join(f"{key} {yaml_words(value)}" for key, value in chosen.items())
    return nested(chosen), (f"chosen for {classes} classes: {told}",) if chosen else ()


def conditional_problems(config: Config) -> Iterator[str]:
    """Why networks cannot be told classes as configured."""
    if not config.data.conditional:
        yield from _unused(config)
        return
    given = "data.conditional = true"
    if not data_classes(config.data):
        name = target_set(config.data).name
        yield f"{given}: must be false for {name}, which have no classes, or too few of each"
        return
    if config.data.fake:
        yield f"{given}: not with data.fake, whose random images have no classes"
    for phase in (phase for phase in get_phases(config.phases) if not phase.takes_classes):
        yield f"{given}: not with phase {phase.name}, whose network knows no classes"
    if config.sampling.omega is not None:
        yield f"{given}: not with sampling.omega; say --sampling.omega null"
    yield from _label_problems(config)
    if ONE_CALL[-1] in config.phases:
        yield from group_problems(config)
    yield from _flow_problems(config, given)


def _unused(config: Config) -> Iterator[str]:
    sampling = config.sampling
    why = "has no effect without data.conditional, with which a run is trained"
    if sampling.label is not None:
        yield f"sampling.label = {sampling.label}: {why}; say --sampling.label null"
    if sampling.guidance != 1:
        yield f"sampling.guidance = {sampling.guidance:g}: {why}; say --sampling.guidance 1"


def _label_problems(config: Config) -> Iterator[str]:
    classes, label = data_classes(config.data), config.sampling.label
    if label is not None and label >= classes:
        yield f"sampling.label = {label}: must be one of 0 to {classes - 1}, or null for all"


def _flow_problems(config: Config, given: str) -> Iterator[str]:
    """Of NSGF++, whose flows and lines belong to one class each."""
    classes, flows, starts = data_classes(config.data), config.pool.num_batches, config.nsf.starts
    if PHASES[0] in config.phases and flows < classes and not config.smoke:
        yield f"pool.num_batches = {flows}: must be >= {classes}, a flow for each class"
    if PHASES[1] not in config.phases:
        return
    if config.nsf.coupling != "independent":
        yield (
            f"{given}: not with nsf.coupling {config.nsf.coupling}, which would mix classes; say "
            "--nsf.coupling independent --nsf.coupling_batch null"
        )
    if starts and starts % classes:
        yield (
            f"nsf.starts = {starts}: must be a multiple of {classes}, of which a start keeps one "
            f"class; the nearest is {nearest_multiple(starts, classes)}"
        )
