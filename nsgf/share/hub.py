"""Exported runs on the Hugging Face hub."""

import re
from os import PathLike
from pathlib import Path

from nsgf.system.errors import UserError, one_line

SCHEME = "hf://"
ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
FILES = ["config.json", "*.safetensors", "README.md"]
"""Files that are downloaded."""


def is_address(path: str | PathLike[str]) -> bool:
    """Whether this names a run on the hub and not a folder."""
    return isinstance(path, str) and path.startswith(SCHEME)


def fetched(address: str | PathLike[str]) -> Path:
    """Return the folder in the hub's cache that holds ``hf://OWNER/NAME[@REVISION]``.

    Raises:
        UserError: it is no such address, huggingface_hub is missing, or the run cannot be had.
    """
    named = ADDRESS.fullmatch(str(address))
    if not named:
        raise UserError(f"{address}: must be hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"{address}: needs huggingface_hub; pip install -e .[hub], or download the folder and "
            "give its path"
        ) from error
    try:
        return Path(snapshot_download(named[1], revision=named[2], allow_patterns=FILES))
    except Exception as error:  # the hub's, its transport's and the system's: many types
        why = one_line(error)
        raise UserError(f"{address}: cannot be had from the hub ({why[:300]})") from error
