"""Versions of nsgf and of the packages that it uses."""

import functools
import platform

__version__ = "0.1.0"

PACKAGES = ["torch", "torchvision", "numpy", "geomloss", "POT", "scikit-learn", "torch-fidelity"]
"""Packages that affect results. Every checkpoint records their versions."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of all packages that affect results. Every checkpoint stores them."""
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"nsgf": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "missing"
    return numbers
