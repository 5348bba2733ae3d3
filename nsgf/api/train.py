"""Train as ``nsgf train`` does."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from nsgf.api.run import Run, check_network, class_name, folder_and_network, load
from nsgf.commands.estimate import fit_minutes
from nsgf.commands.train import train as train_phases
from nsgf.config.files import EXPERIMENT_NAMES, from_arguments, read_recipe
from nsgf.config.layers import Layer, change
from nsgf.config.schema import Config, DataConfig
from nsgf.config.values import Place, expand_path, read_value, to_plain
from nsgf.models import UserNetwork
from nsgf.run.log import RunLog
from nsgf.run.stop import CALLBACK, Stopped, stop_of_caller
from nsgf.settings.choices import INSPECTORS
from nsgf.settings.resolve import Request, resolve
from nsgf.sinkhorn.base import refuse_masks, to_array
from nsgf.system.errors import UserError, one_line, wrong_setting
from nsgf.system.files import ensure_writable, replacing, sync_folder
from nsgf.system.output import show, silence
from nsgf.system.seeding import from_python
from nsgf.user_data.files import ARRAYS, check_same_data, load_arrays
from nsgf.user_data.images import image_bytes
from nsgf.user_data.points import format_columns
from nsgf.user_data.tables import read_array, to_frame, to_records

UserSamples = Tensor | ArrayLike | Dataset[Any] | Place
"""Points or images, or the path of a file or folder with them."""
_TRAIN_ARGUMENTS = {
    "data.name": "dataset",
    "data.path": "data",
    "run": "resume",
    "optim.iterations": "iterations",
    "optim.batch_size": "batch_size",
    "optim.lr": "lr",
    "sinkhorn.blur": "blur",
    "data.columns": "columns",
    "data.held_out": "held_out",
}


class Update(NamedTuple):
    """State of training, for a callback."""

    phase: str
    step: int
    """Number of updates of the phase."""
    loss: float | None
    """Mean loss of the finite updates since the last call. Without such updates, the loss of the
    last call; None at the first call."""
    run: Callable[[], Run]
    """Function that saves a checkpoint and opens the run like ``nsgf.load``, to sample with current
    weights."""


@from_python(_TRAIN_ARGUMENTS)
def train(
    exp: str | UserSamples | None = None,
    *,
    data: UserSamples | None = None,
    labels: ArrayLike | None = None,
    columns: Sequence[str | int] | str | None = None,
    held_out: float | None = None,
    network: UserNetwork | None = None,
    method: Place | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    blur: float | None = None,
    minutes: float | None = None,
    dataset: str | None = None,
    config: Place | None = None,
    resume: Place | Run | None = None,
    out_dir: Place | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    callback: Callable[[Update], object] | None = None,
    quiet: bool = False,
) -> Run:
    """Train on an experiment or on your data as ``nsgf train`` does, and return the run, ready for
    sampling. The function itself does not change the caller's random generators.

    Args:
        exp: name of an experiment, such as ``2d``; or ``data``.
        data: a tensor, array or DataFrame (pandas, polars, pyarrow) of points (N, D) in any units,
            or images (N, C, H, W), uint8 or floats in [-1, 1], which become bytes; a torch data set
            with a length, of such samples or of pairs (sample, label); or the path of a folder of
            images or of a file, as for ``data.path``. Data in memory are written into
            ``OUT_DIR/.data``.
        labels: the class of each image, (N,), as numbers from 0 or names. The run then has classes.
        columns: columns of points to use, such as ``["height", "weight"]`` or ``[1, 3]``: only
            names, or only numbers from 1; None: all.
        held_out: fraction of the samples that is not trained on, for measures (``data.held_out``).
        network: a module whose ``forward(x, t)``, or with classes ``forward(x, t, labels)``,
            returns a tensor of x's shape; or a function or class that makes one. t (B,) is in [0,
            1]; labels (B,) are integers from 0 to K, where K means no class. Velocity networks
            start as copies of this module. Only weights are saved, so pass the network again to
            resume and to load.
        method: a name such as ``nsgf++h``, or a YAML file; None: the experiment's method.
        iterations: number of updates of every phase.
        batch_size: number of samples in an update of every phase.
        lr: learning rate of every phase.
        blur: square root of the regularization eps of the Sinkhorn flow, in units of the networks'
            data (``sinkhorn.blur``).
        minutes: time for the whole training of a new run. The number of updates is chosen after a
            few measured updates. Phases keep their shares of the updates.
        dataset: name of the data set (``data.name``), such as ``moons``.
        config: a YAML file instead of ``exp``; with ``resume``, settings to change.
        resume: a run folder, or an open run, to continue. Pass ``data`` (and ``labels``) again only
            if the file of the data no longer exists.
        out_dir: folder for the run folders; None: ``runs``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: as in the experiment.
        seed: seed of all random numbers of the run; None: as in the experiment.
        overrides: settings by key, such as ``{"nsgf.iterations": 2000}``. ``optim.*`` sets
            every phase.
        callback: function that gets an ``Update`` at each line of ``metrics.jsonl``: every
            ``train.log_every`` updates, more often in a short phase. The callback does not change
            results. If the callback returns False, training ends: a checkpoint is saved, and the
            run is returned. The run samples with the networks that are trained so far. Later phases
            stay untrained; ``resume`` continues. If the callback raises an exception, a checkpoint
            is saved first.
        quiet: whether to print nothing.

    Raises:
        UserError: an argument or a setting is wrong, or ``train.max_hours`` is over.
        KeyboardInterrupt: Ctrl-C; a checkpoint is saved, and the message says how to resume.
    """
    exp, data = split_data(exp, data)
    named = {
        "exp": exp,
        "data.name": dataset,
        "method": method,
        "optim.iterations": iterations,
        "optim.batch_size": batch_size,
        "optim.lr": lr,
        "sinkhorn.blur": blur,
        "data.columns": columns_text(columns),
        "data.held_out": held_out,
        "out_dir": out_dir,
        "device": device and str(device),
        "seed": seed,
    }
    if minutes is not None:
        minutes = read_value("minutes", float, to_plain(minutes))
    if resume is not None:
        resume, network = folder_and_network(resume, network)
    settings = from_arguments(named, overrides) | class_name(network)
    paths = {"run": resume, "config": config}
    files = {key: expand_path(key, path) for key, path in paths.items() if path is not None}
    request = request_with_data("train", data, labels, files, settings)
    with silence(quiet):
        folder = _run_phases(request, network, minutes, callback)
    return load(folder, device=request.experiment.device, network=network)


def _run_phases(
    request: Request,
    network: UserNetwork | None,
    minutes: float | None,
    callback: Callable[[Update], object] | None,
) -> Path:
    """Train as :func:`train` does, and return the run folder."""
    experiment = request.experiment
    opened_on = experiment.device

    def call_back(phase: str, step: int, loss: float | None, save: Callable[[], Path]) -> object:
        assert callback is not None
        with silence(False):
            return callback(
                Update(phase, step, loss, lambda: load(save(), device=opened_on, network=network))
            )

    on_log = None if callback is None else call_back

    def continue_with(folder: Path | None) -> str:
        more = "" if network is None else ", network=..."
        return f"continue with nsgf.train(resume={str(folder)!r}{more})"

    if network is not None:
        check_network(network, experiment.target, opened_on)
    for note in request.notes:
        show(note)
    with stop_of_caller(experiment.config.train.max_hours, continue_with) as stop:
        notes = []
        if minutes is not None:
            is_new = request.run is None
            experiment, note = fit_minutes(experiment, minutes, stop, network, is_new=is_new)
            notes.append(note)
        try:
            run = train_phases(
                experiment,
                request.run,
                stop=stop,
                network=network,
                on_log=on_log,
                notes=notes,
            )
        except Stopped as stopped:
            if stop.reason != CALLBACK or stopped.folder is None:
                raise
            RunLog(stopped.folder).write(
                f"stopped ({CALLBACK}), all is saved ({stopped}); {continue_with(stopped.folder)}"
            )
            return stopped.folder
    return run.path


def columns_text(columns: Any) -> str | None:
    """Return names or numbers of columns as the text of ``data.columns``. Raise UserError if the
    list is empty."""
    chosen = to_plain(columns)
    if chosen is None or isinstance(chosen, str):
        return chosen
    names = [one_line(str(name)) for name in (chosen if isinstance(chosen, list) else [chosen])]
    if not names:
        raise wrong_setting("data.columns", chosen, "must have a column; leave it out for all")
    return format_columns(names)


def split_data(exp: Any, data: UserSamples | None) -> tuple[str | None, UserSamples | None]:
    """Return the name of an experiment and the data. The first argument may be a name or data. Text
    that looks like a path is the path of data, even if the data are missing."""
    is_name = isinstance(exp, str) and (
        exp in EXPERIMENT_NAMES or (Path(exp).stem == exp and not os.path.exists(exp))
    )
    if exp is None or is_name:
        return exp, data
    if data is not None:
        raise UserError("data: given twice; leave the first argument out")
    return None, exp


def request_with_data(
    command: str,
    data: UserSamples | None,
    labels: ArrayLike | None,
    files: dict[str, Path],
    settings: Layer,
) -> Request:
    """Return the request of a command, with a caller's data if there are any. Samples are written
    to ``OUT_DIR/.data/NAME-CHECKSUM.npz``. If the request is refused, the file is removed."""
    if labels is not None and isinstance(data, str | PathLike | None):
        raise UserError("labels: belong to samples; the folder or file of data has the classes")
    if data is None:
        return resolve(command, settings, files)
    base = read_recipe(files["config"]).settings if "config" in files else {}
    if isinstance(data, str | PathLike):
        path = expand_path("data", data)
        kind = settings.get("exp") or _kind_of_data(path, {**base, **settings}.get("data.key"))
        layer = {} if "run" in files else _data_layer(kind, files, settings)
        return resolve(command, {**layer, "data.path": str(path), **settings}, files)
    notes = []
    # on the type, because a lazy frame would compute the columns
    if hasattr(type(data), "columns"):
        data, note = _to_frame(data)
        notes = [note] if note else []
    arrays = _arrays(data, labels)
    resumed = files.get("run")
    out_dir = f"{resumed}/.." if resumed else {**base, **settings}.get("out_dir", Config.out_dir)
    request = _request_with_arrays(command, arrays, out_dir, files, settings)
    return replace(request, notes=[*notes, *request.notes])


def _request_with_arrays(
    command: str,
    arrays: dict[str, np.ndarray],
    out_dir: Place,
    files: dict[str, Path],
    settings: Layer,
) -> Request:
    """Write the samples ``arrays`` into a file of ``OUT_DIR/.data``, and return the request of a
    command with this file."""
    name = next(iter(arrays))
    resumed = files.get("run")
    layer = _data_layer(name, files, settings)
    layer |= {"data.conditional": True} if "labels" in arrays and not resumed else {}
    folder = ensure_writable(expand_path("out_dir", out_dir).resolve() / ".data")
    file = folder / f"{name}-{_checksum(arrays)}.npz"
    # private, because parallel calls may use `file`
    with TemporaryDirectory(prefix=".", dir=folder) as private:
        draft = Path(private) / file.name
        with replacing(draft) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        request = resolve(command, {**layer, "data.path": str(draft), **settings}, files)
        if resumed:
            section = request.config.data
            check_same_data(section, INSPECTORS[name](section)[0].checksum)
        draft.replace(file)
        sync_folder(folder)
    return replace(
        request,
        config=change(request.config, {"data.path": str(file)}),
        methods=[change(method, {"data.path": str(file)}) for method in request.methods],
        notes=[note.replace(str(draft), str(file)) for note in request.notes],
    )


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    """Return a checksum of arrays and their names."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()[:12]


def _data_layer(name: Any, files: dict[str, Path], settings: Layer) -> Layer:
    """Return the settings for a caller's data, ``images`` or ``points``. Raise UserError if the
    caller also names an experiment or a data set that does not fit."""
    if settings.get("exp", name) != name or name not in INSPECTORS or "data.name" in settings:
        raise UserError("data: cannot be given beside another exp or dataset; leave one out")
    return {"data.name": name} | ({} if files else {"exp": name})


def _kind_of_data(path: Path, key: str | None) -> str:
    """Return ``images`` or ``points``, depending on the file or folder at a path. ``key``:
    ``data.key``. The data are not checked here."""
    is_image = path.is_dir() or not path.suffix
    if path.suffix.lower() in ARRAYS:
        is_image = True  # a file of several arrays, such as images with labels, counts as images
        with suppress(Exception):  # numpy raises many types for damaged files
            array, *_ = load_arrays(DataConfig(name="points", path=str(path), key=key))
            is_image = array.ndim > 2
    return "images" if is_image else "points"


def _to_frame(data: Any) -> tuple[Any, str]:
    """Return a table in memory as a DataFrame of pandas, and a line for the user. Raise UserError
    if the data are no table."""
    try:
        return to_frame(data)
    except Exception as error:  # libraries of tables raise many types
        raise UserError(f"data: {one_line(error)}") from error


def _arrays(data: UserSamples, labels: ArrayLike | None) -> dict[str, np.ndarray]:
    """Return the arrays ``images``, perhaps with ``labels``, or ``points``. They are not checked
    further."""
    name = "data"
    try:
        if isinstance(data, Dataset):
            data, labels = _read_items(data, labels)
        samples = (
            to_records(to_frame(data)[0]) if hasattr(type(data), "columns") else to_array(data)
        )
        # object arrays would need pickles in the file, so store records
        if samples.dtype.hasobject:
            samples = to_records(read_array(samples).cells)
        if samples.ndim < 3:
            if labels is not None:
                raise ValueError("points have no classes; leave labels out")
            return {"points": samples}
        arrays = {"images": image_bytes(samples)}
        if labels is None:
            return arrays
        name = "labels"
        if not isinstance(labels, Tensor | np.ma.MaskedArray):  # pandas stores texts as objects
            objects = np.asarray(labels, dtype=object)
            if len({isinstance(label, str) for label in objects.flat}) > 1:
                raise ValueError("numbers or gaps among names; all must be names, or all numbers")
            labels = objects.tolist()
        return {**arrays, "labels": to_array(labels)}
    except Exception as error:  # a Dataset may raise any type
        raise UserError(f"{name}: {one_line(error)}") from error


def _read_items(data: Dataset[Any], labels: ArrayLike | None) -> tuple[Any, Any]:
    """Return the samples of a data set, and their labels. Raise ValueError if the items are neither
    samples nor pairs (sample, label)."""
    items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
    refuse_masks(items)
    try:
        columns = default_collate(items)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"its items must be tensors of one shape, or pairs (tensor, label) ({one_line(error)})"
            "; of torchvision use transform=Compose([Resize((32, 32)), PILToTensor()])"
        ) from error
    if not isinstance(columns, list | tuple):
        return columns, labels
    if len(columns) + (labels is not None) > 2:
        raise ValueError("its items must be samples or pairs; labels belong to samples")
    return (*columns, labels)[:2]
