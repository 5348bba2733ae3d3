"""The data sets, and samplers of the source mu0 and of the target mu*.

Each data set has a record, which is a :class:`Target`. The record of a 2D set is a
:class:`PointSet` in points.py. The record of an image set is an :class:`ImageSet` in images.py. The
record holds the properties of the set. For a user's data, :mod:`nsgf.user_data` makes the record.
All further code uses the records, not the names of data sets.
"""

from copy import copy
from pathlib import Path

from torch import Tensor

from nsgf.config.schema import STANDARD, DataConfig, Shape
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
__all__ += ["INDICES", "STANDARD", "TIMES", "ImageSet", "PointSet", "Target", "gaussian"]

DATA_SETS: dict[str, PointSet | ImageSet] = {
    target.name: target for target in (*POINT_SETS, *IMAGE_SETS)
}
"""The shipped data sets by ``data.name``."""


def file_state(file: Path) -> tuple[int, float] | None:
    """Return size and modification time of a file; None: there is no file."""
    return (file.stat().st_size, file.stat().st_mtime) if file.exists() else None


class Data:
    """Source and target of an experiment. Loads the target once, and makes independent samplers."""

    def __init__(
        self,
        target: Target,
        config: DataConfig,
        seed: int,
        source: "Data | None" = None,
        place: str = "data.path",
    ) -> None:
        """Load the data set with the record ``target``. ``config``: the section ``data``.

        Args:
            source: data whose target is the source mu0; None: ``data.source`` is a distribution.
            place: setting that names the file of a user's data, for messages.

        Raises:
            UserError: files are missing or damaged, or a class is empty.
        """
        self.record = target
        self.config = config
        self.source_data = source
        self._place = place
        self._seed = seed
        # read the state before the samples
        self._file_state = target.mapped and file_state(target.mapped)
        self._hold(target.load(config, seed))
        self.shape = target.shape
        self.axes = target.axes
        """Names of the coordinates of a user's points; None for every other data set."""
        self.in_units = target.in_units
        """Function that converts samples of networks to the units of :meth:`reference`.
        (N, *shape)"""
        self.is_images = target.is_images
        self.classes = target.classes
        """Number of classes K; 0: networks take no labels."""
        self.labels: Tensor | None = None
        """Classes of the samples, int64, (N,); None: networks take no labels."""
        if self.count and self.classes:
            self.labels = target.labels(config, self.count)
            if empty := self.classes - len(self.labels.unique()):
                raise UserError(
                    f"data.conditional = true: {empty} classes of {config.name} have no samples to "
                    f"train on with data.held_out = {config.held_out:g}; use false"
                )

    def _hold(self, samples: Tensor | None) -> None:
        """Store the samples of the target; None: the target is a distribution."""
        is_images = self.record.is_images
        self._samples = samples
        self.images = samples if is_images else None
        """The training images, uint8, (N, C, H, W); None for points."""
        self.user_points = None if is_images else samples
        """The user's points to train on, in the units of their file, float64, (N, D); None for
        images and for distributions."""
        self.count = None if samples is None else len(samples)
        """Number of samples in the target, without mirrored samples; None: unlimited."""

    def source(self, *stream: str) -> Sampler:
        """Return a sampler of mu0 in the units of networks, with a separate random stream."""
        if self.source_data:
            return self.source_data.target(*stream)
        return build_source(self.config.source, self.shape, self._seed, *stream)

    def source_by_class(self, *stream: str, run: int = 1, mixed: bool = False) -> Sampler:
        """Return a sampler of mu0. Sample i has the same class as sample i of
        :meth:`target_by_class`, unless mu0 is a distribution, which has no classes."""
        if self.source_data:
            return self.source_data.target_by_class(*stream, run=run, mixed=mixed)
        return self.source(*stream)

    def target(self, *stream: str) -> Sampler:
        """Return a sampler of mu* in the units of networks, with a separate random stream."""
        if isinstance(self.record, PointSet):
            return PointSampler(self.record, derive_seed(self._seed, "target", *stream))
        return self._rows(None, *stream)

    def _rows(self, chosen: Tensor | None, *stream: str | int) -> RowSampler:
        """Return a sampler of the ``chosen`` rows of a finite target, in the units of networks.
        ``chosen`` None: all rows."""
        assert self._samples is not None
        return RowSampler(
            self._samples,
            derive_seed(self._seed, "target", *stream),
            self.record.from_units,
            flip=self.config.flip,
            chosen=chosen,
            check=self._check,
        )

    def _check(self) -> None:
        """Raise UserError if the mapped file of images has changed."""
        mapped = self.record.mapped
        if mapped and file_state(mapped) != self._file_state:
            raise wrong_setting(
                self._place,
                self.config.path,
                "has changed while it was used; restore it and resume, or train a new run",
            )

    def target_by_class(self, *stream: str, run: int = 1, mixed: bool = False) -> Sampler:
        """Return a sampler of mu* that takes ``run`` successive samples from each class in turn. It
        has separate random streams. All classes are equally frequent, even if they have different
        numbers of images. With ``mixed``, ``run`` samples from all classes come after the samples
        of class K - 1. Without classes, return :meth:`target`.
        """
        if self.labels is None:
            return self.target(*stream)
        streams = [self.of_class(label, *stream) for label in range(self.classes)]
        return ClassSampler([*streams, self.target(*stream)] if mixed else streams, run)

    def of_class(self, label: int, *stream: str) -> Sampler:
        """Return a sampler of the samples of mu* with the class ``label``. It has a separate random
        stream. Raise UserError if the class has no samples."""
        assert self.labels is not None
        rows = (self.labels == label).nonzero().flatten()
        if not len(rows):
            raise wrong_setting(
                "data.held_out",
                f"{self.config.held_out:g}",
                f"class {self.record.class_names[label]} of {self.config.path} has no samples here",
            )
        return self._rows(rows, *stream, "class", label)

    def count_different(self, label: int | None = None) -> int | None:
        """Return the number of samples that :meth:`target_by_class` draws before a sample repeats.
        With ``label``, return this number for :meth:`of_class`. None: unlimited."""
        if self.labels is None:
            return self.count
        counts = self.labels.bincount(minlength=self.classes).tolist()
        return self.classes * min(counts) if label is None else counts[label]

    def reference(self, *stream: str) -> Sampler:
        """Return a sampler for measures and pictures. It draws the samples of :meth:`target`, but a
        user's points have the units of their file."""
        if self.user_points is None:
            return self.target(*stream)
        return RowSampler(self.user_points, derive_seed(self._seed, "target", *stream))

    def measured(self) -> "Data":
        """Return the data that measures compare with: the held-out part of a user's data, or all
        data."""
        if not self.config.held_out:
            return self
        held_out = copy(self)
        held_out._hold(self.record.load(self.config, self._seed, held_out=True))
        if self.labels is not None and held_out.count:
            held_out.labels = self.record.labels(self.config, held_out.count, held_out=True)
        held_out.source_data = self.source_data and self.source_data.measured()
        return held_out

    def with_seed(self, seed: int) -> "Data":
        """Return the same data with the random streams of another seed."""
        seeded = copy(self)
        seeded._seed = seed
        seeded.source_data = self.source_data and self.source_data.with_seed(
            derive_seed(seed, "source")
        )
        return seeded


def build_source(name: str, shape: Shape, seed: int, *stream: str) -> Sampler:
    """Return a sampler of the source mu0 with this name (``data.source``). It has a separate random
    stream. ``shape``: shape of one sample of the target."""
    return PointSampler(source_law(name, shape), derive_seed(seed, "source", *stream))


def source_law(name: str, shape: Shape) -> PointSet:
    """Return the distribution mu0 of this name (``data.source``). ``shape``: shape of one sample of
    the target. Raise UserError if the source is a file."""
    law = gaussian(shape) if name == STANDARD else DATA_SETS.get(name)
    if not isinstance(law, PointSet):
        raise UserError("data.source is a file, whose density is not known; train a run from noise")
    return law
