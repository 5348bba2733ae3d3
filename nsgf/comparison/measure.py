"""The measures of a comparison. All methods are measured against the same target samples."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import Data, Sampler
from nsgf.metrics.distances import energy_distance, require_neighbours
from nsgf.metrics.features import MEASURES, SPLITS, FeatureMetrics, ImageNet, pick_network
from nsgf.sinkhorn.exact import w2
from nsgf.system.errors import UserError

Place = tuple[int, int]
"""(seed, draw)."""


class Yardstick:
    """The measures of one target: for images those of :class:`FeatureMetrics`; for points, and
    without its network, exact W2 and energy distance. W2 of own points is given in the units of
    their file and for standardised columns."""

    def __init__(self, config: Config, device: torch.device, log: Callable[[str], None]) -> None:
        """Load the target of a trial; ``log`` takes a line about features of real images.

        Raises:
            UserError: too few samples, a missing package, or another network than ImageNet's.
        """
        self._data, self._n = Data(config.data, config.seed), config.evaluation.w2_samples
        self.samples: int = config.evaluation.num_samples
        """Number of samples that are measured."""
        self.names = ["w2", "1000 energy", *["w2_standardised"] * (self._data.points is not None)]
        self._features: FeatureMetrics | None = None
        images = self._data.images
        network = None if images is None else pick_network(config.evaluation, log)
        if images is not None and network is not None:
            if not isinstance(network, ImageNet):
                raise UserError("evaluation.features = inception: must be imagenet to compare")
            require_neighbours(self.samples)
            out_dir = Path(config.out_dir)
            self._features = FeatureMetrics(network, config.data, images, out_dir, device, log)
            self.names = MEASURES
        limit = self._features.used if self._features else self._data.at_most_half
        self.samples = limit(self.samples)
        if self.samples < 2:
            raise UserError(f"evaluation.num_samples = {self.samples}: must be >= 2 to compare")

    def measure(self, samples: Tensor, seed: int, draw: int) -> dict[str, float]:
        """Return the measures of samples (n, *shape) by name. Points are compared with a draw of
        the target, images with the same real images in all draws."""
        if self._features:
            return self._features.measure(samples)
        data, stream = self._data.with_seed(seed), ("compare", str(draw))
        target = data.target(*stream)
        return self._distances(data.in_units(samples), data.reference(*stream), samples, target)

    def floor_places(self, places: Iterable[Place]) -> Iterable[Place]:
        """Return the places of floors, given those of the measures. Splits of images do not depend
        on the seed."""
        return ((0, split) for split in range(SPLITS)) if self._features else places

    def floor(self, seed: int, draw: int) -> dict[str, float]:
        """Return the measures of equally many fresh samples of the target."""
        if self._features:
            return self._features.floor(self.samples, draw)
        data, stream = self._data.with_seed(seed), ("compare", str(draw))
        real, target = data.reference(*stream), data.target(*stream)
        if data.count is None:
            others = data.reference("floor", str(draw)).sample(self.samples)
            return self._distances(others, real, others, target)
        rest = range(self.samples, 2 * self.samples)  # disjoint
        return self._distances(real.at(rest), real, target.at(rest), target)

    @property
    def noise(self) -> dict[str, float] | None:
        """Measures of pure noise beside images; None for points."""
        return None if self._features is None else self._features.noise

    def _distances(
        self, samples: Tensor, real: Sampler, standardised: Tensor, target: Sampler
    ) -> dict[str, float]:
        """Return the distances of samples in the units of ``real``, which are also given
        ``standardised``, in the units of ``target``."""
        reals, n = real.sample(len(samples)), self._n
        found = {"w2": w2(samples[:n], reals[:n])}
        found["1000 energy"] = 1000 * energy_distance(samples, reals)
        if self._data.points is not None:
            found["w2_standardised"] = w2(standardised[:n], target.sample(len(samples))[:n])
        return found
