"""Paths and arrays of the data at ``data.path`` and ``data.source_path``, and the facts that a run
saves about the data.

N: number of samples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import STANDARD, DataConfig, DataFacts
from nsgf.system.errors import (
    UserError,
    list_names,
    replacing_keys,
    suggest,
    wrong_setting,
)
from nsgf.system.seeding import make_generator

LEAST = 16
"""Smallest number of images or points for training."""

LEAST_OF_CLASS = 10
"""Smallest number of images or points in each class."""

ARRAYS = (".npz", ".npy")
"""Endings of files of arrays."""

MEMORY_FOLDER = ".data"
"""Folder in ``out_dir`` with the samples that a caller passed from memory."""

Inspection = tuple[DataFacts, tuple[str, ...]]
"""Description of the data, and lines about it for the user."""


def shown_place(place: str | None) -> str:
    """Return a user's path, or ``your data`` for samples that a caller passed from memory. If there
    is no path, return an empty text."""
    if not place:
        return ""
    return "your data" if Path(place).parent.name == MEMORY_FOLDER else place


def saved_facts(config: DataConfig) -> DataFacts:
    """Return the facts about the data at ``data.path``, which the run has saved at its start. Raise
    UserError if the facts are missing, or do not fit this kind of data."""
    facts = config.found
    if facts is None:
        raise wrong_setting("data.path", config.path, f"name the {config.name} to train on")
    is_images = config.name == "images"
    columns = () if is_images else (facts.names, facts.mean, facts.scale)
    if (
        min(facts.samples, *facts.shape) > 0
        and len(facts.shape) == (3 if is_images else 1)
        and len(facts.class_names or ()) == facts.classes
        and (facts.label_name is not None) == (facts.classes > 0 and not is_images)
        and all(len(column or ()) == facts.shape[0] for column in columns)
    ):
        return facts
    raise UserError(f"data.found: damaged, or does not describe {config.name}; train a new run")


def check_same_data(config: DataConfig, checksum: str) -> None:
    """Raise UserError if the data at ``data.path`` have changed since the run began."""
    facts = saved_facts(config)
    if checksum != facts.checksum:
        raise wrong_setting(
            "data.path",
            config.path,
            f"holds other {config.name} than the run was begun with ({facts.samples} of them, "
            f"checksum {facts.checksum}); restore those and any labels, give their place, or train "
            "a new run",
        )


def data_path(config: DataConfig) -> Path:
    """Return ``data.path`` as a path. Raise UserError if ``data.path`` is null, as in exported
    runs. Also raise UserError if ``data.key`` is set and the path is no .npz file."""
    if config.path is None:
        raise wrong_setting("data.path", "null", f"must say where the {config.name} are")
    path = Path(config.path).expanduser()
    if config.key and path.suffix.lower() != ".npz":
        raise wrong_setting("data.key", config.key, "is for files .npz")
    return path


@contextmanager
def reading_source(config: DataConfig) -> Iterator[DataConfig]:
    """Context that yields a copy of the section ``data`` in which the samples of the source take
    the place of the target. In the context, messages name ``data.source`` in place of
    ``data.path``."""
    path = config.source_path
    section = replace(
        config,
        path=path,
        source=STANDARD,
        source_path=None,
        found=saved_facts(config).source,
        key=config.key if Path(path or "").suffix.lower() == ".npz" else None,
        columns=None,
        size=None,
    )
    with replacing_keys({"data.path": "data.source"}):
        yield section


def split_rows(config: DataConfig, count: int) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the training samples, and the sorted indices of the held-out
    samples, int64. Raise UserError if there are too few training samples or too few held-out
    samples."""
    share = config.held_out
    held = round(share * count)
    if share and not LEAST <= held <= count - LEAST:
        raise UserError(
            f"data.held_out = {share:g}: {held} of {count} samples, must be {LEAST} or more and "
            f"leave {LEAST} for training"
        )
    order = torch.randperm(count, generator=make_generator(0, "held out"))
    return order[held:].sort().values, order[:held].sort().values


def load_arrays(config: DataConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """Return an array, and the labels if there are any. A .npy file is mapped into memory. In a
    .npz file, ``data.key`` names the array. If ``data.key`` is not set, take the array ``images``
    or ``points``, or else the only array. The array of labels has the same prefix as this array.
    For example, ``test_labels`` belongs to ``test_images``. A missing or damaged array may raise
    any type of error."""
    # torch needs a writable array; mode "c" never writes to the file
    file = data_path(config)
    try:
        content = np.load(file, mmap_mode="c", allow_pickle=False, max_header_size=2**20)
    except ValueError as error:
        raise _loading_error(error) from error
    if isinstance(content, np.ndarray):
        return content, None
    with content:
        if {"format", "shape", "data"} <= {*content.files}:
            raise ValueError(
                "a sparse matrix of scipy; save scipy.sparse.load_npz(FILE).toarray() with "
                "numpy.save"
            )
        name = config.key or (config.name if config.name in content else None)
        keys = [key for key in content.files if name in (None, key)]
        if len(keys) != 1:
            raise ValueError(
                f"say {suggest('data.key', 'NAME')}, one of {list_names(content.files)}"
            )
        beginning = keys[0][: keys[0].rfind("_") + 1]
        try:
            return content[keys[0]], content.get(f"{beginning}labels")
        except ValueError as error:
            raise _loading_error(error) from error


def number_classes(labels: np.ndarray, kind: str) -> tuple[list[str], np.ndarray]:
    """Return the sorted names of the K classes, and each sample's class as a number from 0 to
    K - 1, int64, (N,). Raise ValueError if there is only one class, or if a class has too few
    samples.

    Args:
        labels: the class of each sample as a whole number or a text, (N,).
        kind: ``images`` or ``points``.
    """
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(values) < 2:
        raise ValueError("one class only; leave them out")
    least = counts.min()
    if least < LEAST_OF_CLASS:
        rare = values[counts.argmin()]
        raise ValueError(f"{least} {kind} of class {rare}, must be {LEAST_OF_CLASS} or more")
    return [*map(name_class, values)], numbers.astype(np.int64)


def name_class(label: Any) -> str:
    """Return the printable name of the class ``label``, a whole number or a text."""
    return repr(str(label))[1:-1]


def _loading_error(error: ValueError) -> ValueError:
    """Return an error with a remedy if numpy refuses to load an array, else numpy's error."""
    text = str(error).lower()
    if "object" in text:
        return ValueError(
            "its array holds Python objects, which are not loaded because they could run code; "
            "save numbers, such as x.astype(float)"
        )
    if "header info length" in text:
        return ValueError("records have too many fields; use an array (N, D), as of x.to_numpy()")
    return error
