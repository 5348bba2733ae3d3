"""Files and pictures of the samples of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nsgf.checks import check
from nsgf.config.files import read_settings
from nsgf.config.schema import Config, SamplingConfig
from nsgf.data import Data, build_source, class_rows, data_classes, in_units, is_image_set
from nsgf.phases import load_sampler
from nsgf.plots.samples import save_grid, save_image_way, save_points
from nsgf.run.folder import RunFolder, replacing, results_folder, writable
from nsgf.sampling.generate import generate
from nsgf.sampling.sampler import Samples
from nsgf.system.distributed import World
from nsgf.system.hardware import pick_device

PATH_SAMPLES = 8
POINT_SAMPLES = 2048
CLASS_SAMPLES = 10
"""Largest number of samples in the row of a class."""


def sample_run(config: Config, run: RunFolder, world: World | None = None) -> list[str]:
    """Draw samples into ``samples/``: an .npz, a grid of images, a picture of their way.

    The files are ``samples.npz`` (own points in the units of their file, images clamped to [-1, 1];
    with classes ``labels`` too), ``grid.png`` (images alone; with classes a row for each) and
    ``trajectory.png``; what this command sets differently from the run's own configuration is added
    to the names, as in ``samples-seed1-solver_heun.npz``, so that samples of other settings stay.

    Args:
        config: the run's settings with this command's on top. Where ``out_dir`` is not the folder
            that holds the run, the files go to ``OUT_DIR/RUN/samples``: the run may be read-only.
        run: its folder.
        world: the processes that sample together, of which the first writes; None: this one alone.

    Returns:
        One line about the samples, and one for each file; nothing in other processes.

    Raises:
        UserError: checkpoints are missing or damaged, or the files cannot be written, which is
            found out before sampling.
    """
    check(config)
    world = world or World()
    folder = writable(results_folder(config, run) / "samples")
    device = pick_device(config.device, world.card)
    sampler, progress = load_sampler(config, run, device)
    data = None if is_image_set(config.data.name) else Data(config.data, config.seed)
    source = build_source(config.data, config.seed, "sample")
    samples = generate(sampler, source, config.sampling.num_samples, device, world=world)
    if not world.is_main:
        return []
    suffix = changed_settings(config, run)
    arrays, grid, trajectory = (
        folder / f"{stem}{suffix}{kind}"
        for stem, kind in (("samples", ".npz"), ("grid", ".png"), ("trajectory", ".png"))
    )
    x = in_units(config.data, samples.x)
    with replacing(arrays) as stream:
        np.savez(stream, x=x.numpy(), nfe=samples.nfe, **_about(samples))  # type: ignore[arg-type]

    shown = POINT_SAMPLES if data else PATH_SAMPLES
    start = build_source(config.data, config.seed, "path").sample(shown).to(device)
    way = sampler(start, keep_path=True)
    files = [arrays, trajectory]
    if data:
        target = data.reference("path").sample(POINT_SAMPLES)
        path = [data.in_units(state.cpu()) for state in way.path]
        save_points(path, target, trajectory, f"NFE {samples.nfe:g}", data.axes)
    else:
        files.insert(1, grid)
        _save_grid(config, samples, grid)
        save_image_way(way, trajectory)
    networks = ", ".join(f"{phase} ({_with_unit(updates)})" for phase, updates in progress.items())
    count = f"{len(samples.x)} samples, NFE {samples.nfe:g}, with {networks}"
    return [count, *map(str, files)]


def _about(samples: Samples) -> dict[str, np.ndarray]:
    """Return the arrays that are saved beside the samples."""
    about = {"tau": np.empty(0) if samples.tau is None else samples.tau.numpy()}
    return about if samples.labels is None else about | {"labels": samples.labels.numpy()}


def _save_grid(config: Config, samples: Samples, file: Path) -> None:
    """Write a grid of all samples, or with all classes a row for each."""
    rows = None
    if samples.labels is not None and config.sampling.label is None:
        rows = class_rows(samples.labels, data_classes(config.data), CLASS_SAMPLES)
    if rows is None:
        save_grid(samples.x, file)
    else:
        save_grid(samples.x[rows.flatten()], file, rows.shape[1])


def _with_unit(progress: str) -> str:
    """Turn ``12 of 300`` into ``12 of 300 updates``, before a remark about the checkpoint."""
    done, mark, remark = progress.partition(";")
    return f"{done} updates{mark}{remark}"


def changed_settings(config: Config, run: RunFolder) -> str:
    """Return the part of a file's name for settings that differ from the run's ``config.yaml``,
    e.g. ``-seed1`` or ``-phases_nsgf+nsf``."""
    saved, usual = read_settings(run.config_file), Config()
    own = {**asdict(SamplingConfig()), **saved.get("sampling", {})}
    own |= {key: saved.get(key, getattr(usual, key)) for key in ("seed", "phases")}
    now = {"seed": config.seed, "phases": config.phases, **asdict(config.sampling)}
    return "".join(
        f"-{key}{_in_name(value)}"
        for key, value in now.items()
        if key != "batch_size" and value != own[key]  # the size of a batch changes no sample
    )


def _in_name(value: Any) -> str:
    """Return a setting's value as part of a file's name."""
    if isinstance(value, list):
        return f"_{'+'.join(value)}"
    return f"{value}" if isinstance(value, int | float) else f"_{value or 'null'}"
