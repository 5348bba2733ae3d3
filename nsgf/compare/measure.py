"""Samples of a trained cell, and how far they are from the target.

All methods of one target and seed start from the same noise and are compared with the same target
samples, so that their differences are not those of the draws.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nsgf.checkpoint import RunFolder
from nsgf.compare.cells import at_nfe, comparison_folder
from nsgf.config import Config
from nsgf.data import Data
from nsgf.inference import generate, load_sampler
from nsgf.metrics.classifier import ClassifierMetrics
from nsgf.metrics.wasserstein import energy_distance, w2
from nsgf.sampling import Samples


class Yardstick(Protocol):
    """The measures of one target."""

    def measure(self, samples: Tensor, seed: int) -> dict[str, float]:
        """Distances of samples (n, *shape) from the target, by name."""
        ...

    def floor(self, seed: int) -> dict[str, float]:
        """What as many samples of the target itself would score."""
        ...


class PointYardstick:
    """Exact W2, and the energy distance, which sees smaller differences of laws."""

    def __init__(self, config: Config) -> None:
        self._config, self._n = config, config.evaluation.w2_samples

    def measure(self, samples: Tensor, seed: int) -> dict[str, float]:
        target = Data(self._config.data, seed).target("compare").sample(len(samples))
        near = w2(samples[: self._n], target[: self._n])
        return {"w2": near, "1000 energy": 1000 * energy_distance(samples, target)}

    def floor(self, seed: int) -> dict[str, float]:
        n = self._config.evaluation.num_samples
        return self.measure(Data(self._config.data, seed).target("floor").sample(n), seed)


class ImageYardstick:
    """Frechet distance, precision and recall in the features of a small classifier."""

    def __init__(self, config: Config, device: torch.device, say: Callable[[str], None]) -> None:
        self._n = config.evaluation.num_samples
        images = Data(config.data, config.seed).images
        assert images is not None
        self._classifier = ClassifierMetrics(
            config.data, images, comparison_folder(config).parent, config.seed, device, say
        )

    def measure(self, samples: Tensor, seed: int) -> dict[str, float]:
        return self._classifier.measure(samples)

    def floor(self, seed: int) -> dict[str, float]:
        found = self._classifier.floor(self._n)
        return {name.removesuffix("_floor"): value for name, value in found.items()}


@dataclass
class Measured:
    """A row of the comparison, before seeds are averaged."""

    nfe: float
    sample_seconds: float
    values: dict[str, float]


def start_samples(config: Config, n: int) -> Tensor:
    """The noise that all methods of a target and seed start from, (n, *shape)."""
    return Data(config.data, config.seed).source("compare").sample(n)


def measure(
    config: Config, run: RunFolder, nfe: int, yardstick: Yardstick, device: torch.device
) -> Measured:
    """Sample a trained run with ``nfe`` network calls and measure the samples.

    Args:
        config: the cell's configuration.
        run: its folder.
        nfe: network calls for each sample.
        yardstick: the target's measures.
        device: where to sample.
    """
    samples, seconds = draw(at_nfe(config, nfe), run, device)
    return Measured(samples.nfe, seconds, yardstick.measure(samples.x, config.seed))


def draw(config: Config, run: RunFolder, device: torch.device) -> tuple[Samples, float]:
    """``evaluation.num_samples`` samples of a trained run, and the seconds they took."""
    sampler, _ = load_sampler(config, run, device)
    source = Data(config.data, config.seed).source("compare")
    started = time.perf_counter()
    n = config.evaluation.num_samples
    samples = generate(sampler, source, n, config.sampling.batch_size, device)
    return samples, time.perf_counter() - started
