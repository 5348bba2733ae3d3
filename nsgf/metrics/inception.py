"""FID, Inception score, KID, precision and recall in the features of the Inception network.

Network and formulas come from torch-fidelity. This module reads files as tensors only.
torch-fidelity would unpickle weights and cached features, which could run code.
"""

import hashlib
from io import BytesIO
from os.path import lexists
from pathlib import Path

import torch
from torch import Tensor

from nsgf.metrics.distances import NEIGHBOURS, require_fidelity
from nsgf.metrics.features import FeatureNetwork
from nsgf.system.errors import UserError, one_line, suggest

PUBLISHED = "weights-inception-2015-12-05-6726825d.pth"
URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{PUBLISHED}"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
LAYERS = ["2048", "logits_unbiased"]
"""Layers of the network for distances, and for the Inception score."""


class Inception(FeatureNetwork):
    """The Inception network, with weights from a file that is read once."""

    spaces = (("inception", slice(2048)), ("logits", slice(2048, None)))
    splits = 3
    is_published = True

    def __init__(self, file: Path | None = None) -> None:
        """Load the weights; None: the published file, downloaded into torch's cache if needed.
        Raise UserError if torch-fidelity or the file is missing, or if the file is damaged."""
        version = require_fidelity("evaluation.features = inception")
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        key = "" if file is None else "evaluation.inception_weights = "
        file = file or _published()
        try:
            content = file.read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            if file.name == PUBLISHED and sha256 != SHA256:
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
        self.name = (
            f"{file.name}, sha256 {sha256[:12]}..., torch-fidelity {version}: images resized to "
            f"299x299 (TF1 bilinear), precision and recall with k = {NEIGHBOURS} in 2048 features"
        )
        self.key = f"{sha256[:12]}-{version}-logits"

    def _features(self, images: Tensor) -> Tensor:
        """Return features and logits, (n, 2048 + 1008)."""
        return torch.cat(self._network(images), 1)


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
