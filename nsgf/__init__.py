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
    from nsgf.api.compare import compare
    from nsgf.api.pool import SinkhornPool
    from nsgf.api.run import Run, load
    from nsgf.api.train import train
    from nsgf.method import SinkhornFlowMatcher
    from nsgf.sinkhorn.divergence import sinkhorn_divergence, sinkhorn_velocity

_PLACES = {
    "Run": "nsgf.api.run",
    "load": "nsgf.api.run",
    "train": "nsgf.api.train",
    "SinkhornPool": "nsgf.api.pool",
    "compare": "nsgf.api.compare",
    "SinkhornFlowMatcher": "nsgf.method",
    "sinkhorn_divergence": "nsgf.sinkhorn.divergence",
    "sinkhorn_velocity": "nsgf.sinkhorn.divergence",
}
"""Names that need torch, each with its module. Importing torch takes seconds."""
__all__ = ["Run", "SinkhornFlowMatcher", "SinkhornPool", "UserError", "__version__", "compare"]
__all__ += ["load", "sinkhorn_divergence", "sinkhorn_velocity", "train"]


def __getattr__(name: str) -> Any:
    if name in ("method", "sinkhorn"):
        return importlib.import_module(f"nsgf.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
