"""A caller's samples: tensors, arrays, tables and data sets in memory, or paths."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from nsgf.config.files import EXPERIMENT_NAMES, read_recipe
from nsgf.config.layers import Layer, change
from nsgf.config.schema import SOURCES, Config, DataConfig
from nsgf.config.values import Place, expand_path, to_plain
from nsgf.data import Target
from nsgf.data.images import to_bytes
from nsgf.settings.choices import INSPECTORS
from nsgf.settings.resolve import Request, resolve
from nsgf.sinkhorn.base import refuse_masks, to_array
from nsgf.system.errors import UserError, one_line, wrong_setting
from nsgf.system.files import ensure_writable, replacing, sync_folder
from nsgf.user_data.files import ARRAYS, MEMORY_FOLDER, check_same_data, load_arrays
from nsgf.user_data.images import image_bytes
from nsgf.user_data.points import LABELS, format_columns
from nsgf.user_data.starts import Starts, starts_of_images, starts_of_table
from nsgf.user_data.tables import RawTable, column_names, read_array, to_frame, to_records

UserSamples = Tensor | ArrayLike | Dataset[Any] | Place
"""Points or images, or the path of a file or folder with them."""
_ARGUMENTS = {"data.path": "data", "data.source": "source"}
"""Names of the arguments that take samples, by the setting that names the samples' file."""


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
    """Return the name of an experiment and the data. ``exp`` may be a name or data. Text in ``exp``
    that looks like a path is the data path, even if nothing exists there."""
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
    source: UserSamples | None = None,
) -> Request:
    """Return the request of a command, with a caller's data and source if there are any. Samples
    are written to ``OUT_DIR/.data/NAME-CHECKSUM.npz``. If the request is refused, the files are
    removed."""
    if labels is not None and isinstance(data, str | PathLike | None):
        raise UserError("labels: belong to samples; the folder or file of data has the classes")
    if labels is not None and "data.label" in settings:
        raise UserError("labels: given twice, also as data.label; leave one out")
    base = read_recipe(files["config"]).settings if "config" in files else {}
    resumed = files.get("run")
    layer: Layer = {}
    if isinstance(data, str | PathLike):
        path = expand_path("data", data)
        kind = settings.get("exp") or _kind_of_data(path, {**base, **settings}.get("data.key"))
        layer = {} if resumed else _data_layer(kind, files, settings)
        layer["data.path"] = str(path)
    if isinstance(source, str | PathLike):
        is_law = source in SOURCES
        layer["data.source"] = source if is_law else str(expand_path("source", source))
    given = {
        key: samples
        for key, samples in (("data.path", data), ("data.source", source))
        if not isinstance(samples, str | PathLike | None)
    }
    notes = []
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for key, samples in given.items():
        argument = _ARGUMENTS[key]
        # look at the type, because a lazy frame would compute its columns
        if hasattr(type(samples), "columns"):
            samples, note = _to_frame(argument, samples)
            notes += [note] if note else []
        arrays[key] = to_arrays(argument, samples, labels if key == "data.path" else None)
    if not arrays:
        return resolve(command, {**layer, **settings}, files)
    if content := arrays.get("data.path"):
        layer |= _data_layer(next(iter(content)), files, settings)
        if LABELS in content and not resumed:
            key, value = (
                ("data.label", LABELS) if "points" in content else ("data.conditional", True)
            )
            layer[key] = value
    out_dir = f"{resumed}/.." if resumed else {**base, **settings}.get("out_dir", Config.out_dir)
    request = _request_with_arrays(command, arrays, out_dir, files, {**layer, **settings})
    return replace(request, notes=[*notes, *request.notes])


def _request_with_arrays(
    command: str,
    arrays: dict[str, dict[str, np.ndarray]],
    out_dir: Place,
    files: dict[str, Path],
    settings: Layer,
) -> Request:
    """Write samples into files in ``OUT_DIR/.data``, and return the request of a command that uses
    these files. ``arrays``: the arrays of each file, by the setting that names the file."""
    folder = ensure_writable(expand_path("out_dir", out_dir).resolve() / MEMORY_FOLDER)
    places = {
        key: folder / f"{next(iter(content))}-{_checksum(content)}.npz"
        for key, content in arrays.items()
    }
    # write drafts into a private folder, because parallel calls may use the final files
    with TemporaryDirectory(prefix=".", dir=folder) as private:
        drafts = {key: Path(private) / key / place.name for key, place in places.items()}
        for key, draft in drafts.items():
            draft.parent.mkdir()
            with replacing(draft) as stream:
                np.savez(stream, **arrays[key])  # type: ignore[arg-type]
        layer = {key: str(draft) for key, draft in drafts.items()}
        request = resolve(command, {**layer, **settings}, files)
        if "run" in files and "data.path" in arrays:
            section = request.config.data
            check_same_data(section, INSPECTORS[section.name](section)[0].checksum)
        for key, draft in drafts.items():
            draft.replace(places[key])
        sync_folder(folder)
    layer = {key: str(place) for key, place in places.items()}
    notes = request.notes
    for key, draft in drafts.items():
        notes = [note.replace(str(draft), str(places[key])) for note in notes]
    return replace(
        request,
        config=change(request.config, layer),
        methods=[change(method, layer) for method in request.methods],
        notes=notes,
    )


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    """Return a checksum of arrays and their names."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()[:12]


def _data_layer(name: Any, files: dict[str, Path], settings: Layer) -> Layer:
    """Return the settings for a caller's data. ``name``: ``images`` or ``points``. Raise UserError
    if the caller also names a data set, or an experiment other than ``name``."""
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


def _to_frame(argument: str, data: Any) -> tuple[Any, str]:
    """Return a table in memory as a DataFrame of pandas, and a line for the user. Raise UserError
    if the data are no table. ``argument``: name of the caller's argument, for messages."""
    try:
        return to_frame(data)
    except Exception as error:  # libraries of tables raise many types
        raise UserError(f"{argument}: {one_line(error)}") from error


def to_arrays(argument: str, data: Any, labels: ArrayLike | None = None) -> dict[str, np.ndarray]:
    """Convert samples in memory to arrays: ``images`` or ``points``, and perhaps ``labels``. The
    arrays are not checked further. ``argument``: name of the caller's argument, for messages."""
    name = argument
    try:
        if isinstance(data, Dataset):
            data, labels = _read_items(data, labels)
        samples = (
            to_records(to_frame(data)[0]) if hasattr(type(data), "columns") else to_array(data)
        )
        # object arrays would need pickles in the file, so store records
        if samples.dtype.hasobject:
            samples = to_records(read_array(samples).cells)
        arrays = {"points": samples} if samples.ndim < 3 else {"images": image_bytes(samples)}
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


def to_starts(config: DataConfig, target: Target, x: Any) -> Starts:
    """Return a caller's points or images ``x`` as samples to move. Raise UserError if the samples
    do not have the target's columns or shape."""
    try:
        if target.is_images:
            return starts_of_images(config, target, to_array(x))
        if hasattr(type(x), "columns"):
            frame, _ = to_frame(x)
            return starts_of_table(config, target, RawTable(frame, column_names(frame.columns)))
        return starts_of_table(config, target, read_array(to_array(x)))
    except Exception as error:  # libraries of tables raise many types
        raise UserError(f"x: {one_line(error)}") from error


def like_samples(moved: Tensor, x: Any, names: Sequence[str]) -> Any:
    """Return samples as an object of the type of ``x``: a table with the columns ``names``, a
    tensor, or an array. Bytes stay bytes, and floats keep their type.  (N, ...)"""
    if hasattr(type(x), "columns") and moved.ndim == 2:
        if hasattr(x, "iloc"):
            titles = dict(zip(column_names(x.columns), x.columns, strict=True))
            columns = [titles.get(name, name) for name in names]
            return type(x)(moved.numpy(), index=x.index, columns=columns)
        content = dict(zip(names, moved.T.contiguous().numpy(), strict=True))
        make = getattr(type(x), "from_pydict", type(x))  # pyarrow's tables have no constructor
        return make(content)
    if isinstance(x, Tensor):
        values = to_bytes(moved) if x.dtype == torch.uint8 else moved
        return values.to(x.device, x.dtype if x.is_floating_point() else values.dtype)
    array = np.asarray(x)
    if array.dtype == np.uint8:
        return to_bytes(moved).numpy()
    return moved.numpy().astype(array.dtype if array.dtype.kind == "f" else np.float64)
