"""The measures of a comparison.

All methods of one target, seed and draw are compared with the same target samples, so that their
differences do not come from the draws.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data, ImageSet, Sampler, target_set
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.metrics.distances import energy_distance, require_neighbours, w2
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

    def __init__(self, config: Config, device: torch.device, log: Callable[[str], None]) -> None:
        """
        Raises:
            UserError: too few samples, random images, or a missing package.
        """
        require_neighbours(config.evaluation.num_samples)
        images = Data(config.data, 0).images
        assert images is not None
        self._metrics = ClassifierMetrics(config.data, images, Path(config.out_dir), device, log)
        self.samples = self._metrics.used(config.evaluation.num_samples)

    def measure(self, samples: Tensor, seed: int, draw: int) -> dict[str, float]:
        """Return the measures of samples (n, C, H, W); all draws meet the same real images."""
        return self._metrics.measure(samples)

    def floor(self, seed: int, draw: int) -> dict[str, float]:
        """Return the measures of as many other real images."""
        return self._metrics.floor(self.samples)


Yardstick = PointYardstick | ImageYardstick
"""The measures of one target: their ``names``, and the number of ``samples`` that they take."""


def build_yardstick(config: Config, device: torch.device, log: Callable[[str], None]) -> Yardstick:
    """Return the measures for a trial's target.

    Raises:
        UserError: something that measuring needs is missing.
    """
    target = target_set(config.data)
    has_labels = isinstance(target, ImageSet) and target.read_labels
    return ImageYardstick(config, device, log) if has_labels else PointYardstick(config)
