"""Distances between samples (classifier, columns, nearest images) and between their features
(kernel distance; with torch-fidelity, Frechet distance, precision and recall)."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nsgf.data.images import to_unit_range
from nsgf.sinkhorn.base import full_precision
from nsgf.sinkhorn.energy import cross_minus_within
from nsgf.sinkhorn.exact import w2
from nsgf.system.errors import UserError, suggest

LEAST_ROWS = 20
"""Smallest number of samples and of real points for a classifier."""
TREES = 10, 100
"""Smallest and largest number of trees of a classifier."""
TREE_COLUMNS = 6400
"""Largest product of trees and columns, which limits the time. The smallest number of trees is used
even if the product is larger."""
NEIGHBOURS = 3
KID_SUBSET = 1000
PRC_BATCH = 2000
"""Number of rows of distances computed at a time; does not affect results."""
PART_VALUES = 2**22
"""Number of values of training images, and of distances to them, that are processed at a time."""


def kernel_distance(x: Tensor, y: Tensor) -> float:
    """Return the squared maximum mean discrepancy with the kernel k(a, b) = (a.b / D + 1)^3 (KID,
    Binkowski et al. 2018). The estimate has no bias: it is around 0 for equal distributions, for
    any number of samples.  x (N, D), y (M, D), N, M > 1"""
    return -cross_minus_within(
        x.cpu().double(),
        y.cpu().double(),
        lambda a, b: (a @ b.T / a.shape[1] + 1) ** 3,
        lambda a: (a.square().mean(1) + 1) ** 3,
    )


def classifier_auc(x: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve (AUC) of boosted trees that tell samples x (N, D) from
    real points y (M, D), by five-fold cross-validation. The AUC is 0.5 if the trees cannot tell
    samples from real points, and 1 if they always can. It does not depend on the number of threads.
    Return NaN for fewer than LEAST_ROWS points."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict

    if min(len(x), len(y)) < LEAST_ROWS:
        return math.nan
    points = torch.cat([x, y]).double().numpy()
    is_real = np.repeat([0, 1], [len(x), len(y)])
    # the default leaf of 20 points would prevent splits if points are few
    classifier = HistGradientBoostingClassifier(
        max_iter=int(np.clip(TREE_COLUMNS // points.shape[1], *TREES)),
        min_samples_leaf=int(np.clip(len(points) // 100, 2, 20)),
        random_state=0,
    )
    share = cross_val_predict(classifier, points, is_real, cv=5, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_real, share))


def column_distances(x: Tensor, y: Tensor) -> np.ndarray:
    """Return the Kolmogorov-Smirnov distance of each column, from 0 to 1. It is the largest
    difference, over all values v, between the share of x (N, D) below v and the share of y (M, D)
    below v.  (D,)"""
    from scipy.stats import ks_2samp

    pairs = zip(x.T.double().numpy(), y.T.double().numpy(), strict=True)
    with np.errstate(all="ignore"):  # hides warnings about the p-value, which is not used
        return np.array([ks_2samp(*pair, method="asymp").statistic for pair in pairs])


def nearest_images(x: Tensor, images: Tensor, *, flip: bool, rows: Tensor | None = None) -> Tensor:
    """For each x (N, C, H, W) in [-1, 1], return the nearest of the uint8 ``images`` (M, C, H, W),
    as floats like x. ``flip``: also search mirrored images. ``rows``: for each x, the index of an
    image to skip, because x is this image, (N,)."""
    flat = x.flatten(1)
    best = x.new_full((len(x),), torch.inf)
    neighbours = torch.zeros_like(x)
    size = max(1, PART_VALUES // max(flat.shape))
    for first in range(0, len(images), size):
        real = to_unit_range(images[first : first + size].cpu())
        for view in (real, real.flip(-1)) if flip else (real,):
            distance = torch.cdist(flat, view.flatten(1))
            if rows is not None:
                skipped = ((rows >= first) & (rows < first + size)).nonzero()[:, 0]
                distance[skipped, rows[skipped] - first] = torch.inf
            nearest, index = distance.min(1)
            closer = nearest < best
            neighbours[closer] = view[index[closer]]
            best[closer] = nearest[closer]
    return neighbours


# --- features, with torch-fidelity, an optional package -----------------------------------------


def require_fidelity(setting: str) -> str:
    """Return the version of torch-fidelity. ``setting``: name of the setting that needs
    torch-fidelity.

    Raises:
        UserError: torch-fidelity is not installed, or is too old.
    """
    try:
        import torch_fidelity.metric_prc  # the module is new in version 0.4
    except ImportError as error:
        raise UserError(
            f"{setting}: needs torch-fidelity 0.4 or newer (pip install -U torch-fidelity), or use "
            f"{suggest('evaluation.features', 'none')}"
        ) from error
    return str(torch_fidelity.__version__)


def require_neighbours(count: int) -> None:
    """Raise UserError if there are too few images for precision and recall."""
    if count <= NEIGHBOURS:
        raise UserError(
            f"evaluation.num_samples: precision and recall need more than {NEIGHBOURS} samples "
            f"and real images, not {count}"
        )


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Return the Frechet distance of the Gaussians with the means and covariances of features.
    x (N, F), y (M, F), float32"""
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric

    statistics = [fid_features_to_statistics(part.cpu()) for part in (x, y)]
    distance = fid_statistics_to_metric(*statistics, verbose=False)["frechet_inception_distance"]
    return float(distance)


def precision_and_recall(samples: Tensor, real: Tensor) -> tuple[float, float]:
    """Return precision (share of samples near real images) and recall (share of real images near
    samples).

    Both need all (N + M)^2 distances between the features (N, F) and (M, F), float32. The distances
    are computed block by block on the device of the samples."""
    from torch_fidelity.metric_prc import prc_features_to_metric

    with full_precision(samples.device):
        measures = prc_features_to_metric(
            samples,
            real.to(samples.device),
            prc_neighborhood=NEIGHBOURS,
            prc_batch_size=PRC_BATCH,
            save_cpu_ram=True,
            verbose=False,
        )
    return measures["precision"], measures["recall"]


def inception_score(logits: Tensor, _: Tensor) -> tuple[float, float]:
    """Return the Inception score of logits (N, K), and its standard deviation over 10 splits (N
    splits if N < 10)."""
    from torch_fidelity.metric_isc import isc_features_to_metric

    measures = isc_features_to_metric(logits.cpu(), min(10, len(logits)))
    return measures["inception_score_mean"], measures["inception_score_std"]


def subset_kernel_distance(x: Tensor, y: Tensor) -> tuple[float, float, int]:
    """Return mean and standard deviation of :func:`kernel_distance` over 100 subsets, and the size
    of a subset. Published figures use the same subsets. x (N, F), y (M, F)"""
    from torch_fidelity.metric_kid import kid_features_to_metric

    size = min(KID_SUBSET, len(x), len(y))
    measures = kid_features_to_metric(x.cpu(), y.cpu(), kid_subset_size=size, verbose=False)
    mean, std = (measures[f"kernel_inception_distance_{name}"] for name in ("mean", "std"))
    return mean, std, size


def squared_way(starts: Tensor, ends: Tensor, targets: Tensor) -> float:
    """Return the mean squared distance from starts to ends, each (N, *shape), divided by W2^2
    between starts and targets, (M, *shape). If the result is 1, the ways are as short as possible.
    W2 uses min(N, M) starts and targets. With few samples, W2 is too large."""
    count = min(len(starts), len(targets))
    way = (ends - starts).flatten(1).double().square().sum(1).mean()
    return float(way) / w2(starts[:count], targets[:count]) ** 2


def straightness(path: Sequence[Tensor]) -> float:
    """Return the mean distance from the first to the last state of a path, divided by the mean
    length of the path. If the result is 1, all paths are straight. ``path``: states, each (N,
    *shape)."""
    states = torch.stack([state.flatten(1).double() for state in path])
    length = states.diff(dim=0).norm(dim=2).sum(0).mean()
    distance = (states[-1] - states[0]).norm(dim=1).mean()
    return float(distance / length) if length > 0 else 1.0
