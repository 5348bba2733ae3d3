"""The data sets, and samplers of the source mu0 and of the target mu*.

Each set states all that is its own in one record, a :class:`PointSet` in points.py or an
:class:`ImageSet` in images.py; everything else asks the record and knows no set by its name. The
records of a user's own data (own.py) are made of what was found at ``data.path``.
"""

from copy import copy

import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.classes import ClassSampler, LabelDropout, class_labels, class_rows
from nsgf.data.images import FAKE_IMAGES, IMAGE_SETS, Files, ImageSet, to_unit_range
from nsgf.data.own import OWN_IMAGES, OWN_SETS, TableSet, in_units
from nsgf.data.points import POINT_SETS, Distribution, Gaussian, PointSet, RandomIndices, Times
from nsgf.data.samplers import ImageSampler, PointSampler, RowSampler, Sampler
from nsgf.data.table import Table, read_points
from nsgf.system.errors import UserError
from nsgf.system.seeding import derive_seed, make_generator

DataSet = PointSet | ImageSet | TableSet
DATA_SETS: dict[str, PointSet | ImageSet] = {one.name: one for one in (*POINT_SETS, *IMAGE_SETS)}
"""Those that are the same for everyone."""
NOISE = "gaussian"
"""``data.source`` for the standard Gaussian, which has the shape of the target."""
PART = 4096
"""Images that are turned into floats together."""
DEVICE_SHARE = 0.1
"""Largest share of a card's free memory that an image set may take (CIFAR-10 has 154 MB)."""


def data_set(name: str) -> PointSet | ImageSet:
    """The record of a shipped data set.

    Raises:
        UserError: there is none of this name.
    """
    try:
        return DATA_SETS[name]
    except KeyError:
        raise UserError(f"data.name = {name}: must be one of {', '.join(DATA_SETS)}") from None


def target_set(config: DataConfig) -> DataSet:
    """The record of the set that the section ``data`` names.

    Raises:
        UserError: there is none of this name, or own data have not been looked at.
    """
    own = OWN_SETS.get(config.name)
    return own(config) if own else data_set(config.name)


def is_image_set(name: str) -> bool:
    """Whether the set holds images; else points."""
    return name == OWN_IMAGES if name in OWN_SETS else isinstance(data_set(name), ImageSet)


def data_shape(config: DataConfig) -> tuple[int, ...]:
    """Shape of one sample of the target, known without loading it."""
    return target_set(config).shape


def data_classes(config: DataConfig) -> int:
    """Classes K that networks are told of, known without loading them; 0: they are told none."""
    target = target_set(config)
    is_labelled = isinstance(target, ImageSet) and target.read_labels is not None
    return target.classes if config.conditional and is_labelled else 0  # type: ignore[union-attr]


def data_form(config: DataConfig) -> tuple[tuple[int, ...], int]:
    """What networks follow from: :func:`data_shape` and :func:`data_classes`."""
    return data_shape(config), data_classes(config)


def data_size(config: DataConfig) -> int:
    """Training samples of an image set, mirrored ones counted, known without loading it.

    Raises:
        UserError: points are drawn from a law that has no end of them, or are the user's own.
    """
    target = target_set(config)
    if not isinstance(target, ImageSet):
        raise UserError(f"data.name = {config.name}: is no image set")
    return (FAKE_IMAGES if config.fake else target.size) * (2 if config.flip else 1)


class Data:
    """The two measures of an experiment: loads the target once, hands out independent samplers."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device | None = None) -> None:
        """An image set lives on ``device`` if it takes little of the free memory there.

        Raises:
            UserError: the target's files are missing or damaged.
        """
        self._config, self._seed = config, seed
        self._target = target_set(config)
        self.shape: tuple[int, ...] = self._target.shape
        self.images: Tensor | None = None
        """The training images, uint8, (N, C, H, W); None for points."""
        self.table: Table | None = None
        """The user's own points; None for other sets."""
        self.classes = data_classes(config)
        """K; 0: networks are told no classes."""
        self._labels: Tensor | None = None
        if isinstance(self._target, TableSet):
            self.table = read_points(config)
            self._rows = self.table.standardised()
        elif isinstance(self._target, ImageSet):
            self.images = (
                self._target.fake_images(make_generator(seed, "fake"))
                if config.fake
                else self._target.images(Files.of(config))
            )
            if self.classes:
                self._labels = self._target.labels(Files.of(config))
                self._refuse_unlabelled(self._labels, len(self.images))
            if device is not None and fits_beside_training(self.images, device):
                self.images = self.images.to(device)

    def source(self, *stream: str) -> Sampler:
        """Sampler of mu0 with a random stream of its own."""
        return build_source(self._config, self._seed, *stream)

    def target(self, *stream: str) -> Sampler:
        """Sampler of mu* as networks see it, with a random stream of its own."""
        seed = derive_seed(self._seed, "target", *stream)
        if isinstance(self._target, PointSet):
            return PointSampler(self._target, seed)
        if self.images is None:
            return RowSampler(self._rows, seed)
        return ImageSampler(self.images, seed, flip=self._config.flip)

    def target_by_class(self, *stream: str, run: int = 1, mixed: bool = False) -> Sampler:
        """Sampler of mu* class by class, ``run`` samples of each after one another, with random
        streams of its own. All classes come equally often, however many images they have.

        Args:
            stream: names the streams.
            run: samples of a class after one another.
            mixed: behind class K - 1 comes one more group, whose samples are of all classes.

        Raises:
            UserError: networks are told no classes.
        """
        if self.images is None or self._labels is None:
            raise UserError("data.conditional = false: samples have no classes")
        streams: list[Sampler] = []
        for label in range(self.classes):
            own = (self._labels == label).nonzero()[:, 0]
            seed = derive_seed(self._seed, "target", *stream, "class", label)
            streams.append(ImageSampler(self.images, seed, flip=self._config.flip, chosen=own))
        return ClassSampler([*streams, self.target(*stream)] if mixed else streams, run)

    def _refuse_unlabelled(self, labels: Tensor, images: int) -> None:
        """
        Raises:
            UserError: an image has no label, or a class no image.
        """
        if len(labels) != images:
            raise UserError(
                f"data.conditional = true: {self._config.name} has {images} images and "
                f"{len(labels)} labels; say --data.conditional false"
            )
        empty = (torch.bincount(labels, minlength=self.classes) == 0).nonzero()[:, 0].tolist()
        if empty:
            raise UserError(
                f"data.conditional = true: {self._config.name} has no images of class {empty[0]}; "
                "say --data.conditional false"
            )

    def reference(self, *stream: str) -> Sampler:
        """As :meth:`target`, the same samples, but own points in the units of their file: what
        samples are measured against and shown beside."""
        if self.table is None:
            return self.target(*stream)
        seed = derive_seed(self._seed, "target", *stream)
        return RowSampler(torch.from_numpy(self.table.values), seed)

    def in_units(self, samples: Tensor) -> Tensor:
        """Samples of networks beside those of :meth:`reference`: own points in the units of their
        file, float64; else as they are.  (N, *shape)"""
        return in_units(self._config, samples, raw=True)

    def with_seed(self, seed: int) -> "Data":
        """The same samples, of which another seed's streams draw."""
        other = copy(self)
        other._seed = seed
        return other

    @property
    def count(self) -> int | None:
        """Samples that the target is made of, without mirrored ones; None: there is no end."""
        rows = self.images if self.table is None else self.table.values
        return None if rows is None else len(rows)

    @property
    def axes(self) -> tuple[str, ...] | None:
        """Names of the coordinates of own points; None: those of the plane, which have none."""
        return None if self.table is None else self.table.names

    def everything(self, device: torch.device) -> Tensor:
        """All samples that the target is made of, each as likely as the others; with ``data.flip``
        the mirrored ones come after the others.  (N, *shape), float32 in [-1, 1]

        Made part by part: whatever else held a copy would double what they take.

        Raises:
            UserError: the target is no image set.
        """
        if self.images is None:
            raise UserError(f"data.name = {self._config.name}: is no image set")
        count, copies = len(self.images), 2 if self._config.flip else 1
        made = torch.empty(copies * count, *self.shape, device=device)
        for first in range(0, count, PART):
            part = to_unit_range(self.images[first : first + PART].to(device))
            made[first : first + len(part)] = part
            if copies == 2:
                made[count + first : count + first + len(part)] = part.flip(-1)
        return made


def fits_beside_training(images: Tensor, device: torch.device) -> bool:
    """Whether the images take at most DEVICE_SHARE of the device's free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes <= DEVICE_SHARE * free


def build_source(config: DataConfig, seed: int, *stream: str) -> Sampler:
    """Sampler of mu0 with a random stream of its own; needs no files of the target.

    Raises:
        UserError: ``data.source`` is neither noise nor a set that can be a source.
    """
    law: Distribution = Gaussian(data_shape(config))
    if config.source != NOISE:
        named = data_set(config.source)
        if not (isinstance(named, PointSet) and named.is_source):
            raise UserError(f"data.source = {config.source}: cannot be a source")
        law = named
    return PointSampler(law, derive_seed(seed, "source", *stream))


__all__ = [
    "DATA_SETS",
    "NOISE",
    "OWN_SETS",
    "ClassSampler",
    "Data",
    "DataSet",
    "Files",
    "ImageSampler",
    "ImageSet",
    "LabelDropout",
    "PointSampler",
    "PointSet",
    "RandomIndices",
    "RowSampler",
    "Sampler",
    "TableSet",
    "Times",
    "build_source",
    "class_labels",
    "class_rows",
    "data_classes",
    "data_form",
    "data_set",
    "data_shape",
    "data_size",
    "is_image_set",
    "target_set",
]
