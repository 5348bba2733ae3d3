"""The search of ``compare.tune``: the settings to try for a method, and their ranking."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from nsgf.comparison import Row
from nsgf.config.files import refuse_unknown
from nsgf.config.layers import KEYS, Layer
from nsgf.config.schema import OF_PHASES, Config, PhaseName
from nsgf.config.values import format_value, read_value
from nsgf.experiment import Experiment
from nsgf.settings.effects import find_obstacle
from nsgf.system.errors import wrong_setting

SEARCH = "search.csv"
"""File in a comparison's folder: all trials of the search."""
SEED_OFFSET = 1000
"""The search uses ``seed + SEED_OFFSET`` as its seed. Tables have at most SEED_OFFSET seeds."""
SELECTING = ("1000 energy_standardised", "1000 energy")
"""Keys of measures. The first of these keys that a comparison has selects the settings. With
features of images, a comparison has none of these keys, and the first measure of a row selects the
settings. W2 is not in the list, because W2 of a finite sample depends mostly on chance: on how many
points fall into each part of the distribution."""
SEARCHED_SECTIONS = (*OF_PHASES, "optim", "sinkhorn", "flow", "pool")
"""Sections whose settings can be searched, because methods may differ in these settings."""
TERMS = ("iterations", "batch_size", "method", "source")
"""Settings of a phase that must be equal for all methods, or that define the method."""


class Choice(NamedTuple):
    """One combination of settings that the search tries for a method."""

    settings: Layer
    """Settings by key. A setting of ``optim`` is listed for each phase of the method."""
    title: str = ""
    """Text such as ``lr 0.003, peer.sigma 0``, with the names of ``compare.tune``."""
    trained: str = ""
    """Part of the title with the settings that affect training."""
    names: tuple[str, ...] = ()
    """Names of the settings in the title."""


AS_GIVEN = Choice({})
"""The choice of a method without a search."""


def choices_of(config: Config) -> list[Choice]:
    """Return each combination of values for the settings in ``compare.tune`` that a method uses. If
    the method uses none of these settings, return one empty combination. Raise UserError if a key
    or a value is wrong."""
    keys_of = {name: name if name in KEYS else f"optim.{name}" for name in config.compare.tune}
    # put settings of optim first, so that settings of single phases override them
    names = sorted(keys_of.items(), key=lambda item: not item[1].startswith("optim."))
    grid = [_values_of(name, key, config.compare.tune[name], config.phases) for name, key in names]
    choices = {}
    for combination in product(*grid):
        experiment = Experiment(config).change(_settings_of(combination))
        used = [
            choice
            for choice in combination
            if not all(find_obstacle(experiment, key) for key in choice.settings)
        ]
        choice = _combine(used)
        choices[choice.title] = choice
    return [*choices.values()]


def _values_of(
    name: str, key: str, values: Sequence[Any], phases: Sequence[PhaseName]
) -> list[Choice]:
    """Return a choice for each of the ``values`` of a setting in ``compare.tune``, for a method
    with these phases. Raise UserError if the setting cannot be searched or a value is wrong.

    ``name``: name in ``compare.tune``; ``key``: key of the setting."""
    if key not in KEYS:
        refuse_unknown(name, KEYS)
    section, _, last = key.rpartition(".")
    is_term = last in TERMS and section in (*OF_PHASES, "optim")
    if key != "sampling.spacing" and (
        section not in SEARCHED_SECTIONS or is_term or KEYS[key].is_free
    ):
        raise wrong_setting(
            "compare.tune",
            name,
            "must be sampling.spacing, or a setting of "
            f"{', '.join(SEARCHED_SECTIONS)} that changes results, but none of "
            f"{', '.join(TERMS)}",
        )
    typed = [read_value(f"compare.tune.{name}", KEYS[key].kind, value) for value in values]
    if len({*map(str, typed)}) < max(2, len(typed)):
        raise wrong_setting("compare.tune", name, "must have two different values or more")
    owners = phases if section == "optim" else [section]
    keys = [f"{owner}.{last}" for owner in owners]
    return [
        Choice(
            settings=dict.fromkeys(keys, value),
            title=f"{name} {format_value(value)}",
            names=(name,),
        )
        for value in typed
    ]


def _combine(choices: Sequence[Choice]) -> Choice:
    """Combine choices of single settings into one choice."""
    trained = [choice for choice in choices if not choice.names[0].startswith("sampling.")]
    return Choice(
        settings=_settings_of(choices),
        title=", ".join(choice.title for choice in choices),
        trained=", ".join(choice.title for choice in trained),
        names=tuple(choice.names[0] for choice in choices),
    )


def _settings_of(choices: Sequence[Choice]) -> Layer:
    """Return the settings of all choices. Later choices override earlier ones."""
    return {key: value for choice in choices for key, value in choice.settings.items()}


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
    for target, label in sorted(losses, key=lambda trial: mean(losses[trial])):
        method, _, settings = label.partition(": ")
        ranked[target, method].append(settings)
    return ranked
