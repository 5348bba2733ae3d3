"""Spaces in which generated samples are moved towards real ones.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data, ImageSet, data_shape, target_set
from nsgf.run.session import Session
from nsgf.small_classifier import TEACHES, SmallCNN, obtain

Spaces = Callable[[Tensor], list[Tensor]]
"""Samples (B, *shape) -> the same in each space, each (B, ...), with gradients."""


def pixels(samples: Tensor) -> list[Tensor]:
    """Samples as they are."""
    return [samples]


def space_shapes(config: Config) -> list[tuple[int, ...]]:
    """Shapes of a sample in the configured spaces, known without data."""
    shape = data_shape(config.data)
    if config.generator.features == "pixels":
        return [shape]
    kind = target_set(config.data)
    assert isinstance(kind, ImageSet)  # checked with the configuration
    with torch.device("meta"):
        network = SmallCNN(kind.shape, kind.classes, TEACHES.features)
        layers = network.layers(torch.empty(1, *shape))
    return [shape, *(tuple(layer.shape[1:]) for layer in layers)]


def spaces_of(session: Session, data: Data) -> Spaces:
    """The configured spaces: samples as they are, or these and the layers of a small classifier of
    the data set, kept in ``.classifiers`` beside the runs. It is never the one that measures.

    Raises:
        UserError: labels are missing or damaged.
    """
    config = session.config
    if config.generator.features == "pixels":
        return pixels
    kind, images = target_set(config.data), data.images
    assert isinstance(kind, ImageSet)  # checked with the configuration
    assert images is not None
    labels = kind.labels(config.data)
    folder = Path(config.out_dir).expanduser() / ".classifiers"
    log = session.tracker.log
    network = obtain(kind, images, labels, folder, session.device, log, TEACHES).network
    return lambda samples: [samples, *network.layers(samples)]
