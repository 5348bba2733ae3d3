"""What is done with a trained run: draw samples, make pictures, measure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from nsgf.config.schema import PEER_PHASES, Config
from nsgf.data import Data, Sampler, build_source, data_shape
from nsgf.data.images import to_bytes
from nsgf.metrics.evaluate import NEAREST, classifier_part, inception_part, nearest_metrics
from nsgf.metrics.inception import check_weights
from nsgf.metrics.wasserstein import w2, w2_floor
from nsgf.run.folder import RunFolder, write_text
from nsgf.run.resume import load_network
from nsgf.sampling.plots import save_grid, save_image_path, save_point_path
from nsgf.sampling.sampler import (
    FlowSampler,
    NSGFSampler,
    PeerSampler,
    Samples,
    expected_nfe,
    straight_flow_networks,
)
from nsgf.system.errors import UserError
from nsgf.system.hardware import pick_device, versions

PATH_SAMPLES = 8
POINT_SAMPLES = 2048


def load_sampler(
    config: Config, run: RunFolder, device: torch.device
) -> tuple[FlowSampler, dict[str, str]]:
    """Algorithm 4 with all three networks, or Algorithm 2 with the first alone.

    With ``sampling.tau`` Algorithm 4 uses the first two, and the third is not read. Of a method
    that NSGF is compared with, the network that was trained last.

    Returns:
        The sampler, and the training progress of the networks it uses, by phase.

    Raises:
        UserError: a checkpoint is missing or does not fit, or torchdiffeq is needed and missing.
    """
    weights = config.sampling.weights
    if config.phases[-1] in PEER_PHASES:
        phase = config.phases[-1]
        peer = load_network(config, run, phase, weights, device)
        return PeerSampler(config, peer.network, phase), {phase: peer.progress}
    phases, tau = straight_flow_networks(config.sampling), config.sampling.tau
    if not all(run.checkpoint_file(phase).exists() for phase in phases):
        phases = ("nsgf",)
        if tau is not None and not run.checkpoint_file("nsf").exists():
            raise UserError(
                f"sampling.tau = {tau}: needs phase nsf, of which {run.path} has no checkpoint; "
                "train that phase first, or say --sampling.tau null"
            )
    trained = [load_network(config, run, phase, weights, device) for phase in phases]
    sampler = NSGFSampler(config, *[part.network for part in trained])
    return sampler, {phase: part.progress for phase, part in zip(phases, trained, strict=True)}


def generate(
    sampler: FlowSampler,
    source: Sampler,
    n: int,
    batch_size: int,
    device: torch.device,
    keep: int | None = None,
) -> Samples:
    """``n`` samples in batches, gathered on the CPU.

    Args:
        sampler: e.g. of :func:`load_sampler`.
        source: of mu0.
        n: how many.
        batch_size: of them together.
        device: where the sampler runs.
        keep: for images: how many of the first are kept as floats; all then are as bytes. None:
            all as floats.
    """
    xs, pixels, taus, evaluations, finite = [], [], [], 0.0, True
    for first in tqdm(range(0, n, batch_size), desc="sample", unit="batch", leave=False):
        part = sampler(source.sample(min(batch_size, n - first)).to(device))
        finite = finite and bool(part.x.isfinite().all())
        evaluations += part.nfe * len(part.x)
        if part.tau is not None:
            taus.append(part.tau.cpu())
        if keep is not None:
            pixels.append(to_bytes(part.x).cpu())
        if keep is None or first < keep:
            xs.append(part.x[: None if keep is None else keep - first].cpu())
    return Samples(
        x=torch.cat(xs),
        nfe=evaluations / n,
        tau=torch.cat(taus) if taus else None,
        pixels=torch.cat(pixels) if pixels else None,
        finite=finite,
    )


def sample_run(config: Config, run: RunFolder) -> list[str]:
    """Draw samples into ``samples/``: an .npz, a grid or scatter PNG, a trajectory PNG.

    Returns:
        One line per file, and the NFE.
    """
    device = pick_device(config.device)
    sampler, progress = load_sampler(config, run, device)
    data = Data(config.data, config.seed) if _is_points(config) else None
    source = build_source(config.data, config.seed, "sample")
    samples = generate(
        sampler, source, config.sampling.num_samples, config.sampling.batch_size, device
    )
    run.samples.mkdir(exist_ok=True)
    files = {name: run.samples / name for name in ("samples.npz", "grid.png", "trajectory.png")}
    tau = np.empty(0) if samples.tau is None else samples.tau.numpy()
    np.savez(files["samples.npz"], x=samples.x.numpy(), tau=tau, nfe=samples.nfe)

    shown = POINT_SAMPLES if data else PATH_SAMPLES
    start = build_source(config.data, config.seed, "path").sample(shown).to(device)
    path = [state.cpu() for state in sampler(start, keep_path=True).path]
    if data:
        del files["grid.png"]
        target = data.target("path").sample(POINT_SAMPLES)
        save_point_path(path, target, files["trajectory.png"], f"NFE {samples.nfe:g}")
    else:
        save_grid(samples.x, files["grid.png"])
        save_image_path(path, files["trajectory.png"])
    networks = ", ".join(f"{phase} ({updates} updates)" for phase, updates in progress.items())
    count = f"{len(samples.x)} samples, NFE {samples.nfe:g}, with {networks}"
    return [count, *map(str, files.values())]


def evaluate_run(
    config: Config, run: RunFolder, log: Callable[[str], None] = print
) -> tuple[Path, dict[str, Any]]:
    """Measure a run and write ``metrics.json``.

    Args:
        config: the run's settings.
        run: its folder.
        log: takes lines about what is computed once and kept in ``out_dir``.

    Returns:
        The file and its content.

    Raises:
        UserError: checkpoints, data or a given weights file are missing or damaged.
    """
    device = pick_device(config.device)
    if config.evaluation.inception and config.evaluation.inception_weights is not None:
        check_weights(Path(config.evaluation.inception_weights))
    sampler, progress = load_sampler(config, run, device)
    data = Data(config.data, config.seed)
    samples = _samples(config, data, sampler, device)
    if not all(part.finite for part in samples):
        raise UserError(f"the samples of {run.path} are not finite: its training has diverged")
    found: dict[str, Any] = {
        "exp": config.exp,
        "dataset": config.data.name + (" (random images)" if config.data.fake else ""),
        "seed": config.seed,
        "updates": progress,
        "weights": config.sampling.weights,
        "num_samples": config.evaluation.num_samples,
        "expected_nfe": expected_nfe(config, sampler.networks),
        "nfe": float(np.mean([part.nfe for part in samples])),
    }
    if sampler.networks != ("nsgf",):
        found["solver"] = config.sampling.solver
    if "peer" in config.phases:
        found["method"] = config.peer.method
    if samples[0].tau is not None:
        found |= {"tau_mean": float(samples[0].tau.mean()), "tau_std": float(samples[0].tau.std())}
    found |= _w2_metrics(config, data, [part.x for part in samples])
    found["versions"] = versions()
    file = run.path / "metrics.json"
    write_text(file, json.dumps(found, indent=2) + "\n")
    images, pixels = data.images, samples[0].pixels
    if images is not None and pixels is not None:
        found |= nearest_metrics(data, samples[0].x)
        for part in (classifier_part, inception_part):
            found |= part(config, images, pixels, device, log)
            write_text(file, json.dumps(found, indent=2) + "\n")
    return file, found


def _samples(
    config: Config, data: Data, sampler: FlowSampler, device: torch.device
) -> list[Samples]:
    """Of points for each repetition anew; of images once, floats only as many as are compared."""
    n, size = config.evaluation.num_samples, config.sampling.batch_size
    if data.images is not None:
        keep = max(config.evaluation.w2_samples, NEAREST)
        return [generate(sampler, data.source("evaluate", "0"), n, size, device, keep)]
    return [
        generate(sampler, data.source("evaluate", str(repeat)), n, size, device)
        for repeat in range(config.evaluation.repeats)
    ]


def _w2_metrics(config: Config, data: Data, samples: list[Tensor]) -> dict[str, Any]:
    """Exact W2 to fresh target samples, and the floor, over the repetitions."""
    n = min(config.evaluation.w2_samples, len(samples[0]))
    if data.images is not None:
        n = min(n, len(data.images) // 2)  # two disjoint halves for the floor
    distances, floors = [], []
    for repeat in tqdm(range(config.evaluation.repeats), desc="W2", leave=False):
        target = data.target("evaluate", str(repeat))
        distances.append(w2(samples[repeat % len(samples)][:n], target.sample(n)))
        floors.append(w2_floor(data.target("floor", str(repeat)), n))
    return {
        "w2": float(np.mean(distances)),
        "w2_std": float(np.std(distances)),
        "w2_floor": float(np.mean(floors)),
        "w2_floor_std": float(np.std(floors)),
        "w2_samples": n,
        "repeats": config.evaluation.repeats,
    }


def _is_points(config: Config) -> bool:
    return len(data_shape(config.data.name)) == 1
