"""What is compared: one trial for each method, target and seed, and its configuration.

Equal terms: the same data, network, batch size and number of updates ``peer.iterations`` for every
method. NSGF++ shares them among its networks in the proportion of their own settings. Only
2-RF goes beyond, by the ``reflow.iterations`` that it needs after those of 1-RF. Where
``compare.updates`` gives each method a number of its own, e.g. for equal time, all share it among
their networks, 2-RF too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from nsgf.checks import MAX_STEPS_PLUS_PLUS, check
from nsgf.config.schema import (
    ONE_CALL,
    PEER_PHASES,
    PHASES,
    Config,
    MethodName,
    PeerName,
    PhaseName,
)
from nsgf.data import DATA_SETS, NOISE
from nsgf.phases import called_legs
from nsgf.sampling.budget import at_calls, least_calls, most_calls
from nsgf.sampling.sampler import Leg
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from nsgf.training.precision import Precision, pick_precision, sampling_precision


@dataclass(frozen=True)
class Method:
    """How a method is trained."""

    title: str
    phases: tuple[PhaseName, ...]
    """Empty: those that the experiment has."""
    peer: PeerName | None = None
    """``peer.method``."""
    folder: str = ""
    """Beginning of its run folders' names, where two methods share them because they have the same
    updates of the same networks."""
    large_pairs: bool = False
    """Whether pairs are found within ``compare.coupling_batch``."""


METHODS: dict[MethodName, Method] = {
    "own": Method("as configured", ()),
    "nsgf": Method("NSGF", ("nsgf",)),
    "nsgf++": Method("NSGF++", PHASES),
    "nsgf++h": Method("NSGF++h", PHASES[:2], large_pairs=True),
    "icfm": Method("I-CFM", ("peer",), "icfm"),
    "otcfm": Method("OT-CFM", ("peer",), "otcfm"),
    "otcfm+": Method("OT-CFM+", ("peer",), "otcfm", large_pairs=True),
    "sbcfm": Method("SB-CFM", ("peer",), "sbcfm"),
    "1rf": Method("1-RF", ("peer",), "rf", "rf"),
    "2rf": Method("2-RF", PEER_PHASES, "rf", "rf"),
    "onecall": Method("One call", ONE_CALL[1:]),
    "onecall+": Method("One call+", ONE_CALL),
}
SIGMA = {"icfm": 0.1, "otcfm": 0.1, "sbcfm": 0.5}
"""Widths of torchcfm's own examples in the plane; 0 is its choice for images."""


STARTS = 65_536
"""``nsf.starts`` of the hand-over, unless the experiment has fewer."""


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
    """The trial's run folder."""
    return comparison_folder(config) / trial_place(config, trial)


def trial_place(config: Config, trial: Trial) -> Path:
    """Where a trial is in its comparison's folder. 2-RF goes on in the place of 1-RF unless each
    has updates of its own."""
    shared = "" if config.compare.updates else METHODS[trial.method].folder
    return Path(trial.target.label) / f"{shared or trial.method}-seed{trial.seed}"


def trial_config(config: Config, trial: Trial) -> Config:
    """The configuration that trains a trial.

    Raises:
        UserError: it is not valid, e.g. a target that the network does not fit, the experiment of
            ``own`` is a peer, or the device has not the precision that samples are to be
            drawn in.
    """
    method = METHODS[trial.method]
    device, train = pick_device(config.device), config.train
    trained = named_precision(train.precision, device)
    data: dict[str, Any] = {"name": trial.target.name, "source": trial.target.source}
    phases = list(method.phases or config.phases)
    tau = config.sampling.tau if trial.method == "own" else None
    own = replace(
        config,
        seed=trial.seed,
        phases=phases,
        data=replace(config.data, **data),
        # what auto means here, or cells of two precisions would stand under one name
        train=replace(train, preview=False, precision=trained),
        sampling=replace(config.sampling, precision=sampling_precision(config, device), tau=tau),
    )
    own = _recipe(own, trial.method)
    if not method.peer or config.compare.updates:
        own = _shared_updates(own, trial.method)
    check(own)
    return own


def named_precision(wanted: Precision | Literal["auto"], device: torch.device) -> Precision:
    """What ``train.precision`` means for all cells on a device: on a CPU auto measures nothing."""
    return pick_precision("auto", device) if wanted == "auto" else wanted


def _recipe(config: Config, method: MethodName) -> Config:
    """What defines a method, whatever the experiment sets itself.

    Raises:
        UserError: ``own`` is to be compared, and the experiment is a peer.
    """
    nsf, flow, coupling = config.nsf, config.flow, config.compare.coupling
    group = config.compare.coupling_batch if coupling == "ot" else None
    kind, large_pairs = METHODS[method].peer, METHODS[method].large_pairs
    if kind:
        is_image = config.model.kind == "unet"
        sigma = 0.0 if is_image and kind != "sbcfm" else SIGMA.get(kind, 0.0)
        peer = replace(config.peer, method=kind, sigma=sigma, coupling="batch", coupling_batch=None)
        if large_pairs:
            peer.coupling, peer.coupling_batch = ("batch" if group else "semidiscrete"), group
        return replace(config, peer=peer)
    if method == "nsgf++":
        most = max(flow.steps if flow.allow_many_steps else 0, MAX_STEPS_PLUS_PLUS)
        nsf = replace(
            nsf,
            source="prior",
            init="random",
            coupling="independent",
            coupling_batch=None,
            starts=None,
        )
        return replace(config, nsf=nsf, flow=replace(flow, steps=most))
    if method == "nsgf++h":
        nsf = replace(
            nsf,
            source="nsgf",
            init="nsgf",
            coupling=coupling,
            coupling_batch=group,
            starts=min(STARTS, nsf.starts or STARTS) if group else None,
        )
        flow = replace(flow, steps=config.compare.handover_steps)
        return replace(config, nsf=nsf, flow=flow)
    if config.phases[-1] == ONE_CALL[-1] and method != "own":
        begun = replace(config.generator, init="random", init_run=None)
        if method == "onecall+":
            begun = replace(begun, init="nsgf", residual=True)
        return replace(config, generator=begun)
    if config.phases[0] in PEER_PHASES:
        raise UserError(
            f"phases = {config.phases}: must be of NSGF, or generator, for compare.methods own; "
            "say --phases [nsgf,nsf], or name other methods"
        )
    return config


def _shared_updates(config: Config, method: MethodName) -> Config:
    """A method's updates, shared among its networks in the proportion of their settings.

    Raises:
        UserError: there are not enough for all of them.
    """
    phases, given = config.phases, config.compare.updates
    counts = [getattr(config, phase).iterations for phase in phases]
    total = given[config.compare.methods.index(method)] if given else config.peer.iterations
    shares, left = {}, total
    for phase, count in zip(phases, counts, strict=True):
        own = left if phase == phases[-1] else round(count * total / max(1, sum(counts)))
        shares[phase] = replace(getattr(config, phase), iterations=own)
        left -= own
    if len(phases) > 1 and min(optim.iterations for optim in shares.values()) < 1:
        key = f"compare.updates = {given}" if given else f"peer.iterations = {total}"
        raise UserError(f"{key}: too few for the networks of {method}")
    return replace(config, **shares)


def updates(config: Config) -> int:
    """Optimizer updates of all phases."""
    return sum(getattr(config, phase).iterations for phase in config.phases)


def asked_nfe(config: Config) -> list[int]:
    """Those of ``compare.nfe`` with which a trial can be sampled."""
    least, most = possible_nfe(config)
    return [nfe for nfe in config.compare.nfe if least <= nfe <= (most or nfe)]


def possible_nfe(config: Config) -> tuple[int, int | None]:
    """Network calls for each sample that a trial cannot do without, and the most that it can make
    use of; None: there is no limit."""
    legs = _called_legs(config)
    return least_calls(config.sampling, legs), most_calls(legs)


def at_nfe(config: Config, nfe: int) -> Config:
    """A trial's configuration with ``nfe`` network calls for each sample, at least
    that of :func:`possible_nfe` (see :func:`nsgf.sampling.budget.at_calls`).
    """
    return at_calls(config, _called_legs(config), nfe)


def _called_legs(config: Config) -> list[type[Leg]]:
    """Those of a trial whose networks a sample meets."""
    return called_legs(config, lambda name: name in config.phases)
