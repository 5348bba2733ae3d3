"""The records of a user's own images and points, which follow from the section ``data``."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.folder import look_at_images, read_images, read_labels
from nsgf.data.found import Seen
from nsgf.data.images import ImageSet
from nsgf.data.table import look_at_points
from nsgf.system.errors import UserError


@dataclass(frozen=True)
class TableSet:
    """Points of a file."""

    shape: tuple[int, ...]
    """(D,)."""
    size: int
    """How many there are."""
    name: str = "points"
    """``data.name``."""
    uses: frozenset[str] = frozenset({"path"})
    """Settings of the section ``data`` that mean something for it, besides its name."""

    is_source = False


def _images(config: DataConfig) -> ImageSet:
    size, shape = _found(config, 3)
    for key, given, found in (
        ("size", config.size, shape[1]),
        ("color", config.color, "grey" if shape[0] == 1 else "rgb"),
    ):
        if given != found:
            raise UserError(
                f"data.{key} = {given}: must be {found} as when the run was begun, or train a new "
                "run"
            )
    classes = config.found.classes or 0
    return ImageSet(
        name=config.name,
        shape=(shape[0], shape[1], shape[2]),
        size=size,
        read_images=lambda _: read_images(config),
        read_labels=(lambda _: read_labels(config)) if classes else None,
        classes=classes,
        # about as many updates as for the shipped sets, whatever the number of images
        classifier_epochs=max(4, min(30, 400_000 // size)),
        uses=frozenset({"path", "size", "fit", "color", "flip"}),
        files="images",
    )


def _points(config: DataConfig) -> TableSet:
    size, shape = _found(config, 1)
    for key in ("names", "mean", "scale"):
        if len(given := getattr(config.found, key) or []) != shape[0]:
            raise UserError(f"data.found.{key}: has {len(given)} values, must have {shape[0]}")
    return TableSet(tuple(shape), size)


def in_units(config: DataConfig, samples: Tensor, *, raw: bool = False) -> Tensor:
    """Return samples of networks, (N, *shape), as users get them: own points in the units of their
    file, float64, which is not read; images clamped to [-1, 1], unless ``raw``; else as they are.
    """
    if samples.ndim == 4 and not raw:
        return samples.clamp(-1, 1)
    mean, scale = config.found.mean, config.found.scale
    if mean is None or scale is None:
        return samples
    wide = samples.double()
    return wide * wide.new_tensor(scale) + wide.new_tensor(mean)


def _found(config: DataConfig, dimensions: int) -> tuple[int, list[int]]:
    """Number and shape of the samples.

    Raises:
        UserError: nobody has looked yet, or what a file says was found cannot be.
    """
    size, shape = config.found.samples, config.found.shape
    if not size or shape is None:
        raise UserError(
            f"data.path = {config.path}: name the {config.name} to train on with --data.path"
        )
    if len(shape) != dimensions or (
        dimensions == 3 and (shape[0] not in (1, 3) or shape[1] != shape[2])
    ):
        raise UserError(f"data.found.shape = {shape}: cannot be that of {config.name}")
    return size, shape


OWN_IMAGES = "images"
OWN_SETS: dict[str, Callable[[DataConfig], ImageSet | TableSet]] = {
    OWN_IMAGES: _images,
    "points": _points,
}
"""By ``data.name``, what makes the record of the user's own data."""
LOOKS: dict[str, Callable[[DataConfig], Seen]] = {
    OWN_IMAGES: look_at_images,
    "points": look_at_points,
}
"""By ``data.name``, what fills ``data.found``."""
