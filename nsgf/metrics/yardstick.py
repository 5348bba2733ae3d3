"""Measure samples of one data set, for ``compare`` and ``evaluate``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import EvaluationConfig
from nsgf.data import Data, Sampler
from nsgf.metrics.distances import require_neighbours
from nsgf.metrics.features import FeatureMetrics, FeatureNetwork, ImageNet, Inception
from nsgf.metrics.measures import Measure, Space, Values, compute, measures_in
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.output import Log

MEASURED_OF_CLASS = 10
"""Smallest number of samples per class for which ``compare`` also measures single classes."""
TUNE = "tune"
"""Name of the random stream for measures that select settings (``compare.tune``)."""


@dataclass(eq=False)
class Yardstick:
    """Computes the measures of one data set. Each measure compares samples in its
    :data:`nsgf.metrics.measures.Space`."""

    data: Data
    evaluation: EvaluationConfig
    out_dir: Path
    """Folder of run folders, where features of real images are stored."""
    device: torch.device
    log: Log
    """Function that takes lines about the network for features."""

    def __post_init__(self) -> None:
        """Load the network for features. Raise UserError if the held-out data, a package or a
        weights file is missing or damaged."""
        self.measured = self.data.measured()
        """The held-out part of a user's data; without a held-out part, the same as ``data``."""
        self.network: FeatureNetwork | None = None
        evaluation = self.evaluation
        if evaluation.features == "inception":
            weights = evaluation.inception_weights
            self.network = Inception(None if weights is None else Path(weights))
        elif self.data.is_images and evaluation.features != "none":
            try:
                self.network = ImageNet()
            except UserError as error:
                if evaluation.features == "imagenet":
                    raise
                self.log(f"only pixels are compared, by W2: {error}")
        spaces: list[Space] = (
            ["units"] if self.data.user_points is None else ["units", "standardised"]
        )
        self.distances = measures_in(*spaces)
        """Measures that compare the samples themselves, without features of a network."""

    @cached_property
    def features(self) -> FeatureMetrics | None:
        """Measures of features of the network; None for points, or without a network."""
        data = self.data
        if data.images is None or self.network is None:
            return None
        return FeatureMetrics(
            self.network,
            data,
            self.out_dir,
            self.device,
            self.log,
        )

    def at_most(self, n: int) -> int:
        """Return ``n``, limited to the number of samples that a floor can compare."""
        if self.measured is self.data:
            # take at most half of the data, so that two draws are disjoint
            return min(n, (self.data.count or 2 * n) // 2)
        return min(n, self.data.count or n, self.measured.count or n)

    def distance(
        self, measures: Sequence[Measure], samples: Tensor, seed: int, draw: str, stream: str
    ) -> Values:
        """Return measures of samples (n, *shape) against n real samples from the random stream
        ``stream``. With the stream TUNE, the real samples come from the training part."""
        values: Values = {}
        for measure in measures:
            count = self._limit(measure, len(samples))
            x = samples[:count]
            if measure.space == "units":
                x = self.data.in_units(x)
            real = self._real(measure, seed, stream)(stream, draw).at(range(count))
            values |= compute([measure], {measure.space: (x, real)})
        return values

    def floor(
        self, measures: Sequence[Measure], n: int, seed: int, draw: str, stream: str
    ) -> Values:
        """Return measures of ``n`` new samples of the target in place of samples. The new samples
        are disjoint from the real samples of ``stream``. With a held-out part, they come from the
        training part."""
        values: Values = {}
        has_part = self.measured is not self.data
        for measure in measures:
            count = self._limit(measure, n)
            real = self._real(measure, seed, stream)(stream, draw)
            if self.data.count is None or has_part:
                x = _samplers(self.data.with_seed(seed), measure)("floor", draw).sample(count)
            else:
                x = real.at(range(n, n + count))  # disjoint
            values |= compute([measure], {measure.space: (x, real.at(range(count)))})
        return values

    def _limit(self, measure: Measure, n: int) -> int:
        """Return how many of n samples a measure compares."""
        return min(n, self.evaluation.w2_samples) if measure.is_slow else n

    def _real(self, measure: Measure, seed: int, stream: str) -> Callable[..., Sampler]:
        """Return the function that makes samplers of real samples for a measure."""
        data = self.data if stream == TUNE else self.measured
        return _samplers(data.with_seed(seed), measure)

    # --- for ``compare`` ------------------------------------------------------------------------

    @cached_property
    def samples(self) -> int:
        """Number of samples of each trial."""
        limit = self.features.used if self.features else self.at_most
        count = limit(self.evaluation.num_samples)
        starts = self.measured.source_data  # a repeated start ends at the same place
        return min(count, starts.count_different() or count) if starts else count

    def check_comparison(self) -> None:
        """Raise UserError if there are too few samples, or the network is not ImageNet's."""
        if self.network is not None:
            if self.network.is_published:
                raise UserError("evaluation.features = inception: must be imagenet to compare")
            require_neighbours(self.evaluation.num_samples)
        if self.samples < 2:
            raise wrong_setting("evaluation.num_samples", self.samples, "must be >= 2 to compare")

    @property
    def compared(self) -> list[Measure]:
        """The measures of a comparison. With ImageNet features and at least MEASURED_OF_CLASS
        samples of each class, classes are also measured separately."""
        if not self.features:
            return self.distances
        if self.samples < MEASURED_OF_CLASS * self.data.classes:
            return measures_in("imagenet")
        return self.features.measures

    def measure(
        self,
        measures: Sequence[Measure],
        samples: Tensor | None,
        seed: int,
        draw: int,
        stream: str = "compare",
    ) -> Values:
        """Return measures of samples (n, *shape) by key. ``samples`` None: measure as many new
        samples of the target as a trial has. Points are compared with a draw of the target from
        ``stream``. Images are compared with the same real images in all draws. The stream TUNE uses
        real images that no table uses."""
        if not self.features:
            if samples is None:
                return self.floor(measures, self.samples, seed, str(draw), stream)
            return self.distance(measures, samples, seed, str(draw), stream)
        if samples is None:
            return self.features.floor(self.samples, draw, measures)
        return self.features.measure(samples, measures, is_tuning=stream == TUNE)


def _samplers(data: Data, measure: Measure) -> Callable[..., Sampler]:
    """Return a function that makes a sampler from the name of a random stream. The samples are in
    the space that ``measure`` compares."""
    return data.reference if measure.space == "units" else data.target
