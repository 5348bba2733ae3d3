"""Measures samples of one data set for ``evaluate`` and ``compare``."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config, EvaluationConfig
from nsgf.data import Data, Sampler
from nsgf.metrics.distances import require_neighbours
from nsgf.metrics.features import FeatureMetrics, FeatureNetwork, ImageNet
from nsgf.metrics.inception import Inception
from nsgf.metrics.measures import Measure, Space, compute, measures_in
from nsgf.system.errors import UserError

LEAST_OF_CLASS = 10
"""Smallest number of samples of each class with which ``compare`` measures each class."""


def pick_network(evaluation: EvaluationConfig, log: Callable[[str], None]) -> FeatureNetwork | None:
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


class Yardstick:
    """Computes the measures of one data set, each in its :data:`nsgf.metrics.measures.Space`."""

    def __init__(self, config: Config, device: torch.device, log: Callable[[str], None]) -> None:
        """Load the data and the network for features; ``log`` takes lines about the network. Raise
        UserError if data, a package or a weights file is missing or damaged."""
        self._config, self._device, self._log = config, device, log
        self.data = Data(config.data, config.seed)
        self.measured = self.data.measured()
        """The held-out part of own data; without one the same as ``data``."""
        self.network = None if self.data.images is None else pick_network(config.evaluation, log)
        spaces: list[Space] = ["units"] if self.data.points is None else ["units", "standardised"]
        self.distances = measures_in(*spaces)
        """Measures of values, without features of a network."""

    @cached_property
    def features(self) -> FeatureMetrics | None:
        """Measures in the features of the network; None for points and without a network."""
        data, place = self.data, Path(self._config.out_dir)
        if data.images is None or self.network is None:
            return None
        how = data.images, place, self._device, self._log, data.labels
        return FeatureMetrics(self.network, self._config.data, *how)

    def at_most(self, n: int) -> int:
        """Return ``n``, at most as many as a floor can compare."""
        if self.measured is self.data:
            return min(n, (self.data.count or 2 * n) // 2)  # so that two draws can be disjoint
        return min(n, self.data.count or n, self.measured.count or n)

    def count(self, measure: Measure, n: int) -> int:
        """Return how many of ``n`` samples a measure compares."""
        return min(n, self._config.evaluation.w2_samples) if measure.is_slow else n

    def distance(
        self, measures: Sequence[Measure], samples: Tensor, seed: int, draw: str, stream: str
    ) -> dict[str, float]:
        """Return measures of values of samples (n, *shape), against as many real ones."""
        found: dict[str, float] = {}
        for one in measures:
            x = samples[: self.count(one, len(samples))]
            real = _sampler(self.measured, one, seed, stream, draw).sample(len(x))
            own = self.data.in_units(x) if one.space == "units" else x
            found |= compute([one], {one.space: (own, real)})
        return found

    def distance_floor(
        self, measures: Sequence[Measure], n: int, seed: int, draw: str, stream: str
    ) -> dict[str, float]:
        """Return the measures of ``n`` new samples of the target: others, or of what is trained on
        if there is a held-out part."""
        found: dict[str, float] = {}
        for one in measures:
            count = self.count(one, n)
            real = _sampler(self.measured, one, seed, stream, draw)
            if self.data.count is None or self.measured is not self.data:
                others = _sampler(self.data, one, seed, "floor", draw).sample(count)
            else:
                others = real.at(range(n, n + count))  # disjoint
            found |= compute([one], {one.space: (others, real.at(range(count)))})
        return found

    # --- for ``compare`` ------------------------------------------------------------------------

    @cached_property
    def samples(self) -> int:
        """Number of samples of each trial."""
        limit = self.features.used if self.features else self.at_most
        return limit(self._config.evaluation.num_samples)

    def check_comparison(self) -> None:
        """Raise UserError if there are too few samples, or the network is not ImageNet's."""
        if self.network is not None:
            if self.network.is_published:
                raise UserError("evaluation.features = inception: must be imagenet to compare")
            require_neighbours(self._config.evaluation.num_samples)
        if self.samples < 2:
            raise UserError(f"evaluation.num_samples = {self.samples}: must be >= 2 to compare")

    @property
    def compared(self) -> list[Measure]:
        """The measures of a comparison. Each class is measured too in the features of ImageNet's
        network, if there are LEAST_OF_CLASS samples of each."""
        if not self.features:
            return self.distances
        has_enough = self.samples >= LEAST_OF_CLASS * self.data.classes
        return self.features.measures if has_enough else measures_in("imagenet")

    def measure(
        self, measures: Sequence[Measure], samples: Tensor, seed: int, draw: int
    ) -> dict[str, float]:
        """Return measures of samples (n, *shape) by key. Points are compared with a draw of the
        target, images with the same real images in all draws."""
        if self.features:
            return self.features.measure(samples, measures)
        return self.distance(measures, samples, seed, str(draw), "compare")

    def floor_places(self, places: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Return seed and draw of each floor, given seeds and draws of the measures. Floors of
        images do not depend on the seed."""
        if not self.network:
            return places
        return ((0, split) for split in range(self.network.splits))

    def floor(self, measures: Sequence[Measure], seed: int, draw: int) -> dict[str, float]:
        """Return the measures of new samples of the target, as many as those of a trial."""
        if self.features:
            return self.features.floor(self.samples, draw, measures)
        return self.distance_floor(measures, self.samples, seed, str(draw), "compare")


def _sampler(data: Data, measure: Measure, seed: int, *stream: str) -> Sampler:
    """Return a sampler of the target in the space of a measure of values."""
    own = data.with_seed(seed)
    return (own.reference if measure.space == "units" else own.target)(*stream)
