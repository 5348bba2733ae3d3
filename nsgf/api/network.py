"""Check a caller's network."""

import copy

import torch
from torch import Tensor, nn

from nsgf.config.schema import Config
from nsgf.config.settings import Layer
from nsgf.data import data_classes, data_shape
from nsgf.models import OwnNetwork, make_own
from nsgf.system.errors import UserError, one_line
from nsgf.system.seeding import keep_random_numbers, make_generator


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
    shape, classes = data_shape(config.data), data_classes(config.data)
    x = torch.randn(2, *shape, generator=make_generator(0))
    inputs = {"x": x, "t": torch.tensor([0.25, 0.5])}
    if classes:  # a class and, as in training, `classes` for "no class"
        inputs["labels"] = torch.tensor([0, classes], dtype=torch.int32)
    try:
        with keep_random_numbers([device] if device.type == "cuda" else []):
            model = make_own(network).to(device)
            weights = dict(model.named_parameters(remove_duplicate=False))
            for name, part in model.state_dict().items():  # as a checkpoint and an export hold it
                if part.dtype == torch.float16 or (name in weights and part.dtype != torch.float32):
                    raise ValueError(f"{name} is {part.dtype}, must be torch.float32")
                if name not in weights and not part.isfinite().all():
                    raise ValueError(f"{name} is not finite; register it with persistent=False")
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
