"""Samples of a trained run, and their files and pictures."""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.checks import check
from nsgf.config.files import read_settings
from nsgf.config.schema import Config, SamplingConfig
from nsgf.data import (
    Data,
    Sampler,
    build_source,
    class_rows,
    data_classes,
    in_units,
    is_image_set,
)
from nsgf.data.images import to_bytes
from nsgf.phases import load_legs, sampled_phases
from nsgf.run.folder import RunFolder, replacing
from nsgf.run.progress import track
from nsgf.run.stop import StopRequest
from nsgf.sampling.drawn import Batch, Drawn, Kind, fingerprint
from nsgf.sampling.guidance import Labels, asked_labels
from nsgf.sampling.plots import save_grid, save_image_way, save_points
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import World
from nsgf.system.errors import UserError, cause
from nsgf.system.hardware import pick_device
from nsgf.system.output import show

PATH_SAMPLES = 8
POINT_SAMPLES = 2048
CLASS_SAMPLES = 10
"""Longest row of a class."""


def load_sampler(
    config: Config, run: RunFolder, device: torch.device
) -> tuple[FlowSampler, dict[str, str]]:
    """The sampler of a run: Algorithm 4 with all its networks, or Algorithm 2 with the first.

    With ``sampling.tau`` Algorithm 4 asks no time predictor, which is not read. Of a method that
    NSGF is compared with, the network that was trained last. Returns and raises as
    :func:`nsgf.phases.load_legs`.
    """
    phases = sampled_phases(config, run.has_checkpoint)
    return load_legs(config, run, phases, device)


def generate(
    sampler: FlowSampler,
    source: Sampler,
    n: int,
    batch_size: int,
    device: torch.device,
    keep: int | None = None,
    world: World | None = None,
    drawn: Drawn | None = None,
    labels: Labels | None = None,
) -> Samples:
    """``n`` samples in batches, gathered on the CPU; the same ones by any number of processes.

    Args:
        sampler: e.g. of :func:`load_sampler`.
        source: of mu0, from its first position on.
        n, batch_size: how many, and how many of them together.
        device: where the sampler runs.
        keep: for images: how many of the first are kept as floats; all then are as bytes. None:
            all as floats.
        world: the processes among which batches are shared; None: this one alone.
        drawn: batches that were drawn before, to which the others are added.
        labels: classes by position; None: networks are told none.

    Returns:
        All samples; in other processes than the first none.

    Raises:
        UserError: the networks of another process have other weights or another precision, or what
            started the processes is gone.
    """
    world, stop, done = world or World(), StopRequest(), dict[int, Batch]()
    if world.size > 1 and world.agree(networks := fingerprint(sampler)) != networks:
        raise UserError(
            "sampling: the processes have different networks: a checkpoint was replaced while it "
            "was read (give the command again), or cards differ (give --sampling.precision too)"
        )
    cuts = [range(first, min(first + batch_size, n)) for first in range(0, n, batch_size)]
    floats = [len(cut) if keep is None else min(max(0, keep - cut.start), len(cut)) for cut in cuts]
    if drawn and world.is_main:
        form = (source.shape, sampler.has_entry_times, keep is not None, labels is not None)
        kinds = [_kind(len(cut), kept, *form) for cut, kept in zip(cuts, floats, strict=True)]
        if done := drawn.find(kinds):
            show(f"sample: {len(done)} of {len(cuts)} batches are there from before")
    missing = world.agree([number for number in range(len(cuts)) if number not in done])
    own = missing[world.rank :: world.size]
    for number in track(own, "sample", "batch") if world.is_main else own:
        if world.size > 1 and stop.reason:
            raise UserError(f"sampling: {stop.reason}; give the command again")
        told = (labels(cuts[number]),) if labels else ()
        part = sampler(source.at(cuts[number]).to(device), *told)
        done[number] = _as_arrays(part, floats[number], pixels=keep is not None)
        if drawn:
            drawn.keep(number, done[number])
    for others in world.gather({} if world.is_main else done):
        done |= others
    if not world.is_main:
        return Samples(x=torch.empty(0, *source.shape), nfe=0)
    return _joined([done[number] for number in range(len(cuts))], n)


def _as_arrays(part: Samples, floats: int, pixels: bool) -> Batch:
    """A batch as it is kept and gathered: copies of what is asked for alone."""
    tensors = {"x": part.x[:floats], "finite": part.x.isfinite().all()}
    if pixels:
        tensors["pixels"] = to_bytes(part.x)
    if part.tau is not None:
        tensors["tau"] = part.tau
    if part.labels is not None:
        tensors["labels"] = part.labels
    arrays = {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}
    return arrays | {"evaluations": np.array(part.nfe * len(part.x))}


def _kind(
    count: int, floats: int, shape: tuple[int, ...], has_tau: bool, pixels: bool, labels: bool
) -> Kind:
    """What :func:`_as_arrays` makes of ``count`` samples."""
    kind: Kind = {"x": ("float32", (floats, *shape)), "finite": ("bool", ())}
    if pixels:
        kind["pixels"] = ("uint8", (count, *shape))
    if has_tau:
        kind["tau"] = ("float32", (count,))
    if labels:
        kind["labels"] = ("int64", (count,))
    return kind | {"evaluations": ("float64", ())}


def _joined(batches: list[Batch], n: int) -> Samples:
    def whole(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([batch[name] for batch in batches]))

    return Samples(
        x=whole("x"),
        nfe=sum(float(batch["evaluations"]) for batch in batches) / n,
        tau=whole("tau") if "tau" in batches[0] else None,
        labels=whole("labels") if "labels" in batches[0] else None,
        pixels=whole("pixels") if "pixels" in batches[0] else None,
        finite=all(bool(batch["finite"]) for batch in batches),
    )


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
    n, size = config.sampling.num_samples, config.sampling.batch_size
    labels = asked_labels(config)
    samples = generate(sampler, source, n, size, device, world=world, labels=labels)
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
    """What is saved of each sample besides itself."""
    about = {"tau": np.empty(0) if samples.tau is None else samples.tau.numpy()}
    return about if samples.labels is None else about | {"labels": samples.labels.numpy()}


def _save_grid(config: Config, samples: Samples, file: Path) -> None:
    """Of all samples, or of those of all classes a row for each."""
    rows = None
    if samples.labels is not None and config.sampling.label is None:
        rows = class_rows(samples.labels, data_classes(config.data), CLASS_SAMPLES)
    if rows is None:
        save_grid(samples.x, file)
    else:
        save_grid(samples.x[rows.flatten()], file, rows.shape[1])


def _with_unit(progress: str) -> str:
    """``12 of 300`` -> ``12 of 300 updates``, before a remark about the checkpoint."""
    done, mark, remark = progress.partition(";")
    return f"{done} updates{mark}{remark}"


def results_folder(config: Config, run: RunFolder) -> Path:
    """Where the results of a run are written: into its folder, or to ``OUT_DIR/RUN`` where
    ``out_dir`` is not the folder that holds it."""
    home, out = run.path.resolve(), Path(config.out_dir).expanduser()
    parents = {home.parent, run.path.absolute().parent.resolve()}  # of what a link stands for, too
    return run.path if out.resolve() in parents else out / home.name


def writable(folder: Path) -> Path:
    """The folder, made if it is not there, once a file can be written in it.

    Raises:
        UserError: none can.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({cause(error)}); name a folder for the results with "
            "--out-dir DIR, or copy the run folder to where you may write"
        ) from error
    return folder


def changed_settings(config: Config, run: RunFolder) -> str:
    """What the names of samples say of settings that are not those of the run's ``config.yaml``,
    e.g. ``-seed1`` or ``-phases_nsgf+nsf``.
    """
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
    """A setting's value as the name of a file has it."""
    if isinstance(value, list):
        return f"_{'+'.join(value)}"
    return f"{value}" if isinstance(value, int | float) else f"_{value or 'null'}"
