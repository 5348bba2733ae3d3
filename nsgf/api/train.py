"""Train as ``nsgf train`` does."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from nsgf import experiment
from nsgf.api.run import Run, check_network, class_name, load
from nsgf.config.files import from_arguments, read_experiment
from nsgf.config.schema import Config
from nsgf.config.settings import Layer
from nsgf.config.values import expand_path, read_flag
from nsgf.data import INSPECTORS
from nsgf.data.own import check_same_data
from nsgf.data.own_images import image_bytes
from nsgf.models import OwnNetwork
from nsgf.resolve import Request, resolve
from nsgf.run.stop import Stopped
from nsgf.sinkhorn.base import refuse_masks, to_array
from nsgf.system.defaults import from_python
from nsgf.system.errors import UserError, naming, one_line
from nsgf.system.files import ensure_writable, replacing, sync_folder
from nsgf.system.hardware import device_name, pick_device
from nsgf.system.output import show, silence
from nsgf.system.seeding import keep_random_numbers

Samples = Tensor | ArrayLike | Dataset[Any]
"""Points or images."""
_NAMES = {"data.name": "dataset", "optim.iterations": "iterations", "run": "resume"}


@from_python(_NAMES)
def train(
    exp: str | None = None,
    *,
    data: Samples | None = None,
    labels: ArrayLike | None = None,
    network: OwnNetwork | None = None,
    method: str | PathLike[str] | None = None,
    iterations: int | None = None,
    dataset: str | None = None,
    config: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    out_dir: str | PathLike[str] | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train an experiment or your own data as ``nsgf train`` does, and open the run. The caller's
    random numbers stay as they were. Ctrl-C loses what came after the last checkpoint.

    Args:
        exp: the name of an experiment, as ``2d``; or give ``data``.
        data: tensor or array of points (N, D) in any units, or of images (N, C, S, S), uint8 or
            floats in [-1, 1] (kept as bytes); or a data set of torch with a length, of such
            samples or of pairs (sample, label). They are written once into ``OUT_DIR/.data``.
        labels: classes of images, (N,), numbers from 0 on or names; ``data.conditional`` is true.
        network: a module whose ``forward(x, t)``, with classes ``forward(x, t, labels)``, returns a
            tensor of x's shape, or a function or class that makes one. t (B,) is in [0, 1); labels
            (B,) are integers from 0 to K, where K means no class. Velocity networks start as copies
            of it. Only weights are saved: pass it again to resume and to load.
        method: a name such as ``nsgf++h``, or a YAML file; None: the experiment's method.
        iterations: number of updates of every phase.
        dataset: name of the data set (``data.name``), such as ``moons``.
        config: a YAML file instead of ``exp``; with ``resume``, settings to change.
        resume: a run folder to continue. ``data`` is needed only if its file is gone.
        out_dir: folder for the run folders; None: ``runs``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: the experiment's.
        seed: seed of all random numbers of the run; None: the experiment's.
        overrides: other settings by key, such as ``{"nsgf.iterations": 2000}``. ``optim.*`` sets
            every phase.
        quiet: whether to print nothing.

    Raises:
        UserError: an argument or a setting is wrong, or ``train.max_hours`` is over.
    """
    named = {"exp": exp, "data.name": dataset, "method": method, "optim.iterations": iterations}
    where = {"out_dir": out_dir, "device": device_name(device), "seed": seed}
    settings = from_arguments({**named, **where}, overrides) | class_name(network)
    named_files = {"run": resume, "config": config}
    files = {key: expand_path(key, file) for key, file in named_files.items() if file is not None}
    is_quiet = read_flag("quiet", quiet)
    if data is not None:
        wanted = _request(data, labels, files, settings)
    elif labels is not None:
        raise UserError("labels: belong to data, which is missing")
    else:
        wanted = resolve("train", settings, files)
    place = pick_device(wanted.config.device)
    cards = [place] if place.type == "cuda" else []
    with silence() if is_quiet else nullcontext(), keep_random_numbers(cards):
        if network is not None:
            check_network(network, wanted.config, place)
        for note in wanted.notes:
            show(note)
        try:
            run = experiment.train(wanted.config, wanted.run, network=network)
        except Stopped as stopped:
            own = "" if network is None else ", network=..."
            raise UserError(
                f"train.max_hours = {wanted.config.train.max_hours} is over, {stopped}; continue "
                f"with nsgf.train(resume={str(stopped.folder)!r}{own})"
            ) from stopped
    return load(run.path, device=place, network=network)


def _request(
    data: Samples, labels: ArrayLike | None, files: dict[str, Path], settings: Layer
) -> Request:
    """Return the request of a training on samples. They are written to
    ``OUT_DIR/.data/NAME-CHECKSUM.npz``, which a refused request does not leave."""
    if {"exp", "data.name"} & {*settings}:
        raise UserError("data: cannot be given beside exp or dataset; leave one out")
    arrays, digest = _arrays(data, labels), hashlib.sha256()
    for key, array in arrays.items():
        digest.update(f"{key} {array.dtype} {array.shape} ".encode() + array.tobytes())
    name, resumed = next(iter(arrays)), files.get("run")
    base = read_experiment(files["config"]).settings if "config" in files else {}
    out_dir = f"{resumed}/.." if resumed else {**base, **settings}.get("out_dir", Config.out_dir)
    folder = ensure_writable(expand_path("out_dir", out_dir).resolve() / ".data")
    file = folder / f"{name}-{digest.hexdigest()[:12]}.npz"
    own: Layer = {"data.name": name}
    if not resumed:
        own |= {"data.conditional": "labels" in arrays}
        own |= {} if "config" in files else {"exp": name}
    with (
        TemporaryDirectory(prefix=".", dir=folder) as private,  # other calls may use `file`
        naming({**_NAMES, "data.path": "data"}),
    ):
        place = file if file.exists() else Path(private) / file.name
        if place != file:
            with replacing(place) as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]
        wanted = resolve("train", {**own, "data.path": str(place), **settings}, files)
        section = wanted.config.data
        if resumed:
            check_same_data(section, INSPECTORS[name](section)[0].checksum)
        if place != file:
            place.replace(file)
            sync_folder(folder)
    section.path = str(file)
    wanted.notes = [note.replace(str(place), str(file)) for note in wanted.notes]
    return wanted


def _arrays(data: Samples, labels: ArrayLike | None) -> dict[str, np.ndarray]:
    """Return ``images``, perhaps with ``labels``, or ``points``; who reads them checks the rest."""
    try:
        if isinstance(data, Dataset):
            items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
            refuse_masks(items)
            data = default_collate(items)
            if isinstance(data, list | tuple):
                if len(data) + (labels is not None) > 2:
                    raise ValueError("its items must be samples or pairs; labels belong to samples")
                data, labels = (*data, labels)[:2]
        samples = to_array(data)
        if samples.ndim < 3 and labels is not None:
            raise ValueError("points have no classes; leave labels out")
        arrays = {"points": samples} if samples.ndim < 3 else {"images": image_bytes(samples)}
        return arrays if labels is None else {**arrays, "labels": to_array(labels)}
    except Exception as error:  # a Dataset may raise any type
        raise UserError(f"data: {one_line(error)}") from error
