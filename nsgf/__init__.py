"""NSGF++: generative modelling by a neural Sinkhorn gradient flow (arXiv 2401.14069).

The command is ``nsgf``; from Python:

    run = nsgf.load("runs/digits-...")
    images = run.sample(64, seed=0)
    run = nsgf.train(exp="2d", dataset="moons")              # or data=x, network=MyUNet()
    loss = nsgf.sinkhorn_divergence(x, y, blur=0.5)

Modules are loaded on first use. Errors that a caller can fix raise :class:`UserError`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nsgf.system.errors import UserError
from nsgf.version import __version__

if TYPE_CHECKING:
    from nsgf.api import Run, load, train
    from nsgf.api_compare import compare
    from nsgf.api_pool import SinkhornPool
    from nsgf.sinkhorn.divergence import sinkhorn_divergence, sinkhorn_velocity

__all__ = [
    "Run",
    "SinkhornPool",
    "UserError",
    "__version__",
    "compare",
    "load",
    "sinkhorn_divergence",
    "sinkhorn_velocity",
    "train",
]
_PLACES = {
    **dict.fromkeys(("Run", "load", "train"), "nsgf.api"),
    "SinkhornPool": "nsgf.api_pool",
    "compare": "nsgf.api_compare",
    **dict.fromkeys(("sinkhorn_divergence", "sinkhorn_velocity"), "nsgf.sinkhorn.divergence"),
}
"""Modules of the names that need torch, which takes seconds to import."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
