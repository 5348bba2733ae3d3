"""Draw samples batch by batch. An interrupted evaluation reuses the files of finished batches."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from nsgf.config.layers import Layer
from nsgf.data import Sampler
from nsgf.data.images import to_bytes
from nsgf.run import store
from nsgf.run.progress import count_progress
from nsgf.run.stop import StopRequest
from nsgf.sampling.sampler import FlowSampler, InferenceNetwork, Samples
from nsgf.system.distributed import ALONE, World
from nsgf.system.errors import UserError
from nsgf.system.files import Plain
from nsgf.system.output import show
from nsgf.version import versions

SAMPLE_SECTIONS = ("seed", "phases", "data", "flow", "model", "sampling")
"""Sections of the configuration that determine the samples, besides the weights."""
FAR = 1e6
"""Larger values count as not finite, because a few large values hardly change the energy
distance."""

SavedBatch = dict[str, Tensor]
"""The samples of a batch, as tensors by name."""


def batch_positions(sampler: FlowSampler, n: int) -> list[range]:
    """Return the positions of ``n`` samples in batches of ``sampling.batch_size``."""
    size = sampler.sampling.batch_size
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def stream_batches(
    sampler: FlowSampler,
    source: Sampler,
    n: int,
    device: torch.device,
    labels: Tensor | None = None,
    *,
    keep_path: bool = False,
    progress: bool = True,
) -> Iterator[Samples]:
    """Yield the samples of :func:`generate` batch by batch, on the CPU, and show the progress. Only
    one batch is in memory.

    Args:
        labels: classes of the samples, int64, (n,); None: the classes from ``sampler.labels``.
        keep_path: whether to yield all intermediate states.
    """
    cuts = batch_positions(sampler, n)
    for cut in count_progress(cuts, "sample", "batch") if progress else cuts:
        given = sampler.labels(cut) if labels is None else labels[cut.start : cut.stop]
        batch = sampler(source.at(cut).to(device), given, keep_path=keep_path)
        batch.x = batch.x.cpu()
        batch.path = [state.cpu() for state in batch.path]
        batch.tau = None if batch.tau is None else batch.tau.cpu()
        batch.labels = None if batch.labels is None else batch.labels.cpu()
        yield batch


def generate(
    sampler: FlowSampler,
    source: Sampler,
    n: int,
    device: torch.device,
    *,
    keep: int | None = None,
    path: int = 0,
    world: World = ALONE,
    folder: Path | None = None,
    progress: bool = True,
) -> Samples:
    """Draw ``n`` samples in batches of ``sampling.batch_size``, and gather them on the CPU. The
    samples do not depend on the number of processes.

    Args:
        source: sampler of mu0. Its first ``n`` samples are used.
        keep: number of images that are also returned as floats, while all images are returned as
            bytes. None: all samples are returned as floats.
        path: number of samples whose paths are returned. They are the first samples of the first
            batch. Do not use it with ``folder``.
        world: processes that divide the batches.
        folder: folder with one file for each finished batch. Existing files are reused. None: no
            files.
    Returns:
        All samples in the first process; no samples in other processes.
    Raises:
        UserError: torchrun has ended.
    """
    stop = StopRequest()
    cuts = batch_positions(sampler, n)
    numbers = range(len(cuts))
    # reuse the batches of an earlier command that had equal weights, settings and noise
    origin = _origin(folder, sampler) if folder else ""
    done = _saved_batches(folder, origin, numbers) if folder and world.is_main else {}
    if done:
        show(f"sample: {len(done)} of {len(cuts)} batches are reused from an earlier command")
    # each process draws its share of the missing batches
    missing = world.agree([number for number in numbers if number not in done])
    share = missing[world.rank :: world.size]
    paths: Plain = {}
    for number in count_progress(share, "sample", "batch") if progress and world.is_main else share:
        if world.size > 1 and stop.reason:
            raise UserError(f"sampling: {stop.reason}; repeat the command")
        cut = cuts[number]
        has_path = path > 0 and number == 0
        part = sampler(source.at(cut).to(device), sampler.labels(cut), keep_path=has_path)
        if has_path:
            paths = {"path": [x[:path].cpu() for x in part.path], "marks": part.marks}
        done[number] = _pack(part, None if keep is None else max(0, keep - cut.start))
        if folder:
            content = {"origin": f"{origin} {number}", **done[number]}
            if not store.keep(folder / f"{number}.pt", content):
                show("an interruption would lose all samples")
                folder = None
    # combine all batches
    for drawn in world.gather({} if world.is_main else done):
        done |= drawn
    if not world.is_main:
        return Samples(x=torch.empty(0, *source.shape, dtype=torch.float32), nfe=0)
    return _join([done[number] for number in numbers], n, paths)


def _origin(folder: Path, sampler: FlowSampler) -> str:
    """Return a text that identifies the sampler's weights, the versions of packages, and the folder
    of batches."""
    digest = hashlib.sha256(json.dumps(versions()).encode())
    for leg in sampler.legs:
        if isinstance(leg.network, InferenceNetwork):
            for name, tensor in leg.network.state_dict().items():
                content = tensor.flatten().view(torch.uint8)  # numpy has no bfloat16
                digest.update(f"{name} {store.fingerprint(content)}".encode())
    return f"{folder.parent.name}/{folder.name} {digest.hexdigest()}"


def _saved_batches(folder: Path, origin: str, numbers: range) -> dict[int, SavedBatch]:
    """Return the batches in a folder that have this origin, by number."""
    batches = {}
    for number in numbers:
        batch = store.find(folder / f"{number}.pt", dict, lambda _: None)
        if batch and batch.pop("origin", None) == f"{origin} {number}":
            batches[number] = batch
    return batches


def _pack(part: Samples, keep: int | None) -> SavedBatch:
    """Return the tensors of a batch on the CPU. With a number ``keep``, keep this many samples as
    floats, and all samples as bytes. With ``keep`` None, keep all samples as floats only."""
    tensors = {
        "x": part.x,
        "tau": part.tau,
        "labels": part.labels,
        "finite": (part.x.abs() < FAR).all(),
        "evaluations": torch.tensor(part.nfe * len(part.x), dtype=torch.float64),
    }
    if keep is not None:
        tensors["x"] = part.x[:keep]
        tensors["pixels"] = to_bytes(part.x)
    return {name: tensor.cpu().clone() for name, tensor in tensors.items() if tensor is not None}


def _join(batches: list[SavedBatch], n: int, paths: Plain) -> Samples:
    """Return the samples of all batches, and the paths of the first samples."""
    joined: Plain = {
        name: torch.cat([batch[name] for batch in batches])
        for name in {"x", "tau", "labels", "pixels"} & set(batches[0])
    }
    return Samples(
        nfe=sum(float(batch["evaluations"]) for batch in batches) / n,
        finite=all(batch["finite"] for batch in batches),
        **joined,
        **paths,
    )


def batch_folder(
    samples: Path, settings: Layer, n: int, device: torch.device, keep: int | None
) -> Path:
    """Return the folder for the batches of an evaluation, ``.drawn-DIGEST`` in a run's folder of
    samples. DIGEST is a checksum of ``settings`` and of the remaining arguments. ``settings`` has
    the sections SAMPLE_SECTIONS as plain values. :func:`generate` explains the remaining
    arguments."""
    digest = hashlib.sha256(json.dumps([settings, n, keep, device.type], sort_keys=True).encode())
    return samples / f".drawn-{digest.hexdigest()[:16]}"
