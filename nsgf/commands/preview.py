"""The picture of samples at the end of each phase."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsgf.config.files import method_title
from nsgf.config.layers import look_up
from nsgf.config.schema import PhaseName
from nsgf.data import Data
from nsgf.experiment import Experiment
from nsgf.phases import PHASES
from nsgf.phases.base import Phase
from nsgf.plots.samples import (
    compare_images,
    draw_points,
    figure_defaults,
    save_figure,
    shown_name,
)
from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder
from nsgf.run.stop import CALLBACK
from nsgf.sampling.generate import generate
from nsgf.system.errors import one_line
from nsgf.system.hardware import release_memory
from nsgf.training.task import Session

POINT_SAMPLES = 2048
"""Number of points in a picture."""
PREVIEW_IMAGES = 64
PREVIEW_IMAGES_ON_CPU = 16
"""Number of images in a preview on a CPU, because a sample of a large UNet takes seconds there."""


def show_preview(experiment: Experiment, session: Session, data: Data | None, phase: Phase) -> None:
    """If ``train.preview`` is on, draw samples beside real samples into
    ``samples/phaseN_PHASE.png``. If drawing fails, log a line and continue without a picture.
    ``data``: source and target; None: load them.

    All phases start from the same noise, so their pictures can be compared. Previews use separate
    random streams, so training draws the same numbers with and without previews.
    """
    run = session.run
    log = session.log
    if not (experiment.config.train.preview and session.world.is_main):
        return
    if session.stop.reason not in (None, CALLBACK):  # the next session draws the picture
        return
    file = run.preview_file(phase.name)
    title = preview_title(experiment, phase.name)
    try:
        run.samples.mkdir(exist_ok=True)
        data = experiment.load_data() if data is None else data
        x = preview_samples(experiment, run, phase.name, data)
        target = data.reference("preview").sample(len(x))
        with figure_defaults():
            if data.is_images:
                figure = compare_images(x, target, title)
            else:
                figure = draw_points([data.in_units(x)], target, title, data.axes)
            save_figure(figure, file)
        release_memory(session.device)
        log.write(f"{phase.name}: picture of samples, {file}")
        log.picture(f"{phase.name}/samples", file)
    except Exception as error:
        log.write(f"{phase.name}: no picture of samples ({one_line(error)})")


def lacks_preview(run: RunFolder, phase: PhaseName) -> bool:
    """Return whether a finished phase was trained with previews but has no picture. This happens if
    the process was killed while it drew the picture."""
    if run.preview_file(phase).exists():
        return False
    header = read_good_header(run.checkpoint_file(phase))
    return look_up(header["config"], "train.preview", False) is True


def run_title(method: str | None, phases: Sequence[PhaseName]) -> str:
    """Return the title of a run's method. A run without a method has the names of its phases."""
    return method_title(method) if method else ", ".join(phases)


def preview_title(experiment: Experiment, phase: PhaseName) -> str:
    """Return the title of a phase's picture. It names the method, and also the phase if the run has
    several phases. If a later phase continues from these samples, a second line says so."""
    config = experiment.config
    title = f"{shown_name(run_title(config.method, config.phases))} after training"
    if len(config.phases) > 1:
        title += f": {PHASES[phase].title}"
    legs = experiment.method.legs
    preview = experiment.preview_method(phase).legs
    if legs == preview or legs[: len(preview)] != preview:
        return title
    return f"{title};\na later phase continues from here"


def preview_samples(experiment: Experiment, run: RunFolder, phase: PhaseName, data: Data) -> Tensor:
    """Return the samples of a phase's picture. They are drawn by the legs of the preview's method,
    with averaged weights and the settings of ``sampling``.  CPU, (n, *shape)"""
    sampler, _ = experiment.load_sampler(run, experiment.preview_method(phase))
    device = experiment.device
    count = count_samples(data, experiment.config.sampling.num_samples, device)
    return generate(sampler, data.source("preview"), count, device).x


def count_samples(data: Data, num_samples: int, device: torch.device) -> int:
    """Return the number of samples for a picture, few enough to draw in seconds. ``num_samples``:
    ``sampling.num_samples``."""
    if not data.is_images:
        return POINT_SAMPLES
    most = PREVIEW_IMAGES_ON_CPU if device.type == "cpu" else PREVIEW_IMAGES
    return min(num_samples, most)
