"""Versions of packages, git commit and machine, which are recorded with results."""

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from nsgf.system.output import format_bytes
from nsgf.version import __version__

PACKAGES = ["torch", "torchvision", "numpy", "geomloss", "POT", "scikit-learn", "torch-fidelity"]
"""Packages that affect results; their versions are recorded."""


def provenance() -> dict[str, object]:
    """Return versions, machine, and git commit, for ``versions.json``."""
    import torch

    from nsgf.system.hardware import available_cores

    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": available_cores(),
        "memory": format_bytes(psutil.virtual_memory().total),
        "cards": [torch.cuda.get_device_name(card) for card in range(torch.cuda.device_count())],
    }
    return {**versions(), "commit": _commit(Path(__file__).parents[2]), "machine": machine}


def _commit(checkout: Path) -> str | None:
    """Return the git commit, with ``-dirty`` if files changed; None outside of a checkout."""
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or not this user's checkout
        return None
    return done.stdout.strip()


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of all packages that affect results; every checkpoint stores them."""
    found = {"nsgf": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
