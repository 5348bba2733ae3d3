"""Exact 2-Wasserstein distance between samples (POT's network simplex)."""

import torch
from torch import Tensor

from nsgf.data import Sampler
from nsgf.phases.flow_matching import SIMPLEX_ITERATIONS


def w2(x: Tensor, y: Tensor) -> float:
    """Return W2 = (min over couplings of mean |x - y|^2)^(1/2), uniform weights; (N, *shape), (M,
    *shape).

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
    """Return W2 between two independent draws of mu*: what a perfect sampler scores at this n."""
    return w2(target.sample(n), target.sample(n))


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return 2 E|X - Y| - E|X - X'| - E|Y - Y'|, estimated without bias: around 0 for equal
    distributions.

    W2 of finite samples feels a mass that is off by chance more than the shape of a law; this
    distance feels both alike (Szekely and Rizzo 2013).  x (N, *shape), y (M, *shape), N, M > 1
    """
    a, b = x.flatten(1).double(), y.flatten(1).double()
    n, m = len(a), len(b)
    within = _total(a, a) / (n * (n - 1)) + _total(b, b) / (m * (m - 1))
    return 2 * _total(a, b) / (n * m) - within


def _total(x: Tensor, y: Tensor) -> float:
    """Return the sum of all distances between x (N, D) and y (M, D)."""
    return sum(float(torch.cdist(part, y).sum()) for part in x.split(2048))


def nearest_distance(x: Tensor, y: Tensor, *, skip_self: bool = False) -> float:
    """Return the mean Euclidean distance from each x (N, *shape) to its nearest y (M, *shape). With
    ``skip_self`` x and y are the same samples, and a sample is not its own neighbour."""
    nearest = []
    for first, chunk in zip(range(0, len(x), 512), x.flatten(1).split(512), strict=True):
        distance = torch.cdist(chunk, y.flatten(1))
        if skip_self:
            rows = torch.arange(len(chunk))
            distance[rows, first + rows] = torch.inf
        nearest.append(distance.amin(dim=1))
    return float(torch.cat(nearest).mean())
