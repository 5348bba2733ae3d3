"""What is compared: one trial for each method, target and seed, and its configuration.

Equal terms: the same data, network, batch size and number of updates ``peer.iterations`` for every
method. NSGF++ shares them among its networks in the proportion of their own settings. Only
2-RF goes beyond, by the ``reflow.iterations`` that it needs after those of 1-RF.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from nsgf.checks import MAX_STEPS_PLUS_PLUS, check
from nsgf.config.schema import PEER_PHASES, PHASES, Config, MethodName, PeerName, PhaseName
from nsgf.data import DATA_SETS, NOISE
from nsgf.phases import sampled_phases
from nsgf.sampling.sampler import EntryTimes, NSGFSteps, StraightFlow
from nsgf.sampling.solvers import steps_within
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from nsgf.training.precision import Precision, pick_precision, sampling_precision


@dataclass(frozen=True)
class Method:
    """How a method is trained."""

    title: str
    phases: tuple[PhaseName, ...]
    peer: PeerName | None = None
    """``peer.method``."""
    folder: str = ""
    """Beginning of its run folders' names, where two methods share them."""
    large_pairs: bool = False
    """Whether pairs are found within ``compare.coupling_batch``."""


METHODS: dict[MethodName, Method] = {
    "nsgf": Method("NSGF", ("nsgf",)),
    "nsgf++": Method("NSGF++", PHASES),
    "nsgf++h": Method("NSGF++h", PHASES[:2], large_pairs=True),
    "icfm": Method("I-CFM", ("peer",), "icfm"),
    "otcfm": Method("OT-CFM", ("peer",), "otcfm"),
    "otcfm+": Method("OT-CFM+", ("peer",), "otcfm", large_pairs=True),
    "sbcfm": Method("SB-CFM", ("peer",), "sbcfm"),
    "1rf": Method("1-RF", ("peer",), "rf", "rf"),
    "2rf": Method("2-RF", PEER_PHASES, "rf", "rf"),
}
SIGMA = {"icfm": 0.1, "otcfm": 0.1, "sbcfm": 0.5}
"""Widths of torchcfm's own examples in the plane; 0 is its choice for images."""


@dataclass(frozen=True)
class Target:
    """What a trial is to reach, and from where."""

    name: str
    """``data.name``."""
    source: str = NOISE
    """``data.source``."""

    @property
    def label(self) -> str:
        """Its name in tables, files and ``compare.targets``: ``moons``, or ``8gaussians_moons``
        for moons from another source than noise."""
        return self.name if self.source == NOISE else f"{self.source}_{self.name}"


@dataclass(frozen=True)
class Trial:
    """One training run of the comparison."""

    target: Target
    method: MethodName
    seed: int


def trials(config: Config) -> Iterator[Trial]:
    """All trials, seed by seed: what is done when time runs out makes a table of fewer seeds."""
    own = Target(config.data.name, config.data.source)
    targets = [named_target(label) for label in config.compare.targets] or [own]
    for seed in range(config.seed, config.seed + config.compare.seeds):
        for target in targets:
            for method in config.compare.methods:
                yield Trial(target, method, seed)


def named_target(label: str) -> Target:
    """The target of this label, found among all that there are: names may have underscores.

    Raises:
        UserError: there is none.
    """
    sources = [NOISE, *(one.name for one in DATA_SETS.values() if one.is_source)]
    for source in sources:
        for name in DATA_SETS:
            target = Target(name, source)
            if target.label == label:
                return target
    raise UserError(
        f"compare.targets = {label}: must be a data set, or SOURCE_NAME with a source out of "
        f"{', '.join(sources)}"
    )


def comparison_folder(config: Config) -> Path:
    """Where everything of a comparison is kept; a smoke comparison has a folder of its own."""
    name = f"compare-{config.exp}-smoke" if config.smoke else f"compare-{config.exp}"
    return Path(config.out_dir).expanduser() / name


def trial_folder(config: Config, trial: Trial) -> Path:
    """The trial's run folder. 2-RF goes on in that of 1-RF."""
    name = METHODS[trial.method].folder or trial.method
    return comparison_folder(config) / trial.target.label / f"{name}-seed{trial.seed}"


def trial_config(config: Config, trial: Trial) -> Config:
    """The configuration that trains a trial.

    Raises:
        UserError: it is not valid, e.g. a target that the network does not fit, or the device has
            not the precision that samples are to be drawn in.
    """
    method = METHODS[trial.method]
    device, train = pick_device(config.device), config.train
    trained = named_precision(train.precision, device)
    data: dict[str, Any] = {"name": trial.target.name, "source": trial.target.source}
    own = replace(
        config,
        seed=trial.seed,
        phases=list(method.phases),
        data=replace(config.data, **data),
        # what auto means here, or cells of two precisions would stand under one name
        train=replace(train, preview=False, precision=trained),
        sampling=replace(config.sampling, precision=sampling_precision(config, device)),
    )
    if method.peer:
        is_image = config.model.kind == "unet"
        sigma = 0.0 if is_image and method.peer != "sbcfm" else SIGMA.get(method.peer, 0.0)
        group = config.compare.coupling_batch if method.large_pairs else None
        own.peer = replace(config.peer, method=method.peer, sigma=sigma, coupling_batch=group)
    else:
        own = _shared_updates(_handed_over(own) if method.large_pairs else own)
    check(own)
    return own


def named_precision(wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """What ``train.precision`` means for all cells on a device: on a CPU auto measures nothing."""
    return pick_precision("auto", device) if wanted == "auto" else wanted


def _handed_over(config: Config) -> Config:
    """NSGF++ whose straight flow begins where the NSGF steps end, with their weights."""
    group = config.compare.coupling_batch
    nsf = replace(config.nsf, source="nsgf", init="nsgf", coupling="ot", coupling_batch=group)
    return replace(config, nsf=nsf, flow=replace(config.flow, steps=config.compare.handover_steps))


def _shared_updates(config: Config) -> Config:
    """NSGF or NSGF++ with as many updates in all as the other methods; NSGF++ also with as many
    steps as it may have (``flow.allow_many_steps`` lets it have more).

    Raises:
        UserError: there are not enough updates for its networks.
    """
    phases = config.phases
    counts = [getattr(config, phase).iterations for phase in phases]
    total, left = config.peer.iterations, config.peer.iterations
    shares = {}
    for phase, count in zip(phases, counts, strict=True):
        own = left if phase == phases[-1] else round(count * total / max(1, sum(counts)))
        shares[phase] = replace(getattr(config, phase), iterations=own)
        left -= own
    if len(phases) == 1:
        return replace(config, **shares)
    if min(optim.iterations for optim in shares.values()) < 1:
        raise UserError(f"peer.iterations = {total}: too few for the networks of NSGF++")
    most = config.flow.steps if config.flow.allow_many_steps else MAX_STEPS_PLUS_PLUS
    steps = min(config.flow.steps, most)
    return replace(config, flow=replace(config.flow, steps=steps), **shares)


def updates(config: Config) -> int:
    """Optimizer updates of all phases."""
    return sum(getattr(config, phase).iterations for phase in config.phases)


def at_nfe(config: Config, nfe: int) -> Config:
    """Sampling with ``nfe`` network calls for each sample, or as near as it gets from below.

    NSGF++ spends one on the predictor, at most T and at most half of the others on the NSGF steps,
    and what is left on the straight flow, whose Heun steps take two. Three calls are its least.
    dopri5 takes what it needs.
    """
    sampling = replace(config.sampling, omega=None)
    free = replace(config, sampling=replace(sampling, tau=None))
    phases = sampled_phases(free, lambda name: name in config.phases)
    legs = [phase.leg for phase in phases]
    if StraightFlow not in legs:
        return replace(free, sampling=replace(free.sampling, nsgf_steps=nfe))
    nfe -= sum(phase.leg is EntryTimes and phase.is_called(sampling) for phase in phases)
    if NSGFSteps in legs:
        steps = max(1, min(config.flow.steps, nfe // 2))
        sampling, nfe = replace(sampling, nsgf_steps=steps), nfe - steps
    return replace(config, sampling=replace(sampling, straight_steps=steps_within(sampling, nfe)))
