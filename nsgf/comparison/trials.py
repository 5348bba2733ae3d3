"""Trials of a comparison, one for each method, target and seed, with configuration and sampler.

Equal terms: every method has the same data, network, batch size and total number of updates. A
method's networks share its updates in proportion to their iterations. 2-RF is an exception: it
trains 1-RF, then adds the same number of updates, unless ``compare.updates`` is set.
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

from nsgf.comparison import COMPARISON_FILE
from nsgf.comparison.tuning import AS_GIVEN, SEED_OFFSET, Choice, choices_of
from nsgf.config.files import method_layers, method_title, read_recipe, stored_facts
from nsgf.config.layers import Layer, build, fixed_values, sections_of, shorter_warmups
from nsgf.config.schema import (
    SOURCE_FILE,
    Config,
    DataConfig,
    EvaluationConfig,
    FlowConfig,
    PhaseName,
    SamplingConfig,
    edition_of,
)
from nsgf.config.values import dump_yaml, format_value
from nsgf.data import DATA_SETS, STANDARD, Target
from nsgf.experiment import Experiment
from nsgf.method import Observer
from nsgf.metrics.features import SIDE
from nsgf.run.folder import RunFolder, folder_stem
from nsgf.sampling.sampler import FlowSampler, Leg, Samples
from nsgf.settings.checks import check
from nsgf.sinkhorn.base import Array, to_tensor
from nsgf.system.errors import UserError, one_line, suggest, wrong_setting
from nsgf.system.files import Plain

FLOOR = "floor"
NOISE_ROW = "pure noise"
SHARED = "rf"
"""FLOOR and NOISE_ROW stand for floors and noise in the column of methods. SHARED is the name of
the run folder that rectified flows share."""
NAME = re.compile(rf"(?!({FLOOR}|{NOISE_ROW}|{SHARED})$)[\w .,()=+-]{{1,100}}")
"""Matches the allowed names of methods, which are valid as names of folders and in tables."""
NAME_RULE = (
    f"1 to 100 letters, digits, spaces and .,()=+-, but not {FLOOR}, {NOISE_ROW} or {SHARED}"
)
MEASURE_FORMAT = 5
"""Version of the measures. Increase it when the computation of a measure changes."""
EQUAL_TERMS = ("seed", "data", "model", "evaluation", "compare.tune", "compare.tune_nfe")
"""Sections and settings that must agree for all methods."""

DrawSamples = Callable[..., Array]
"""(noise, nfe) or, with classes, (noise, nfe, labels) -> samples in the units of the data. Noise
and samples are (B, *shape), labels int64 (B,)."""


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison, and of each method that it trains."""

    config: Config
    """Settings of the experiment, with its method."""
    methods: Mapping[str, Config]
    """Settings of each method by name, with equal numbers of updates."""
    functions: Mapping[str, DrawSamples] = field(default_factory=dict)
    """A caller's functions by name. They are measured but not trained."""
    chosen: Mapping[tuple[str, str], Choice] = field(default_factory=dict)
    """Settings that the search of ``compare.tune`` selected, by target and method."""

    @classmethod
    def of(
        cls, config: Config, methods: Sequence[Config], fixed: Collection[str] = ()
    ) -> "Comparison":
        """Return the comparison of ``methods``, with numbers of updates set for each method.
        Warm-ups change in proportion to the updates. Warm-ups in the settings ``fixed`` do not
        change.

        Raises:
            UserError: two methods have the same name or title, a name is not allowed, methods
                differ in data, networks or evaluation, or a method has too few updates for its
                networks.
        """
        _check_equal_terms(methods)
        trained = {}
        for method, total in zip(
            methods,
            _total_updates(config.compare.updates, sum(config.updates), len(methods)),
            strict=True,
        ):
            trained[method.method] = _with_updates(method, total, fixed)
        _check_shared_phases(trained.values())
        return cls(config, trained)

    @classmethod
    def stored(cls, folder: Path) -> "Comparison":
        """Return the comparison that wrote the table in a folder. Raise UserError if its settings
        cannot be read."""
        stored = read_recipe(folder / COMPARISON_FILE)
        names = stored.settings.get("compare.methods")
        if not names:
            raise wrong_setting("compare", folder, f"its {COMPARISON_FILE} has no methods")
        layers = [method_layers(stored, name) for name in names]
        facts = stored_facts(folder)
        methods = [build({**method, **settings, **facts}) for method, settings in layers]
        return cls(methods[0], {method.method: method for method in methods})

    @property
    def folder(self) -> Path:
        """Folder of the comparison. A smoke comparison has a separate folder."""
        config = self.config
        return config.out_path / f"compare-{folder_stem(config.exp, config.smoke)}"

    @cached_property
    def settings_text(self) -> str:
        """The comparison as an experiment's file, with all settings of each method in a section."""
        settings = sections_of(self.config)
        del settings["phases"]  # each method has different phases
        settings["compare"]["methods"] = [*self.methods]
        settings["methods"] = {name: sections_of(method) for name, method in self.methods.items()}
        return dump_yaml(settings)

    @cached_property
    def trials(self) -> list["Trial"]:
        """All trials of trained methods, one seed after the other."""
        return self.trials_of(self.methods)

    @cached_property
    def tuning_trials(self) -> list["Trial"]:
        """The trials of the search: each combination of settings for each method and target. A
        method with a single combination needs no search."""
        seed = self.config.seed + SEED_OFFSET
        trials = []
        for trial in self.trials_of(self.methods, [seed]):
            choices = choices_of(self.methods[trial.method])
            if len(choices) > 1 and trial.nfe:
                trials += [replace(trial, choice=choice, is_tuning=True) for choice in choices]
        return trials

    def trials_of(
        self, methods: Iterable[str], seeds: Iterable[int] | None = None
    ) -> list["Trial"]:
        """Return a trial for each method, target and seed (None: the seeds of the tables). For a
        caller's function, the seed determines the noise."""
        data = self.config.data
        compare = self.config.compare
        has_one_name = data.source in (STANDARD, SOURCE_FILE)
        target: Any = data.name if has_one_name else f"{data.source}_{data.name}"
        seeds = seeds or range(self.config.seed, self.config.seed + compare.seeds)
        return [
            Trial(self, target, method, seed, self.chosen.get((target, method), AS_GIVEN))
            for seed, target, method in product(seeds, compare.targets or [target], methods)
        ]


@dataclass(frozen=True, eq=False)
class Trial:
    """One training run of a comparison, or a caller's function for one seed."""

    comparison: Comparison
    target: str
    """Target, such as ``moons``, or ``8gaussians_moons`` for moons with the source 8gaussians."""
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
    def _recipe(self) -> Experiment:
        """Recipe of the method with the chosen settings, for the first target of the comparison."""
        config = self.comparison.methods.get(self.method, self.comparison.config)
        return Experiment(config).change(self.choice.settings)

    @cached_property
    def nfe(self) -> list[int]:
        """Values of ``compare.nfe`` that are possible for the trial. A trial of the search has only
        one value: the largest possible value up to ``compare.tune_nfe``, or else the smallest
        possible value."""
        compare = self.comparison.config.compare
        if not self.is_trained:
            return compare.nfe
        recipe = self._recipe
        least, most = recipe.method.possible_calls(recipe.config.sampling)
        if not self.is_tuning:
            return [nfe for nfe in compare.nfe if least <= nfe <= most]
        limit = compare.tune_nfe or max(compare.nfe)
        possible = [nfe for nfe in (limit, *compare.nfe) if least <= nfe <= most]
        few = [nfe for nfe in possible if nfe <= limit]
        return [max(few)] if few else sorted(possible)[:1]

    @cached_property
    def run(self) -> RunFolder:
        """The run folder of the trial. 1-RF and 2-RF share a folder if their numbers of updates are
        equal, because 2-RF continues after 1-RF."""
        name = SHARED if _shares_training(self._recipe.config) else self.method
        if self.is_tuning:  # trials with equal training share a folder
            name = f"{name}, {self.choice.trained}"
        return RunFolder(self.comparison.folder / self.target / f"{name}-seed{self.seed}")

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, with the precision that ``auto`` selects. Raise UserError if its settings
        are not valid for this target."""
        source, name = split_target(self.target)
        layer: Layer = {"seed": self.seed, "data.name": name, "train.preview": False}
        if self._recipe.config.data.source != SOURCE_FILE:
            layer["data.source"] = source
        experiment = self._recipe.change(layer)
        experiment = experiment.change({"train.precision": experiment.precision})
        check(experiment)
        return experiment

    def sampler(self, nfe: int) -> FlowSampler:
        """Return a sampler with ``nfe`` calls of the trained networks, or of the function."""
        if draw := self.comparison.functions.get(self.method):
            config = self.experiment.config
            target = self.experiment.target
            leg = FunctionLeg(self.method, draw, nfe, target, config.sampling, config.flow)
            leg.takes_units = config.data.source == SOURCE_FILE
            return FlowSampler([leg], target)
        return self.experiment.limit_calls(nfe).load_sampler(self.run)[0]

    @property
    def measures(self) -> Path:
        """File of the trial's measures. 1-RF and 2-RF share a file, and so do all functions of a
        target."""
        if not self.is_trained:
            return self.comparison.folder / self.target / "functions.jsonl"
        return self.run.path / "measures.jsonl"

    @cached_property
    def keys(self) -> dict[tuple[int, int], str]:
        """Keys of the trial's measures, by (NFE, draw). A key contains all settings that determine
        a measure. Settings of training are left out, because they are the same for the whole
        folder."""
        config = self.comparison.config
        keys = {}
        for nfe in self.nfe:
            settings = {"method": self.method, "nfe": nfe, "seed": self.seed}
            settings |= edition_key(self.target)
            if self.is_trained:
                trained = self.experiment.limit_calls(nfe).config
                settings["updates"] = trained.updates
                settings["precision"] = trained.train.precision
                sampling = asdict(trained.sampling)
                for unused in ("num_samples", "label", "guidance"):
                    del sampling[unused]
                if sampling["spacing"] == 1:
                    del sampling["spacing"]  # earlier versions did not store this key
                settings["sampling"] = sampling
            for draw in range(config.compare.draws):
                keys[nfe, draw] = measure_key(config.evaluation, config.data, draw=draw, **settings)
        return keys


def edition_key(target: str) -> Plain:
    """Return the part of a measure's key that names the edition of a target. The part is empty
    unless the distribution of the target has changed."""
    edition = edition_of(*split_target(target))
    return {"edition": edition} if edition > 1 else {}  # earlier versions did not store this key


def split_target(target: str) -> tuple[str, str]:
    """Return ``data.source`` and ``data.name`` of a target such as ``8gaussians_moons``."""
    source, _, name = target.rpartition("_")
    if target in DATA_SETS or not source:  # the name of a set may contain an underscore
        return STANDARD, target
    return source, name


def measure_key(evaluation: EvaluationConfig, data: DataConfig, **settings: Any) -> str:
    """Return the key of a measure: the numbers of samples, and the settings of the measure."""
    counts = {
        "num_samples": evaluation.num_samples,
        "w2_samples": evaluation.w2_samples,
    }
    if facts := data.found:
        settings["data"] = facts.checksum
        if facts.source:
            settings["source"] = facts.source.checksum
        if max(facts.shape[1:], default=0) > SIDE:
            settings["is_antialiased"] = True  # earlier versions resized without antialiasing
    if data.held_out:
        settings["held_out"] = data.held_out
    if "updates" not in settings:  # floors and functions have no checkpoint that describes the data
        settings |= {"fake": data.fake, "size": data.size}
    return json.dumps({"format": MEASURE_FORMAT, **counts, **settings}, sort_keys=True)


def _check_equal_terms(methods: Sequence[Config]) -> None:
    """Raise UserError if two methods have the same name or title, if a name is not allowed, or if
    methods differ in settings that must be equal."""
    names = [method.method for method in methods]
    if len(set(map(method_title, names))) < len(names):
        raise wrong_setting("compare.methods", names, "names must differ; rename a file")
    terms = fixed_values(methods[0], EQUAL_TERMS)
    for method in methods:
        if not NAME.fullmatch(method.method):
            raise wrong_setting(
                "compare.methods", repr(method.method), f"must be {NAME_RULE}; rename the file"
            )
        for key, value in fixed_values(method, EQUAL_TERMS).items():
            if value != terms[key]:
                raise wrong_setting(
                    key,
                    format_value(value),
                    f"must be {format_value(terms[key])} as for "
                    f"{names[0]}, on equal terms (method {method.method})",
                )


def _total_updates(updates: list[int], default: int, count: int) -> list[int]:
    """Return the number of updates of each of ``count`` methods, summed over all networks. The
    numbers come from ``compare.updates``. If this setting is empty, each number is ``default``.
    Raise UserError for a wrong number of values."""
    if len(updates) not in (0, 1, count):
        raise wrong_setting("compare.updates", updates, "must be one number, or one per method")
    if len(updates) < 2:
        return (updates or [default]) * count
    return updates


def _with_updates(method: Config, total: int, fixed: Collection[str]) -> Config:
    """Return the settings of a method with ``total`` updates. The updates are divided among the
    method's networks in proportion to their iterations. Warm-ups change in proportion to the
    updates. Warm-ups in the settings ``fixed`` do not change."""
    experiment = Experiment(method)
    if not experiment.methods:  # only NSGF++ accepts sampling.tau
        experiment = experiment.change({"sampling.tau": None})
    fitted = experiment.change(_share_updates(experiment, total))
    return fitted.change(shorter_warmups(experiment.config, fitted.config, fixed)).config


def _check_shared_phases(methods: Iterable[Config]) -> None:
    """Raise UserError if methods share the training of a phase, but differ in its settings."""
    first: dict[PhaseName, Config] = {}
    for method in filter(_shares_training, methods):
        for phase in method.phases:
            sharing = first.setdefault(phase, method)
            if method.of_phase(phase) != sharing.of_phase(phase):
                raise wrong_setting(
                    "compare.methods",
                    [sharing.method, method.method],
                    "share "
                    f"phase {phase}, so its settings must be equal; or use "
                    f"{suggest('compare.updates', 'N')}",
                )


def _shares_training(config: Config) -> bool:
    """Whether a method is a rectified flow that shares its training with all rectified flows."""
    compare = config.compare
    is_rectified = "peer" in config.phases and config.peer.method == "rf"
    return is_rectified and not (compare.updates or compare.tune)


def _share_updates(experiment: Experiment, total: int) -> Layer:
    """Return the number of updates of each phase, in proportion to its iterations. The sum of the
    numbers is ``total``. For 2-RF, the updates after 1-RF are additional, unless
    ``compare.updates`` is set. Raise UserError if a phase would have no update."""
    config = experiment.config
    counts = config.updates
    if experiment.method.adds_updates and not config.compare.updates:
        shares = [total, *counts[1:]]
    else:
        shares = [round(count * total / sum(counts)) for count in counts[:-1]]
        shares.append(total - sum(shares))
    if min(shares) < 1:
        raise UserError(f"compare.updates: {total} are too few for the networks of {config.method}")
    phases = zip(config.phases, shares, strict=True)
    return {f"{phase}.iterations": share for phase, share in phases}


class FunctionLeg(Leg):
    """A caller's function that makes samples from noise. The number of calls that the function
    makes is not checked."""

    takes_units = False
    """Whether the function takes samples of a source file, in the units of the data."""

    def __init__(
        self,
        name: str,
        draw: DrawSamples,
        nfe: int,
        target: Target,
        sampling: SamplingConfig,
        flow: FlowConfig,
    ) -> None:
        super().__init__(torch.nn.Identity(), sampling, flow, target.classes)
        self._target = target
        self._name = f'methods["{name}"]'
        self._draw = draw
        self._nfe = nfe

    def carry(self, samples: Samples, observe: Observer) -> None:
        noise = samples.x
        labels = [] if samples.labels is None else [samples.labels]
        starts = self._target.in_units(noise).to(noise) if self.takes_units else noise
        try:
            drawn = self._draw(starts.clone(), self._nfe, *labels)
        except Exception as error:
            raise UserError(f"{self._name}: {type(error).__name__}: {one_line(error)}") from error
        x = to_tensor(self._name, drawn)
        if x.shape != noise.shape or not x.isfinite().all():
            raise UserError(
                f"{self._name}: returned {tuple(x.shape)} at nfe = {self._nfe}: must be finite "
                f"numbers in the noise's shape {tuple(noise.shape)}"
            )
        samples.x = self._target.from_units(x).to(noise)
        self.evaluations += self._nfe * len(x)
        if observe:
            observe(samples.x)
