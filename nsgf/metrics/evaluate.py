"""Measure a trained run."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import build_source, is_image_set
from nsgf.data.images import to_unit_range
from nsgf.metrics.distances import nearest_images
from nsgf.metrics.measures import describe, is_measure, keys_of, name_of
from nsgf.metrics.yardstick import Yardstick
from nsgf.phases import load_sampler
from nsgf.run.folder import RunFolder, check_links, results_folder
from nsgf.run.progress import count_progress
from nsgf.sampling.generate import batch_folder, generate
from nsgf.sampling.sampler import Samples, StraightFlow
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError
from nsgf.system.files import ensure_writable, write_text
from nsgf.system.hardware import pick_device
from nsgf.system.output import show
from nsgf.system.seeding import make_generator
from nsgf.version import versions

REPEATS = 3
"""Number of times that points are drawn and measured."""
NEAREST = 2048
"""Largest number of samples, and of real images, whose nearest training images are searched."""


def evaluate_run(
    config: Config, run: RunFolder, log: Callable[[str], None] = show, world: World = ALONE
) -> tuple[Path, dict[str, Any]]:
    """Measure a run and write ``metrics.json``, part by part.

    Batches of samples are saved until all measures are done. If the command is interrupted, repeat
    it to continue.

    Args:
        config: the run's settings, changed by those of this command. If ``out_dir`` does not hold
            the run, which may be read-only, the file goes to ``OUT_DIR/RUN``.
        world: processes that sample together, of which the first measures.

    Returns:
        The file and its content; the content is empty except in the first process.

    Raises:
        UserError: before sampling: ``sampling.label`` is set; checkpoints, data or a weights file
            are missing or damaged; a folder cannot be written, or has a link out of it.
    """
    if config.sampling.label is not None:
        raise UserError(f"sampling.label = {config.sampling.label}: must be null to measure a run")
    log = log if world.is_main else lambda _: None
    folder, evaluation = ensure_writable(results_folder(config, run)), config.evaluation
    if is_image_set(config.data.name) and evaluation.features != "none":
        check_links(ensure_writable(Path(config.out_dir).expanduser() / ".features"))
    device = pick_device(config.device)
    sampler, progress = load_sampler(config, run, device)
    nfe = sampler.expected_nfe
    calls = "an NFE that depends on them" if nfe is None else f"NFE {nfe}"
    log(f"evaluate: {evaluation.num_samples} samples at {calls}")
    # number of images to keep as floats too; points are always floats
    keep = max(evaluation.w2_samples, NEAREST) if is_image_set(config.data.name) else None
    drawn = batch_folder(folder / "samples", sampler, device, keep)
    yardstick = Yardstick(config, device, log) if world.is_main else None
    samples = []
    for repeat in map(str, range(REPEATS if keep is None else 1)):
        source = build_source(config.data, config.seed, "evaluate", repeat)
        n, place = evaluation.num_samples, drawn / repeat
        samples.append(generate(sampler, source, n, device, keep=keep, world=world, folder=place))
    file = folder / "metrics.json"
    if yardstick is None:
        return file, {}
    if not all(part.finite for part in samples):
        raise UserError(f"the samples of {run.path} are not finite: its training has diverged")
    metrics: dict[str, Any] = {
        "exp": config.exp,
        "method": config.method,
        "dataset": config.data.name + (" (random images)" if config.data.fake else ""),
        "seed": config.seed,
        "updates": progress,
        "sampling_precision": sampler.legs[-1].network.precision,  # type: ignore[attr-defined]
        "num_samples": evaluation.num_samples,
        "expected_nfe": nfe,
        "nfe": float(np.mean([part.nfe for part in samples])),
    }
    if any(isinstance(leg, StraightFlow) for leg in sampler.legs):
        metrics["solver"] = config.sampling.solver
    if config.data.conditional:
        metrics["guidance"] = config.sampling.guidance
    if (tau := samples[0].tau) is not None:
        metrics |= {"tau_mean": float(tau.mean()), "tau_std": float(tau.std(correction=0))}
    for part in measured_parts(config, yardstick, samples):
        for key, value in part.items():  # JSON has no infinity
            is_number = not isinstance(value, float) or math.isfinite(value)
            metrics[key] = value if is_number else None
        write_text(file, json.dumps(metrics, indent=2, allow_nan=False) + "\n")
    shutil.rmtree(drawn, ignore_errors=True)
    return file, metrics


def measured_parts(
    config: Config, yardstick: Yardstick, samples: list[Samples]
) -> Iterator[dict[str, Any]]:
    """Yield groups of measures for ``metrics.json``."""
    yield distances(config, yardstick, [part.x for part in samples]) | {"versions": versions()}
    images, pixels = yardstick.data.images, samples[0].pixels
    if images is None or pixels is None:
        return
    yield nearest_real(config, samples[0].x, images)
    features, network = yardstick.features, yardstick.network
    if features and network:
        n = features.used(len(pixels))
        kind, _ = network.spaces[0]
        found: dict[str, Any] = features.measure(pixels)
        splits = count_progress(range(network.splits), "floors of real images", "split")
        floors = [features.floor(n, split) for split in splits]
        for name in filter(is_measure, list(found)):
            found |= _mean_and_spread(f"{name}_floor", [floor[name] for floor in floors])
            found[f"{name}_noise"] = features.noise[name]
        yield found | {
            f"{kind}_samples": n,
            f"{kind}_reference": features.about,
            f"{kind}_network": network.name,
        }


def distances(config: Config, yardstick: Yardstick, samples: list[Tensor]) -> dict[str, Any]:
    """Return mean and spread, over the repetitions, of measures of values and of their floors, for
    example exact W2 to new target samples. For own points also return W2 of standardised columns,
    so that a column with large units does not dominate the result."""
    most = yardstick.at_most(len(samples[0]))
    measures = [one for one in yardstick.distances if one.is_evaluated]
    own, floors = [], []
    for number, part in enumerate(count_progress(samples, "distances", "repeat")):
        repeat = config.seed, str(number)
        own.append(yardstick.distance(measures, part[:most], *repeat, "evaluate"))
        floors.append(yardstick.distance_floor(measures, most, *repeat, "evaluate floor"))
    found: dict[str, Any] = {}
    for key in keys_of(measures):
        found |= _mean_and_spread(key, [values[key] for values in own])
        found |= _mean_and_spread(f"{key}_floor", [values[key] for values in floors])
    n = min(config.evaluation.w2_samples, most)
    return found | {"w2_samples": n, "repeats": len(samples)}


def nearest_real(config: Config, samples: Tensor, images: Tensor) -> dict[str, float]:
    """Return the mean distance from samples (N, C, H, W) to the nearest training image, and from
    training images to the nearest other one. At most NEAREST of each are used."""
    generator = make_generator(config.seed, "nearest")
    own = torch.randperm(len(images), generator=generator)[:NEAREST]
    compared = {
        "nearest_real": (samples[:NEAREST], None),
        "nearest_real_among_real": (to_unit_range(images[own]), own),
    }
    found = {}
    for name, (x, index) in compared.items():
        nearest = nearest_images(x, images, flip=config.data.flip, own=index)
        found[name] = float((x - nearest).flatten(1).norm(dim=1).mean())
    return found


def _mean_and_spread(key: str, scores: list[float]) -> dict[str, float]:
    return {key: float(np.mean(scores)), f"{key}_std": float(np.std(scores))}


def report(metrics: dict[str, Any]) -> list[str]:
    """Return the measures as aligned lines, with floors and without the versions."""
    lines = [(name_of(key), *texts) for key, *texts in describe(metrics) if key != "versions"]
    width = max(len(name) for name, *_ in lines)
    return [
        f"{name:{width}}  {value}" + (f"  (real: {floor})" if floor else "")
        for name, value, floor in lines
    ]
