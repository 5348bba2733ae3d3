"""Frechet distance, precision and recall in the features of a small classifier.

This is not Inception FID: the classifier is trained on the data set itself. Compare the values only
between samplers for the same set and with the floor, not with published values. The features also
suit images that Inception's features do not (digits), and need no download.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data import ImageSet, target_set
from nsgf.data.images import to_bytes
from nsgf.metrics.distances import compare_features, require_fidelity, require_neighbours
from nsgf.models.small_classifier import SEED, load_or_train
from nsgf.system.errors import UserError
from nsgf.system.output import show
from nsgf.system.seeding import make_generator

MOST = 10_000
"""Largest number of real images in the reference, and of samples compared with it: the cost of
precision and recall grows with the product."""

LEAST_SKILL = 0.75
"""Smallest skill for measuring samples: 0 for guessing among the classes, 1 for always right. Two
classes need 88 % right on held-out images, ten need 78 %."""
SPLITS = 10
"""Number of floors: draws of real images that represent a perfect sampler."""
NOISE = 256
"""Number of samples of pure noise that are measured."""


class ClassifierMetrics:
    """Measure samples of one data set against a fixed reference of at most MOST real images: the
    test images, or half of the training images if the set has no others."""

    def __init__(
        self,
        config: DataConfig,
        images: Tensor,
        out_dir: Path,
        device: torch.device,
        log: Callable[[str], None] = show,
    ) -> None:
        """
        Args:
            images: all training images, uint8, (N, C, H, W), in their published order.
            out_dir: folder of run folders; its ``.classifiers`` stores classifiers.
            log: gets a line after the classifier is trained.

        Raises:
            UserError: torch-fidelity is missing, labels are missing or damaged, or the images are
                random ones, which have none.
        """
        require_fidelity("evaluation.classifier")
        if config.fake:
            raise UserError("evaluation.classifier = true: random images have no labels")
        require_neighbours(len(images) // 2)
        kind = target_set(config)
        assert isinstance(kind, ImageSet)
        folder = out_dir.expanduser() / ".classifiers"
        self._trained = load_or_train(
            kind, images, kind.labels(config, len(images)), folder, device, log
        )
        self._device = device
        reference, self._rest = kind.test_images(config), images
        """``_rest``: images of floors, together with the reference if there are no test images."""
        self._has_test = reference is not None
        if reference is None:
            generator = make_generator(SEED, "classifier", "real")
            order = torch.randperm(len(images), generator=generator)
            size = min(MOST, len(images) // 2)
            reference, self._rest = images[order[:size]], images[order[size : size + MOST]]
        self._reference = self._features(reference[:MOST])
        self.accuracy = self._trained.accuracy
        """Accuracy of the classifier on held-out images, in [0, 1]."""
        self.weakness = ""
        """Why the classifier must not measure; empty if it may."""
        needed = LEAST_SKILL + (1 - LEAST_SKILL) / kind.classes
        if self.accuracy < needed:
            right = f"{self.accuracy:.1%} right on held-out images"
            self.weakness = f"{right}: too weak, measures left out (needs {needed:.1%})"
        self.about = f"{len(self._reference)} {'test' if self._has_test else 'training'} images"
        """Description of the reference."""

    def used(self, n: int) -> int:
        """Return how many of ``n`` samples are measured: at most as many as a floor has."""
        return min(n, MOST, len(self._rest))

    def measure(self, samples: Tensor) -> dict[str, float]:
        """Return ``classifier_fid``, ``classifier_precision`` and ``classifier_recall`` of the
        first :meth:`used` samples; see :func:`nsgf.metrics.distances.compare_features`.

        The samples are images (N, C, H, W), float in [-1, 1] (clipped, rounded to bytes as the real
        ones are) or uint8. Raise UserError if there are at most NEIGHBOURS.
        """
        features = self._features(samples[: self.used(len(samples))])
        return self._compare(features, self._reference)

    def floor(self, n: int, split: int) -> dict[str, float]:
        """Return the measures of :meth:`used` of ``n`` training images, drawn at random for each
        ``split``: against the test images, or against the other half of a random split.

        The classifier was trained on four fifths of these images. This does not matter: held-out
        images score the same within the noise (measured on all three sets)."""
        generator = make_generator(SEED, "floor", split)
        real = self._real[torch.randperm(len(self._real), generator=generator)]
        reference = self._reference
        if not self._has_test:
            reference, real = real.tensor_split([len(reference)])
        return self._compare(real[: self.used(n)], reference)

    @cached_property
    def _real(self) -> Tensor:
        """Features of the images that floors are drawn from."""
        rest = self._features(self._rest)
        return rest if self._has_test else torch.cat([self._reference, rest])

    def _compare(self, features: Tensor, reference: Tensor) -> dict[str, float]:
        require_neighbours(len(features))
        found = compare_features(features, reference, self._device)
        return {f"classifier_{name}": value for name, value in found.items()}

    def noise_precision(self) -> float:
        """Return the precision of pure Gaussian noise, in [0, 1]. It is high for few images or for
        photographs; a high precision of samples is then meaningless."""
        shape = self._rest.shape[1:]
        noise = torch.randn(NOISE, *shape, generator=make_generator(SEED, "noise"))
        return self.measure(noise)["classifier_precision"]

    def _features(self, samples: Tensor) -> Tensor:
        pixels = samples if samples.dtype == torch.uint8 else to_bytes(samples)
        return self._trained.features(pixels, self._device)
