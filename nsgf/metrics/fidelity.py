"""FID and Inception score through torch-fidelity."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from nsgf.data.images import to_bytes
from nsgf.errors import UserError


class ByteImages(Dataset[Tensor]):
    """uint8 images (N, C, H, W) as torch-fidelity reads them: (3, H, W) each, grey repeated."""

    def __init__(self, images: Tensor) -> None:
        self._images = images if images.shape[1] == 3 else images.expand(-1, 3, -1, -1)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Tensor:
        return self._images[index]


def inception_metrics(
    samples: Tensor, real: Tensor, weights: str | None, device: torch.device, batch_size: int
) -> dict[str, float]:
    """FID and Inception score.

    Args:
        samples: generated images in [-1, 1], (N, C, H, W).
        real: uint8, (M, C, H, W).
        weights: file with torch-fidelity's Inception weights, checked before by
            :func:`check_weights`; None lets it download them.
        device: where the Inception network runs.
        batch_size: images that go through it together.

    Returns:
        ``fid``, ``inception_score`` and ``inception_score_std`` (over 10 splits, or fewer for
        fewer than 10 samples).

    Raises:
        UserError: torch-fidelity is not installed, or has no usable weights or too few samples.
    """
    try:
        from torch_fidelity import calculate_metrics
    except ImportError as error:
        raise UserError(
            "evaluation.inception = true: needs torch-fidelity (pip install torch-fidelity), "
            "or say --evaluation.inception false"
        ) from error
    try:
        found = calculate_metrics(
            input1=ByteImages(to_bytes(samples)),
            input2=ByteImages(real),
            fid=True,
            isc=True,
            isc_splits=min(10, len(samples)),
            cuda=device.type == "cuda",
            batch_size=batch_size,
            cache=False,
            save_cpu_ram=True,
            verbose=False,
            feature_extractor_weights_path=weights,
        )
    except torch.cuda.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"torch-fidelity failed ({cause}); without a network give --inception-weights FILE"
        ) from error
    return {
        "fid": found["frechet_inception_distance"],
        "inception_score": found["inception_score_mean"],
        "inception_score_std": found["inception_score_std"],
    }


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
