"""The search of ``compare.tune``: the settings to try for a method, and their ranking."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from statistics import mean
from typing import NamedTuple

from nsgf.comparison import Row
from nsgf.config.files import refuse_unknown
from nsgf.config.schema import OF_PHASES, Config
from nsgf.config.settings import KEYS, Layer, change
from nsgf.config.values import format_value, read_value
from nsgf.effects import find_obstacle
from nsgf.system.errors import wrong_setting

SEARCH = "search.csv"
"""File in a comparison's folder: all trials of the search."""
SEED_OFFSET = 1000
"""The search uses ``seed + SEED_OFFSET`` as its seed. Tables have at most SEED_OFFSET seeds."""
SELECTING = ("1000 energy_standardised", "1000 energy")
"""The first of these measures that exists selects settings; for features of images, the first
measure does. W2 of a finite sample depends mostly on how many points each part has by chance."""
SECTIONS = (*OF_PHASES, "optim", "sinkhorn", "flow", "pool")
"""Sections whose settings can be searched, because methods may differ in them."""
TERMS = ("iterations", "batch_size", "method", "source")
"""Settings of a phase that must be equal for all methods, or that define the method."""


class Choice(NamedTuple):
    """Settings of a method that the search tries."""

    settings: Layer
    """Settings by key. A setting of ``optim`` is listed for each phase of the method."""
    title: str = ""
    """Text such as ``lr 0.003, peer.sigma 0``, with the names of ``compare.tune``."""
    trained: str = ""
    """The part of the title that training depends on."""


AS_GIVEN = Choice({})
"""The choice of a method that is not searched."""


def choices_of(config: Config) -> list[Choice]:
    """Return each combination of the values in ``compare.tune`` for the settings that a method
    uses; one empty combination if it uses none. Raise UserError if a key or a value is wrong."""
    grid = []
    keys_of = {name: name if name in KEYS else f"optim.{name}" for name in config.compare.tune}
    # settings of optim first, so that those of single phases override them
    for name, key in sorted(keys_of.items(), key=lambda item: not item[1].startswith("optim.")):
        if key not in KEYS:
            refuse_unknown(name, KEYS)
        section, _, last = key.rpartition(".")
        is_term = last in TERMS and section in (*OF_PHASES, "optim")
        if key != "sampling.spacing" and (section not in SECTIONS or is_term or KEYS[key].is_free):
            raise wrong_setting(
                "compare.tune",
                name,
                "must be sampling.spacing, or a setting of "
                f"{', '.join(SECTIONS)} that changes results, but none of {', '.join(TERMS)}",
            )
        typed = [
            read_value(f"compare.tune.{name}", KEYS[key].kind, value)
            for value in config.compare.tune[name]
        ]
        if len({*map(str, typed)}) < max(2, len(typed)):
            raise wrong_setting("compare.tune", name, "must have two different values or more")
        owners = config.phases if section == "optim" else [section]
        keys = [f"{owner}.{last}" for owner in owners]
        grid.append([(f"{name} {format_value(it)}", dict.fromkeys(keys, it)) for it in typed])
    found = {}
    for combination in product(*grid):
        whole = {key: value for _, layer in combination for key, value in layer.items()}
        tried = change(config, whole)
        used = [
            part for part in combination if not all(find_obstacle(tried, key) for key in part[1])
        ]
        settings = {key: value for _, layer in used for key, value in layer.items()}
        texts = [text for text, _ in used]
        trained = [text for text in texts if not text.startswith("sampling.")]
        found[", ".join(texts)] = Choice(settings, ", ".join(texts), ", ".join(trained))
    return [*found.values()]


def selecting_measure(row: Row) -> str:
    """Return the key of the measure that selects settings. Lower values are better."""
    return next(key for key in (*SELECTING, *row.values) if key in row.values)


def ranking(rows: Iterable[Row]) -> dict[tuple[str, str], list[str]]:
    """Return the tried combinations by (target, method), from the best to the worst mean of the
    selecting measure. ``rows``: rows of the search, whose methods are ``METHOD: SETTINGS``."""
    losses = defaultdict(list)
    for row in rows:
        losses[row.target, row.method].append(row.values[selecting_measure(row)])
    ranked = defaultdict(list)
    for target, label in sorted(losses, key=lambda place: mean(losses[place])):
        method, _, settings = label.partition(": ")
        ranked[target, method].append(settings)
    return ranked
