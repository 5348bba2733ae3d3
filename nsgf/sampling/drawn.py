"""Batches of samples in files, so that an interrupted evaluation can continue."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nsgf.config.leaves import is_free, leaves
from nsgf.config.schema import Config
from nsgf.run.folder import replacing
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import FlowSampler
from nsgf.system.errors import cause
from nsgf.system.hardware import versions
from nsgf.system.output import show

FOLLOW = ("seed", "phases", "data", "flow", "model", "sampling")
"""Sections that samples follow from, besides the weights."""

Batch = dict[str, np.ndarray]
"""Arrays by name, as :func:`nsgf.sampling.generate.generate` makes them."""
Kind = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each array."""


class Drawn:
    """Batches in a folder, each in a numbered file that names its place. A batch that cannot be
    written or read is drawn again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._can_keep = folder, True

    def find(self, kinds: Sequence[Kind]) -> dict[int, Batch]:
        """Return the batches, by number, that are there, whole, and of their kind."""
        found = {number: self._read(number) for number in range(len(kinds))}
        return {number: batch for number, batch in found.items() if _kind(batch) == kinds[number]}

    def keep(self, number: int, batch: Batch) -> None:
        """Write a batch; a line says once if that is not possible."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._file(number)) as stream:
                np.savez(stream, place=self._place(number), **batch)  # type: ignore[arg-type]
        except OSError as error:
            if self._can_keep:
                show(f"samples are not kept for an interruption: {self._folder} ({cause(error)})")
            self._can_keep = False

    def _read(self, number: int) -> Batch:
        try:
            with np.load(self._file(number), allow_pickle=False) as archive:
                batch = dict(archive)
            return batch if str(batch.pop("place")) == self._place(number) else {}
        except Exception:  # numpy raises many types for damaged and foreign files
            return {}

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.npz"

    def _place(self, number: int) -> str:
        """Return evaluation folder, repetition and number of a batch."""
        return "/".join(self._file(number).parts[-3:])


def _kind(batch: Batch) -> Kind:
    return {name: (array.dtype.name, array.shape) for name, array in batch.items()}


def drawn_folder(
    samples: Path, config: Config, sampler: FlowSampler, device: torch.device, floats: int | None
) -> Path:
    """Return the folder of an evaluation's batches, named after all that they follow from:
    ``.drawn-SETTINGS-WEIGHTS``.

    Args:
        samples: the folder of a run's samples.
        config, sampler, device: with what is sampled.
        floats: how many images are kept as floats; None: all samples.
    """
    settings = {
        key: value
        for key, value, item in leaves(config)
        if key.partition(".")[0] in FOLLOW and not is_free(item)
    }
    asked = [settings, config.evaluation.num_samples, floats, device.type]
    return samples / f".drawn-{_digest(asked)}-{_digest([versions(), fingerprint(sampler)])}"


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(sampler: FlowSampler) -> str:
    """Return the SHA-256 of the weights of a sampler's networks, and of their precision."""
    digest = hashlib.sha256()
    for leg in sampler.legs:
        if isinstance(network := leg.network.network, InferenceNetwork):
            digest.update(network.precision.encode())
            for name, tensor in network.state_dict().items():
                digest.update(name.encode())
                digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())  # numpy has no bf16
    return digest.hexdigest()


def forget_drawn(folder: Path, *, keep: bool) -> None:
    """Remove what was kept with the same settings and weights that were trained further since, and
    unless ``keep`` the folder itself. An evaluation with other settings may need its own yet.
    """
    settings, _, _ = folder.name.rpartition("-")
    for other in folder.parent.glob(f"{settings}-*"):
        if other != folder or not keep:
            shutil.rmtree(other, ignore_errors=True)
