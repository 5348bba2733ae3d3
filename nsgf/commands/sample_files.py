"""Write samples to a new file batch by batch, so that memory does not limit their number."""

import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from nsgf.config.values import expand_path
from nsgf.data import Target
from nsgf.plots.figures import save_animation
from nsgf.plots.samples import figure_defaults, to_pictures
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.errors import UserError, list_names, suggest, wrong_setting
from nsgf.system.files import ensure_writable, replacing, replacing_folder

ARRAY_FILES = ".npz", ".npy"
DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = *DELIMITERS, ".parquet"
MOVING = ".gif", ".webp"
GROUP_ROWS = 2**16
"""Smallest number of rows in a group of a Parquet file. Smaller groups make reading slow."""


@dataclass
class BatchReader:
    """Yields batches of samples, and counts samples and network calls."""

    batches: Iterable[Samples]
    count: int = 0
    """Number of samples so far."""
    calls: float = 0.0
    """Network calls for these samples."""

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.batches:
            self.count += len(batch.x)
            self.calls += batch.nfe * len(batch.x)
            yield batch

    @property
    def nfe(self) -> float:
        """Mean number of network calls for a sample."""
        return self.calls / self.count


def check_output(out: str, target: Target, *, has_paths: bool = False) -> tuple[Path, str]:
    """Check that ``--out`` can be written. Return its path and its suffix (empty for a folder).
    Raise UserError if the file exists, if its kind does not suit the data, or if a package is
    missing. ``has_paths``: whether the intermediate states are written too."""
    path = expand_path("out", out)
    suffix = "" if out.endswith("/") or os.path.isdir(path) else path.suffix.lower()
    suffixes = [*ARRAY_FILES]
    if not has_paths:
        suffixes += () if target.is_images else TABLES
        suffixes += MOVING if target.shape != (1,) else ()
    kinds = [f"FILE{ending}" for ending in suffixes]
    kinds += ["DIR/"] * (target.is_images and not has_paths)
    if (f"FILE{suffix}" if suffix else "DIR/") not in kinds:
        what = "trajectories" if has_paths else "this data"
        raise wrong_setting("out", out, f"must be {' or '.join(kinds)} for {what}")
    if suffix == ".parquet":
        _check_parquet(out, _columns(target))
    images = (_image_name(0, label) for label in target.class_names)
    ensure_writable(path.parent, "out", [path.name, *images])
    if path.exists() and (suffix or not path.is_dir() or any(path.iterdir())):
        raise wrong_setting("out", out, "exists; name a new one, or remove it")
    return path, suffix


def _check_parquet(out: str, columns: list[str]) -> None:
    """Raise UserError if pyarrow is missing, or two columns have the same name."""
    remedy = suggest("out", "FILE.csv")
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise wrong_setting(
            "out", out, f"needs pyarrow (pip install pyarrow), or use {remedy}"
        ) from error
    if len({*columns}) < len(columns):
        raise wrong_setting(
            "out", out, f"needs different names, not {list_names(columns)}; use {remedy}"
        )


def write_samples(
    target: Target,
    batches: BatchReader,
    count: int,
    path: Path,
    suffix: str,
    names: Sequence[str] = (),
    *,
    has_paths: bool = False,
) -> None:
    """Write ``count`` samples to a new file, or to a folder of PNG files (empty ``suffix``). Points
    have the units of the data, images are clamped to [-1, 1]. If writing fails, the file or folder
    is removed.

    Args:
        names: names for the PNG files, (count,); empty: the names of the classes, if there are any.
        has_paths: whether the batches have intermediate states, which are written too
            (:func:`states_of`).
    """
    if suffix == "":
        _write_pictures(target, batches, path, names)
        return
    with replacing(path) as stream:
        if suffix == ".npz":
            _write_arrays(target, batches, count, stream, has_paths)
        elif suffix == ".npy":
            _write_array((states_of(target, batch) for batch in batches), count, stream)
        elif suffix == ".parquet":
            _write_parquet(target, batches, stream)
        else:
            _write_text(target, batches, stream, DELIMITERS[suffix])


def check_fixed_steps(sampler: FlowSampler) -> None:
    """Raise UserError if samples have different numbers of steps."""
    if sampler.expected_nfe is None:
        raise UserError(
            "trajectory: needs a fixed number of steps; use sampling.solver euler or heun, and "
            "sampling.omega null"
        )


def states_of(target: Target, batch: Samples) -> Tensor:
    """Return the samples of a batch in the units of the data, (B, *shape). If the batch has
    intermediate states, return the start and the state after each of S steps, (B, S + 1, *shape).
    Images are then not clamped."""
    if not batch.path:
        return target.in_units(batch.x)
    if target.is_images:
        return torch.stack(batch.path, 1)
    return torch.stack([target.in_units(state) for state in batch.path], 1)


def write_animation(target: Target, samples: Samples, path: Path) -> None:
    """Write the paths of samples as an animation. Raise UserError if the samples are not finite."""
    if not samples.finite:
        raise UserError("the samples are not finite: training has diverged")
    states = [target.in_units(state) for state in samples.path]
    with figure_defaults():
        save_animation(replace(samples, path=states), path, target.axes)


def _columns(target: Target) -> list[str]:
    """Return the names of the columns of points: the coordinates, and the column of the classes if
    there are any."""
    names = [*(target.axes or (f"x{number}" for number in range(1, target.shape[0] + 1)))]
    return names if target.label_name is None else [*names, target.label_name]


def _classes_of(target: Target, batch: Samples) -> list[str]:
    """Return the name of each sample's class; empty: there are no classes."""
    if batch.labels is None:
        return []
    return [target.class_names[label] for label in batch.labels.tolist()]


def _write_text(target: Target, batches: BatchReader, stream: BinaryIO, delimiter: str) -> None:
    """Write points as a table of text, with a line of names."""

    def write(rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
        stream.write(text.getvalue().encode())

    write([_columns(target)])
    for batch in batches:
        rows = target.in_units(batch.x).tolist()
        classes = _classes_of(target, batch)
        write([[*row, name] for row, name in zip(rows, classes, strict=True)] if classes else rows)


def _write_parquet(target: Target, batches: BatchReader, stream: BinaryIO) -> None:
    """Write points as a Parquet file, with float64 columns and a column of text for the classes."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    dim = target.shape[0]
    kinds = [pyarrow.float64()] * dim + [pyarrow.string()] * (target.label_name is not None)
    schema = pyarrow.schema([*zip(_columns(target), kinds, strict=True)])
    waiting: list[Tensor] = []
    classes: list[str] = []

    def write_group() -> None:
        columns: list[Any] = [*torch.cat(waiting).T.contiguous().numpy()]
        if classes:
            columns.append(pyarrow.array(classes))
        writer.write_table(pyarrow.table(columns, schema=schema))
        waiting.clear()
        classes.clear()

    with ParquetWriter(stream, schema) as writer:
        for batch in batches:
            waiting.append(target.in_units(batch.x).double())
            classes.extend(_classes_of(target, batch))
            if sum(map(len, waiting)) >= GROUP_ROWS:
                write_group()
        if waiting:
            write_group()


def _write_arrays(
    target: Target, batches: BatchReader, count: int, stream: BinaryIO, has_paths: bool
) -> None:
    """Write an .npz file with the samples ``x``, or with ``has_paths`` the array ``trajectory``. It
    also has ``nfe`` and ``tau``, and with classes ``labels``."""
    short = defaultdict(list)

    def samples() -> Iterator[Tensor]:
        for batch in batches:
            for name in ("tau", "labels"):
                if (values := getattr(batch, name)) is not None:
                    short[name].append(values)
            # images have paths for a picture even if the file has none
            yield states_of(target, batch) if has_paths else target.in_units(batch.x)

    with ZipFile(stream, "w") as archive:
        name = "trajectory.npy" if has_paths else "x.npy"
        with archive.open(name, "w", force_zip64=True) as member:
            _write_array(samples(), count, member)
        arrays: dict[str, Any] = {"nfe": batches.nfe, "tau": np.empty(0)}
        arrays |= {name: torch.cat(parts) for name, parts in short.items()}
        if "labels" in arrays:
            arrays["class_names"] = target.class_names
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.asarray(values), allow_pickle=False)


def _write_array(parts: Iterable[Tensor], count: int, stream: Any) -> None:
    """Write an array of ``count`` samples in NumPy's format, part by part."""
    is_first = True
    for part in parts:
        array = part.contiguous().numpy()
        if is_first:
            header = npy.header_data_from_array_1_0(array) | {"shape": (count, *array.shape[1:])}
            npy.write_array_header_1_0(stream, header)
            is_first = False
        stream.write(array.data)


def _write_pictures(target: Target, batches: BatchReader, path: Path, names: Sequence[str]) -> None:
    """Write a folder of PNG files, with ``names`` or the classes in their names."""
    with replacing_folder(path) as folder:
        number = 0
        for batch in batches:
            classes = _classes_of(target, batch)
            for row, image in enumerate(to_pictures(batch.x)):
                label = names[number] if names else ""
                if classes and not names:
                    label = classes[row]
                image.save(folder / _image_name(number, label))
                number += 1


def _image_name(number: int, label: str) -> str:
    """Return the name of an image's file, with the name of its class."""
    return f"{number:06d}" + (label and "-" + re.sub(r"\W+", "_", label)) + ".png"
