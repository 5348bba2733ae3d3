"""Spaces in which generated samples are moved towards real ones.

Shapes: B batch, *shape one sample.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from nsgf.data import Data, ImageSet, target_set
from nsgf.data.images import Files
from nsgf.run.session import Session
from nsgf.small_classifier import TEACHES, obtain

Spaces = Callable[[Tensor], list[Tensor]]
"""Samples (B, *shape) -> the same in each space, each (B, ...), with gradients."""


def pixels(samples: Tensor) -> list[Tensor]:
    """Samples as they are."""
    return [samples]


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
    labels = kind.labels(Files.of(config.data))
    folder = Path(config.out_dir).expanduser() / ".classifiers"
    log = session.tracker.log
    network = obtain(kind, images, labels, folder, session.device, log, TEACHES).network
    return lambda samples: [samples, *network.layers(samples)]
