"""FID, Inception score, KID, precision and recall in the features of the Inception network.

Network and formulas come from torch-fidelity. This module reads files as tensors only.
torch-fidelity would unpickle weights and cached features, which could run code.
"""

import hashlib
from collections.abc import Callable
from io import BytesIO
from os.path import lexists
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsgf.data.images import to_colour
from nsgf.metrics.distances import (
    NEIGHBOURS,
    card_or_cpu,
    require_fidelity,
    require_neighbours,
    stored_features,
)
from nsgf.metrics.measures import Pairs, compute, measures_in
from nsgf.run.progress import count_progress
from nsgf.run.store import fingerprint
from nsgf.system.errors import UserError, one_line, suggest
from nsgf.system.output import show

PUBLISHED = "weights-inception-2015-12-05-6726825d.pth"
URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{PUBLISHED}"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
LAYERS = ["2048", "logits_unbiased"]
"""Layers of the network for distances, and for the Inception score."""


class Inception:
    """The Inception network, with weights from a file that is read once."""

    def __init__(self, file: Path | None = None) -> None:
        """Load the weights; None: the published file, downloaded into torch's cache if needed.
        Raise UserError if torch-fidelity or the file is missing, or if the file is damaged."""
        self.version = require_fidelity("evaluation.features = inception")
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        key = "" if file is None else "evaluation.inception_weights = "
        file = file or _published()
        try:
            content = file.read_bytes()
            self.sha256 = hashlib.sha256(content).hexdigest()
            if file.name == PUBLISHED and self.sha256 != SHA256:
                raise ValueError("not the published file of this name; remove it")
            state = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
            own = BytesIO()  # torch-fidelity unpickles its input, so it gets only this
            torch.save(dict(state), own)
            own.seek(0)
            self._network = FeatureExtractorInceptionV3(
                "inception-v3-compat", LAYERS, feature_extractor_weights_path=own
            )
        except Exception as error:  # torch raises many types for damaged or foreign files
            raise UserError(
                f"{key}{file}: no usable Inception weights ({one_line(error)[:100]})"
            ) from error
        self.name = f"{file.name}, sha256 {self.sha256[:12]}..."

    def features(
        self, images: Tensor, title: str, device: torch.device, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        """Return features (N, 2048) and logits (N, 1008) of images, uint8 (N, C, H, W), as float32
        on the CPU. The progress bar shows ``title``."""
        network, found = self._network.to(device), []
        with torch.no_grad():
            for part in count_progress(images.split(batch_size), title, "batch"):
                colour = to_colour(part).to(device)
                found.append([layer.cpu() for layer in network(colour)])
        features, logits = map(torch.cat, zip(*found, strict=True))
        return features, logits


def _published() -> Path:
    """Return the file of the published weights in torch's cache; download it if it is missing."""
    file = Path(torch.hub.get_dir(), "checkpoints", PUBLISHED)
    try:
        if not lexists(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(URL, str(file), SHA256, progress=False)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"no Inception weights from {URL} ({one_line(error)}); "
            f"without internet use {suggest('evaluation.inception_weights', 'FILE')}"
        ) from error
    return file


def inception_metrics(
    samples: Tensor,
    images: Tensor,
    name: str,
    folder: Path,
    network: Inception,
    device: torch.device,
    batch_size: int,
    log: Callable[[str], None] = show,
) -> dict[str, Any]:
    """Return FID, Inception score, KID, precision and recall of samples (N, C, H, W) against all
    real images (M, C, H, W), both uint8. ``name`` describes the real images. The keys
    ``inception_*`` describe weights and reference.

    The network is called with ``batch_size`` images at a time. Features of real images are stored
    in ``folder``; ``log`` then gets a line. Raise UserError if there are too few samples."""
    count, channels, height, width = images.shape
    colour = {1: "grey replicated to 3 channels", 3: "colour"}.get(channels, "in part")
    require_neighbours(min(len(samples), count))
    about = f"{network.sha256[:12]}-{network.version}"
    how = (device, batch_size)
    compute_real = lambda: network.features(images, "real images", *how)[0]  # noqa: E731
    real = stored_features(folder, images, about, compute_real, log)
    features, logits = network.features(samples, "samples", *how)
    where = card_or_cpu(device)
    pairs: Pairs = {"inception": (features.to(where), real.to(where)), "logits": (logits, logits)}
    return compute(measures_in("inception", "logits"), pairs) | {
        "inception_samples": len(samples),
        "inception_reference": f"{name}, {count} images, {height}x{width} {colour}"
        ", not flipped, resized to 299x299 by torch-fidelity (TF1 bilinear), sha256 of the pixels "
        f"{fingerprint(images)}...",
        "inception_weights": network.name,
        "inception_library": f"torch-fidelity {network.version}; precision and recall with k = "
        f"{NEIGHBOURS} in Inception's 2048 features, not VGG16's",
    }
