"""Trials of a comparison, one for each method, target and seed, with configuration and sampler.

Equal terms: every method has the same data, network, batch size and total number of updates. A
method's networks share its updates in proportion to their iterations. 2-RF is an exception: after
1-RF it trains as many updates again, unless ``compare.updates`` is set.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch

from nsgf.checks import check
from nsgf.comparison import SETTINGS
from nsgf.comparison.tuning import AS_GIVEN, SEED_OFFSET, Choice, choices_of
from nsgf.config.files import method_layers, read_experiment, stored_facts
from nsgf.config.schema import Config, PhaseName, edition_of
from nsgf.config.settings import build, change, fixed_values, sections_of, shorter_warmups
from nsgf.config.values import dump_yaml, format_value
from nsgf.data import DATA_SETS, NOISE, target_set
from nsgf.method import Observer
from nsgf.metrics.features import SIDE
from nsgf.phases import find_way, find_ways, load_sampler
from nsgf.run.folder import RunFolder, folder_stem
from nsgf.sampling.sampler import FlowSampler, Leg, Samples
from nsgf.sinkhorn.base import Array, to_tensor
from nsgf.system.errors import UserError, one_line, suggest, wrong_setting
from nsgf.system.files import Plain
from nsgf.system.hardware import pick_device
from nsgf.training.precision import pick_precision

TITLES = {
    "nsgf": "NSGF",
    "nsgf++": "NSGF++",
    "nsgf++h": "NSGF++h",
    "icfm": "I-CFM",
    "otcfm": "OT-CFM",
    "otcfm+": "OT-CFM+",
    "sbcfm": "SB-CFM",
    "1rf": "1-RF",
    "2rf": "2-RF",
    "onecall": "One call",
    "onecall+": "One call+",
    "affine": "Affine",
}
"""Titles of the shipped methods in tables and pictures, in the order of their colours."""

FLOOR = "floor"
NOISE_ROW = "pure noise"
SHARED = "rf"
"""Names in place of a method, in rows of floors and noise, and in the folder of rectified flows."""
NAME = re.compile(rf"(?!({FLOOR}|{NOISE_ROW}|{SHARED})$)[\w .,()=+-]{{1,100}}")
"""Matches allowed names of methods, which are valid in folders and tables."""
NAMES = f"1 to 100 letters, digits, spaces and .,()=+-, but not {FLOOR}, {NOISE_ROW} or {SHARED}"
FORMAT = 5
"""Version of the measures. Increase it when the computation of a measure changes."""
EQUAL = ("seed", "data", "model", "evaluation", "compare.tune", "compare.tune_nfe")
"""Sections and settings that must agree for all methods."""

Draw = Callable[..., Array]
"""(noise, nfe) or, with classes, (noise, nfe, labels) -> samples in the units of the data. Noise
and samples are (B, *shape), labels int64 (B,)."""


def method_title(method: str) -> str:
    """Return the title of a method, or the name of a user's own. ``: SETTINGS`` may follow."""
    name, colon, settings = method.partition(":")
    return TITLES.get(name, name) + colon + settings


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison, and of each method that it trains."""

    config: Config
    """Settings of the experiment, with its own method."""
    methods: Mapping[str, Config]
    """Settings of each method by name, with equal numbers of updates."""
    functions: Mapping[str, Draw] = field(default_factory=dict)
    """A caller's own methods by name. They are measured but not trained."""
    chosen: Mapping[tuple[str, str], Choice] = field(default_factory=dict)
    """Settings that the search of ``compare.tune`` selected, by target and method."""

    @classmethod
    def of(
        cls, config: Config, methods: Sequence[Config], fixed: Collection[str] = ()
    ) -> "Comparison":
        """Return the comparison of these methods, with the number of updates of each, and warm-ups
        in proportion unless they are ``fixed`` settings.

        Raises:
            UserError: two methods have one name or title, a name is not allowed, methods differ in
                data, networks or evaluation, or one has too few updates for its networks.
        """
        # equal terms
        names = [own.method for own in methods]
        if len(set(map(method_title, names))) < len(names):
            raise wrong_setting("compare.methods", names, "names must differ; rename a file")
        terms = fixed_values(methods[0], EQUAL)
        for own in methods:
            if not NAME.fullmatch(own.method):
                raise wrong_setting(
                    "compare.methods", repr(own.method), f"must be {NAMES}; rename the file"
                )
            for key, value in fixed_values(own, EQUAL).items():
                if value != terms[key]:
                    raise wrong_setting(
                        key,
                        format_value(value),
                        f"must be {format_value(terms[key])} as for "
                        f"{names[0]}, on equal terms (method {own.method})",
                    )
        # updates of all networks together, divided in proportion to their iterations
        given = config.compare.updates
        if len(given) not in (0, 1, len(methods)):
            raise wrong_setting("compare.updates", given, "must be one number, or one per method")
        totals = given if len(given) > 1 else (given or [count_updates(config)]) * len(methods)
        trained = {}
        for own, total in zip(methods, totals, strict=True):
            if not find_ways(own):  # other methods have no tau
                own = change(own, {"sampling.tau": None})
            counts = updates_of(own)
            if find_way(own).adds_updates and not own.compare.updates:  # 2-RF: its own, after 1-RF
                shares = [total, *counts[1:]]
            else:
                shares = [round(count * total / sum(counts)) for count in counts[:-1]]
                shares.append(total - sum(shares))
            if min(shares) < 1:
                raise UserError(
                    f"compare.updates: {total} are too few for the networks of {own.method}"
                )
            layer = {
                f"{phase}.iterations": share
                for phase, share in zip(own.phases, shares, strict=True)
            }
            shared = change(own, layer)
            trained[own.method] = change(shared, shorter_warmups(own, shared, fixed))
        # phases that are trained once
        first: dict[PhaseName, Config] = {}
        for own in filter(_shares_training, trained.values()):
            for phase in own.phases:
                other = first.setdefault(phase, own)
                if getattr(own, phase) != getattr(other, phase):
                    raise wrong_setting(
                        "compare.methods",
                        [other.method, own.method],
                        "share "
                        f"phase {phase}, so its settings must be equal; or use "
                        f"{suggest('compare.updates', 'N')}",
                    )
        return cls(config, trained)

    @classmethod
    def stored(cls, folder: Path) -> "Comparison":
        """Return the comparison that wrote the table in a folder. Raise UserError if its settings
        cannot be read."""
        stored = read_experiment(folder / SETTINGS)
        names = stored.settings.get("compare.methods")
        if not names:
            raise wrong_setting("compare", folder, f"its {SETTINGS} has no methods")
        layers = [method_layers(stored, name) for name in names]
        facts = stored_facts(folder)
        methods = [build({**below, **own, **facts}) for below, own in layers]
        return cls(methods[0], {method.method: method for method in methods})

    @property
    def folder(self) -> Path:
        """Folder of the comparison. A smoke comparison has a different folder."""
        config = self.config
        return config.out_path / f"compare-{folder_stem(config.exp, config.smoke)}"

    @cached_property
    def settings_text(self) -> str:
        """The comparison as an experiment's file, with all settings of each method in a section."""
        settings = sections_of(self.config)
        del settings["phases"]  # each method has its own
        settings["compare"]["methods"] = [*self.methods]
        settings["methods"] = {name: sections_of(own) for name, own in self.methods.items()}
        return dump_yaml(settings)

    @cached_property
    def trials(self) -> list["Trial"]:
        """All trials with training, one seed after the other."""
        return self.trials_of(self.methods)

    @cached_property
    def tuning_trials(self) -> list["Trial"]:
        """The trials of the search: each combination of settings for each method and target. A
        method with a single combination needs no search."""
        seed = self.config.seed + SEED_OFFSET
        trials = []
        for one in self.trials_of(self.methods, [seed]):
            choices = choices_of(self.methods[one.method])
            if len(choices) > 1 and one.nfe:
                trials += [replace(one, choice=own, is_tuning=True) for own in choices]
        return trials

    def trials_of(
        self, methods: Iterable[str], seeds: Iterable[int] | None = None
    ) -> list["Trial"]:
        """Return a trial for each method, target and seed (None: the seeds of the tables). For a
        caller's function, the seed determines the noise."""
        data = self.config.data
        compare = self.config.compare
        own: Any = data.name if data.source == NOISE else f"{data.source}_{data.name}"
        seeds = seeds or range(self.config.seed, self.config.seed + compare.seeds)
        return [
            Trial(self, target, method, seed, self.chosen.get((target, method), AS_GIVEN))
            for seed, target, method in product(seeds, compare.targets or [own], methods)
        ]


@dataclass(frozen=True, eq=False)
class Trial:
    """One training run of a comparison, or a caller's function for one seed."""

    comparison: Comparison
    target: str
    """Such as ``moons``, or ``8gaussians_moons`` for moons with the source 8gaussians."""
    method: str
    seed: int
    choice: Choice = AS_GIVEN
    """Settings from ``compare.tune``."""
    is_tuning: bool = False
    """Whether the trial belongs to the search, not to a table."""

    @property
    def label(self) -> str:
        """Name of the method; in the search ``METHOD: SETTINGS``."""
        return f"{self.method}: {self.choice.title}" if self.is_tuning else self.method

    @property
    def is_trained(self) -> bool:
        """Whether the method is trained. Otherwise it is a caller's function."""
        return self.method in self.comparison.methods

    @cached_property
    def _settings(self) -> Config:
        own = self.comparison.methods.get(self.method, self.comparison.config)
        return change(own, self.choice.settings)

    @cached_property
    def nfe(self) -> list[int]:
        """Those values of ``compare.nfe`` that are possible for the trial. In the search: only the
        largest possible one up to ``compare.tune_nfe``, or else the smallest."""
        compare = self.comparison.config.compare
        if not self.is_trained:
            return compare.nfe
        least, most = find_way(self._settings).possible_calls(self._settings)
        if not self.is_tuning:
            return [nfe for nfe in compare.nfe if least <= nfe <= most]
        limit = compare.tune_nfe or max(compare.nfe)
        possible = [nfe for nfe in (limit, *compare.nfe) if least <= nfe <= most]
        few = [nfe for nfe in possible if nfe <= limit]
        return [max(few)] if few else sorted(possible)[:1]

    @cached_property
    def run(self) -> RunFolder:
        """The run folder of the trial. Rectified flows share a folder, because 2-RF continues after
        1-RF, unless each has its own number of updates."""
        name = SHARED if _shares_training(self._settings) else self.method
        if self.is_tuning:  # trials that differ only in sampling share a folder
            name = f"{name}, {self.choice.trained}"
        return RunFolder(self.comparison.folder / self.target / f"{name}-seed{self.seed}")

    @cached_property
    def config(self) -> Config:
        """Settings of training, with the precision that ``auto`` selects. Raise UserError if they
        are not valid for this target."""
        source, name = split_target(self.target)
        layer = {
            "seed": self.seed,
            "data.name": name,
            "data.source": source,
            "train.preview": False,
        }
        config = change(self._settings, layer)
        precision = pick_precision(config, pick_device(config.device))
        config = change(config, {"train.precision": precision})
        check(config)
        return config

    def sampler(self, nfe: int, device: torch.device) -> FlowSampler:
        """Return a sampler of the trained networks, or of the function, with ``nfe`` calls."""
        if draw := self.comparison.functions.get(self.method):
            return FlowSampler([FunctionLeg(self.config, self.method, draw, nfe)])
        config = find_way(self.config).limit_calls(self.config, nfe)
        return load_sampler(config, self.run, device)[0]

    @property
    def measures(self) -> Path:
        """File of the trial's measures. 1-RF and 2-RF share one, as do all functions of a
        target."""
        if not self.is_trained:
            return self.comparison.folder / self.target / "functions.jsonl"
        return self.run.path / "measures.jsonl"

    @cached_property
    def keys(self) -> dict[tuple[int, int], str]:
        """Keys of the trial's measures, by (NFE, draw). A key has all settings that determine a
        measure, except settings of training, which are the same for the whole folder."""
        config = self.comparison.config
        keys = {}
        for nfe in self.nfe:
            own = {"method": self.method, "nfe": nfe, "seed": self.seed}
            own |= edition_key(self.target)
            if self.is_trained:
                own["updates"] = updates_of(self.config)
                own["precision"] = self.config.train.precision
                sampling = asdict(find_way(self.config).limit_calls(self.config, nfe).sampling)
                for unused in ("num_samples", "label", "guidance"):
                    del sampling[unused]
                if sampling["spacing"] == 1:
                    del sampling["spacing"]  # rows of earlier versions have none
                own["sampling"] = sampling
            for draw in range(config.compare.draws):
                keys[nfe, draw] = measure_key(config, draw=draw, **own)
        return keys


def edition_key(target: str) -> Plain:
    """Return the part of a measure's key for targets whose distributions have changed."""
    edition = edition_of(*split_target(target))
    return {"edition": edition} if edition > 1 else {}  # rows of earlier versions have none


def split_target(target: str) -> tuple[str, str]:
    """Return ``data.source`` and ``data.name`` of a target such as ``8gaussians_moons``."""
    source, _, name = target.rpartition("_")
    if target in DATA_SETS or not source:  # a name may have an underscore
        return NOISE, target
    return source, name


def measure_key(config: Config, **own: Any) -> str:
    """Return the key of a measure: the numbers of samples, and the settings ``own``."""
    counts = {
        "num_samples": config.evaluation.num_samples,
        "w2_samples": config.evaluation.w2_samples,
    }
    if found := config.data.found:
        own["data"] = found["checksum"]
        if max(found["shape"][1:], default=0) > SIDE:
            own["is_antialiased"] = True  # earlier versions resized without antialiasing
    if config.data.held_out:
        own["held_out"] = config.data.held_out
    if "updates" not in own:  # a floor or a function; checkpoints have the data of trained methods
        own |= {"fake": config.data.fake, "size": config.data.size}
    return json.dumps({"format": FORMAT, **counts, **own}, sort_keys=True)


def _shares_training(config: Config) -> bool:
    """Whether a method is a rectified flow whose training all rectified flows share."""
    compare = config.compare
    is_rectified = "peer" in config.phases and config.peer.method == "rf"
    return is_rectified and not (compare.updates or compare.tune)


def updates_of(config: Config) -> list[int]:
    """Return the number of optimizer updates of each phase."""
    return [getattr(config, phase).iterations for phase in config.phases]


def count_updates(config: Config) -> int:
    """Return the number of optimizer updates of all phases."""
    return sum(updates_of(config))


class FunctionLeg(Leg):
    """A caller's function that makes samples from noise. Its number of calls is not checked."""

    def __init__(self, config: Config, name: str, draw: Draw, nfe: int) -> None:
        super().__init__(config, torch.nn.Identity())
        self._name = f'methods["{name}"]'
        self._draw = draw
        self._nfe = nfe

    def carry(self, samples: Samples, observe: Observer) -> None:
        noise = samples.x
        labels = [] if samples.labels is None else [samples.labels]
        try:
            drawn = self._draw(noise.clone(), self._nfe, *labels)
        except Exception as error:
            raise UserError(f"{self._name}: {type(error).__name__}: {one_line(error)}") from error
        x = to_tensor(self._name, drawn)
        if x.shape != noise.shape or not x.isfinite().all():
            raise UserError(
                f"{self._name}: returned {tuple(x.shape)} at nfe = {self._nfe}: must be finite "
                f"numbers in the noise's shape {tuple(noise.shape)}"
            )
        samples.x = target_set(self.config.data).from_units(x).to(noise)
        self.evaluations += self._nfe * len(x)
        if observe:
            observe(samples.x)
