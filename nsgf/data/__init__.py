"""The data sets, and samplers of the source mu0 and of the target mu*.

Each set states its properties in one record: a :class:`PointSet` in points.py, an :class:`ImageSet`
in images.py; the records of a user's own data follow from what was found at ``data.path``. All
other code uses the records and knows no set by its name.
"""

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.images import IMAGE_SETS, ImageSet, to_unit_range
from nsgf.data.own import (
    Inspection,
    TableSet,
    inspect_points,
    read_found,
    read_table,
    split_rows,
)
from nsgf.data.own_images import file_state, image_set, inspect_images
from nsgf.data.points import INDICES, POINT_SETS, TIMES, Gaussian, PointSet
from nsgf.data.samplers import (
    ClassSampler,
    ImageSampler,
    LabelDropout,
    PointSampler,
    RowSampler,
    Sampler,
    class_labels,
)
from nsgf.system.errors import UserError, name_setting
from nsgf.system.seeding import derive_seed, make_generator

__all__ = ["ClassSampler", "ImageSampler", "LabelDropout", "PointSampler", "RowSampler", "Sampler"]
__all__ += ["INDICES", "TIMES", "ImageSet", "PointSet", "TableSet"]
__all__ += ["class_labels", "from_units", "in_units"]

DATA_SETS: dict[str, PointSet | ImageSet] = {one.name: one for one in (*POINT_SETS, *IMAGE_SETS)}
"""The shipped data sets by ``data.name``."""
INSPECTORS: dict[str, Callable[[DataConfig], Inspection]] = {
    "images": inspect_images,
    "points": inspect_points,
}
"""Functions that fill ``data.found`` of a user's own data, by ``data.name``."""
NOISE = "gaussian"
"""``data.source`` for the standard Gaussian, which has the shape of the target."""


def target_set(config: DataConfig) -> PointSet | ImageSet | TableSet:
    """Return the record of the set that the section ``data`` names; raise UserError for own data
    that were not inspected."""
    if config.name == "images":
        return image_set(config)
    return TableSet(read_found(config)) if config.name == "points" else DATA_SETS[config.name]


def is_image_set(name: str) -> bool:
    """Whether the set holds images; else points."""
    return name == "images" if name in INSPECTORS else isinstance(DATA_SETS[name], ImageSet)


def data_shape(config: DataConfig) -> tuple[int, ...]:
    """Return the shape of one sample of the target, without loading it."""
    return target_set(config).shape


def class_names(config: DataConfig) -> tuple[str, ...]:
    """Return the names of the classes that networks are given, without loading them."""
    target = target_set(config)
    has_labels = isinstance(target, ImageSet) and target.read_labels is not None
    return target.class_names if config.conditional and has_labels else ()  # type: ignore[union-attr]


def data_classes(config: DataConfig) -> int:
    """Return the number of classes K that networks are given; 0: none."""
    return len(class_names(config))


def class_number(config: DataConfig, label: str | int | None) -> int | None:
    """Return the number of a class from its name, or from its number if no name is one; None: there
    is no such class."""
    names = class_names(config)
    known = [*names] if any(map(str.isdecimal, names)) else [*names, *map(str, range(len(names)))]
    # as text: YAML reads a name of digits as a number
    return known.index(str(label)) % len(names) if str(label) in known else None


def in_units(config: DataConfig, samples: Tensor, *, raw: bool = False) -> Tensor:
    """Return samples of networks in the units of the data; images are clamped to [-1, 1], unless
    ``raw``.  (N, *shape)"""
    target = target_set(config)
    if isinstance(target, TableSet):
        return target.in_units(samples)
    return samples.clamp(-1, 1) if samples.ndim == 4 and not raw else samples


def from_units(config: DataConfig, samples: Tensor) -> Tensor:
    """Return samples in the units of the data as networks see them: own points standardised, bytes
    of images in [-1, 1].  (N, *shape)"""
    target = target_set(config)
    if isinstance(target, TableSet):
        return target.standardised(samples.double())
    is_bytes = isinstance(target, ImageSet) and samples.dtype == torch.uint8
    return to_unit_range(samples) if is_bytes else samples


def axes_of(config: DataConfig) -> tuple[str, ...] | None:
    """Return the names of the coordinates of own points; None for other sets."""
    target = target_set(config)
    return tuple(target.found.names or ()) if isinstance(target, TableSet) else None


class Data:
    """Source and target of an experiment: loads the target once and makes independent samplers."""

    def __init__(self, config: DataConfig, seed: int) -> None:
        """Raise UserError if the target's files are missing or damaged, or a class is empty."""
        target = target_set(config)
        self._config, self._seed, self._target = config, seed, target
        self.shape: tuple[int, ...] = target.shape
        self.images: Tensor | None = None
        """The training images, uint8, (N, C, H, W); None for points."""
        self.points: Tensor | None = None
        """The user's own points that are trained on, in the units of their file, float64, (N, D);
        None for others."""
        self.classes = data_classes(config)
        """Number of classes K; 0: networks take no labels."""
        self.labels: Tensor | None = None
        """Classes of the images that networks are given, int64, (N,); None: no classes."""
        if isinstance(target, TableSet):
            rows = torch.from_numpy(read_table(config)[0])
            self.points, self._held_out = (rows[part] for part in split_rows(config, len(rows)))
            self._rows = target.standardised(self.points)
        elif isinstance(target, ImageSet):
            generator = make_generator(seed, "fake")
            self._file_state = file_state(config)  # before the images are read
            self.images = target.fake_images(generator) if config.fake else target.images(config)
            if self.classes:
                self.labels = target.labels(config, len(self.images))
                if empty := self.classes - len(self.labels.unique()):
                    held = (
                        f" besides data.held_out = {config.held_out:g}" if config.held_out else ""
                    )
                    raise UserError(
                        f"data.conditional = true: {empty} classes of {config.name} have no "
                        f"images{held}; use false"
                    )

    def source(self, *stream: str) -> Sampler:
        """Return a sampler of mu0 with a random stream of its own."""
        return build_source(self._config, self._seed, *stream)

    def target(self, *stream: str) -> Sampler:
        """Return a sampler of mu* as networks see it, with a random stream of its own."""
        seed = derive_seed(self._seed, "target", *stream)
        if isinstance(self._target, PointSet):
            return PointSampler(self._target, seed)
        if self.points is not None:
            return RowSampler(self._rows, seed)
        assert self.images is not None
        return ImageSampler(self.images, seed, flip=self._config.flip, check=self._check)

    def _check(self) -> None:
        """Raise UserError if a file has changed that images are read from."""
        if file_state(self._config) != self._file_state:
            raise UserError(
                f"{name_setting('data.path', self._config.path)}: has changed while it was used; "
                "restore it and resume, or train a new run"
            )

    def target_by_class(self, *stream: str, run: int = 1, mixed: bool = False) -> Sampler:
        """Return a sampler of mu* class by class, ``run`` successive samples of each, with random
        streams of its own. All classes come equally often, whatever their number of images. With
        ``mixed`` a group with samples of all classes follows class K - 1. Without classes return
        :meth:`target`.
        """
        if not self.classes:
            return self.target(*stream)
        assert self.images is not None
        assert self.labels is not None
        streams: list[Sampler] = []
        own_rows = self.labels.argsort(stable=True).split(self.labels.bincount().tolist())
        for label, own in enumerate(own_rows):
            seed = derive_seed(self._seed, "target", *stream, "class", label)
            how = {"flip": self._config.flip, "chosen": own, "check": self._check}
            streams.append(ImageSampler(self.images, seed, **how))
        return ClassSampler([*streams, self.target(*stream)] if mixed else streams, run)

    def reference(self, *stream: str) -> Sampler:
        """Return a sampler like :meth:`target` for measures and pictures, where own points have the
        units of their file."""
        if self.points is None:
            return self.target(*stream)
        return RowSampler(self.points, derive_seed(self._seed, "target", *stream))

    def measured(self) -> "Data":
        """Return the data that measures compare with: the held-out part of own data, else all."""
        if not self._config.held_out:
            return self
        other = copy(self)
        if isinstance(self._target, TableSet):
            other.points, other._rows = self._held_out, self._target.standardised(self._held_out)
        elif isinstance(self._target, ImageSet):
            other.images = self._target.test_images(self._config)
        return other

    def in_units(self, samples: Tensor) -> Tensor:
        """Return samples of networks in the units of :meth:`reference`.  (N, *shape)"""
        return in_units(self._config, samples, raw=True)

    def with_seed(self, seed: int) -> "Data":
        """Return the same data with the random streams of another seed."""
        other = copy(self)
        other._seed = seed
        return other

    @property
    def count(self) -> int | None:
        """Number of samples in the target, without mirrored ones; None: unlimited."""
        rows = self.images if self.points is None else self.points
        return None if rows is None else len(rows)

    def at_most_half(self, n: int) -> int:
        """Return ``n``, at most half of a finite target, so that two draws can be disjoint."""
        return n if self.count is None else min(n, self.count // 2)

    @property
    def axes(self) -> tuple[str, ...] | None:
        """Names of the coordinates of own points; None for other sets."""
        return axes_of(self._config)


def build_source(config: DataConfig, seed: int, *stream: str) -> Sampler:
    """Return a sampler of mu0 with a random stream of its own; needs no files of the target."""
    law = Gaussian(data_shape(config)) if config.source == NOISE else DATA_SETS[config.source]
    assert not isinstance(law, ImageSet)
    return PointSampler(law, derive_seed(seed, "source", *stream))
