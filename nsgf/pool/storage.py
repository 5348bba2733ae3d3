"""A pool on disk: a mapped file of positions, and a header.

    pool/positions.bin   (flow, particle, time, *shape), the bytes of the tensor
    pool/header.json     format, settings that determine the values, one checksum per flow

The header is replaced as a whole after the flows that it lists are on the disk, so that they are
complete whenever the process ends.
"""

import errno
import json
import math
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsgf.config.leaves import fixed_values
from nsgf.config.schema import Config
from nsgf.run.checkpoint import newer_format
from nsgf.run.folder import write_text
from nsgf.run.progress import Progress, track
from nsgf.sinkhorn import SolverReport
from nsgf.system.errors import UserError, cause
from nsgf.system.json_reader import expect, fields, parse_object

FORMAT = 1
SECTIONS = ("seed", "data", "sinkhorn", "flow")
"""Sections of the configuration that determine the values of a pool."""
SAVE_SECONDS = 5.0
"""Time between two headers, and most that a killed process loses."""

Header = dict[str, Any]
"""format, settings, dtype, checksums of the finished flows, report of the solver, and the limits
that a full card set: pairs of a flow and the number of flows together from it on."""


class PoolFile:
    """The positions of all flows, mapped into memory."""

    def __init__(
        self,
        folder: Path,
        header: Header,
        flows: int,
        n: int,
        trajectory: tuple[int, ...],
        counter: Callable[[str, int, str], Progress] = Progress,
    ) -> None:
        """Open or begin the pool in ``folder``, with ``flows`` of n trajectories, (T+1, *shape).

        A matching header on disk takes the place of ``header``, from :func:`new_header`; flows that
        are there are checked, and counted by ``counter``.

        Raises:
            UserError: no permission or space, another pool, or a damaged file.
        """
        self._folder, self._file = folder, folder / "positions.bin"
        self._flows = flows
        known = read_header(folder)
        if known:
            refuse_mismatch(known, folder, header["settings"])
        self.header = known if known and not differences(known, header["settings"]) else header
        dtype: torch.dtype = getattr(torch, self.header["dtype"])
        self._map = self._mapped(flows * n * math.prod(trajectory) * dtype.itemsize)
        self._bytes = self._map.reshape(flows, -1)
        self.positions: Tensor = (
            torch.from_numpy(self._map).view(dtype).view(flows * n, *trajectory)
        )
        self._unsaved, self._saved_at = 0, time.monotonic()
        self._verify(counter)

    @property
    def finished(self) -> int:
        """Number of flows that are complete, from the first on."""
        return len(self.header["checksums"])

    def commit(self, finished: int, report: dict[str, Any]) -> None:
        """Record that the first ``finished`` flows are in ``positions``, and the solver's
        report."""
        for index in range(self.finished, finished):
            self.header["checksums"].append(self._checksum(index))
            self._unsaved += 1
        self.header["report"] = report
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write positions, then the header, to the disk."""
        if not self._unsaved:
            return
        self._map.flush()
        write_header(self._folder, self.header)
        self._unsaved, self._saved_at = 0, time.monotonic()

    def _mapped(self, nbytes: int) -> np.memmap[Any, np.dtype[np.uint8]]:
        """Return the file of positions, existing or new, mapped into memory as bytes.

        Raises:
            UserError: it has another size, or cannot be written.
        """
        try:
            if not self.header["checksums"]:
                self._begin(nbytes)
            elif self._size() != nbytes:
                raise self._damaged(f"has {self._size()} of {nbytes} bytes")
            return np.memmap(self._file, dtype=np.uint8, mode="r+")
        except OSError as error:
            raise UserError(
                f"pool.storage = disk: {self._file} cannot be written ({cause(error)}); name "
                "another folder with --out-dir DIR, or use --pool.storage memory"
            ) from error

    def _begin(self, nbytes: int) -> None:
        """Write a header, so that no file of positions is without one; then reserve the space."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_header(self._folder, self.header)
        with self._file.open("r+b" if self._file.exists() else "w+b") as stream:
            stream.truncate(nbytes)
            _reserve(stream.fileno(), nbytes)

    def _verify(self, counter: Callable[[str, int, str], Progress]) -> None:
        """Compare the flows that the header lists with its checksums.

        Raises:
            UserError: one was changed, or there are too many.
        """
        if self.finished > self._flows:
            raise self._damaged(f"has more than {self._flows} checksums in its header")
        indices = range(self.finished)
        for index in track(indices, "pool: checking", "flow", counter):
            if self._checksum(index) != self.header["checksums"][index]:
                raise self._damaged(f"was changed or cut off (flow {index})")

    def _checksum(self, index: int) -> str:
        return f"{zlib.crc32(self._bytes[index]):08x}"

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"pool file {self._file} {what}; remove the folder {self._folder} to build it again"
        )


def new_header(settings: dict[str, object], dtype: str) -> Header:
    """Return the header of an empty pool."""
    plain = json.loads(json.dumps(settings))  # as it will be read again: tuples are lists
    about = {"format": FORMAT, "dtype": dtype, "settings": plain}
    return {**about, "report": {}, "limits": [], "checksums": []}


def read_header(folder: Path) -> Header | None:
    """Return the header in ``folder``; None if there is none.

    Raises:
        UserError: it is damaged or of another format, or the system refuses to read it.
    """
    file = folder / "header.json"
    if not file.is_file():
        return None
    try:
        header = parse_object(file.read_bytes())
        its, dtype = fields(header, format=int, dtype=str)
        if its > FORMAT:
            raise newer_format(f"pool header {file}", its, FORMAT)
        header.setdefault("limits", [])  # earlier headers have none
        report, *_ = fields(header, report=dict, settings=dict, checksums=list, limits=list)
        SolverReport(**report)
        limits = [(expect(flow, int), expect(limit, int)) for flow, limit in header["limits"]]
        has_limits = all(limit > 0 for _, limit in limits)
        if its < FORMAT or dtype not in ("float32", "float16") or not has_limits:
            raise ValueError("a value out of its range")
    except OSError as error:
        raise UserError(f"pool header {file} cannot be read ({cause(error)})") from error
    except (ValueError, TypeError) as error:
        raise UserError(
            f"pool header {file} is damaged or of an older format than {FORMAT}; "
            f"remove the folder {folder} to build the pool again"
        ) from error
    return header


def write_header(folder: Path, header: Header) -> None:
    """Replace the header as a whole."""
    write_text(folder / "header.json", json.dumps(header))


def differences(known: Header, settings: dict[str, object]) -> list[str]:
    """Return a text for each setting in which the pool ``known`` differs. A setting that its header
    lacks had its default."""
    usual = fixed_values(Config(), SECTIONS)
    lacking = {key: usual[key] for key in settings.keys() & usual.keys()}
    before = {**lacking, **known["settings"]}
    return [
        f"{key}: the pool has {before.get(key)}, this command {settings.get(key)}"
        for key in settings
        if before.get(key) != settings.get(key)
    ]


def refuse_mismatch(known: Header, folder: Path | None, settings: dict[str, object]) -> None:
    """Refuse to go on with a pool of other settings.

    Raises:
        UserError: some of its flows are finished, and were built with other settings.
    """
    found = differences(known, settings)
    if known["checksums"] and found:
        raise UserError(
            f"pool {folder} was built with other settings: {'; '.join(found)}; use the same "
            "settings, or remove that folder to build it again"
        )


def taken_bytes(folder: Path) -> int:
    """Return the bytes on disk of the pool in ``folder``, with the parts of the other processes of
    the same pool."""
    part = re.fullmatch(r"part\d+(of\d+)", folder.name)
    folders = folder.parent.glob(f"part*{part[1]}") if part else [folder]
    return _disk_bytes([own / "positions.bin" for own in folders])


def _disk_bytes(files: list[Path]) -> int:
    return sum(getattr(file.stat(), "st_blocks", 0) * 512 for file in files if file.exists())


def drop_positions(folder: Path) -> int:
    """Remove the positions of the pools in ``folder``, and return the bytes that were freed.

    Their headers stay, without checksums: a pool that is built again there has the same values. A
    damaged header says nothing, and is removed too.
    """
    freed = _disk_bytes(_positions(folder))
    for file in _positions(folder):
        try:
            header = read_header(file.parent)
        except UserError:
            header = None
            (file.parent / "header.json").unlink()
        if header:
            write_header(file.parent, {**header, "checksums": [], "report": {}})
        file.unlink()
    return freed


def _positions(folder: Path) -> list[Path]:
    """Return a pool's own file, and those of its parts."""
    return [*folder.glob("positions.bin"), *folder.glob("*/positions.bin")]


def _reserve(descriptor: int, nbytes: int) -> None:
    """Take the disk space now: a mapped file that finds none later kills the process.

    Raises:
        OSError: there is not enough of it.
    """
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        return
    except AttributeError:  # this system has no such call
        pass
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    zeros = bytes(1 << 24)
    os.lseek(descriptor, 0, os.SEEK_SET)
    for start in range(0, nbytes, len(zeros)):
        os.write(descriptor, zeros[: min(len(zeros), nbytes - start)])
