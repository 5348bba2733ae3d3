"""Samples of a trained trial, and their distance from the target.

All methods of one target, seed and draw start from the same noise and are compared with the same
target samples, so that their differences do not come from the draws.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nsgf.compare.trials import at_nfe
from nsgf.config.schema import Config
from nsgf.data import Data, ImageSet, Sampler, build_source, target_set
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.metrics.shared import require_neighbours
from nsgf.metrics.wasserstein import energy_distance, w2
from nsgf.phases import load_sampler
from nsgf.run.folder import RunFolder
from nsgf.sampling.generate import generate
from nsgf.sampling.sampler import Samples
from nsgf.system.errors import UserError


class PointYardstick:
    """Exact W2 and energy distance, for points and for images without classes. The energy distance
    is sensitive to smaller differences."""

    names = ("w2", "1000 energy")

    def __init__(self, config: Config) -> None:
        """
        Raises:
            UserError: too few samples.
        """
        self._data, self._n = Data(config.data, config.seed), config.evaluation.w2_samples
        self.samples = config.evaluation.num_samples
        if (count := self._data.count) is not None:
            self.samples = min(self.samples, count // 2)  # two disjoint halves for the floor
        if self.samples < 2:
            raise UserError(f"evaluation.num_samples = {self.samples}: must be >= 2 to compare")

    def measure(self, samples: Tensor, seed: int, draw: int) -> dict[str, float]:
        """Return the distances of samples (n, *shape) from a draw of the target, by name."""
        data = self._data.with_seed(seed)
        return self._distances(data.in_units(samples), data.reference("compare", str(draw)))

    def floor(self, seed: int, draw: int) -> dict[str, float]:
        """Return what as many samples of the target itself score."""
        data = self._data.with_seed(seed)
        real = data.reference("compare", str(draw))
        if data.count is None:
            others = data.reference("floor", str(draw)).sample(self.samples)
        else:
            others = real.at(range(self.samples, 2 * self.samples))  # disjoint
        return self._distances(others, real)

    def _distances(self, samples: Tensor, target: Sampler) -> dict[str, float]:
        reals = target.sample(len(samples))
        near = w2(samples[: self._n], reals[: self._n])
        return {"w2": near, "1000 energy": 1000 * energy_distance(samples, reals)}


class ImageYardstick:
    """Frechet distance, precision and recall in the features of a small classifier."""

    names = ("classifier_fid", "classifier_precision", "classifier_recall")

    def __init__(
        self, config: Config, folder: Path, device: torch.device, log: Callable[[str], None]
    ) -> None:
        """Train or load the classifier in ``folder``; see :class:`ClassifierMetrics`.

        Raises:
            UserError: too few samples, random images, or a missing package.
        """
        require_neighbours(config.evaluation.num_samples)
        images = Data(config.data, 0).images
        assert images is not None
        self._classifier = ClassifierMetrics(config.data, images, folder, device, log)
        self.samples = self._classifier.used(config.evaluation.num_samples)

    def measure(self, samples: Tensor, seed: int, draw: int) -> dict[str, float]:
        return self._classifier.measure(samples)

    def floor(self, seed: int, draw: int) -> dict[str, float]:
        return self._classifier.floor(self.samples)


Yardstick = PointYardstick | ImageYardstick
"""The measures of one target: their ``names``, and the number of ``samples`` that they take."""


def yardstick_of(config: Config) -> type[Yardstick]:
    """Return the kind of measures for a trial's target."""
    target = target_set(config.data)
    has_labels = isinstance(target, ImageSet) and target.read_labels
    return ImageYardstick if has_labels else PointYardstick


@dataclass
class Measured:
    """A measure of one trial."""

    nfe: float
    """Network calls for each sample that were made."""
    sample_seconds: float
    values: dict[str, float]
    """By name; all inf where samples are not finite."""


def measure(
    config: Config,
    run: RunFolder,
    nfe: int,
    draw: int,
    yardstick: Yardstick,
    device: torch.device,
) -> Measured:
    """Sample a trial's run with ``nfe`` network calls for each sample, and measure the samples."""
    samples, seconds = generated(at_nfe(config, nfe), run, draw, yardstick.samples, device)
    if not samples.finite:
        return Measured(samples.nfe, seconds, dict.fromkeys(yardstick.names, math.inf))
    values = yardstick.measure(samples.x, config.seed, draw)
    assert tuple(values) == yardstick.names
    return Measured(samples.nfe, seconds, values)


def generated(
    config: Config, run: RunFolder, draw: int, n: int, device: torch.device
) -> tuple[Samples, float]:
    """Return ``n`` samples of a trained run, and the seconds that they took."""
    sampler, _ = load_sampler(config, run, device)
    source = build_source(config.data, config.seed, "compare", str(draw))
    started = time.perf_counter()
    samples = generate(sampler, source, n, config.sampling.batch_size, device)
    return samples, time.perf_counter() - started
