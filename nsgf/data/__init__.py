"""The data sets, and samplers of the source mu0 and of the target mu*.

One record, a :class:`Target`, has the properties of each set: a :class:`PointSet` in points.py, or
an :class:`ImageSet` in images.py. For a user's own data, the record is made from what was found at
``data.path``. All other code uses the records, not the names of sets.
"""

from copy import copy
from functools import partial
from pathlib import Path
from typing import get_args

from torch import Tensor

from nsgf.config.schema import DataConfig, ImageName, Names, Shape
from nsgf.data.images import IMAGE_SETS, ImageSet
from nsgf.data.points import INDICES, POINT_SETS, TIMES, PointSet, Target, gaussian
from nsgf.data.samplers import (
    ClassSampler,
    LabelDropout,
    PointSampler,
    RowSampler,
    Sampler,
    class_labels,
)
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.seeding import derive_seed

__all__ = ["ClassSampler", "LabelDropout", "PointSampler", "RowSampler", "Sampler", "class_labels"]
__all__ += ["INDICES", "TIMES", "ImageSet", "PointSet", "Target", "gaussian"]

DATA_SETS: dict[str, PointSet | ImageSet] = {one.name: one for one in (*POINT_SETS, *IMAGE_SETS)}
"""The shipped data sets by ``data.name``."""
NOISE = "gaussian"
"""``data.source`` for the standard Gaussian, which has the shape of the target."""


def target_set(config: DataConfig) -> Target:
    """Return the record of the set that the section ``data`` names. Raise UserError for own data
    that were not inspected."""
    if config.name == "images":
        from nsgf.data.own_images import image_set

        return image_set(config)
    if config.name == "points":
        from nsgf.data.own import TableSet, read_found

        return TableSet(read_found(config), config.path)
    return DATA_SETS[config.name]


def is_image_set(config: DataConfig) -> bool:
    """Whether the set holds images; otherwise it holds points."""
    return config.name in ("images", *get_args(ImageName))


def data_shape(config: DataConfig) -> Shape:
    """Return the shape of one sample of the target, without loading it."""
    return target_set(config).shape


def class_names(config: DataConfig) -> Names:
    """Return the names of the classes that networks get as labels, without loading images."""
    return target_set(config).class_names if config.conditional else ()


def data_classes(config: DataConfig) -> int:
    """Return the number of classes K that networks get as labels; 0: no labels."""
    return len(class_names(config))


def class_number(config: DataConfig, label: str | int | None) -> int | None:
    """Return the number of the class ``label``: its name, or its number unless names are numbers.
    Return None if there is no such class."""
    names = class_names(config)
    known = [*names] if any(map(str.isdecimal, names)) else [*names, *map(str, range(len(names)))]
    # compare texts: YAML reads a name of digits as a number
    return known.index(str(label)) % len(names) if str(label) in known else None


def in_units(config: DataConfig, samples: Tensor, *, raw: bool = False) -> Tensor:
    """Return samples of networks in the units of the data, images clamped to [-1, 1] unless
    ``raw``.  (N, *shape)"""
    if is_image_set(config) and not raw:
        return samples.clamp(-1, 1)
    return target_set(config).in_units(samples)


def file_state(file: Path) -> tuple[int, float] | None:
    """Return size and modification time of a file; None: there is no file."""
    return (file.stat().st_size, file.stat().st_mtime) if file.exists() else None


class Data:
    """Source and target of an experiment: loads the target once and makes independent samplers."""

    def __init__(self, config: DataConfig, seed: int) -> None:
        """Raise UserError if the target's files are missing or damaged, or a class is empty."""
        self._config = config
        self._seed = seed
        self._target = target_set(config)
        mapped = self._target.mapped
        self._file_state = mapped and file_state(mapped)  # before the samples are read
        self._hold(self._target.load(config, seed))
        self.shape = self._target.shape
        self.axes = self._target.axes
        """Names of the coordinates of own points; None for other sets."""
        self.in_units = partial(in_units, config)
        """Function that converts samples of networks to the units of :meth:`reference`.
        (N, *shape)"""
        self.classes = data_classes(config)
        """Number of classes K; 0: networks take no labels."""
        self.labels: Tensor | None = None
        """Classes of the images, int64, (N,); None: networks take no labels."""
        if isinstance(self._target, ImageSet) and self.count and self.classes:
            self.labels = self._target.labels(config, self.count)
            if empty := self.classes - len(self.labels.unique()):
                raise UserError(
                    f"data.conditional = true: {empty} classes of {config.name} have no images to "
                    f"train on with data.held_out = {config.held_out:g}; use false"
                )

    def _hold(self, samples: Tensor | None) -> None:
        """Store the samples of the target; None: the target is a distribution."""
        is_images = is_image_set(self._config)
        self._samples = samples
        self.images = samples if is_images else None
        """The training images, uint8, (N, C, H, W); None for points."""
        self.points = None if is_images else samples
        """The user's own points to train on, in the units of their file, float64, (N, D); or
        None."""
        self.count = None if samples is None else len(samples)
        """Number of samples in the target, mirrored ones not counted; None: unlimited."""

    def source(self, *stream: str) -> Sampler:
        """Return a sampler of mu0 with its own random stream."""
        return build_source(self._config, self._seed, *stream)

    def target(self, *stream: str) -> Sampler:
        """Return a sampler of mu* as networks see it, with its own random stream."""
        if isinstance(self._target, PointSet):
            return PointSampler(self._target, derive_seed(self._seed, "target", *stream))
        return self._rows(None, *stream)

    def _rows(self, chosen: Tensor | None, *stream: str | int) -> RowSampler:
        """Return a sampler of the ``chosen`` rows of a finite target (None: all), as networks see
        them."""
        assert self._samples is not None
        return RowSampler(
            self._samples,
            derive_seed(self._seed, "target", *stream),
            self._target.from_units,
            flip=self._config.flip,
            chosen=chosen,
            check=self._check,
        )

    def _check(self) -> None:
        """Raise UserError if the file that images are read from has changed."""
        mapped = self._target.mapped
        if mapped and file_state(mapped) != self._file_state:
            raise wrong_setting(
                "data.path",
                self._config.path,
                "has changed while it was used; restore it and resume, or train a new run",
            )

    def target_by_class(self, *stream: str, run: int = 1, mixed: bool = False) -> Sampler:
        """Return a sampler of mu* that takes ``run`` successive samples from each class in turn,
        with its own random streams. All classes are equally frequent, whatever their number of
        images. With ``mixed``, class K - 1 is followed by a group of samples from all classes.
        Without classes, return :meth:`target`.
        """
        if self.labels is None:
            return self.target(*stream)
        rows = self.labels.argsort(stable=True).split(self.labels.bincount().tolist())
        streams = [self._rows(own, *stream, "class", label) for label, own in enumerate(rows)]
        return ClassSampler([*streams, self.target(*stream)] if mixed else streams, run)

    def reference(self, *stream: str) -> Sampler:
        """Return a sampler for measures and pictures: :meth:`target`, with own points in the units
        of their file."""
        if self.points is None:
            return self.target(*stream)
        return RowSampler(self.points, derive_seed(self._seed, "target", *stream))

    def measured(self) -> "Data":
        """Return the data that measures compare with: the held-out part of own data, or all."""
        if not self._config.held_out:
            return self
        other = copy(self)
        other._hold(self._target.load(self._config, self._seed, held_out=True))
        return other

    def with_seed(self, seed: int) -> "Data":
        """Return the same data with the random streams of another seed."""
        other = copy(self)
        other._seed = seed
        return other


def build_source(config: DataConfig, seed: int, *stream: str) -> Sampler:
    """Return a sampler of mu0 with its own random stream. It needs no files of the target."""
    law = gaussian(data_shape(config)) if config.source == NOISE else DATA_SETS[config.source]
    assert isinstance(law, PointSet)
    return PointSampler(law, derive_seed(seed, "source", *stream))
