"""Measures of a small comparison, as its table has them."""

from dataclasses import replace

from nsgf.comparison import Row
from nsgf.comparison.trials import FLOOR, Comparison
from tests.conftest import compared

COMPARISON = compared(
    "2d",
    "--compare.methods=[nsgf,icfm]",
    "--compare.targets=[moons]",
    "--compare.nfe=[10]",
    "--compare.seeds=3",
    "--compare.draws=1",
)


def in_folder(comparison, out_dir):
    """The same comparison in another folder."""
    own = {
        name: replace(config, out_dir=str(out_dir)) for name, config in comparison.methods.items()
    }
    return Comparison(replace(comparison.config, out_dir=str(out_dir)), own)


def row(method, seed, w2, nfe=10, draw=0):
    return Row("moons", method, seed, draw, nfe, float(nfe or 10), 100, 60.0, 0.5, {"w2": w2})


ROWS = [
    *(row("nsgf", seed, w2) for seed, w2 in enumerate([0.1, 0.2, 0.3])),
    *(row("icfm", seed, w2) for seed, w2 in enumerate([0.2, 0.3, 0.41])),
    *(row(FLOOR, seed, 0.05, None) for seed in range(3)),
]
