"""The loop over batches of samples."""

import numpy as np
import torch
from torch import Tensor

from nsgf.data import Sampler
from nsgf.data.images import to_bytes
from nsgf.run.progress import track
from nsgf.run.stop import StopRequest
from nsgf.sampling.drawn import Batch, Drawn, Kind, fingerprint
from nsgf.sampling.guidance import Labels
from nsgf.sampling.sampler import FlowSampler, Samples
from nsgf.system.distributed import World
from nsgf.system.errors import UserError
from nsgf.system.output import show


def generate(
    sampler: FlowSampler,
    source: Sampler,
    n: int,
    batch_size: int,
    device: torch.device,
    keep: int | None = None,
    world: World | None = None,
    drawn: Drawn | None = None,
    labels: Labels | None = None,
) -> Samples:
    """Draw ``n`` samples in batches and gather them on the CPU. They do not depend on the number of
    processes.

    Args:
        sampler: e.g. of :func:`nsgf.phases.load_sampler`.
        source: of mu0, from its first position on.
        n, batch_size: how many, and how many of them together.
        device: where the sampler runs.
        keep: for images: how many of the first are kept as floats; all then are as bytes. None:
            all as floats.
        world: the processes among which batches are shared; None: this one alone.
        drawn: batches that were drawn before, to which the others are added.
        labels: classes by position; None: networks are told none.

    Returns:
        All samples; in other processes than the first none.

    Raises:
        UserError: the networks of another process have other weights or another precision, or what
            started the processes is gone.
    """
    world, stop, done = world or World(), StopRequest(), dict[int, Batch]()
    if world.size > 1 and world.agree(networks := fingerprint(sampler)) != networks:
        raise UserError(
            "sampling: the processes have different networks: a checkpoint was replaced while it "
            "was read (give the command again), or cards differ (give --precision fp32 too)"
        )
    cuts = [range(first, min(first + batch_size, n)) for first in range(0, n, batch_size)]
    floats = [len(cut) if keep is None else min(max(0, keep - cut.start), len(cut)) for cut in cuts]
    if drawn and world.is_main:
        form = (source.shape, sampler.has_entry_times, keep is not None, labels is not None)
        kinds = [_kind(len(cut), kept, *form) for cut, kept in zip(cuts, floats, strict=True)]
        if done := drawn.find(kinds):
            show(f"sample: {len(done)} of {len(cuts)} batches are there from before")
    missing = world.agree([number for number in range(len(cuts)) if number not in done])
    own = missing[world.rank :: world.size]
    for number in track(own, "sample", "batch") if world.is_main else own:
        if world.size > 1 and stop.reason:
            raise UserError(f"sampling: {stop.reason}; give the command again")
        told = (labels(cuts[number]),) if labels else ()
        part = sampler(source.at(cuts[number]).to(device), *told)
        done[number] = _as_arrays(part, floats[number], pixels=keep is not None)
        if drawn:
            drawn.keep(number, done[number])
    for others in world.gather({} if world.is_main else done):
        done |= others
    if not world.is_main:
        return Samples(x=torch.empty(0, *source.shape), nfe=0)
    return _joined([done[number] for number in range(len(cuts))], n)


def _as_arrays(part: Samples, floats: int, pixels: bool) -> Batch:
    """Return a batch as arrays, as it is kept and gathered."""
    tensors = {"x": part.x[:floats], "finite": part.x.isfinite().all()}
    if pixels:
        tensors["pixels"] = to_bytes(part.x)
    if part.tau is not None:
        tensors["tau"] = part.tau
    if part.labels is not None:
        tensors["labels"] = part.labels
    arrays = {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}
    return arrays | {"evaluations": np.array(part.nfe * len(part.x))}


def _kind(
    count: int, floats: int, shape: tuple[int, ...], has_tau: bool, pixels: bool, labels: bool
) -> Kind:
    """Return the kinds of the arrays that :func:`_as_arrays` makes of ``count`` samples."""
    kind: Kind = {"x": ("float32", (floats, *shape)), "finite": ("bool", ())}
    if pixels:
        kind["pixels"] = ("uint8", (count, *shape))
    if has_tau:
        kind["tau"] = ("float32", (count,))
    if labels:
        kind["labels"] = ("int64", (count,))
    return kind | {"evaluations": ("float64", ())}


def _joined(batches: list[Batch], n: int) -> Samples:
    def whole(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([batch[name] for batch in batches]))

    return Samples(
        x=whole("x"),
        nfe=sum(float(batch["evaluations"]) for batch in batches) / n,
        tau=whole("tau") if "tau" in batches[0] else None,
        labels=whole("labels") if "labels" in batches[0] else None,
        pixels=whole("pixels") if "pixels" in batches[0] else None,
        finite=all(bool(batch["finite"]) for batch in batches),
    )
