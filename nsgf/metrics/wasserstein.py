"""Exact 2-Wasserstein distance between samples (POT's network simplex)."""

import torch
from torch import Tensor

from nsgf.data import Sampler

SIMPLEX_ITERATIONS = 10_000_000


def w2(x: Tensor, y: Tensor) -> float:
    """W2 = (min over couplings of mean |x - y|^2)^(1/2), uniform weights.

    Args:
        x: (N, *shape).
        y: (M, *shape).

    Raises:
        ValueError: empty, non-finite or mismatched samples, or the simplex did not finish.
    """
    import ot  # a second to import

    if x.shape[1:] != y.shape[1:] or not len(x) or not len(y):
        raise ValueError(f"cannot compare samples of shape {tuple(x.shape)} and {tuple(y.shape)}")
    if not (x.isfinite().all() and y.isfinite().all()):
        raise ValueError("samples are not finite")
    a, b = x.flatten(1).double(), y.flatten(1).double()
    cost = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
    value, log = ot.emd2([], [], cost.numpy(), numItermax=SIMPLEX_ITERATIONS, log=True)
    if log["warning"]:
        raise ValueError(f"exact optimal transport did not finish: {log['warning']}")
    return float(max(value, 0.0)) ** 0.5


def w2_floor(target: Sampler, n: int) -> float:
    """W2 between two independent draws of mu*: what a perfect sampler would score at this n."""
    return w2(target.sample(n), target.sample(n))


def nearest_distance(x: Tensor, y: Tensor, *, skip_self: bool = False) -> float:
    """Mean Euclidean distance from each x to its nearest y.

    Args:
        x: (N, *shape).
        y: (M, *shape).
        skip_self: x and y are the same samples; leave each one's own place out.
    """
    nearest = []
    for first, chunk in zip(range(0, len(x), 512), x.flatten(1).split(512), strict=True):
        distance = torch.cdist(chunk, y.flatten(1))
        if skip_self:
            rows = torch.arange(len(chunk))
            distance[rows, first + rows] = torch.inf
        nearest.append(distance.amin(dim=1))
    return float(torch.cat(nearest).mean())
