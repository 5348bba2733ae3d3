"""Check and store the arguments of ``nsgf.train``: samples (in a file) and a network."""

import copy
import hashlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from nsgf.config.files import read_experiment
from nsgf.config.schema import Config
from nsgf.config.settings import Layer
from nsgf.config.values import expand_path
from nsgf.data import INSPECTORS, shape_and_classes
from nsgf.data.own import check_same_data
from nsgf.data.own_images import image_bytes
from nsgf.models import OwnNetwork, make_own
from nsgf.resolve import Request, resolve
from nsgf.sinkhorn.base import refuse_masks, to_array
from nsgf.system.errors import UserError, naming, one_line
from nsgf.system.files import ensure_writable, replacing, sync_folder
from nsgf.system.seeding import keep_random_numbers, make_generator

ARGUMENTS = {"data.name": "dataset", "optim.iterations": "iterations", "run": "resume"}
"""Arguments of ``nsgf.train`` by their settings."""
Samples = Tensor | ArrayLike | Dataset[Any]
"""Points or images, as for ``nsgf.train``."""


def request_training(
    data: Samples | None, labels: ArrayLike | None, words: dict[str, Path], settings: dict[str, Any]
) -> Request:
    """Return the request of a training; raise UserError for a wrong argument or setting. Samples
    are written to ``OUT_DIR/.data/NAME-CHECKSUM.npz``, which a refused request does not leave."""
    if data is None:
        if labels is not None:
            raise UserError("labels: belong to data, which is missing")
        return resolve("train", settings, words)
    if {"exp", "data.name"} & {*settings}:
        raise UserError("data: cannot be given beside exp or dataset; leave one out")
    arrays, digest = _arrays(data, labels), hashlib.sha256()
    for key, array in arrays.items():
        digest.update(f"{key} {array.dtype} {array.shape} ".encode() + array.tobytes())
    name, resumed = next(iter(arrays)), words.get("run")
    base = read_experiment(words["config"]).settings if "config" in words else {}
    out_dir = f"{resumed}/.." if resumed else {**base, **settings}.get("out_dir", Config.out_dir)
    folder = ensure_writable(expand_path("out_dir", out_dir).resolve() / ".data")
    file = folder / f"{name}-{digest.hexdigest()[:12]}.npz"
    own: dict[str, Any] = {"data.name": name}
    if not resumed:
        own |= {"data.conditional": "labels" in arrays}
        own |= {} if "config" in words else {"exp": name}
    with (
        TemporaryDirectory(prefix=".", dir=folder) as private,  # other calls may use `file`
        naming({**ARGUMENTS, "data.path": "data"}),
    ):
        place = file if file.exists() else Path(private) / file.name
        if place != file:
            with replacing(place) as stream:
                np.savez(stream, **arrays)  # type: ignore[arg-type]
        wanted = resolve("train", {**own, "data.path": str(place), **settings}, words)
        if resumed:
            section = wanted.config.data
            check_same_data(section, INSPECTORS[name](section)[0].checksum)
        if place != file:
            place.replace(file)
            sync_folder(folder)
    wanted.config.data.path = str(file)
    notes = tuple(note.replace(str(place), str(file)) for note in wanted.notes)
    return replace(wanted, notes=notes)


def _arrays(data: Samples, labels: ArrayLike | None) -> dict[str, np.ndarray]:
    """Return ``images``, perhaps with ``labels``, or ``points``; who reads them checks the rest."""
    try:
        if isinstance(data, Dataset):
            items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
            refuse_masks(items)
            data = default_collate(items)
            if isinstance(data, list | tuple):
                if len(data) + (labels is not None) > 2:
                    raise ValueError("its items must be samples or pairs; labels belong to samples")
                data, labels = (*data, labels)[:2]
        samples = to_array(data)
        if samples.ndim < 3 and labels is not None:
            raise ValueError("points have no classes; leave labels out")
        arrays = {"points": samples} if samples.ndim < 3 else {"images": image_bytes(samples)}
        return arrays if labels is None else {**arrays, "labels": to_array(labels)}
    except Exception as error:  # a Dataset may raise any type
        raise UserError(f"data: {one_line(error)}") from error


def class_name(network: OwnNetwork | None) -> Layer:
    """Return the fact that a caller's network has this class; nothing for none."""
    if network is None:
        return {}
    try:
        with keep_random_numbers():
            made = make_own(network) if callable(network) else network
    except Exception as error:  # a caller's code may raise any type
        raise UserError(f"network: cannot be made or copied ({one_line(error)})") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"network: {type(made).__name__}, must be a torch.nn.Module")
    return {"model.network": type(made).__name__}


def check_network(
    network: OwnNetwork, config: Config, device: torch.device, *, trains: bool = True
) -> None:
    """Raise UserError unless a caller's network fits the data, and can be saved and sampled with,
    with ``trains`` also trained."""
    shape, classes = shape_and_classes(config.data)
    x = torch.randn(2, *shape, generator=make_generator(0))
    inputs = {"x": x, "t": torch.tensor([0.25, 0.5])}
    if classes:  # a class and, as in training, `classes` for "no class"
        inputs["labels"] = torch.tensor([0, classes], dtype=torch.int32)
    try:
        with keep_random_numbers([device] if device.type == "cuda" else []):
            model = make_own(network).to(device)
            _check_state(model)
            before = copy.deepcopy(model.state_dict())
            for is_training in (True, False) if trains else (False,):
                _check_call(model.train(is_training), inputs, device)
        for name, part in model.state_dict().items():
            if name not in before or not part.equal(before[name]):
                raise ValueError(f"a call changes {name}; use no BatchNorm nor lazy parts")
        model.load_state_dict(before)  # fails for expanded buffers
    except Exception as error:
        shown = ", ".join(f"{k} {list(v.shape)} {v.dtype}" for k, v in inputs.items())
        raise UserError(f"network: fails with {shown}: {one_line(error)}") from error


def _check_state(model: nn.Module) -> None:
    """Raise ValueError for weights or buffers that a checkpoint or an export cannot hold."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, part in model.state_dict().items():
        if part.dtype == torch.float16 or (name in weights and part.dtype != torch.float32):
            raise ValueError(f"{name} is {part.dtype}, must be torch.float32")
        if name not in weights and not part.isfinite().all():
            raise ValueError(f"{name} is not finite; register it with persistent=False")


def _check_call(model: nn.Module, inputs: dict[str, Tensor], device: torch.device) -> None:
    """Call a network in training mode as training does, else as sampling does. Raise ValueError for
    a wrong answer, or changed inputs."""
    given = {name: part.to(device, copy=True) for name, part in inputs.items()}
    with torch.set_grad_enabled(model.training):
        answer = model(*given.values())
    if not isinstance(answer, Tensor) or answer.shape != inputs["x"].shape:
        its = list(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ValueError(f"returns {its}, must be a tensor of x's shape")
    for name, part in inputs.items():
        if not given[name].equal(part.to(device)):
            raise ValueError(f"a call changes {name}; it must leave its inputs as they are")
    if model.training:
        weights = [part for part in model.parameters() if part.requires_grad]
        if not weights:
            raise ValueError("no weight requires a gradient")
        if not answer.requires_grad:
            raise ValueError("its answer has no gradient; use no no_grad, detach or numpy")
        torch.autograd.grad(answer.float().sum(), weights, allow_unused=True)
