"""The search of ``compare.tune``: which settings are tried for a method, and what it found."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from statistics import mean
from typing import NamedTuple

from nsgf.comparison import Row
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
SELECTING = ("1000 energy_standardised", "1000 energy")
"""Measures that select settings, the first that there is; in features of images the first of all.
W2 of a finite sample depends mostly on how many points each part has by chance."""
SECTIONS = (*OF_PHASES, "optim", "sinkhorn", "flow", "pool")
"""Sections whose settings can be searched: those that methods may differ in."""
TERMS = ("iterations", "batch_size", "method", "source")
"""Settings of a phase that make the terms equal or the method another one."""


class Choice(NamedTuple):
    """Settings of a method that the search tries."""

    settings: Layer
    """Those of ``optim`` stand in each phase of the method."""
    title: str = ""
    """As in ``compare.tune``, such as ``lr 0.003, peer.sigma 0``."""
    trained: str = ""
    """Those that training depends on."""


AS_GIVEN = Choice({})
"""The choice of a method that is not searched."""


def choices_of(config: Config) -> list[Choice]:
    """Return each combination of the values in ``compare.tune`` of the settings that a method uses;
    without such settings an empty one. Raise UserError if a key or a value is wrong."""
    phases = get_phases(config.phases)
    grid = []
    keys_of = {name: name if name in KEYS else f"optim.{name}" for name in config.compare.tune}
    # those of optim first: a phase's own setting wins
    for name, key in sorted(keys_of.items(), key=lambda item: not item[1].startswith("optim.")):
        if key not in KEYS:
            refuse_unknown(name, KEYS)
        section, _, last = key.rpartition(".")
        is_term = section in (*OF_PHASES, "optim") and last in TERMS
        if key != "sampling.spacing" and (section not in SECTIONS or is_term):
            must = f"must be sampling.spacing, or a setting of {', '.join(SECTIONS)}"
            raise UserError(f"compare.tune = {name}: {must}, but none of {', '.join(TERMS)}")
        kind = KEYS[key].kind
        values = config.compare.tune[name]
        typed = [read_value(f"compare.tune.{name}", kind, value) for value in values]
        if len({*map(str, typed)}) < max(2, len(typed)):
            raise UserError(f"compare.tune = {name}: must have two different values or more")
        # whether the method uses the setting
        if section == "sampling":
            is_used = any(issubclass(leg, StraightFlow) for leg, _ in find_way(config).legs)
        else:
            is_used = section == "optim" or any(phase.uses(config, key) for phase in phases)
        if is_used:
            owners = config.phases if section == "optim" else [section]
            keys = [f"{owner}.{last}" for owner in owners]
            grid.append([(f"{name} {format_value(it)}", dict.fromkeys(keys, it)) for it in typed])
    found = []
    for combination in product(*grid):
        settings = {key: value for _, layer in combination for key, value in layer.items()}
        texts = [text for text, _ in combination]
        trained = [text for text in texts if not text.startswith("sampling.")]
        found.append(Choice(settings, ", ".join(texts), ", ".join(trained)))
    return found


def selecting_measure(row: Row) -> str:
    """Return the key of the measure that selects settings, of which less is better."""
    return next(key for key in (*SELECTING, *row.values) if key in row.values)


def ranking(rows: Iterable[Row]) -> dict[tuple[str, str], list[str]]:
    """Return the combinations that were tried, by target and method, from the best to the worst
    mean of the measure that selects. ``rows``: of the search, with methods ``METHOD: SETTINGS``."""
    losses = defaultdict[tuple[str, str], list[float]](list)
    for row in rows:
        losses[row.target, row.method].append(row.values[selecting_measure(row)])
    ranked = defaultdict[tuple[str, str], list[str]](list)
    for target, label in sorted(losses, key=lambda place: mean(losses[place])):
        method, _, settings = label.partition(": ")
        ranked[target, method].append(settings)
    return ranked
