"""Trials of a comparison: one for each method, target and seed, its configuration and sampler.

Equal terms: every method has the same data, network, batch size and total number of updates, which
are divided among its networks in proportion to their iterations. The exception is 2-RF: it trains
as many updates again after 1-RF, unless ``compare.updates`` is set.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsgf.checks import check
from nsgf.config.schema import Config, PhaseName
from nsgf.config.settings import fixed_values
from nsgf.config.values import dump_yaml, format_value
from nsgf.data import DATA_SETS, NOISE
from nsgf.phases import find_way, find_ways, load_sampler
from nsgf.run.folder import RunFolder
from nsgf.sampling.sampler import FlowSampler, Leg, Samples
from nsgf.sampling.solvers import Observer
from nsgf.sinkhorn.base import Array, to_tensor
from nsgf.system.errors import UserError, name_setting, one_line, suggest
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

FLOOR, NOISE_ROW, SHARED = "floor", "pure noise", "rf"
"""Stand for the method in rows of floors and of noise, and in the folder of rectified flows."""
NAME = re.compile(rf"(?!({FLOOR}|{NOISE_ROW}|{SHARED})$)[\w .,()=+-]{{1,100}}")
"""Matches the names that a method may have: folders and tables can hold them."""
NAMES = f"1 to 100 letters, digits, spaces and .,()=+-, but not {FLOOR}, {NOISE_ROW} or {SHARED}"
EQUAL = ("seed", "data", "model", "evaluation")
"""Sections that must agree for all methods."""

Draw = Callable[[Tensor, int], Array]
"""(noise, nfe) -> samples, both (B, *shape)."""


def method_title(method: str) -> str:
    """Return the title of a method; a user's own method has its own name."""
    return TITLES.get(method, method)


class Trial(NamedTuple):
    """One training run of the comparison."""

    target: str
    """``moons``, or ``8gaussians_moons`` for moons from another source than noise."""
    method: str
    seed: int


@dataclass(frozen=True)
class Comparison:
    """Settings of a comparison, and of each method that it trains."""

    config: Config
    """The experiment with its own method."""
    methods: Mapping[str, Config]
    """Settings of each method, by name, with equal numbers of updates."""
    functions: Mapping[str, Draw] = field(default_factory=dict)
    """A caller's own methods, by name. They are only measured."""
    _configs: dict[Trial, Config] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Configurations of trials that were computed before."""

    @classmethod
    def of(cls, config: Config, methods: tuple[Config, ...]) -> "Comparison":
        """Return the comparison of these methods with the updates that each trains.

        Raises:
            UserError: two methods have one name or title, a name is not allowed, methods differ in
                data, networks or evaluation, or one has too few updates for its networks.
        """
        _check_equal_terms(methods)
        given = config.compare.updates
        if len(given) not in (0, 1, len(methods)):
            raise UserError(f"compare.updates = {given}: must be one number, or one per method")
        totals = given if len(given) > 1 else (given or [count_updates(config)]) * len(methods)
        pairs = zip(methods, totals, strict=True)
        trained = {own.method: share_updates(own, total) for own, total in pairs}
        _check_shared_training(list(filter(_shares_training, trained.values())))
        return cls(config, trained)

    @property
    def folder(self) -> Path:
        """Folder of the comparison; a smoke comparison has a different folder."""
        name = f"compare-{self.config.exp}{'-smoke' * self.config.smoke}"
        return Path(self.config.out_dir).expanduser() / name

    @cached_property
    def settings_text(self) -> str:
        """The comparison as an experiment's file, with a section of all settings per method."""
        settings, own = asdict(self.config), self.config.compare
        del settings["phases"]  # each method has its own
        settings["compare"] = asdict(replace(own, methods=list(self.methods)))
        settings["methods"] = {name: asdict(own) for name, own in self.methods.items()}
        return dump_yaml(settings)

    def trials(self) -> Iterator[Trial]:
        """Yield all trials that are trained, one seed after the other."""
        data, compare = self.config.data, self.config.compare
        own: Any = data.name if data.source == NOISE else f"{data.source}_{data.name}"
        seeds = range(self.config.seed, self.config.seed + compare.seeds)
        for seed, target, method in product(seeds, compare.targets or [own], self.methods):
            yield Trial(target, method, seed)

    def trial_nfe(self, trial: Trial) -> list[int]:
        """Return the values of ``compare.nfe`` with which a trial can be sampled."""
        config = self.trial_config(trial)
        if trial.method in self.functions:
            return config.compare.nfe
        least, most = find_way(config).possible_calls(config)
        return [nfe for nfe in config.compare.nfe if least <= nfe <= most]

    def trial_folder(self, trial: Trial) -> Path:
        """Return the trial's run folder. Rectified flows share one: 2-RF continues after 1-RF,
        unless each has updates of its own."""
        name = SHARED if _shares_training(self.methods[trial.method]) else trial.method
        return self.folder / trial.target / f"{name}-seed{trial.seed}"

    def trial_config(self, trial: Trial) -> Config:
        """Return the configuration that trains a trial, with the precision that ``auto`` selects.
        Raise UserError if it is not valid for this target."""
        if trial not in self._configs:
            self._configs[trial] = self._configure(trial)
        return self._configs[trial]

    def _configure(self, trial: Trial) -> Config:
        config = self.methods.get(trial.method, self.config)
        source, _, name = trial.target.rpartition("_")
        if trial.target in DATA_SETS:  # whose name may have an underscore
            source, name = NOISE, trial.target
        precision = pick_precision(config.train.precision, pick_device(config.device))
        tau = config.sampling.tau if find_ways(config) else None
        data: dict[str, Any] = {"name": name, "source": source or NOISE}
        own = replace(
            config,
            seed=trial.seed,
            data=replace(config.data, **data),
            train=replace(config.train, preview=False, precision=precision),
            sampling=replace(config.sampling, tau=tau),
        )
        check(own)
        return own


def _check_equal_terms(methods: Sequence[Config]) -> None:
    """Raise UserError if names are equal or not allowed, or sections in EQUAL differ."""
    names = [own.method for own in methods]
    if len(set(map(method_title, names))) < len(names):
        shown = name_setting("compare.methods", names)
        raise UserError(f"{shown}: names must differ; rename a file")
    terms = fixed_values(methods[0], EQUAL)
    for own in methods:
        if not NAME.fullmatch(own.method):
            shown = name_setting("compare.methods", repr(own.method))
            raise UserError(f"{shown}: must be {NAMES}; rename the file")
        for key, value in fixed_values(own, EQUAL).items():
            if value != terms[key]:
                must = f"must be {format_value(terms[key])} as for {names[0]}, on equal terms"
                raise UserError(f"{key} = {format_value(value)}: {must} (method {own.method})")


def _shares_training(config: Config) -> bool:
    """Whether a method is a rectified flow that is trained once for all such methods."""
    return find_way(config).shares_training and not config.compare.updates


def _check_shared_training(methods: Sequence[Config]) -> None:
    """Raise UserError if methods that share the training of a phase differ in its settings."""
    first: dict[PhaseName, Config] = {}
    for own in methods:
        for phase in own.phases:
            other = first.setdefault(phase, own)
            if getattr(own, phase) != getattr(other, phase):
                both = name_setting("compare.methods", [other.method, own.method])
                must = f"share phase {phase}, so its settings must be equal"
                raise UserError(f"{both}: {must}; or use {suggest('compare.updates', '[N]')}")


def share_updates(config: Config, total: int) -> Config:
    """Return the settings with ``total`` updates, shared among the networks in proportion to their
    iterations. Without ``compare.updates`` 2-RF trains ``total`` updates of 1-RF, then its own.
    Raise UserError if there are not enough for all networks."""
    sections: dict[str, Any] = {phase: getattr(config, phase) for phase in config.phases}
    counts = [section.iterations for section in sections.values()]
    if find_way(config).adds_updates and not config.compare.updates:
        shares = [total, *counts[1:]]
    else:
        shares = [round(count * total / max(1, sum(counts))) for count in counts[:-1]]
        shares.append(total - sum(shares))
    if len(shares) > 1 and min(shares) < 1:
        raise UserError(f"compare.updates: {total} are too few for the networks of {config.method}")
    for phase, count in zip(config.phases, shares, strict=True):
        sections[phase] = replace(sections[phase], iterations=count)
    return replace(config, **sections)


def count_updates(config: Config) -> int:
    """Return the number of optimizer updates of all phases."""
    return sum(getattr(config, phase).iterations for phase in config.phases)


def at_nfe(config: Config, nfe: int) -> Config:
    """Return a trial's configuration with ``nfe`` network calls for each sample
    (:meth:`nsgf.phases.Way.limit_calls`)."""
    return find_way(config).limit_calls(config, nfe)


def trial_sampler(
    comparison: Comparison, trial: Trial, nfe: int, device: torch.device
) -> FlowSampler:
    """Return the sampler of a trained trial, or of a function, with ``nfe`` network calls."""
    config = comparison.trial_config(trial)
    if draw := comparison.functions.get(trial.method):
        return FlowSampler([FunctionLeg(config, trial.method, draw, nfe)])
    run = RunFolder(comparison.trial_folder(trial))
    return load_sampler(at_nfe(config, nfe), run, device)[0]


class FunctionLeg(Leg):
    """A caller's function that makes samples from noise; its ``nfe`` calls are not checked."""

    def __init__(self, config: Config, name: str, draw: Draw, nfe: int) -> None:
        super().__init__(config, torch.nn.Identity())
        self._name, self._draw, self._nfe = f'methods["{name}"]', draw, nfe

    def carry(self, samples: Samples, observe: Observer | None) -> None:
        noise = samples.x
        try:
            drawn = self._draw(noise.clone(), self._nfe)
        except Exception as error:
            raise UserError(f"{self._name}: {type(error).__name__}: {one_line(error)}") from error
        x = to_tensor(self._name, drawn)
        if x.shape != noise.shape or not x.isfinite().all():
            raise UserError(
                f"{self._name}: returned {tuple(x.shape)} at nfe = {self._nfe}: must be finite "
                f"numbers in the noise's shape {tuple(noise.shape)}"
            )
        samples.x = x.to(noise)
        self.evaluations += self._nfe * len(x)
        if observe:
            observe(samples.x)
