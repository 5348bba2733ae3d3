"""Write and read checkpoints.

Each phase keeps its last two checkpoints. A phase writes a checkpoint every
``train.checkpoint_every`` updates and at its end. Later phases read the last checkpoint. A
checkpoint is a file of :mod:`nsgf.run.store`. The header has phase, step, configuration and
versions. The content is the state of training.
"""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsgf.run import store
from nsgf.system.errors import UserError, cause, is_memory_full, one_line, suggest
from nsgf.system.files import COUNT, Plain, fields, link_or_copy, replacing, sync_folder
from nsgf.system.output import Log
from nsgf.version import versions

CHECKPOINT_FORMAT = 4
HEADER_KEYS = ("phase", "step", "precision", "config")
"""Keys of a payload that are stored in the header."""


def previous_file(file: Path) -> Path:
    """Return the file of the second newest checkpoint, e.g. ``phase2_nsf.earlier.pt``."""
    return file.with_suffix(".earlier.pt")


def unused_file(file: Path, name: str) -> Path:
    """Return the first unused name of ``*.NAME1.pt``, ``*.NAME2.pt``, ... beside a checkpoint."""
    number = 1
    while (free := file.with_suffix(f".{name}{number}.pt")).exists():
        number += 1
    return free


def save(file: Path, payload: Plain) -> None:
    """Write a checkpoint, and keep the previous one (:func:`previous_file`).

    At any time, at least one of the two files is a complete checkpoint. ``payload`` consists of
    nested dictionaries of tensors and plain values. If the file cannot be written, raise UserError,
    and change neither file."""
    header = {key: payload[key] for key in HEADER_KEYS if key in payload}
    content = {key: value for key, value in payload.items() if key not in header}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            store.write(
                stream, content, {"format": CHECKPOINT_FORMAT, **header, "versions": versions()}
            )
            if file.exists():
                link_or_copy(file, previous_file(file))
    except (OSError, RuntimeError) as failure:
        error = _original_error(failure)
        if not isinstance(error, OSError):  # e.g. a second Ctrl-C
            raise error from None
        raise UserError(
            f"checkpoint {file} cannot be written ({cause(error)}); free disk space, or use "
            f"another folder with {suggest('out_dir', 'DIR')}; the previous checkpoint is kept"
        ) from error


def _original_error(error: BaseException) -> BaseException:
    """Return the original error that made torch raise ``error``."""
    while isinstance(error, RuntimeError) and error.__context__:
        error = error.__context__
    return error


def load(file: Path, *, only_header: bool = False) -> Plain:
    """Return the content of a checkpoint on the CPU. Only tensors and plain values are read. With
    ``only_header``, return phase, step, configuration and versions, without reading the weights.

    Raises:
        Unreadable: the file is damaged.
        UserError: the file is missing, has another format, or the system cannot read it.
    """
    try:
        if not file.is_file():
            raise UserError(f"no checkpoint {file}: train that phase first")
        with file.open("rb") as stream:
            header = store.read_header(stream)
            fields(header, phase=str, step=COUNT, config=dict, format=COUNT)
            if (version := header.pop("format")) > CHECKPOINT_FORMAT:
                raise newer_format_error(f"checkpoint {file}", version, CHECKPOINT_FORMAT)
            if only_header:
                return header
            payload = store.read(stream)
        if not is_finite(payload):
            raise ValueError("values that are not finite")
        return {**payload, **header}
    except UserError:
        raise
    except Exception as failure:  # zipfile and torch raise many types for damaged and foreign files
        error = _original_error(failure)
        # for a damaged archive, zipfile seeks to negative positions
        is_system = isinstance(error, OSError) and error.errno != errno.EINVAL
        if is_system or is_memory_full(error):
            raise UserError(f"checkpoint {file} cannot be read ({one_line(error)})") from error
        raise Unreadable(file, one_line(error).partition(". ")[0]) from failure


class Unreadable(UserError):
    """A file is damaged, or is not a checkpoint."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(f"checkpoint {file} cannot be read ({cause}); remove it")
        self.cause = cause


def newer_format_error(file: str, stored: int, newest: int) -> UserError:
    """Return the error for a file that a later version of this program wrote."""
    return UserError(
        f"{file} cannot be read (it has the newer format {stored}, this program reads {newest}); "
        "use the version that wrote it"
    )


def is_finite(payload: Mapping[str, Any]) -> bool:
    """Whether all tensors in the dictionaries of a payload are finite. These are states of
    networks."""
    import torch

    finite = [
        part.isfinite().all()
        for state in payload.values()
        if isinstance(state, Mapping)
        for part in state.values()
        if isinstance(part, torch.Tensor)
    ]
    # combine the results on the device, to wait only once
    return not finite or bool(torch.stack(finite).all())


def load_good(file: Path, *, only_header: bool = False) -> tuple[Plain, str]:
    """Load the newest checkpoint, or the previous one if the newest is damaged or missing. Return
    the result of :func:`load`, and a remark about the newest checkpoint, which is empty if it was
    loaded. Change no file. If neither checkpoint can be read, raise the error of the newest one."""
    before = previous_file(file)
    is_gone = not file.exists()
    try:
        return load(file, only_header=only_header), ""
    except UserError as error:
        if not (is_gone or isinstance(error, Unreadable)) or not before.exists():
            raise
        try:
            payload = load(before, only_header=only_header)
        except UserError:
            raise error from None
        state = f"damaged ({error.cause})" if isinstance(error, Unreadable) else "missing"
    return payload, f"; {file.name} is {state}, the previous one is used"


def read_good_header(file: Path) -> Plain:
    """Return the header of the newest readable checkpoint; see :func:`load_good`."""
    return load_good(file, only_header=True)[0]


def restore_previous(file: Path, log: Log) -> None:
    """If a checkpoint is damaged or missing, and the previous checkpoint is valid, put the previous
    one in its place, and log a line. Raise UserError if the newest checkpoint has a format of a
    later version, or if the system cannot read it."""
    try:
        remark = load_good(file)[1]
    except UserError as error:
        if file.exists() and not isinstance(error, Unreadable):
            raise
        return
    if not remark:
        return
    if file.exists():
        remark += f"; kept as {file.replace(unused_file(file, 'damaged')).name}"
    link_or_copy(previous_file(file), file)
    sync_folder(file.parent)
    log(f"checkpoint {file.parent / remark.removeprefix('; ')}")


def check_phase(file: Path, header: Plain, phase: str) -> None:
    """Raise UserError if a checkpoint belongs to another phase."""
    if header["phase"] != phase:
        raise UserError(f"checkpoint {file} is of phase {header['phase']}, not {phase}; remove it")
