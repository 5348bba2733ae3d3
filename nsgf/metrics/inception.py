"""FID, Inception score, KID, precision and recall through torch-fidelity.

Features of the real images are kept by torch-fidelity's own cache, which writes files as a whole
(temporary file, then rename) but unpickles what it finds: here each file is checked before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from nsgf.metrics.shared import damage, fingerprint, require_fidelity
from nsgf.run.progress import Progress
from nsgf.system.errors import UserError, one_line

EXTRACTOR = "inception-v3-compat"
LAYERS = ("2048", "logits_unbiased")
"""Of the network: for distances, and for the Inception score."""
KID_SUBSET = 1000
NEIGHBOURS = 3
PRC_BATCH = 2000
"""Rows of the distances that precision and recall take at a time; no setting of the results."""


class ByteImages(Dataset[Tensor]):
    """uint8 images (N, C, H, W) as torch-fidelity reads them: (3, H, W) each, grey repeated.

    Shows how far it is, once that takes longer than a second.
    """

    def __init__(self, images: Tensor, title: str = "images") -> None:
        self._images = images if images.shape[1] == 3 else images.expand(-1, 3, -1, -1)
        self._bar = Progress(title, len(images), "image")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Tensor:
        self._bar.update()
        return self._images[index]


@dataclass(frozen=True)
class Reference:
    """The real images that samples are compared with."""

    images: Tensor
    """uint8, (N, C, H, W): a whole training set, not mirrored."""
    name: str
    """Of the set, and whether it is a random stand-in."""
    cache: Path
    """Folder that keeps their features."""

    def describe(self) -> str:
        """Everything about the images that a number depends on, for people."""
        count, channels, height, width = self.images.shape
        colour = "grey replicated to 3 channels" if channels == 1 else "colour"
        return (
            f"{self.name} train, {count} images, {height}x{width} {colour}, not flipped, resized "
            "to 299x299 by torch-fidelity (TF1 bilinear), sha256 of the pixels "
            f"{fingerprint(self.images)}..."
        )

    def key(self, weights: str, version: str) -> str:
        """The same for the names of files, with the network's weights and the library."""
        count, channels, height, width = self.images.shape
        return (
            f"{self.name.replace(' ', '-')}-train-{count}-{height}x{width}x{channels}-to-299-"
            f"unflipped-{fingerprint(self.images)}-{weights}-tf{version}"
        )


def inception_metrics(
    samples: Tensor,
    reference: Reference,
    weights: str | None,
    device: torch.device,
    batch_size: int,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """FID, Inception score, KID, precision and recall, all in Inception's features.

    Args:
        samples: generated images, uint8, (N, C, H, W).
        reference: the real ones.
        weights: file with torch-fidelity's Inception weights, checked before by
            :func:`check_weights`; None lets it download them.
        device, batch_size: where the network runs, and images that go through it together.
        log: takes a line about the cache.

    Returns:
        ``fid``, ``inception_score`` and ``inception_score_std`` (over 10 splits, or fewer for
        fewer than 10 samples), ``kid`` and ``kid_std`` (over 100 subsets of ``kid_subset_size``),
        ``precision``, ``recall``, and under ``inception_*`` in words what they depend on.

    Raises:
        UserError: torch-fidelity is not installed, or has no usable weights or too few samples.
    """
    version = require_fidelity("evaluation.inception")
    fewest = min(len(samples), len(reference.images))
    require_neighbours(fewest)
    network = fingerprint(Path(weights)) if weights else "downloaded"
    key = reference.key(network, version)
    _check_cache(reference, key, log)
    metrics = _calculate(
        input1=ByteImages(samples, "samples"),
        input2=ByteImages(reference.images, "real images"),
        input2_cache_name=key,
        cache_root=str(reference.cache),
        isc_splits=min(10, len(samples)),
        kid_subset_size=min(KID_SUBSET, fewest),
        cuda=device.type == "cuda",
        batch_size=batch_size,
        feature_extractor_weights_path=weights,
    )
    return metrics | {
        "kid_subset_size": min(KID_SUBSET, fewest),
        "inception_samples": len(samples),
        "inception_reference": reference.describe(),
        "inception_weights": f"{Path(weights).name}, sha256 {network}..." if weights else network,
        "inception_library": f"torch-fidelity {version}; precision and recall with k = "
        f"{NEIGHBOURS} in Inception's 2048 features, not VGG16's",
    }


def require_neighbours(count: int) -> None:
    """
    Raises:
        UserError: precision and recall cannot be had of so few images.
    """
    if count <= NEIGHBOURS:
        raise UserError(
            f"evaluation.num_samples: precision and recall need more than {NEIGHBOURS} samples "
            f"and real images, not {count}"
        )


def _calculate(**settings: Any) -> dict[str, float]:
    """torch-fidelity's numbers under our names; one network for all of them."""
    from torch_fidelity import calculate_metrics

    weights = settings["feature_extractor_weights_path"]
    try:
        theirs = calculate_metrics(
            feature_extractor=EXTRACTOR,  # it would take VGG16 for precision and recall
            fid=True,
            isc=True,
            kid=True,
            prc=True,
            prc_neighborhood=NEIGHBOURS,
            prc_batch_size=PRC_BATCH,
            save_cpu_ram=True,
            verbose=False,
            **settings,
        )
    except torch.cuda.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, AssertionError) as error:
        remedy = "without a network give --inception-weights FILE"
        if weights:
            remedy = f"are {weights} the Inception weights that torch-fidelity publishes?"
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"torch-fidelity failed ({cause}); {remedy}") from error
    return {
        "fid": theirs["frechet_inception_distance"],
        "inception_score": theirs["inception_score_mean"],
        "inception_score_std": theirs["inception_score_std"],
        "kid": theirs["kernel_inception_distance_mean"],
        "kid_std": theirs["kernel_inception_distance_std"],
        "precision": theirs["precision"],
        "recall": theirs["recall"],
    }


def _check_cache(reference: Reference, key: str, log: Callable[[str], None]) -> None:
    """Remove what torch-fidelity must not read: it would unpickle anything.

    Mean and covariance are kept by it too, as arrays that only a pickle can hold. They are removed
    in any case: from the features they are computed again in seconds.

    Raises:
        UserError: a file cannot be removed.
    """
    files = [reference.cache / f"{key}-{EXTRACTOR}-features-{layer}.pt" for layer in LAYERS]
    problems = [_problem(file, len(reference.images)) for file in files if lexists(file)]
    unusable = [problem for problem in problems if problem]
    statistics = reference.cache / f"{key}-{EXTRACTOR}-stat-fid-{LAYERS[0]}.pt"
    try:
        for file in (statistics, *(files if unusable else [])):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"out_dir: cannot remove {error.filename} ({error.strerror})") from error
    if unusable:
        log(f"features of the real images in {reference.cache} are computed again: {unusable[0]}")
    elif not all(map(lexists, files)):
        log(f"features of the real images are computed, and kept in {reference.cache}")


def _problem(file: Path, count: int) -> str | None:
    """Why a file is no features of ``count`` images; None: it is."""
    try:
        if broken := damage(file):
            raise ValueError(broken)
        features = torch.load(file, map_location="cpu", weights_only=True)
        if features.dtype != torch.float32 or features.ndim != 2 or len(features) != count:
            raise ValueError(f"no features of {count} images")
        if not features.isfinite().all():
            raise ValueError("features that are not finite")
    except Exception as error:  # torch raises many types for damaged or foreign files
        return f"{file.name} cannot be used ({one_line(error)[:100]})"
    return None


def check_weights(file: Path) -> None:
    """Refuse a file that is missing, damaged, or would run code: torch-fidelity unpickles."""
    if not file.is_file():
        raise UserError(f"evaluation.inception_weights = {file}: no such file")
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        tensors = state.values()
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise TypeError("values that are no tensors")
    except Exception as error:  # torch raises many types for damaged or foreign files
        raise UserError(
            f"evaluation.inception_weights = {file}: no usable Inception weights "
            "(not a file of tensors)"
        ) from error
