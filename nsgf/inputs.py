"""Check and store the arguments of ``nsgf.train``: samples (in a file) and a network."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from nsgf.config.schema import Config
from nsgf.data import shape_and_classes
from nsgf.data.arrays import class_numbers, image_bytes
from nsgf.models import count_parameters, make_own
from nsgf.run.folder import OwnNetwork, ensure_writable, replacing
from nsgf.system.errors import UserError, one_line

Samples = Tensor | ArrayLike | Dataset[Any]
"""Points (N, D), or images (N, C, H, W), uint8 or floats in [-1, 1]; or a torch Dataset with a
length that returns such samples, or pairs (sample, label)."""


@contextmanager
def stored(data: Samples, labels: ArrayLike | None, folder: Path) -> Iterator[dict[str, Any]]:
    """Write samples into ``folder/NAME-CHECKSUM.npz``, and yield the settings for this file.

    If the body raises UserError, a new file is removed, and the message names ``data``.

    Raises:
        UserError: ``data`` or ``labels`` have a wrong type, shape or range.
    """
    arrays = _arrays(data, labels)
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    name = next(iter(arrays))
    file = ensure_writable(folder.absolute()) / f"{name}-{digest.hexdigest()[:12]}.npz"
    if is_new := not file.exists():
        with replacing(file) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
    try:
        yield {"data.name": name, "data.path": str(file), "data.conditional": "labels" in arrays}
    except UserError as error:
        if is_new:
            file.unlink()
        raise UserError(str(error).replace(f"data.path = {file}", "data")) from error


def _arrays(data: Samples, labels: ArrayLike | None) -> dict[str, np.ndarray]:
    """Return ``images``, perhaps with ``labels``, or ``points``."""
    try:
        if isinstance(data, Dataset):
            data = default_collate([data[i] for i in range(len(data))])  # type: ignore[arg-type]
            if isinstance(data, list | tuple):
                data, labels = (*data, labels)[:2]
        samples = _array(data)
        images = image_bytes(samples) if samples.ndim > 2 else None
    except Exception as error:  # a Dataset may raise any type
        raise UserError(f"data: {one_line(error)}") from error
    if samples.dtype.kind not in "iuf":
        raise UserError(f"data: {samples.dtype} of shape {samples.shape}, must be numbers")
    if labels is None:
        return {"points": samples} if images is None else {"images": images}
    if images is None:
        raise UserError("labels: points have no classes; leave them out")
    try:
        classes = _array(labels)
        class_numbers(classes, len(images))
    except Exception as error:
        raise UserError(f"labels: {one_line(error).removeprefix('labels: ')}") from error
    return {"images": images, "labels": classes}


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def class_name(network: OwnNetwork) -> str:
    """Return the name of the class of a caller's network."""
    made = network if isinstance(network, nn.Module) or not callable(network) else network()
    if not isinstance(made, nn.Module):
        raise UserError(f"network: {type(made).__name__}, must be a torch.nn.Module")
    return type(made).__name__


def check_network(network: OwnNetwork, config: Config, device: torch.device) -> None:
    """Raise UserError unless a caller's network takes a batch of two and returns its shape."""
    shape, classes = shape_and_classes(config.data)
    inputs = {"x": torch.zeros(2, *shape), "t": torch.tensor([0.0, 0.5])}
    if classes:  # as training gives them; the last one stands for no class
        inputs["labels"] = torch.tensor([0, classes], dtype=torch.int32)
    shown = ", ".join(f"{k} {list(v.shape)} {v.dtype}" for k, v in inputs.items())
    try:
        with torch.no_grad():
            model = make_own(network).to(device).eval()
            answer = model(*(part.to(device) for part in inputs.values()))
        if answer.shape != inputs["x"].shape:
            raise ValueError(f"returns {list(answer.shape)}, must be x's shape")
        if not count_parameters(model):
            raise ValueError("has no weights to train")
    except Exception as error:
        raise UserError(f"network: fails with {shown}: {one_line(error)}") from error
