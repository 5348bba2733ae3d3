"""torch-fidelity, which may be missing, and the files that measures are kept in."""

import hashlib
import zipfile
from pathlib import Path

from torch import Tensor

from nsgf.system.errors import UserError, one_line

NEEDED = (0, 4)
"""First version of torch-fidelity with precision and recall."""


def require_fidelity(key: str) -> str:
    """The version of torch-fidelity, which the setting ``key`` needs.

    Raises:
        UserError: it is not installed, or too old.
    """
    try:
        from torch_fidelity import __version__ as version
    except ImportError as error:
        raise UserError(
            f"{key} = true: needs torch-fidelity (pip install 'torch-fidelity>=0.4'), "
            f"or say --{key} false"
        ) from error
    if tuple(int(number) for number in version.split(".")[:2]) < NEEDED:
        raise UserError(
            f"{key} = true: needs torch-fidelity 0.4 or newer, this is {version} "
            f"(pip install -U torch-fidelity), or say --{key} false"
        )
    return str(version)


def fingerprint(content: Tensor | Path) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a tensor's values or of a file."""
    digest = hashlib.sha256()
    if isinstance(content, Tensor):
        digest.update(repr((tuple(content.shape), content.dtype)).encode())
        digest.update(content.cpu().contiguous().numpy().tobytes())
    else:
        digest.update(content.read_bytes())
    return digest.hexdigest()[:12]


def damage(file: Path) -> str | None:
    """What is wrong with an archive of torch's, which does not check them itself; None: nothing."""
    if not file.is_file():  # to open a pipe would wait for ever
        return "no file"
    try:
        with zipfile.ZipFile(file) as archive:
            broken = archive.testzip()
    except Exception as error:  # a damaged directory makes zipfile raise nearly anything
        return one_line(error)
    return f"{broken} does not fit its checksum" if broken else None
