"""What do the measures of images see? Pictures of known quality, measured as samples are.

    python scripts/bench_features.py FILE.csv digits mnist [--sides 64 112] [--scalings nearest]

256 pictures of each kind are compared with at most 1,000 real images that none was made from.
"""

import argparse
import csv
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional

from nsgf.config.schema import DataConfig
from nsgf.data import DATA_SETS, ImageSet
from nsgf.metrics import features
from nsgf.metrics.features import SIDE, FeatureMetrics, ImageNet
from nsgf.metrics.measures import keys_of, measures_in

COUNT, MEASURES = 256, keys_of(measures_in("imagenet"))
features.MOST = 1000
ImageNet.splits = 4


def pictures(images: Tensor, labels: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield kinds of pictures, uint8 (COUNT, C, H, W), made from more real images than COUNT."""
    generator, half = torch.Generator().manual_seed(0), int(labels.max()) // 2
    real = images[:COUNT].float()
    blur = functional.avg_pool2d(functional.pad(real, (1,) * 4, mode="replicate"), 3, 1)
    noise = torch.randn(real.shape, generator=generator)
    made = {
        "blurred by 3x3": blur,
        "a quarter of that mixed in": 0.75 * real + 0.25 * blur,
        "sharpened by a quarter": 1.25 * real - 0.25 * blur,
        "four grey levels": (real / 85).round() * 85,
        "noise of 10 levels": real + 10 * noise,
        "pure noise": 127.5 * (1 + noise),
    }
    for name, pixels in made.items():
        yield name, pixels.clamp(0, 255).round().to(torch.uint8)
    yield "half of the classes", images[labels <= half][:COUNT]
    yield "16 images, each 16 times", images[:16].repeat(COUNT // 16, 1, 1, 1)


def main() -> None:
    """Measure all pictures at each scale, and write a line of the file for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("sets", nargs="+", choices=["digits", "mnist", "cifar10"])
    parser.add_argument("--sides", nargs="+", type=int, default=[SIDE])
    parser.add_argument("--scalings", nargs="+", default=["bicubic"])
    parser.add_argument("--data-root", default="data")
    options = parser.parse_args()
    places = product(options.sets, options.sides, options.scalings)
    with options.file.open("a", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if not stream.tell():
            writer.writerow(["set", "side", "scaling", "pictures", *MEASURES])
        for name, side, how in places:
            for kind, found in measures(DataConfig(name=name, root=options.data_root), side, how):
                writer.writerow([name, side, how, kind, *(f"{found[key]:.4g}" for key in MEASURES)])
                stream.flush()


def measures(config: DataConfig, side: int, scaling: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the measures of real images, then of each kind of pictures."""
    kind = DATA_SETS[config.name]
    assert isinstance(kind, ImageSet)
    images = kind.load(config, seed=0)
    assert images is not None
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    chosen = order[: 2 * features.MOST]
    with tempfile.TemporaryDirectory() as folder:
        network, place = ImageNet(side, scaling), Path(folder)
        metrics = FeatureMetrics(network, config, images[chosen], place, torch.device("cpu"), print)
        floors = [metrics.floor(COUNT, split) for split in range(network.splits)]
        yield "real", {key: mean(floor[key] for floor in floors) for key in MEASURES}
        numbers = {image.numpy().tobytes(): n for n, image in enumerate(images)}
        rows = [numbers[image.numpy().tobytes()] for image in metrics.rest]
        labels = kind.labels(config, len(images))[rows]
        for name, pixels in pictures(metrics.rest, labels):
            yield name, metrics.measure(pixels)


if __name__ == "__main__":
    main()
