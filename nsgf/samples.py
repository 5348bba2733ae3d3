"""Files and pictures of the samples of a run; the picture at the end of each phase."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import Config, DataConfig
from nsgf.config.settings import build, look_up
from nsgf.data import (
    Data,
    build_source,
    class_names,
    class_number,
    in_units,
    is_image_set,
    target_set,
)
from nsgf.phases import Phase, find_preview, find_way, load_sampler
from nsgf.plots.samples import (
    compare_images,
    draw_image_path,
    draw_points,
    draw_rows,
    figure_defaults,
    save_figure,
    save_grid,
    words_of_calls,
)
from nsgf.run.checkpoint import read_good_header
from nsgf.run.folder import RunFolder, results_folder
from nsgf.run.stop import CALLBACK
from nsgf.sample_files import (
    MOVING,
    BatchReader,
    check_output,
    write_animation,
    write_samples,
)
from nsgf.sampling.generate import generate, stream_batches
from nsgf.sampling.sampler import Samples
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, one_line
from nsgf.system.files import ensure_writable
from nsgf.system.hardware import pick_device, release_memory
from nsgf.training.task import Session

PATH_SAMPLES = 8
POINT_SAMPLES = 2048
MOVING_IMAGES = 32
"""Largest number of images in an animation."""
PREVIEW_IMAGES = 64
PREVIEW_IMAGES_ON_CPU = 16
"""Number of images in a preview on a CPU, where a sample of a large UNet takes seconds."""
CLASS_SAMPLES = 10
"""Largest number of samples in a class's row of a picture."""


def sample_run(
    config: Config,
    run: RunFolder,
    world: World = ALONE,
    *,
    nfe: int | None = None,
    out: str | None = None,
) -> list[str]:
    """Write samples into ``samples/``, with a grid of images and a picture of their path.

    The files are ``samples.npz`` (own points in the units of their file, images clamped to [-1, 1];
    with classes ``labels`` too), ``grid.png`` (only images; with classes a row for each) and
    ``trajectory.png`` (points beside the target, if its data are available). Settings that differ
    from the run's own configuration are added to the names, as in
    ``samples-seed1-solver_heun.npz``, so that samples with other settings are kept.

    Args:
        config: the run's settings, changed by those of this command. If the run does not lie
            directly in ``out_dir``, the files go to ``OUT_DIR/RUN/samples``.
        world: the processes that sample together; the first one writes.
        nfe: network calls for each sample, or slightly fewer; None: determined by the settings of
            sampling.
        out: write only this new file or folder: ``FILE.npz`` or ``FILE.npy``; for points
            ``FILE.csv``, ``FILE.tsv`` or ``FILE.parquet``; for images a folder of PNG files; or
            ``FILE.gif`` or ``FILE.webp``, an animation of the paths of the first samples. Without
            torchrun, samples are written batch by batch, so memory does not limit their number.

    Returns a line about the samples, and a line for each file; nothing in other processes.

    Raises:
        UserError: checkpoints are missing or damaged, ``nfe`` is too small, ``out`` exists or has
            another kind, or files cannot be written. All this is checked before sampling.
    """
    if nfe is not None:
        config = find_way(config, run.has_checkpoint).choose_calls(config, nfe)
    device = pick_device(config.device)
    is_images = is_image_set(config.data)
    # everything that can be refused
    place = None
    kind = ".npz"
    if out is None:
        folder = results_folder(config, run) / "samples"
        suffix = changed_settings(config, run)
        names = [f"samples{suffix}.npz", f"grid{suffix}.png", f"trajectory{suffix}.png"]
        ensure_writable(folder, names=names)
        arrays, grid, trajectory = (folder / name for name in names)
    else:
        place, kind = check_output(out, config)
    sampler, updates = load_sampler(config, run, device)
    data = None
    if not (place or is_images or (config.data.name == "points" and not config.data.path)):
        try:
            data = Data(config.data, config.seed)
        except UserError as error:
            raise UserError(f"{error}; --out FILE.npz needs no data") from error
    # samples
    source = build_source(config.data, config.seed, "sample")
    count = config.sampling.num_samples
    networks = ", ".join(f"{phase} {progress}" for phase, progress in updates.items())
    if place and kind not in MOVING and world.size == 1:
        batches = BatchReader(stream_batches(sampler, source, count, device))
        write_samples(config, batches, place, kind)
        return [f"{count} samples, NFE {batches.nfe:g}, after updates: {networks}", str(place)]
    path = PATH_SAMPLES if is_images and not place else 0
    if kind in MOVING:
        path = MOVING_IMAGES if is_images else POINT_SAMPLES
        count = min(count, path)
    samples = generate(sampler, source, count, device, path=path, world=world)
    if not world.is_main:
        return []
    # files
    about = f"{count} samples, NFE {samples.nfe:g}, after updates: {networks}"
    if place and kind in MOVING:
        write_animation(config, samples, place)
        return [about, str(place)]
    write_samples(config, BatchReader([samples]), place or arrays, kind)
    if place:
        return [about, str(place)]
    if not is_images:
        source = build_source(config.data, config.seed, "path")
        samples = sampler(source.sample(POINT_SAMPLES).to(device), keep_path=True)
    with figure_defaults():
        save_figure(draw_path(samples, config.data, data, "path"), trajectory)
    if not is_images:
        return [about, str(arrays), str(trajectory)]
    classes = class_names(config.data) if config.sampling.label is None else ()
    columns = min(len(samples.x) // len(classes), CLASS_SAMPLES) if classes else 0
    if columns:  # a row for each class; sample i has class i mod K
        rows = np.arange(columns * len(classes)).reshape(columns, len(classes)).T.flatten()
        with figure_defaults():
            save_figure(draw_rows(samples.x[rows], classes), grid)
    else:
        save_grid(samples.x, grid)
    return [about, str(arrays), str(grid), str(trajectory)]


def draw_path(samples: Samples, config: DataConfig, data: Data | None, stream: str) -> Any:
    """Draw the path of samples: images beside the names of classes, points beside the target."""
    if is_image_set(config):
        return draw_image_path(samples, class_names(config))
    return draw_points(
        [in_units(config, state.cpu()) for state in samples.path],
        data.reference(stream).sample(len(samples.x)) if data else None,
        f"Samples after {words_of_calls(samples.nfe)}",
        target_set(config).axes,
        samples.marks,
    )


def changed_settings(config: Config, run: RunFolder) -> str:
    """Return the part of a file's name for settings that differ from the run's ``config.yaml``,
    e.g. ``-seed1`` or ``-phases_nsgf+nsf``."""
    own, now = (
        {
            "seed": settings.seed,
            "precision": settings.train.precision,
            "phases": settings.phases,
            **asdict(settings.sampling),
        }
        for settings in (build(run.read_settings()), config)
    )
    for values in (own, now):  # the name and the number of a class are the same setting
        values["label"] = class_number(config.data, values["label"])
    del now["batch_size"]  # changes no sample
    suffix = ""
    for key, value in now.items():
        if value != own[key]:
            text = "+".join(value) if isinstance(value, list) else value or "null"
            suffix += f"-{key}{value}" if isinstance(value, int | float) else f"-{key}_{text}"
    return suffix


def show_preview(session: Session, data: Data | None, phase: Phase) -> None:
    """If ``train.preview`` is on, draw samples beside real ones into ``samples/phaseN_PHASE.png``.
    If this fails, log a line and continue without a picture. ``data`` None: load them.

    All phases start from the same noise, so their pictures can be compared. Previews have their own
    random streams, so training draws the same numbers with and without previews.
    """
    run = session.run
    log = session.log
    if not (session.config.train.preview and session.world.is_main):
        return
    if session.stop.reason not in (None, CALLBACK):  # the next session draws it
        return
    file = run.preview_file(phase.name)
    title = f"After training: {phase.title}{part_of_way(session.config, phase)}"
    try:
        run.samples.mkdir(exist_ok=True)
        data = Data(session.config.data, session.config.seed) if data is None else data
        x = preview_samples(session.config, run, phase, data, session.device)
        target = data.reference("preview").sample(len(x))
        with figure_defaults():
            if data.images is None:
                figure = draw_points([data.in_units(x)], target, title, data.axes)
            else:
                figure = compare_images(x, target, title)
            save_figure(figure, file)
        release_memory(session.device)
        log.write(f"{phase.name}: picture of samples, {file}")
        log.picture(f"{phase.name}/samples", file)
    except Exception as error:
        log.write(f"{phase.name}: no picture of samples ({one_line(error)})")


def lacks_preview(run: RunFolder, phase: Phase) -> bool:
    """Return whether a finished phase was trained with previews and has no picture, because its
    process was killed before the end of the picture."""
    if run.preview_file(phase.name).exists():
        return False
    header = read_good_header(run.checkpoint_file(phase.name))
    return look_up(header["config"], "train.preview", False) is True


def part_of_way(config: Config, phase: Phase) -> str:
    """Return text for the title of a phase's picture if the last leg continues from its samples."""
    legs = find_way(config).legs
    shown = find_preview(config, phase).legs
    if legs == shown or legs[: len(shown)] != shown:
        return ""
    return ";\na later phase continues from here"


def preview_samples(
    config: Config, run: RunFolder, phase: Phase, data: Data, device: torch.device
) -> Tensor:
    """Return the samples of a phase's picture, drawn with averaged weights and the settings of
    ``sampling`` through the legs of :func:`nsgf.phases.find_preview`.  CPU, (n, *shape)"""
    sampler, _ = load_sampler(config, run, device, find_preview(config, phase))
    return generate(sampler, data.source("preview"), count_samples(config, data, device), device).x


def count_samples(config: Config, data: Data, device: torch.device) -> int:
    """Return the number of samples for a picture, few enough to draw in seconds."""
    if data.images is None:
        return POINT_SAMPLES
    most = PREVIEW_IMAGES_ON_CPU if device.type == "cpu" else PREVIEW_IMAGES
    return min(config.sampling.num_samples, most)
