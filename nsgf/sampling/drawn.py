"""Batches of samples in files, so that an evaluation goes on where it was interrupted."""

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from nsgf.config.schema import Config
from nsgf.run.folder import replacing
from nsgf.sampling.network import InferenceNetwork
from nsgf.sampling.sampler import FlowSampler
from nsgf.system.errors import cause
from nsgf.system.hardware import versions
from nsgf.system.output import show

FOLLOW = ("seed", "phases", "data", "flow", "model", "sampling")
"""What samples follow from, besides the weights."""
NAME = ".drawn-"

Batch = dict[str, np.ndarray]
"""Arrays by name, as :func:`nsgf.sampling.generate.generate` makes them."""


class Drawn:
    """Batches in a folder, each in a file by its number. Keeping them is a help and no condition:
    what cannot be written or read is drawn again when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._can_keep = folder, True

    def find(self, count: int) -> dict[int, Batch]:
        """Those of the batches 0 .. count - 1 that are there and whole."""
        found = {number: self._read(number) for number in range(count)}
        return {number: batch for number, batch in found.items() if batch}

    def keep(self, number: int, batch: Batch) -> None:
        """Write a batch; a line says once if that is not possible."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._file(number)) as stream:
                np.savez(stream, **batch)  # type: ignore[arg-type]  # any name of an array
        except OSError as error:
            if self._can_keep:
                show(f"samples are not kept for an interruption: {self._folder} ({cause(error)})")
            self._can_keep = False

    def _read(self, number: int) -> Batch:
        try:
            if not self._file(number).is_file():  # to open a pipe would wait for ever
                return {}
            with np.load(self._file(number), allow_pickle=False) as archive:
                return dict(archive)
        except Exception:  # numpy raises many types for damaged and foreign files
            return {}

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.npz"


def drawn_folder(samples: Path, config: Config, sampler: FlowSampler, n: int, floats: int) -> Path:
    """Where the batches of an evaluation are kept: a folder named after all that they follow from.

    Args:
        samples: the folder of a run's samples.
        config, sampler: with what is sampled.
        n, floats: how many samples, and how many of images are kept as floats.
    """
    settings = asdict(config)
    follow = [versions(), fingerprint(sampler), n, floats, *(settings[key] for key in FOLLOW)]
    digest = hashlib.sha256(json.dumps(follow, sort_keys=True).encode())
    return samples / f"{NAME}{digest.hexdigest()[:16]}"


def fingerprint(sampler: FlowSampler) -> str:
    """SHA-256 of the weights of its networks, and of what they compute in here."""
    digest = hashlib.sha256()
    for leg in sampler.legs:
        if isinstance(network := leg.network.network, InferenceNetwork):
            digest.update(network.precision.encode())
            for name, tensor in network.state_dict().items():
                digest.update(name.encode())
                digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())  # numpy has no bf16
    return digest.hexdigest()


def forget_drawn(samples: Path) -> None:
    """Remove what evaluations kept, also of other settings or weights."""
    for folder in samples.glob(f"{NAME}*"):
        shutil.rmtree(folder, ignore_errors=True)
