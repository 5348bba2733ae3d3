"""A picture at the end of each phase: what can be sampled with the networks trained so far."""

from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import PHASES, Config, PhaseName
from nsgf.data import Data
from nsgf.run.folder import RunFolder, phase_stem
from nsgf.run.resume import load_network
from nsgf.sampling.plots import save_grid, save_scatter
from nsgf.sampling.sampler import NSGFSampler, straight_flow
from nsgf.system.hardware import release_memory

POINTS = 2048
IMAGES = 64
IMAGES_ON_CPU = 16
"""A sample of a large UNet takes seconds on a CPU."""


def save_preview(
    config: Config, run: RunFolder, phase: PhaseName, data: Data, device: torch.device
) -> Path:
    """Draw ``samples/phaseN_PHASE.png``: a grid of images, or points beside the target.

    All phases start from the same noise, so their pictures can be compared. The samplers have
    random streams of their own: training draws the same numbers with and without previews.

    Args:
        config: the experiment.
        run: its folder, with the checkpoints of the phases up to ``phase``.
        phase: the phase that has ended.
        data: source and target.
        device: where the networks go.

    Returns:
        The picture.

    Raises:
        UserError: a checkpoint is missing.
        OSError: the picture cannot be written.
    """
    file = run.samples / f"{phase_stem(phase)}.png"
    run.samples.mkdir(exist_ok=True)
    x = preview_samples(config, run, phase, data, device)
    if data.images is None:
        save_scatter(x, data.target("preview").sample(POINTS), file, f"after phase {phase}")
    else:
        save_grid(x, file)
    release_memory(device)
    return file


def preview_samples(
    config: Config, run: RunFolder, phase: PhaseName, data: Data, device: torch.device
) -> Tensor:
    """What a phase's picture shows, with averaged weights.

    nsgf: the NSGF steps (Algorithm 2). nsf: the whole straight flow, from time 0 and from where its
    lines start (``nsf.source``); so peer and reflow. predictor: both legs (Algorithm 4), entered at
    ``sampling.tau`` where that is given. ``sampling.solver`` and its steps hold.

    Returns:
        Samples on the CPU, (n, *shape).
    """
    sampling = config.sampling
    needed: dict[PhaseName, tuple[PhaseName, ...]] = {
        "nsgf": ("nsgf",),
        "nsf": ("nsgf", "nsf") if config.nsf.source == "nsgf" else ("nsf",),
        "predictor": PHASES,
        "peer": ("peer",),
        "reflow": ("reflow",),
    }
    networks = {
        part: load_network(config, run, part, "ema", device).network for part in needed[phase]
    }

    def carry(x: Tensor) -> Tensor:
        if phase in ("nsgf", "predictor"):
            return NSGFSampler(config, *networks.values())(x).x
        if "nsgf" in networks:
            x = NSGFSampler(config, networks["nsgf"])(x).x
        return straight_flow(networks[phase], x, torch.zeros(len(x), device=device), sampling)

    noise = data.source("preview").sample(count_samples(config, data, device))
    return torch.cat([carry(x.to(device)).cpu() for x in noise.split(sampling.batch_size)])


def count_samples(config: Config, data: Data, device: torch.device) -> int:
    """Samples of a picture: a few seconds of work."""
    if data.images is None:
        return POINTS
    return min(config.sampling.num_samples, IMAGES_ON_CPU if device.type == "cpu" else IMAGES)
