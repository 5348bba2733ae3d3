"""Samplers of the source mu0 and of the target mu*."""

from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.schema import DataConfig
from nsgf.data.images import IMAGE_SHAPES, fake_images, load_images
from nsgf.data.points import POINT_SETS, Gaussian, PointSet, RandomIndices, Times
from nsgf.data.samplers import ImageSampler, PointSampler, Sampler
from nsgf.system.seeding import derive_seed, make_generator

DEVICE_SHARE = 0.1
"""Largest share of a card's free memory that an image set may take (CIFAR-10 has 154 MB)."""


class Data:
    """The two measures of an experiment: loads the target once, hands out independent samplers."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device | None = None) -> None:
        """
        Args:
            config: which measures.
            seed: the run's seed.
            device: where an image set shall live, if it takes little of the free memory there;
                None: main memory.

        Raises:
            UserError: the target's files are missing or damaged.
        """
        self._config = config
        self._seed = seed
        self.images: Tensor | None = None
        if config.name in IMAGE_SHAPES:
            self.images = (
                fake_images(config.name, make_generator(seed, "fake"))
                if config.fake
                else load_images(
                    config.name,
                    Path(config.root).expanduser(),
                    verify=config.verify,
                    download=config.download,
                )
            )
            if device is not None and fits_beside_training(self.images, device):
                self.images = self.images.to(device)
            self.shape: tuple[int, ...] = tuple(self.images.shape[1:])
        else:
            self.shape = PointSet.shape

    def source(self, *stream: str) -> Sampler:
        """Sampler of mu0 with a random stream of its own."""
        return build_source(self._config, self._seed, *stream)

    def target(self, *stream: str) -> Sampler:
        """Sampler of mu* with a random stream of its own."""
        seed = derive_seed(self._seed, "target", *stream)
        if self.images is not None:
            return ImageSampler(self.images, seed, flip=self._config.flip)
        return PointSampler(PointSet(POINT_SETS[self._config.name]), seed)


def fits_beside_training(images: Tensor, device: torch.device) -> bool:
    """Whether the images take at most DEVICE_SHARE of the device's free memory."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes <= DEVICE_SHARE * free


def build_source(config: DataConfig, seed: int, *stream: str) -> Sampler:
    """Sampler of mu0 with a random stream of its own; needs no files of the target."""
    stream_seed = derive_seed(seed, "source", *stream)
    if config.source == "gaussian":
        return PointSampler(Gaussian(data_shape(config.name)), stream_seed)
    return PointSampler(PointSet(POINT_SETS[config.source]), stream_seed)


def data_shape(name: str) -> tuple[int, ...]:
    """Shape of one sample of the set ``name``, known without loading it."""
    return IMAGE_SHAPES.get(name, PointSet.shape)


__all__ = [
    "Data",
    "ImageSampler",
    "PointSampler",
    "RandomIndices",
    "Sampler",
    "Times",
    "build_source",
    "data_shape",
]
