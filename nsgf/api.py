"""The Python API: train, load and sample, as the commands do.

:mod:`nsgf` offers these names. Settings have the keys, layers and checks of the command line.
Errors that a caller can fix raise :class:`UserError` with a one-line message. Loading and sampling
print nothing; training prints what the command prints.

Shapes: N samples, *shape one of them: (C, H, W) with values in [-1, 1], or (D,).
"""

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf import experiment
from nsgf.checks import check
from nsgf.cli.arguments import request
from nsgf.config.files import build, merge_settings, parse_settings
from nsgf.config.schema import Config, PhaseName
from nsgf.data import build_source, data_shape, in_units
from nsgf.phases import Phase, TrainedNetwork, get_phases, join_legs, sampled_phases
from nsgf.phases.base import load_network
from nsgf.run.folder import RunFolder
from nsgf.run.stop import Stopped
from nsgf.sampling.generate import generate
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import (
    FlowSampler,
    StraightFlow,
    calls_per_velocity,
    limit_calls,
    possible_calls,
)
from nsgf.share.exported import ExportedRun, fetched, is_address, is_exported
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device
from nsgf.system.output import show, silence


@dataclass(frozen=True)
class Run:
    """A trained run, opened for sampling."""

    path: Path
    """The run folder, or the folder that ``nsgf export`` wrote."""
    config: Config = field(repr=False)
    """All settings."""
    device: torch.device
    """Device of the networks."""
    progress: dict[str, str]
    """Training progress by phase: ``{"nsgf": "300 of 100000"}``."""
    sampler: FlowSampler = field(repr=False)
    """Carries samples of mu0 (B, *shape) on ``device`` to samples of mu*. It also returns the
    network calls, the times and, with ``keep_path=True``, the states on the way. Images are not
    clamped. With classes, labels (B,) may be the second argument."""
    networks: dict[PhaseName, InferenceNetwork] = field(repr=False)
    """The networks that sampling calls, by phase, in eval mode and without gradients: velocities
    as (x, t), with classes as (x, t, labels), a time predictor as (x)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return data_shape(self.config.data)

    def sample(
        self,
        n: int,
        seed: int | None = None,
        *,
        label: int | None = None,
        nfe: int | None = None,
        batch_size: int | None = None,
        raw: bool = False,
    ) -> Tensor:
        """Draw samples as ``nsgf sample`` does: sample i follows only from the seed and i.

        Args:
            n: number of samples.
            seed: of the samples of mu0; None: the run's.
            label: class of all samples; needs a run with ``data.conditional``. None: use
                ``sampling.label``, or each class in turn.
            nfe: network calls for each sample, or the nearest possible number below, shared among
                the networks as in a comparison; None: what the settings of sampling imply.
            batch_size: number of samples that go through the networks together, which changes only
                rounding; None: that of the settings.
            raw: whether images keep the values of the networks, which may leave [-1, 1].

        Returns:
            (N, *shape), float32, on the CPU; own points float64 in the units of their file.

        Raises:
            UserError: a number is out of its range, the run has no classes, ``nfe`` is too small,
                or the card is full.
        """
        changes = {
            "sampling.num_samples": n,
            "seed": seed,
            "sampling.label": label,
            "sampling.batch_size": batch_size,
        }
        given_changes = {key: value for key, value in changes.items() if value is not None}
        config = build(Config, merge_settings(asdict(self.config), parse_settings(given_changes)))
        check(config)
        sampler = self.sampler.with_settings(config if nfe is None else self._at(config, nfe))
        source, count = (
            build_source(config.data, config.seed, "sample"),
            config.sampling.num_samples,
        )
        samples = generate(sampler, source, count, self.device, progress=False)
        return in_units(config.data, samples.x, raw=raw)

    def _at(self, config: Config, nfe: int) -> Config:
        """Return the settings of sampling with ``nfe`` network calls."""
        legs = [phase.leg for phase in get_phases(list(self.networks))]
        least, _ = possible_calls(config.sampling, legs)
        if not isinstance(nfe, int) or nfe < least:
            raise UserError(f"nfe = {nfe!r}: must be a whole number >= {least} for this run")
        if StraightFlow in legs and config.sampling.solver == "dopri5":
            raise UserError(f"nfe = {nfe}: sampling.solver = dopri5 chooses its calls; omit nfe")
        if calls_per_velocity(config) > 1:
            raise UserError(f"nfe = {nfe}: sampling.guidance doubles the calls; omit nfe")
        return limit_calls(config, legs, nfe)


def load(
    path: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Run:
    """Open a trained run for sampling. Nothing is written, and no code of the folder runs.

    Args:
        path: a run folder, a folder that ``nsgf export`` wrote, or ``hf://OWNER/NAME[@REVISION]``
            of the Hugging Face hub (extra ``hub``).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N``; None: as the run is configured.
        overrides: other settings by dotted key, as ``{"sampling.solver": "heun"}``.

    Raises:
        UserError: there is no such run, its files are missing, damaged or foreign, a setting is
            wrong or does not fit its networks, or the device does not exist.
    """
    settings = dict(overrides or {})
    settings |= {"device": str(device)} if device is not None else {}
    is_on_hub = is_address(path)
    folder = fetched(path) if is_on_hub else Path(os.fspath(path)).expanduser()
    if is_on_hub or is_exported(folder):
        exported = ExportedRun(folder, parse_settings(settings))
        config, has_network = exported.config, exported.has
        read: Callable[[Phase, torch.device], TrainedNetwork] = exported.load
    else:
        config, run = request("sample", {"run": str(folder)}, settings).config, RunFolder(folder)
        has_network = run.has_checkpoint

        def read(phase: Phase, device: torch.device) -> TrainedNetwork:
            return load_network(phase, config, run, device)

    place = pick_device(config.device)
    phases = sampled_phases(config, has_network)
    sampler, progress = join_legs(config, phases, lambda phase: read(phase, place), place)
    networks = {
        phase.name: network
        for phase, leg in zip(phases, sampler.legs, strict=True)
        if isinstance(network := leg.network, InferenceNetwork)
    }
    return Run(folder, config, place, progress, sampler, networks)


def train(
    exp: str | None = None,
    *,
    dataset: str | None = None,
    config: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train an experiment in this process, as ``nsgf train`` does, and open the run.

    The caller's random numbers stay as they were. Ctrl-C loses what came after the last checkpoint.

    Args:
        exp: the name of an experiment, as ``2d`` or ``images`` (with ``data.path``).
        dataset: ``data.name``, as ``moons``.
        config: a YAML file in place of ``exp``, or on top of ``resume``.
        resume: a run folder to resume.
        overrides: settings by dotted key, as ``{"nsgf.iterations": 2000}``; ``optim.*`` apply to
            every phase.
        quiet: print nothing; the run folder's log has all lines.

    Raises:
        UserError: as the command; or ``train.max_hours`` are over.
    """
    settings = {key: value for key, value in (("exp", exp), ("data.name", dataset)) if value}
    control = {"run": resume, "config": config}
    words: dict[str, str | bool] = {
        key: os.fspath(path) for key, path in control.items() if path is not None
    }
    if resume is not None:
        words["resume"] = True
    wanted = request("train", words, {**(overrides or {}), **settings})
    run = RunFolder(wanted.run) if wanted.run else None
    device = pick_device(wanted.config.device)
    cards = [device] if device.type == "cuda" else []
    with silence() if quiet else nullcontext(), torch.random.fork_rng(cards):
        for note in wanted.notes:
            show(note)
        try:
            run = experiment.train(wanted.config, run)
        except Stopped as stopped:
            raise UserError(
                f"train.max_hours = {wanted.config.train.max_hours} is over, {stopped}; continue "
                f"with nsgf.train(resume={str(stopped.folder)!r})"
            ) from stopped
    return load(run.path, device=device)
