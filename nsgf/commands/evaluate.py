"""``nsgf evaluate``: measure a trained run."""

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsgf.config.layers import fixed_values
from nsgf.config.schema import SamplingConfig
from nsgf.data import Data, ImageSet, PointSet
from nsgf.data.images import to_unit_range
from nsgf.experiment import Experiment
from nsgf.metrics.columns import mean_and_spread, measure_columns
from nsgf.metrics.distances import nearest_images, squared_way, straightness
from nsgf.metrics.measures import BITS, Values, is_measure
from nsgf.metrics.yardstick import Yardstick
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.run.progress import count_progress
from nsgf.sampling.generate import SAMPLE_SECTIONS, batch_folder, generate
from nsgf.sampling.likelihood import bits_per_dim
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError, wrong_setting
from nsgf.system.files import Plain, ensure_writable, write_text
from nsgf.system.output import Log, show
from nsgf.system.seeding import make_generator
from nsgf.version import versions

REPEATS = 3
"""Number of times that points are drawn and measured."""
NEAREST = 2048
"""Largest number of samples for which the nearest training images are searched. Also the largest
number of training images whose nearest different training image is searched."""


def evaluate_run(
    experiment: Experiment, run: RunFolder, log: Log = show, world: World = ALONE
) -> tuple[Path, Plain]:
    """Measure a run. Write each group of measures to ``metrics.json`` as soon as it is known.

    Batches of samples are saved until all measures are known. If the command is interrupted, repeat
    it to continue.

    Args:
        experiment: the run's settings, with the changes of this command. If the run does not lie
            directly in ``out_dir``, ``metrics.json`` goes to ``OUT_DIR/RUN``.
        world: processes that sample together; the first one measures.

    Returns:
        The file and its content. The content is empty except in the first process.

    Raises:
        UserError: ``sampling.label`` is set; checkpoints, data or a weights file are missing or
            damaged; a folder cannot be written, or contains a link to another folder. All this is
            checked before sampling.
    """
    config = experiment.config
    if config.sampling.label is not None:
        raise wrong_setting(
            "sampling.label", config.sampling.label, "must be null to measure a run"
        )
    if not world.is_main:
        log = lambda _: None  # noqa: E731
    # check everything that can fail, before samples are drawn
    folder = ensure_writable(results_folder(config.out_path, run))
    evaluation = config.evaluation
    is_images = experiment.target.is_images
    if is_images and evaluation.features != "none":
        check_links(ensure_writable(config.out_path / ".features"))
    device = experiment.device
    sampler, progress = experiment.load_sampler(run)
    nfe = sampler.expected_nfe
    calls = "an NFE that depends on them" if nfe is None else f"NFE {nfe}"
    count = experiment.limit_starts(evaluation.num_samples)
    log(f"evaluate: {count} samples at {calls}")
    # number of images to keep as floats and as bytes; points are always floats
    keep = max(evaluation.w2_samples, NEAREST) if is_images else None
    settings = fixed_values(config, SAMPLE_SECTIONS)
    drawn = batch_folder(folder / "samples", settings, count, device, keep)
    yardstick = None
    groups: list[Iterator[Plain]] = []
    if world.is_main:
        data = experiment.load_data()
        yardstick = Yardstick(data, evaluation, config.out_path, device, log)
        if evaluation.bits_images:
            real = choose_images(data, evaluation.bits_images, config.seed)
            exact, _ = experiment.change({"train.precision": "fp32"}).load_sampler(run)
            groups.append(measure_bits(exact, experiment.source_law, real, device, config.seed))
    # draw samples
    samples = [
        generate(
            sampler,
            experiment.source("evaluate", repeat, is_measured=True),
            count,
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
    # compute measures
    metrics = {
        "exp": config.exp,
        "method": config.method,
        "dataset": config.data.name + (" (random images)" if config.data.fake else ""),
        "seed": config.seed,
        "updates": progress,
        "sampling_precision": sampler.legs[-1].network.precision,  # type: ignore[attr-defined]
        "num_samples": count,
        "expected_nfe": nfe,
        "nfe": float(np.mean([part.nfe for part in samples])),
        "sampling": changed_sampling(config.sampling),
    }
    if (tau := samples[0].tau) is not None:
        metrics |= {"tau_mean": float(tau.mean()), "tau_std": float(tau.std(correction=0))}
    if experiment.source_data is not None:
        starts = [
            experiment.source("evaluate", str(repeat), is_measured=True).at(range(len(part.x)))
            for repeat, part in enumerate(samples)
        ]
        metrics |= measure_ways(sampler, starts, samples, yardstick, device)
    for group in chain(measure_samples(yardstick, samples, config.seed), *groups):
        metrics |= group
        for key, value in group.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON has no infinity
                metrics[key] = None
        write_text(file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    shutil.rmtree(drawn, ignore_errors=True)
    return file, metrics


def measure_ways(
    sampler: FlowSampler,
    starts: Sequence[Tensor],
    samples: Sequence[Samples],
    yardstick: Yardstick,
    device: torch.device,
) -> Plain:
    """Return how far and how straight samples move from a source file, in the units of networks.

    ``starts``: for each draw, the starts of the samples, (N, *shape)."""
    ways = []
    for number, (start, part) in enumerate(zip(starts, samples, strict=True)):
        count = min(yardstick.at_most(len(part.x)), yardstick.evaluation.w2_samples)
        targets = yardstick.measured.target("ways", str(number)).at(range(count))
        ways.append(squared_way(start, part.x, targets))
    cut = range(min(len(starts[0]), sampler.sampling.batch_size))
    walk = sampler(starts[0][: len(cut)].to(device), sampler.labels(cut), keep_path=True)
    return {"way": float(np.mean(ways)), "straightness": straightness(walk.path)}


def changed_sampling(sampling: SamplingConfig) -> Plain:
    """Return the settings of sampling that affect measures and differ from the defaults."""
    return {
        key: value
        for key, value in asdict(sampling).items()
        if value != getattr(SamplingConfig, key) and key not in ("num_samples", "batch_size")
    }


def measure_samples(yardstick: Yardstick, samples: list[Samples], seed: int) -> Iterator[Plain]:
    """Yield groups of measures for ``metrics.json``."""
    yield distances(yardstick, [part.x for part in samples], seed) | {"versions": versions()}
    images = yardstick.data.images
    pixels = samples[0].pixels
    if images is None:
        points = [yardstick.data.in_units(part.x) for part in samples]
        yield measure_columns(yardstick.data, yardstick.measured, points, seed)
    if images is None or pixels is None:
        return
    flip = yardstick.data.config.flip
    yield nearest_real(yardstick.data.in_units(samples[0].x), images, flip, seed)
    features = yardstick.features
    network = yardstick.network
    if features and network:
        n = features.used(len(pixels))
        kind, _ = network.spaces[0]
        values = features.measure(pixels)
        splits = count_progress(range(network.splits), "floors of real images", "split")
        floors = [features.floor(n, split) for split in splits]
        for name in filter(is_measure, list(values)):
            values |= mean_and_spread(f"{name}_floor", [floor[name] for floor in floors])
            values[f"{name}_noise"] = features.noise[name]
        yield values | {
            f"{kind}_samples": n,
            f"{kind}_reference": features.description,
            f"{kind}_network": network.name,
        }


def distances(yardstick: Yardstick, samples: list[Tensor], seed: int) -> Plain:
    """Return the direct measures, such as exact W2 to new target samples, and their floors. Each
    has a mean and a spread over the repeats. For a user's points, also return W2 of standardised
    columns, which a column with large values does not dominate."""
    most = yardstick.at_most(len(samples[0]))
    measures = [measure for measure in yardstick.distances if measure.is_evaluated]
    scores = defaultdict(list)
    for number, part in enumerate(count_progress(samples, "distances", "repeat")):
        draw = str(number)
        values = yardstick.distance(measures, part[:most], seed, draw, "evaluate")
        floors = yardstick.floor(measures, most, seed, draw, "evaluate floor")
        for key in values:
            scores[key].append(values[key])
            scores[f"{key}_floor"].append(floors[key])
    summary: Plain = {}
    for key, repeats in scores.items():
        summary |= mean_and_spread(key, repeats)
    summary["w2_samples"] = min(yardstick.evaluation.w2_samples, most)
    summary["repeats"] = len(samples)
    return summary


@dataclass(frozen=True)
class RealImages:
    """Real images whose bits per dimension are measured."""

    images: Tensor
    """uint8, (N, C, H, W)."""
    labels: Tensor | None
    """Classes, int64, (N,); None: networks take no classes."""
    description: str
    """Number and origin of the images."""


def choose_images(data: Data, count: int, seed: int) -> RealImages:
    """Return at most ``count`` random images. They come from the held-out part or the test images.
    If there are no such images, they come from the training images."""
    target = data.record
    config = data.config
    assert isinstance(target, ImageSet)
    held_out = None if config.fake else target.load(config, seed, held_out=True)
    images = data.images if held_out is None else held_out
    assert images is not None
    rows = torch.randperm(len(images), generator=make_generator(seed, "bits"))[:count]
    labels = None
    if data.labels is not None:
        labels = target.labels(config, len(images), held_out=held_out is not None)[rows]
    part = "training" if held_out is None else "test"
    return RealImages(images[rows], labels, f"{len(rows)} {part} images of {config.name}")


def measure_bits(
    sampler: FlowSampler, law: PointSet, real: RealImages, device: torch.device, seed: int
) -> Iterator[Plain]:
    """Yield the bits per dimension of real images, the standard error of their mean, and the gap
    between the ODE and the run's few-step sampler."""
    bits, gaps = bits_per_dim(sampler, law, real.images, real.labels, device, seed)
    values: Plain = {BITS: float(bits.mean())}
    if len(bits) > 1:
        values[f"{BITS}_std"] = float(bits.std()) / math.sqrt(len(bits))
    yield {
        **values,
        f"{BITS}_images": len(bits),
        f"{BITS}_reference": real.description,
        f"{BITS}_gap": float(gaps.mean()),
    }


def nearest_real(samples: Tensor, images: Tensor, flip: bool, seed: int) -> Values:
    """Return two mean distances: from samples (N, C, H, W) to their nearest training image, and
    from training images to their nearest different training image. At most NEAREST samples and
    NEAREST training images are compared with all training images. ``flip``: whether mirrored
    training images count too."""
    rows = torch.randperm(len(images), generator=make_generator(seed, "nearest"))[:NEAREST]

    def mean_distance(x: Tensor, index: Tensor | None) -> float:
        nearest = nearest_images(x, images, flip=flip, rows=index)
        return float((x - nearest).flatten(1).norm(dim=1).mean())

    return {
        "nearest_real": mean_distance(samples[:NEAREST], None),
        "nearest_real_among_real": mean_distance(to_unit_range(images[rows]), rows),
    }
