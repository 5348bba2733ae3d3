"""Formulas of torch-fidelity, an optional package, that several measures share."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsgf.sinkhorn.base import full_precision
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_hours

NEIGHBOURS = 3
LONG_SECONDS = 30.0
PRC_BATCH = 2000
"""Rows of distances that precision and recall compute at a time; does not affect results."""


def require_fidelity(key: str) -> str:
    """Return the version of torch-fidelity, which the setting ``key`` needs.

    Raises:
        UserError: it is not installed, or too old.
    """
    try:
        import torch_fidelity.metric_prc  # new in 0.4
    except ImportError as error:
        raise UserError(
            f"{key} = true: needs torch-fidelity 0.4 or newer (pip install -U torch-fidelity), "
            f"or say --{key} false"
        ) from error
    return str(torch_fidelity.__version__)


def require_neighbours(count: int) -> None:
    """Raise UserError if precision and recall cannot be computed of so few images."""
    if count <= NEIGHBOURS:
        raise UserError(
            f"evaluation.num_samples: precision and recall need more than {NEIGHBOURS} samples "
            f"and real images, not {count}"
        )


def distances(
    samples: Tensor, real: Tensor, device: torch.device, log: Callable[[str], None]
) -> dict[str, Any]:
    """Compare the features of samples (N, F) with those of real images (M, F), float32 on the CPU.

    Precision and recall need all (N + M)^2 distances, which a card computes; their formulas then
    take them from there block by block. ``log`` takes a line where that is long.

    Returns:
        ``fid``, the Frechet distance, smaller is better; ``precision``, the share of samples among
        the real ones; ``recall``, the share of real ones among the samples.
    """
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
    from torch_fidelity.metric_prc import prc_features_to_metric

    statistics = [fid_features_to_statistics(part) for part in (samples, real)]
    place = device if device.type == "cuda" else torch.device("cpu")
    with full_precision(place):
        samples, real = samples.to(place), real.to(place)
        if (seconds := _estimate(samples, real)) > LONG_SECONDS:
            count = f"{len(samples)} samples and {len(real)} real images"
            log(f"precision and recall of {count}: about {format_hours(seconds)}")
        manifold = prc_features_to_metric(
            samples,
            real,
            prc_neighborhood=NEIGHBOURS,
            prc_batch_size=PRC_BATCH,
            save_cpu_ram=True,
            verbose=False,
        )
    return {
        "fid": fid_statistics_to_metric(*statistics, verbose=False)["frechet_inception_distance"],
        "precision": manifold["precision"],
        "recall": manifold["recall"],
    }


def _estimate(samples: Tensor, real: Tensor) -> float:
    """Return the seconds that precision and recall take at most, from those of one block."""
    block = real[:PRC_BATCH]
    for _ in range(2):  # the first one on a card takes longer
        started = time.perf_counter()
        torch.cdist(block, block).cpu().kthvalue(NEIGHBOURS + 1)
        seconds = time.perf_counter() - started
    return seconds * ((len(samples) + len(real)) / len(block)) ** 2
