"""The picture at the end of each phase, sampled with the networks trained so far."""

from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.phases import Phase, load_sampler, previewed_phases
from nsgf.plots.samples import compare_images, draw_points, save_figure
from nsgf.run.folder import RunFolder, phase_stem
from nsgf.run.session import Session
from nsgf.sampling.generate import generate
from nsgf.system.errors import one_line
from nsgf.system.hardware import release_memory

POINTS = 2048
IMAGES = 64
IMAGES_ON_CPU = 16
"""Number of images on a CPU, where a sample of a large UNet takes seconds."""


def show_preview(session: Session, data: Data, phase: Phase) -> None:
    """Draw ``samples/phaseN_PHASE.png`` if ``train.preview`` is on. What fails is a line of the
    log, since training goes on without a picture."""
    config, run, log = session.config, session.run, session.log
    wanted = config.train.preview and session.stop.reason is None
    if not (wanted and session.world.is_main):
        return
    try:
        file = save_preview(config, run, phase, data, session.device)
    except Exception as error:
        log.write(f"{phase.name}: no picture of samples ({one_line(error)})")
        return
    log.write(f"{phase.name}: picture of samples, {file}")
    log.picture(f"{phase.name}/samples", file)


def save_preview(
    config: Config, run: RunFolder, phase: Phase, data: Data, device: torch.device
) -> Path:
    """Draw samples beside as many of the target, and return the file.

    All phases start from the same noise, so their pictures can be compared. The samplers have
    random streams of their own: training draws the same numbers with and without previews.

    Raises:
        UserError: a checkpoint is missing.
        OSError: the picture cannot be written.
    """
    file = run.samples / f"{phase_stem(phase.name)}.png"
    run.samples.mkdir(exist_ok=True)
    x = preview_samples(config, run, phase, data, device)
    target, title = data.reference("preview").sample(len(x)), f"samples after phase {phase.name}"
    if data.images is None:
        figure = draw_points([data.in_units(x)], target, title, data.axes)
    else:
        figure = compare_images(x, target, title)
    save_figure(figure, file)
    release_memory(device)
    return file


def preview_samples(
    config: Config, run: RunFolder, phase: Phase, data: Data, device: torch.device
) -> Tensor:
    """Return the samples of a phase's picture, drawn with averaged weights through the legs of
    :func:`nsgf.phases.previewed_phases` under the settings of ``sampling``.  CPU, (n, *shape)"""
    sampler, _ = load_sampler(config, run, device, previewed_phases(config, phase))
    count = count_samples(config, data, device)
    return generate(sampler, data.source("preview"), count, device).x


def count_samples(config: Config, data: Data, device: torch.device) -> int:
    """Return the number of samples of a picture: a few seconds of work."""
    if data.images is None:
        return POINTS
    return min(config.sampling.num_samples, IMAGES_ON_CPU if device.type == "cpu" else IMAGES)
