"""Measure pictures of known quality, to show what the measures of images detect.

    python scripts/published/bench_features.py FILE.csv
    python scripts/published/bench_features.py FILE.csv FOLDER ...    # runs on MNIST

256 pictures of each kind are compared with at most 1,000 real images. No picture is made from these
images. For a run, 2,048 samples are measured as in `nsgf evaluate`. A second measurement sets all
levels below 12 to 0, in the samples and in the real images.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional

import nsgf
from nsgf.config.schema import DataConfig, ImageName
from nsgf.data import DATA_SETS, Data, ImageSet
from nsgf.data.images import to_bytes
from nsgf.experiment import Experiment
from nsgf.metrics import features
from nsgf.metrics.features import FeatureMetrics, ImageNet
from nsgf.metrics.measures import keys_of, measures_in
from nsgf.sampling.generate import generate

COUNT, SAMPLES, CALLS = 256, 2048, (3, 5, 10, 20)
MEASURES = keys_of(measures_in("imagenet"))
ImageNet.splits = 4
SETS: list[ImageName] = ["digits", "mnist"]
NETWORKS = [(112, "bicubic", 0), (64, "bicubic", 0), (112, "nearest", 0), (160, "bicubic", 0)]
OF_RUNS = [(112, "bicubic", 0), (112, "bicubic", 12)]


class Network(ImageNet):
    """The features of images whose levels below ``black`` are set to 0."""

    def __init__(self, side: int, scaling: str, black: int) -> None:
        super().__init__(side, scaling)
        self.black = black

    def _features(self, images: Tensor) -> Tensor:
        return super()._features(images.where(images >= self.black, 0))


def pictures(images: Tensor, labels: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the pictures of each kind, uint8 (COUNT, C, H, W). ``images`` must have
    more than COUNT real images."""
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


@cache
def samples(folder: str, nfe: int) -> Tensor:
    """Return the samples that `nsgf evaluate` measures, as bytes."""
    run = nsgf.load(folder, device="cpu", overrides={"train.precision": "fp32"})
    experiment = Experiment(run.config)
    experiment = experiment.choose_calls(experiment.method, nfe)
    sampler = run.sampler.with_settings(experiment.config.sampling)
    source = experiment.source("evaluate", "0")
    return to_bytes(generate(sampler, source, SAMPLES, run.device).x)


def main() -> None:
    """Measure all pictures with each network, and write a line of the file for each measurement."""
    file, *runs = sys.argv[1:]
    features.MOST = features.MOST if runs else 1000
    places = product(SETS[1:], OF_RUNS) if runs else product(SETS, NETWORKS)
    with open(file, "a", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if not stream.tell():
            writer.writerow(["set", "side", "scaling", "black", "pictures", "nfe", *MEASURES])
        for name, network in places:
            for kind, nfe, found in measures(DataConfig(name=name), Network(*network), runs):
                values = [f"{found[key]:.4g}" for key in MEASURES]
                writer.writerow([name, *network, kind, nfe, *values])
                stream.flush()


def measures(
    config: DataConfig, network: ImageNet, runs: Sequence[str]
) -> Iterator[tuple[str, int | str, dict[str, float]]]:
    """Yield name, network calls and measures, first for real images. Then follow the measures for
    each kind of pictures, or for the samples of each run."""
    kind, count = DATA_SETS[config.name], SAMPLES if runs else COUNT
    assert isinstance(kind, ImageSet)
    images = kind.load(config, seed=0)
    assert images is not None
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    few = images[order[: 2 * features.MOST]]
    record = replace(
        kind,
        class_names=(),
        read_images=lambda config, is_test: kind.read_images(config, True) if is_test else few,
    )
    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cpu")
        data = Data(record, config, seed=0)
        metrics = FeatureMetrics(network, data, Path(folder), device, print)
        floors = [metrics.floor(count, split) for split in range(network.splits)]
        yield "real", "", {key: mean(floor[key] for floor in floors) for key in MEASURES}
        for run, nfe in product(runs, CALLS):
            yield Path(run).name, nfe, metrics.measure(samples(run, nfe))
        if not runs:
            numbers = {image.numpy().tobytes(): n for n, image in enumerate(images)}
            rows = [numbers[image.numpy().tobytes()] for image in metrics.floor_images]
            labels = kind.labels(config, len(images))[rows]
            for name, pixels in pictures(metrics.floor_images, labels):
                yield name, "", metrics.measure(pixels)


if __name__ == "__main__":
    main()
