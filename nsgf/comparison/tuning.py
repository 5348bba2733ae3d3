"""The search of ``compare.tune``: which settings are tried for a method, and what it found."""

import csv
import io
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from nsgf.config.files import refuse_unknown
from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import KEYS, Layer
from nsgf.config.values import format_value, read_value
from nsgf.phases import find_way, get_phases
from nsgf.sampling.sampler import StraightFlow
from nsgf.system.errors import UserError

SEARCH = "search.csv"
"""File in a comparison's folder: all trials of the search."""
SEED_OFFSET = 1000
"""The search uses the seed ``seed + SEED_OFFSET``; tables have at most SEED_OFFSET seeds."""
SECTIONS = (*OF_PHASES, "optim", "sinkhorn", "flow", "pool", "sampling", "train")
"""Sections whose settings can be searched: those in which methods may differ."""


class Tried(NamedTuple):
    """One combination of settings that was tried, a line of ``search.csv``."""

    target: str
    method: str
    settings: str
    seed: int
    nfe: int
    updates: int
    train_seconds: float
    measure: str
    """Key of the measure."""
    value: float
    """Its mean over the draws."""
    is_chosen: bool


KINDS: list[Callable[[str], Any]] = [
    *(str, str, str),
    *(int, int, int),
    float,
    str,
    float,
    {"True": True, "False": False}.__getitem__,
]
"""Functions that read the columns."""


def full_key(name: str) -> str:
    """Return the key of a setting in ``compare.tune``; ``lr`` is ``optim.lr``. Raise UserError if
    there is none, or it must agree for all methods."""
    key = name if name in KEYS else f"optim.{name}"
    if key not in KEYS:
        refuse_unknown(name, KEYS)
    section, _, last = key.rpartition(".")
    if section not in SECTIONS or last == "iterations":
        must = f"must be a setting of {', '.join(SECTIONS)}, but not iterations"
        raise UserError(f"compare.tune = {name}: {must}")
    return key


def uses(config: Config, key: str) -> bool:
    """Whether the method of a configuration uses a setting that can be searched."""
    section = key.partition(".")[0]
    if section == "sampling":
        return any(issubclass(leg, StraightFlow) for leg, _ in find_way(config).legs)
    phases = get_phases(config.phases)
    return section in ("optim", "train") or any(phase.uses(config, key) for phase in phases)


def options(config: Config) -> list[Layer]:
    """Return each combination of the values in ``compare.tune`` of the settings that a method uses;
    without such settings an empty one. Raise UserError if a key or a value is wrong."""
    grid = []
    for name, values in config.compare.tune.items():
        key = full_key(name)
        if not values:
            raise UserError(f"compare.tune = {name}: must have values, as in {name}=A,B")
        typed = [read_value(f"compare.tune.{name}", KEYS[key].kind, value) for value in values]
        if uses(config, key):
            grid.append([(name, value) for value in typed])
    return [dict(one) for one in product(*grid)]


def settings_of(choice: Layer, config: Config) -> Layer:
    """Return a combination as settings of a method; those of ``optim`` go to all its phases."""
    layer: dict[str, Any] = {}
    for name, value in choice.items():
        section, _, last = full_key(name).rpartition(".")
        for owner in config.phases if section == "optim" else [section]:
            layer[f"{owner}.{last}"] = value
    return layer


def describe(choice: Layer) -> str:
    """Return a combination as text, such as ``lr 0.003, peer.sigma 0``."""
    return ", ".join(f"{name} {format_value(value)}" for name, value in choice.items())


def search_csv(lines: Sequence[Tried]) -> str:
    """Return the text of ``search.csv``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([Tried._fields, *lines])
    return stream.getvalue()


def read_search(folder: Path) -> list[Tried]:
    """Return the lines of ``search.csv`` in a comparison's folder; none if there was no search.
    Raise UserError if the file has another form."""
    file = folder / SEARCH
    if not file.exists():
        return []
    try:
        head, *lines = csv.reader(io.StringIO(file.read_text("utf-8")))
        if tuple(head) != Tried._fields:
            raise ValueError(f"its columns must be {','.join(Tried._fields)}")
        return [
            Tried(*(kind(text) for kind, text in zip(KINDS, line, strict=True))) for line in lines
        ]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: must be a search.csv of nsgf compare ({error})") from error
