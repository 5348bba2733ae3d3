"""Measure samples of one data set, for ``compare``, and a trained run, for ``evaluate``."""

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import Config, SamplingConfig
from nsgf.data import Data, build_source, is_image_set
from nsgf.data.images import to_unit_range
from nsgf.metrics.columns import mean_and_spread, measure_columns
from nsgf.metrics.distances import nearest_images, require_neighbours
from nsgf.metrics.features import FeatureMetrics, FeatureNetwork, ImageNet, Inception
from nsgf.metrics.measures import Measure, Space, Values, compute, is_measure, measures_in
from nsgf.phases import load_sampler
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.run.progress import count_progress
from nsgf.sampling.generate import batch_folder, generate
from nsgf.sampling.sampler import Samples
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import Plain, ensure_writable, write_text
from nsgf.system.hardware import pick_device
from nsgf.system.output import Log, show
from nsgf.system.seeding import make_generator
from nsgf.version import versions

LEAST_OF_CLASS = 10
"""Smallest number of samples per class for which ``compare`` also measures single classes."""
REPEATS = 3
"""Number of times that points are drawn and measured."""
TUNE = "tune"
"""Name of the random stream for measures that select settings (``compare.tune``)."""
NEAREST = 2048
"""Largest number of samples, and of real images, whose nearest training images are searched."""


@dataclass(eq=False)
class Yardstick:
    """Computes the measures of one data set, each in its :data:`nsgf.metrics.measures.Space`."""

    config: Config
    device: torch.device
    log: Log
    """Takes lines about the network for features."""

    def __post_init__(self) -> None:
        """Load the data and the network for features. Raise UserError if data, a package or a
        weights file is missing or damaged."""
        self.data = Data(self.config.data, self.config.seed)
        self.measured = self.data.measured()
        """The held-out part of own data; the same as ``data`` if there is none."""
        self.network: FeatureNetwork | None = None
        evaluation = self.config.evaluation
        if evaluation.features == "inception":
            weights = evaluation.inception_weights
            self.network = Inception(None if weights is None else Path(weights))
        elif self.data.images is not None and evaluation.features != "none":
            try:
                self.network = ImageNet()
            except UserError as error:
                if evaluation.features == "imagenet":
                    raise
                self.log(f"only pixels are compared, by W2: {error}")
        spaces: list[Space] = ["units"] if self.data.points is None else ["units", "standardised"]
        self.distances = measures_in(*spaces)
        """Measures that compare samples directly, without features of a network."""

    @cached_property
    def features(self) -> FeatureMetrics | None:
        """Measures in the features of the network; None for points and without a network."""
        data = self.data
        if data.images is None or self.network is None:
            return None
        return FeatureMetrics(
            self.network,
            self.config.data,
            data.images,
            self.config.out_path,
            self.device,
            self.log,
            data.labels,
        )

    def at_most(self, n: int) -> int:
        """Return ``n``, but at most the number of samples that a floor can compare."""
        if self.measured is self.data:
            return min(n, (self.data.count or 2 * n) // 2)  # so that two draws can be disjoint
        return min(n, self.data.count or n, self.measured.count or n)

    def distance(
        self, measures: Sequence[Measure], samples: Tensor | int, seed: int, draw: str, stream: str
    ) -> Values:
        """Return measures of samples (n, *shape) against as many real ones. If ``samples`` is a
        number, measure as many new samples of the target, which are disjoint from the real ones;
        these are floors. With a held-out part, they come from the training part. With the stream
        TUNE, the real ones come from the training part."""
        found: Values = {}
        data = self.data.with_seed(seed)
        measured = data if stream == TUNE else self.measured.with_seed(seed)
        for one in measures:
            count = samples if isinstance(samples, int) else len(samples)
            first = count
            if one.is_slow:
                count = min(count, self.config.evaluation.w2_samples)
            in_units = one.space == "units"
            real = (measured.reference if in_units else measured.target)(stream, draw)
            if not isinstance(samples, int):
                x = samples[:count]
                x = data.in_units(x) if in_units else x
            elif data.count is None or self.measured is not self.data:
                x = (data.reference if in_units else data.target)("floor", draw).sample(count)
            else:
                x = real.at(range(first, first + count))  # disjoint
            found |= compute([one], {one.space: (x, real.at(range(count)))})
        return found

    # --- for ``compare`` ------------------------------------------------------------------------

    @cached_property
    def samples(self) -> int:
        """Number of samples of each trial."""
        limit = self.features.used if self.features else self.at_most
        return limit(self.config.evaluation.num_samples)

    def check_comparison(self) -> None:
        """Raise UserError if there are too few samples, or the network is not ImageNet's."""
        if self.network is not None:
            if self.network.is_published:
                raise UserError("evaluation.features = inception: must be imagenet to compare")
            require_neighbours(self.config.evaluation.num_samples)
        if self.samples < 2:
            raise wrong_setting("evaluation.num_samples", self.samples, "must be >= 2 to compare")

    @property
    def compared(self) -> list[Measure]:
        """The measures of a comparison. With ImageNet features and at least LEAST_OF_CLASS samples
        of each class, classes are also measured separately."""
        if not self.features:
            return self.distances
        if self.samples < LEAST_OF_CLASS * self.data.classes:
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
        """Return measures of samples (n, *shape) by key; None: of as many new samples of the target
        as a trial has. Points are compared with a draw of the target from ``stream``. Images are
        compared with the same real images in all draws; the stream TUNE has real images that no
        table uses."""
        if not self.features:
            own = self.samples if samples is None else samples
            return self.distance(measures, own, seed, str(draw), stream)
        if samples is None:
            return self.features.floor(self.samples, draw, measures)
        return self.features.measure(samples, measures, is_tuning=stream == TUNE)


def evaluate_run(
    config: Config, run: RunFolder, log: Log = show, world: World = ALONE
) -> tuple[Path, Plain]:
    """Measure a run and write each group of measures to ``metrics.json`` when it is done.

    Batches of samples are saved until all measures are done. If the command is interrupted, repeat
    it to continue.

    Args:
        config: the run's settings, changed by those of this command. If the run does not lie
            directly in ``out_dir``, the file goes to ``OUT_DIR/RUN``.
        world: processes that sample together; the first one measures.

    Returns:
        The file and its content. The content is empty except in the first process.

    Raises:
        UserError: before sampling: ``sampling.label`` is set; checkpoints, data or a weights file
            are missing or damaged; a folder cannot be written, or has a link out of it.
    """
    if config.sampling.label is not None:
        raise wrong_setting(
            "sampling.label", config.sampling.label, "must be null to measure a run"
        )
    if not world.is_main:
        log = lambda _: None  # noqa: E731
    # everything that can fail before sampling
    folder = ensure_writable(results_folder(config, run))
    evaluation = config.evaluation
    is_images = is_image_set(config.data)
    if is_images and evaluation.features != "none":
        check_links(ensure_writable(config.out_path / ".features"))
    device = pick_device(config.device)
    sampler, progress = load_sampler(config, run, device)
    nfe = sampler.expected_nfe
    calls = "an NFE that depends on them" if nfe is None else f"NFE {nfe}"
    log(f"evaluate: {evaluation.num_samples} samples at {calls}")
    # number of images to keep as floats as well as bytes; points are always floats
    keep = max(evaluation.w2_samples, NEAREST) if is_images else None
    drawn = batch_folder(folder / "samples", sampler, device, keep)
    yardstick = Yardstick(config, device, log) if world.is_main else None
    # samples
    samples = [
        generate(
            sampler,
            build_source(config.data, config.seed, "evaluate", repeat),
            evaluation.num_samples,
            device,
            keep=keep,
            world=world,
            folder=drawn / repeat,
        )
        for repeat in map(str, range(1 if is_images else REPEATS))
    ]
    file = folder / "metrics.json"
    if yardstick is None:
        return file, {}
    if not all(part.finite for part in samples):
        raise UserError(f"the samples of {run.path} are not finite: its training has diverged")
    # measures
    metrics = {
        "exp": config.exp,
        "method": config.method,
        "dataset": config.data.name + (" (random images)" if config.data.fake else ""),
        "seed": config.seed,
        "updates": progress,
        "sampling_precision": sampler.legs[-1].network.precision,  # type: ignore[attr-defined]
        "num_samples": evaluation.num_samples,
        "expected_nfe": nfe,
        "nfe": float(np.mean([part.nfe for part in samples])),
        "sampling": changed_sampling(config),
    }
    if (tau := samples[0].tau) is not None:
        metrics |= {"tau_mean": float(tau.mean()), "tau_std": float(tau.std(correction=0))}
    for measured in measured_parts(config, yardstick, samples):
        metrics |= measured
        for key, value in measured.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON has no infinity
                metrics[key] = None
        write_text(file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    shutil.rmtree(drawn, ignore_errors=True)
    return file, metrics


def changed_sampling(config: Config) -> Plain:
    """Return the settings of sampling that determine measures and are not the defaults."""
    return {
        key: value
        for key, value in asdict(config.sampling).items()
        if value != getattr(SamplingConfig, key) and key not in ("num_samples", "batch_size")
    }


def measured_parts(config: Config, yardstick: Yardstick, samples: list[Samples]) -> Iterator[Plain]:
    """Yield groups of measures for ``metrics.json``."""
    yield distances(config, yardstick, [part.x for part in samples]) | {"versions": versions()}
    images = yardstick.data.images
    pixels = samples[0].pixels
    if images is None:
        points = [yardstick.data.in_units(part.x) for part in samples]
        yield measure_columns(yardstick.data, yardstick.measured, points, config.seed)
    if images is None or pixels is None:
        return
    yield nearest_real(config, yardstick.data.in_units(samples[0].x), images)
    features = yardstick.features
    network = yardstick.network
    if features and network:
        n = features.used(len(pixels))
        kind, _ = network.spaces[0]
        found = features.measure(pixels)
        splits = count_progress(range(network.splits), "floors of real images", "split")
        floors = [features.floor(n, split) for split in splits]
        for name in filter(is_measure, list(found)):
            found |= mean_and_spread(f"{name}_floor", [floor[name] for floor in floors])
            found[f"{name}_noise"] = features.noise[name]
        yield found | {
            f"{kind}_samples": n,
            f"{kind}_reference": features.about,
            f"{kind}_network": network.name,
        }


def distances(config: Config, yardstick: Yardstick, samples: list[Tensor]) -> Plain:
    """Return mean and spread over the repeats of the direct measures, such as exact W2 to new
    target samples, and of their floors. For own points also return W2 of standardised columns, so
    that a column with large units does not dominate the result."""
    most = yardstick.at_most(len(samples[0]))
    measures = [one for one in yardstick.distances if one.is_evaluated]
    scores = defaultdict(list)
    for number, part in enumerate(count_progress(samples, "distances", "repeat")):
        place = config.seed, str(number)
        own = yardstick.distance(measures, part[:most], *place, "evaluate")
        floors = yardstick.distance(measures, most, *place, "evaluate floor")
        for key in own:
            scores[key].append(own[key])
            scores[f"{key}_floor"].append(floors[key])
    found: Plain = {}
    for key, values in scores.items():
        found |= mean_and_spread(key, values)
    found["w2_samples"] = min(config.evaluation.w2_samples, most)
    found["repeats"] = len(samples)
    return found


def nearest_real(config: Config, samples: Tensor, images: Tensor) -> Values:
    """Return the mean distance from samples (N, C, H, W) to the nearest training image, and from
    training images to the nearest other one. At most NEAREST of each are used."""
    own = torch.randperm(len(images), generator=make_generator(config.seed, "nearest"))[:NEAREST]

    def mean_distance(x: Tensor, index: Tensor | None) -> float:
        nearest = nearest_images(x, images, flip=config.data.flip, own=index)
        return float((x - nearest).flatten(1).norm(dim=1).mean())

    return {
        "nearest_real": mean_distance(samples[:NEAREST], None),
        "nearest_real_among_real": mean_distance(to_unit_range(images[own]), own),
    }
