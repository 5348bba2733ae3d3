"""The search of ``compare.tune``: which settings are tried for a method, and what it found."""

from collections.abc import Iterable
from itertools import product
from statistics import mean
from typing import Any

from nsgf.comparison import Row
from nsgf.config.files import refuse_unknown
from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import KEYS, Layer
from nsgf.config.values import format_value, read_value
from nsgf.metrics.measures import is_better_higher
from nsgf.phases import find_way, get_phases
from nsgf.sampling.sampler import StraightFlow
from nsgf.system.errors import UserError

SEARCH = "search.csv"
"""File in a comparison's folder: all trials of the search."""
SEED_OFFSET = 1000
"""The search uses the seed ``seed + SEED_OFFSET``; tables have at most SEED_OFFSET seeds."""
SELECTING = ("1000 energy_standardised", "1000 energy")
"""Measures that select settings, the first that there is; for images the first of all. W2 of a
finite sample depends mostly on how many points each part has by chance."""
SECTIONS = (*OF_PHASES, "optim", "sinkhorn", "flow", "pool", "sampling", "train")
"""Sections whose settings can be searched: those in which methods may differ."""


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


def selecting_measure(row: Row) -> str:
    """Return the key of the measure that selects settings."""
    return next(key for key in (*SELECTING, *row.values) if key in row.values)


def ranking(rows: Iterable[Row]) -> dict[tuple[str, str], list[str]]:
    """Return the combinations that were tried, by target and method, from the best to the worst
    mean of the measure that selects. ``rows``: of the search, with methods ``METHOD: SETTINGS``."""
    losses: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        method, _, settings = row.method.partition(": ")
        key = selecting_measure(row)
        value = row.values[key]
        own = losses.setdefault((row.target, method), {})
        own.setdefault(settings, []).append(-value if is_better_higher(key) else value)
    return {place: sorted(own, key=lambda text: mean(own[text])) for place, own in losses.items()}
