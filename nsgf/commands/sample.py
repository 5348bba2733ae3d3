"""``nsgf sample``: files and pictures of the samples of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsgf.commands.preview import POINT_SAMPLES, run_title
from nsgf.commands.sample_files import (
    ARRAY_FILES,
    MOVING,
    TABLES,
    BatchReader,
    check_fixed_steps,
    check_output,
    write_animation,
    write_samples,
)
from nsgf.config.layers import build
from nsgf.config.schema import Names
from nsgf.data import Data, Target
from nsgf.experiment import Experiment
from nsgf.plots.samples import (
    draw_image_path,
    draw_points,
    draw_rows,
    figure_defaults,
    save_figure,
    save_grid,
    shown_name,
    words_of_calls,
)
from nsgf.run.folder import RunFolder, results_folder
from nsgf.sampling.generate import generate, stream_batches
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import ensure_writable
from nsgf.user_data.starts import Starts, labels_of, read_starts

PATH_SAMPLES = 8
MOVING_IMAGES = 32
"""Largest number of images in an animation."""
CLASS_SAMPLES = 10
"""Largest number of samples in a class's row of a picture."""


def sample_run(
    experiment: Experiment,
    run: RunFolder,
    world: World = ALONE,
    *,
    nfe: int | None = None,
    out: str | None = None,
    start: Path | None = None,
    trajectory: bool = False,
) -> list[str]:
    """Write samples into ``samples/``, with a grid of images and a picture of their path.

    ``samples.npz`` has points in the units of the data, or images clamped to [-1, 1]. If there are
    classes, it also has ``labels``. ``grid.png`` shows images, with a row for each class.
    ``trajectory.png`` shows the paths of samples. Points stand beside the target if its data are
    available. The file names contain the settings that differ from the run's configuration, as in
    ``samples-seed1-solver_heun.npz``. So samples with different settings do not overwrite each
    other.

    Args:
        experiment: the run's settings, with the changes of this command. If the run does not lie
            directly in ``out_dir``, the files go to ``OUT_DIR/RUN/samples``.
        world: the processes that sample together; the first one writes.
        nfe: network calls for each sample, or slightly fewer; None: determined by the settings of
            sampling.
        out: write only this new file or folder. Samples go to ``FILE.npz`` or ``FILE.npy``. Points
            may also go to ``FILE.csv``, ``FILE.tsv`` or ``FILE.parquet``, and images to a folder of
            PNG files. ``FILE.gif`` and ``FILE.webp`` are animations of the paths of the first
            samples. Without torchrun, samples are written batch by batch, so memory does not limit
            their number.
        start: file or folder of samples of the source. Row i of the output is the place to which
            row i of ``start`` moves. Without ``out``, the output is ``samples/moved-NAME``, a file
            or folder like ``start``.
        trajectory: whether to write the start and the state after each step too, (N, S + 1,
            *shape), into a file .npz or .npy.

    Return a line about the samples, and a line for each file. The list is empty except in the first
    process.

    Raises:
        UserError: checkpoints are missing or damaged, ``nfe`` is too small, ``out`` exists or does
            not suit the data, or files cannot be written. All this is checked before sampling.
    """
    if nfe is not None:
        method = experiment.trained_method(run.has_checkpoint)
        experiment = experiment.choose_calls(method, nfe)
    if start is not None:
        if not world.is_main:
            return []
        config = experiment.config
        starts = read_starts(config.data, experiment.target, start)
        if out is None:
            folder = results_folder(config.out_path, run) / "samples"
            name = f"moved-{start.stem}{changed_settings(experiment, run)}"
            file = folder / f"{name}{_kind_of_output(start, starts, trajectory)}"
            ensure_writable(folder, names=[file.name])
            if file.is_dir():
                raise wrong_setting("out", file, "exists; name a new one, or remove it")
        else:
            file, kind = check_output(out, experiment.target, has_paths=trajectory)
            if kind in MOVING:
                raise wrong_setting("out", out, "must not be an animation with start")
        sampler, updates = experiment.load_sampler(run)
        calls = _move(sampler, starts, experiment.device, file, trajectory)
        return [*starts.notes, describe_samples(starts.count, calls, updates), str(file)]
    if out is None:
        if trajectory:
            raise UserError("trajectory: needs --out FILE.npz or FILE.npy")
        return _sample_into_run(experiment, run, world)
    return _sample_to_file(experiment, run, world, out, trajectory)


def _kind_of_output(start: Path, starts: Starts, trajectory: bool) -> str:
    """Return the suffix of the output for a file or folder of starts; empty: a folder."""
    suffix = start.suffix.lower()
    if suffix in ARRAY_FILES:
        return suffix
    if trajectory:
        return ".npz"
    if len(starts.shape) == 3:
        return ""
    return suffix if suffix in TABLES else ".csv"


def _move(
    sampler: FlowSampler, starts: Starts, device: torch.device, file: Path, trajectory: bool
) -> float:
    """Move samples of the source, and write the moved samples. Return the number of network calls
    for each sample."""
    if trajectory:
        check_fixed_steps(sampler)
    target = sampler.target
    labels = labels_of(starts, target, sampler.sampling.label)
    batches = BatchReader(
        stream_batches(sampler, starts, starts.count, device, labels, keep_path=trajectory)
    )
    kind = file.suffix.lower()
    write_samples(target, batches, starts.count, file, kind, starts.names, has_paths=trajectory)
    return batches.nfe


def _sample_into_run(experiment: Experiment, run: RunFolder, world: World) -> list[str]:
    """Write samples and pictures into the results folder of a run."""
    # check all settings and files that can be refused
    target = experiment.target
    folder = results_folder(experiment.config.out_path, run) / "samples"
    suffix = changed_settings(experiment, run)
    names = [f"samples{suffix}.npz", f"grid{suffix}.png", f"trajectory{suffix}.png"]
    ensure_writable(folder, names=names)
    arrays, grid, trajectory = (folder / name for name in names)
    sampler, updates = experiment.load_sampler(run)
    data = None if target.is_images else _data_for_picture(experiment)

    # draw samples
    count = experiment.config.sampling.num_samples
    source = experiment.source("sample")
    device = experiment.device
    path = PATH_SAMPLES if target.is_images else 0
    samples = generate(sampler, source, count, device, path=path, world=world)
    if not world.is_main:
        return []
    write_samples(target, BatchReader([samples]), count, arrays, ".npz")

    # draw pictures
    line = describe_samples(count, samples.nfe, updates)
    if not target.is_images:
        noise = experiment.source("path").sample(POINT_SAMPLES).to(device)
        samples = sampler(noise, keep_path=True)
    config = experiment.config
    title = run_title(config.method, config.phases)
    with figure_defaults():
        save_figure(draw_path(samples, target, data, "path", title), trajectory)
    if not target.is_images:
        return [line, str(arrays), str(trajectory)]
    all_classes = experiment.config.sampling.label is None
    _save_pictures(samples, target.class_names if all_classes else (), grid)
    return [line, str(arrays), str(grid), str(trajectory)]


def _save_pictures(samples: Samples, classes: Names, grid: Path) -> None:
    """Save a grid of images. With classes, each class has a row."""
    columns = min(len(samples.x) // len(classes), CLASS_SAMPLES) if classes else 0
    if not columns:
        save_grid(samples.x, grid)
        return
    # sample i has class i mod K
    rows = np.arange(columns * len(classes)).reshape(columns, len(classes)).T.flatten()
    with figure_defaults():
        save_figure(draw_rows(samples.x[rows], classes), grid)


def _sample_to_file(
    experiment: Experiment, run: RunFolder, world: World, out: str, trajectory: bool
) -> list[str]:
    """Write samples to a new file or folder, or an animation of their paths."""
    target = experiment.target
    device = experiment.device
    file, suffix = check_output(out, target, has_paths=trajectory)
    sampler, updates = experiment.load_sampler(run)
    if trajectory:
        check_fixed_steps(sampler)
        if world.size > 1:
            raise UserError("trajectory: runs in one process; start it without torchrun")
    source = experiment.source("sample")
    count = experiment.config.sampling.num_samples
    if suffix in MOVING:
        most = MOVING_IMAGES if target.is_images else POINT_SAMPLES
        count = min(count, most)
        samples = generate(sampler, source, count, device, path=most, world=world)
        if not world.is_main:
            return []
        write_animation(target, samples, file)
        return [describe_samples(count, samples.nfe, updates), str(file)]
    if world.size == 1:
        batches = BatchReader(stream_batches(sampler, source, count, device, keep_path=trajectory))
    else:
        samples = generate(sampler, source, count, device, world=world)
        if not world.is_main:
            return []
        batches = BatchReader([samples])
    write_samples(target, batches, count, file, suffix, has_paths=trajectory)
    return [describe_samples(count, batches.nfe, updates), str(file)]


def _data_for_picture(experiment: Experiment) -> Data | None:
    """Return the data for a picture of points; None if the path of a user's points is not known.
    Raise UserError if files are missing or damaged."""
    data = experiment.config.data
    if data.name == "points" and not data.path:
        return None
    try:
        return experiment.load_data()
    except UserError as error:
        raise UserError(f"{error}; --out FILE.npz needs no data") from error


def describe_samples(count: int, nfe: float, updates: dict[str, str]) -> str:
    """Return a line about samples, with the training progress of the networks by phase."""
    networks = ", ".join(f"{phase} {progress}" for phase, progress in updates.items())
    return f"{count} samples, NFE {nfe:g}, after updates: {networks}"


def draw_path(samples: Samples, target: Target, data: Data | None, stream: str, method: str) -> Any:
    """Draw the path of samples: images beside the names of classes, points beside the target.
    ``method``: title of the method, for the title of points."""
    if target.is_images:
        return draw_image_path(samples, target.class_names)
    return draw_points(
        [target.in_units(state.cpu()) for state in samples.path],
        data.reference(stream).sample(len(samples.x)) if data else None,
        f"{shown_name(method)} after {words_of_calls(samples.nfe)}",
        target.axes,
        samples.marks,
    )


def changed_settings(experiment: Experiment, run: RunFolder) -> str:
    """Return the end of a file name. It lists the settings that differ from the run's
    ``config.yaml``, e.g. ``-seed1`` or ``-phases_nsgf+nsf``."""
    saved, changed = (
        {
            "seed": config.seed,
            "precision": config.train.precision,
            "phases": config.phases,
            **asdict(config.sampling),
        }
        for config in (build(run.read_settings()), experiment.config)
    )
    for values in (saved, changed):  # compare classes by number, not by name
        values["label"] = experiment.target.class_number(values["label"])
    del changed["batch_size"]  # the batch size changes no sample
    suffix = ""
    for key, value in changed.items():
        if value != saved[key]:
            text = "+".join(value) if isinstance(value, list) else value or "null"
            suffix += f"-{key}{value}" if isinstance(value, int | float) else f"-{key}_{text}"
    return suffix
