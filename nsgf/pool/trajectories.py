"""The pool, in memory or on disk. It is allocated once and filled in place.

The pool stores positions only. The paper's pair (x, v) is X^t and (X^{t+1} - X^t) / h, so T + 1
positions give T pairs. They need about half the memory of the pairs. h is the length of a step on
the velocity network's clock (:func:`nsgf.method.time_step`). For constant steps, h is eta.

    pool/positions.bin   (flow, particle, time, *shape), the bytes of the tensor (storage: disk)
    pool/header.json     format, settings that determine the values, one checksum per flow

The header lists the flows that are complete. It is replaced atomically, after these flows are on
the disk. So the listed flows are complete even if the process is killed.

F: number of trajectories; n: number of trajectories of one flow; T: number of flow steps; B: number
of pairs.
"""

import json
import math
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nsgf.config.layers import VALUES, Layer, agrees
from nsgf.config.schema import Shape
from nsgf.method import flow_pairs
from nsgf.pool.settings import PoolSettings
from nsgf.run.progress import Progress, count_progress
from nsgf.system.errors import UserError, suggest
from nsgf.system.files import COUNT, fields, read_object, write_text

POOL_FORMAT = 1
POSITIONS = "positions.bin"
"""Name of the file with the positions of a pool, or of a process's part of a pool."""
POOL_SECTIONS = ("seed", "data", "sinkhorn", "flow")
"""Sections of the configuration, besides ``pool``, that determine the values of a pool."""
SAVE_SECONDS = 5.0
"""Time between two writes of the header. A killed process loses at most this much work."""


@dataclass
class Header:
    """Content of ``header.json``."""

    dtype: str
    """float32 or float16."""
    settings: Layer
    """All settings that determine the values, by dotted key."""
    limits: list[Any] = field(default_factory=list)
    """Pairs (k, n). From flow k on, the card had memory for at most n flows at a time."""
    checksums: list[str] = field(default_factory=list)
    """Checksums of the finished flows. The list is always empty for a pool in memory."""
    format: int = POOL_FORMAT


def read_pool_header(folder: Path) -> Header | None:
    """Return the header in ``folder``; None if the file is missing. Raise UserError if the header
    is damaged."""
    file = folder / "header.json"
    if not file.is_file():
        return None
    try:
        kinds = {"dtype": str, "settings": dict, "limits": [(COUNT, COUNT[1:])], "checksums": [str]}
        header = Header(
            *fields(read_object(file), **kinds, format=range(POOL_FORMAT, POOL_FORMAT + 1))
        )
        if header.dtype not in ("float32", "float16"):
            raise ValueError("another type")
    except (ValueError, TypeError) as error:
        raise UserError(f"pool header {file} is damaged; remove the folder {folder}") from error
    return header


def write_header(folder: Path, header: Header) -> None:
    """Replace the header atomically."""
    write_text(folder / "header.json", json.dumps(asdict(header), allow_nan=False))


def matching_header(
    folder: Path, settings: PoolSettings, dtype: str | None = None
) -> Header | None:
    """Return the header in ``folder`` if it has these settings, else None. If ``dtype`` is not
    None, the header must also have this ``dtype``.

    Raises:
        UserError: the header is damaged, or the folder has flows on disk with different settings.
    """
    header = read_pool_header(folder)
    if header is None:
        return None
    differences = []
    for key, value in settings.header_values(dtype or header.dtype).items():
        # a setting that is missing in the header had its default value
        default = VALUES[key].default if key in VALUES else None
        stored = header.settings.get(key, default)
        if not agrees(key, stored, value):
            differences.append(f"{key}: the pool has {stored}, this command {value}")
    if differences and header.checksums and settings.pool.storage == "disk":
        raise UserError(
            f"pool {folder} was built with other settings: {'; '.join(differences)}; use the same "
            "settings, or remove that folder to build it again"
        )
    return None if differences else header


class PoolFile:
    """The positions of all flows, mapped into memory."""

    def __init__(
        self,
        folder: Path,
        header: Header,
        flows: int,
        shape: Shape,
        counter: Callable[[str, int, str], Progress],
    ) -> None:
        """Open or create the file in ``folder``. Each flow has positions (n, T+1, *shape).

        Check the flows that ``header`` lists. ``counter`` shows the progress.

        Raises:
            UserError: the file is damaged.
            OSError: the file cannot be written, or the disk is full.
        """
        self._header = header
        self._folder = folder
        file = folder / POSITIONS
        dtype = getattr(torch, header.dtype)
        nbytes = flows * math.prod(shape) * dtype.itemsize
        if not header.checksums:
            with file.open("wb") as stream:
                # reserve the space now, because a full disk would later kill the process
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(stream.fileno(), 0, nbytes)
                stream.truncate(nbytes)
        self._map = np.memmap(file, dtype=np.uint8, mode="r+", shape=(nbytes,))
        self._bytes = self._map.reshape(flows, -1)
        self.positions = torch.from_numpy(self._map).view(dtype).view(-1, *shape[1:])
        self._saved_at = time.monotonic()
        checksums = count_progress(header.checksums, "pool: checking", "flow", counter)
        for index, checksum in enumerate(checksums):
            if index >= flows or self._checksum(index) != checksum:
                raise UserError(
                    f"pool file {file} is damaged (flow {index}); remove the folder {folder}"
                )

    def commit(self, finished: int) -> None:
        """Add the checksums of the first ``finished`` flows, and save from time to time."""
        checksums = self._header.checksums
        checksums += map(self._checksum, range(len(checksums), finished))
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write positions, then the header, to the disk."""
        self._map.flush()
        write_header(self._folder, self._header)
        self._saved_at = time.monotonic()

    def _checksum(self, index: int) -> str:
        return f"{zlib.crc32(self._bytes[index]):08x}"


def drop_positions(folder: Path) -> int:
    """Remove the positions of the pools in ``folder``, and return the number of freed bytes. Keep
    the headers, but without checksums, so that a rebuilt pool has the same values."""
    freed = 0
    for file in list(folder.rglob(POSITIONS)):  # each process has a file
        if header := read_pool_header(file.parent):
            header.checksums = []
            write_header(file.parent, header)
        freed += file.stat().st_size
        file.unlink()
    return freed


class PoolBatch(NamedTuple):
    """Pairs for the regression of the velocity network."""

    x: Tensor
    """Positions X^t, (B, *shape)."""
    v: Tensor
    """Velocities v(X^t), (B, *shape)."""
    t: Tensor
    """Times t/T in [0, 1), (B,)."""


class TrajectoryPool:
    """The trajectories of F particles on the CPU, in memory or in a mapped file."""

    def __init__(self, positions: Tensor, time_step: float, filled: int = 0) -> None:
        """Use ``positions``, (F, T+1, *shape). The first ``filled`` trajectories are complete."""
        self._positions = positions
        self.time_step = time_step
        self.steps = positions.shape[1] - 1
        self.filled = filled

    def __len__(self) -> int:
        """Number of pairs (x, v)."""
        return len(self._positions) * self.steps

    def append(self, positions: Tensor) -> None:
        """Store the trajectories of finished flows, (n, T+1, *shape), from any device.

        Raises:
            UserError: positions are not finite, or out of range for the pool's dtype.
        """
        end = self.filled + len(positions)
        stored = self._positions[self.filled : end].copy_(positions)
        low, high = stored.aminmax()  # low and high are nan if any value is nan
        if not (low.isfinite() & high.isfinite()):
            remedy = f"{suggest('pool.dtype', 'float32')} or a smaller {suggest('flow.eta')}"
            raise UserError(f"values of a flow are not finite in {stored.dtype}; try {remedy}")
        self.filled = end

    def ends(self, parts: list[range]) -> Tensor:
        """Return the last positions of these trajectories, float32.  (n, *shape)"""
        return torch.cat([self._positions[part.start : part.stop, -1].float() for part in parts])

    def particles(self, indices: Tensor) -> Tensor:
        """Return the number of the trajectory of each pair at these indices, int64, (B,)."""
        return indices % len(self) // self.steps

    def pairs(self, indices: Tensor) -> PoolBatch:
        """Return the pairs at these random indices (B,), float32 on the CPU. Indices are uniform
        int64 in a range much larger than the pool. Index i means pair i mod len(pool)."""
        particle = self.particles(indices)
        step = indices % self.steps
        return PoolBatch(*flow_pairs(self._positions, particle, step, self.time_step))
