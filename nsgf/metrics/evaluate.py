"""What is measured of generated images, besides W2."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.metrics.inception import Reference, inception_metrics
from nsgf.metrics.wasserstein import nearest_distance
from nsgf.system.errors import UserError

NEAREST = 2048
"""Largest number of samples whose nearest real image is looked for, and of those real images."""


def nearest_metrics(data: Data, samples: Tensor) -> dict[str, float]:
    """Mean distance to the nearest real image, and that of real ones among themselves.

    Args:
        data: an image set.
        samples: float, in [-1, 1] as far as they are good, (N, C, H, W); the first NEAREST count.
    """
    assert data.images is not None
    real = data.target("nearest").sample(min(len(data.images), NEAREST))
    return {
        "nearest_real": nearest_distance(samples[:NEAREST], real),
        "nearest_real_among_real": nearest_distance(real, real, skip_self=True),
    }


def classifier_part(
    config: Config, images: Tensor, pixels: Tensor, device: torch.device, log: Callable[[str], None]
) -> dict[str, Any]:
    """Distances in the features of a small classifier, or why they were left out.

    Args:
        config: of the evaluation.
        images: real images, uint8, (M, C, H, W).
        pixels: generated ones, uint8, (N, C, H, W).
        device: where the classifier runs.
        log: takes a line about its training.
    """
    if not config.evaluation.classifier:
        return {"classifier": "left out: evaluation.classifier is false"}
    try:
        out_dir = Path(config.out_dir)
        metrics = ClassifierMetrics(config.data, images, out_dir, device, log)
        found = metrics.measure(pixels) | metrics.floor(len(pixels))
    except UserError as error:
        return {"classifier": f"left out: {error}"}
    return found | {
        "classifier_accuracy": metrics.accuracy,
        "classifier_samples": metrics.used(len(pixels)),
        "classifier_reference": f"{metrics.reference_size} images of {config.data.name} train, "
        "features of a small CNN trained on that set: not Inception FID",
    }


def inception_part(
    config: Config, images: Tensor, pixels: Tensor, device: torch.device, log: Callable[[str], None]
) -> dict[str, Any]:
    """FID, Inception score, KID, precision and recall, or why they were left out.

    Arguments as for :func:`classifier_part`; ``log`` takes a line about kept features.
    """
    if not config.evaluation.inception:
        return {"inception": "left out: evaluation.inception is false"}
    reference = Reference(
        images,
        config.data.name + (" random stand-in" if config.data.fake else ""),
        Path(config.out_dir).expanduser() / ".fidelity",
    )
    weights, batch_size = config.evaluation.inception_weights, config.sampling.batch_size
    try:
        return inception_metrics(pixels, reference, weights, device, batch_size, log)
    except UserError as error:
        return {"inception": f"left out: {error}"}
