"""Samples of the source that the user passes. A run moves them in the given order.

N: number of samples; *shape: shape of one sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import SOURCE_FILE, STANDARD, DataConfig, Shape
from nsgf.data import Sampler, Target
from nsgf.system.errors import UserError, list_names, one_line, replacing_keys, wrong_setting
from nsgf.user_data.files import load_arrays, name_class, saved_facts
from nsgf.user_data.image_files import image_pixels, open_image
from nsgf.user_data.images import find_images, image_bytes, is_array
from nsgf.user_data.points import match_table, open_table
from nsgf.user_data.tables import PointTable, RawTable

FAR_START = 10.0
"""Number of standard deviations from the mean of the source. If rows are farther away, a line says
how many rows."""


@dataclass
class Starts(Sampler):
    """Samples that the user passes. Sample i is the i-th sample that the user passes."""

    shape: Shape
    count: int
    """Number of samples N."""
    read: Callable[[range], Tensor]
    """Function that returns the samples at these positions in the units of networks, float32."""
    notes: Sequence[str] = ()
    """Lines for the user."""
    names: Sequence[str] = ()
    """Names of the image files without their endings, (N,); empty: the samples have no names."""
    labels: Sequence[str] | None = None
    """Names of the classes of the samples, (N,); None: not known."""

    def at(self, positions: range) -> Tensor:
        return self.read(positions)


def read_starts(config: DataConfig, target: Target, path: Path) -> Starts:
    """Return the samples of a file or folder. If the source is a distribution, points and arrays of
    images must be in the units of networks.

    Args:
        config: the section ``data`` of the run.
        target: the record of the target.
        path: a table of points with the columns of the target, or a folder or file of images.

    Raises:
        UserError: the samples cannot be read, or do not have the target's shape.
    """
    key = config.key if path.suffix.lower() == ".npz" else None
    section = replace(config, path=str(path), found=None, key=key)
    with replacing_keys({"data.path": "start"}):
        if not target.is_images:
            try:
                table = _match_starts(target, open_table(section, path, least=1), path.name)
            except Exception as error:  # numpy and pandas raise many types for damaged files
                raise wrong_setting("data.path", path, one_line(error)) from error
            return starts_of_points(config, target, table)
        if not is_array(section):
            return _starts_of_folder(config, target, path)
        try:
            images, labels = load_arrays(section)
            starts = starts_of_images(config, target, images)
            if labels is not None:
                if labels.shape not in ((starts.count,), (starts.count, 1)):
                    raise ValueError(
                        f"labels {labels.shape}, must be one for each of {starts.count} images"
                    )
                starts.labels = [str(label) for label in labels.reshape(-1)]
        except Exception as error:  # numpy raises many types for damaged and foreign files
            raise wrong_setting("data.path", path, one_line(error)) from error
        return starts


def _match_starts(target: Target, raw: RawTable, table_name: str) -> PointTable:
    """Return the columns of the target. Also return the classes if networks get classes and the
    table has the column of the classes."""
    names = target.axes or [f"x{number}" for number in range(1, target.shape[0] + 1)]
    return match_table(raw, names, target.label_name, table_name)


def starts_of_table(config: DataConfig, target: Target, raw: RawTable) -> Starts:
    """Return the rows of a table as samples. Raise ValueError if the table has no rows, if it does
    not have the columns of the target, or if a cell is not finite."""
    shape = raw.cells.shape
    if len(shape) != 2:
        raise ValueError(f"an array of shape {shape}, must be (N, {target.shape[0]})")
    if not shape[0]:
        raise ValueError("has no rows")
    return starts_of_points(config, target, _match_starts(target, raw, "start"))


def starts_of_points(config: DataConfig, target: Target, table: PointTable) -> Starts:
    """Return points as samples. If some points are far from the source, ``notes`` says how many."""
    points = torch.from_numpy(table.values)
    labels = None if table.labels is None else [*map(name_class, table.labels)]
    notes = table.notes

    def read(positions: range) -> Tensor:
        rows = points[positions.start : positions.stop]
        return target.from_units(rows) if config.source == SOURCE_FILE else rows.float()

    facts = saved_facts(config).source if config.found else None
    if facts is not None and facts.scale and facts.mean:
        scale = points.new_tensor(facts.scale)
        way = (points - points.new_tensor(facts.mean)).abs()
        is_far = way > FAR_START * torch.where(scale > 0, scale, torch.inf)
        if count := int(is_far.any(1).sum()):
            column = (facts.names or [""])[int(is_far.sum(0).argmax())]
            notes = (
                *notes,
                f"start: {count} of {len(points)} rows are more than {FAR_START:g} standard "
                f"deviations away from the mean of the source ({column}), where the run has seen "
                "none",
            )
    return Starts(target.shape, len(points), read, notes, labels=labels)


def starts_of_images(config: DataConfig, target: Target, images: np.ndarray) -> Starts:
    """Return images (N, C, H, W), (N, H, W, C) or (N, H, W) as samples. The images are bytes, or
    floats in [-1, 1]. For a Gaussian source, they must be noise (N, C, H, W). Raise ValueError for
    another shape or range."""
    if config.source == STANDARD:
        if images.dtype.kind != "f" or not np.isfinite(images).all():
            raise ValueError(f"{images.dtype}; a run from noise needs finite floats")
        rows = images
    elif images.dtype.kind == "f" and images.shape[1:] == target.shape:
        if not (np.abs(images) <= 1).all():
            raise ValueError("floats outside of [-1, 1]")
        rows = images
    else:
        rows = image_bytes(images, least=1)
    if rows.shape[1:] != target.shape or not len(rows) or rows.dtype.kind not in "uf":
        raise ValueError(
            f"images {images.shape} of {images.dtype}, must be bytes or floats (N, *{target.shape})"
        )

    def read(positions: range) -> Tensor:
        part = torch.from_numpy(np.ascontiguousarray(rows[positions.start : positions.stop]))
        return target.from_units(part).float()

    return Starts(target.shape, len(rows), read)


def _starts_of_folder(config: DataConfig, target: Target, root: Path) -> Starts:
    """Return the images of a folder as samples. Decode all images here, to find broken images
    before a run moves any image. The images are decoded again when they are used.
    ``data.skip_broken`` leaves out broken images.
    """
    if config.source == STANDARD:
        raise wrong_setting("data.path", root, "a run from noise needs noise, in a file .npy")
    images, _ = find_images(root, least=1)
    channels, size, _ = target.shape

    def decode(file: Path) -> Tensor:
        try:
            return image_pixels(open_image((root / file).read_bytes()), channels, size)
        except Exception as error:  # Pillow raises many types for damaged files
            raise UserError(f"{root / file}: {one_line(error)}") from error

    files = []
    broken = []
    for file in images:
        try:
            decode(file)
            files.append(file)
        except UserError:
            if not config.skip_broken:
                raise
            broken.append(one_line(file.as_posix()))
    if not files:
        raise wrong_setting("data.path", root, "all images are broken")
    notes = [f"start: left out broken images: {list_names(broken, 5)}"] if broken else []

    def read(positions: range) -> Tensor:
        cut = files[positions.start : positions.stop]
        return target.from_units(torch.stack([decode(file) for file in cut]))

    labels = [file.parts[0] if len(file.parts) > 1 else "" for file in files]
    return Starts(target.shape, len(files), read, notes, [file.stem for file in files], labels)


def labels_of(starts: Starts, target: Target, label: str | int | None) -> Tensor | None:
    """Return the classes of the samples, int64, (N,). If ``label`` is not None, all samples have
    this class. Return None if the networks take no classes. Raise UserError if a class is not
    known."""
    if not target.classes:
        return None
    names = [label] * starts.count if label is not None else starts.labels
    if names is None:
        names = [""] * starts.count
    numbers = [target.class_number(name) for name in names]
    if None in numbers:
        name = names[numbers.index(None)]
        raise wrong_setting(
            "sampling.label",
            "null" if label is None else label,
            f"sample {numbers.index(None)} of the start has class '{name}'; must be one of "
            f"{list_names(target.class_names)}",
        )
    return torch.tensor(numbers, dtype=torch.int64)
