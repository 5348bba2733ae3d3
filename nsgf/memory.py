"""What one update needs of the device, estimated before anything runs."""

import torch
from torch import Tensor, nn

from nsgf.config import Config, PhaseName
from nsgf.data import data_shape
from nsgf.errors import UserError
from nsgf.hardware import format_bytes
from nsgf.models import build_network, count_parameters
from nsgf.models.unet import Stage

COPIES = 5
"""Values kept per weight while training: weight, average, gradient, two moments of Adam."""
MARGIN = 1.3
"""Over what autograd keeps: gradients of activations, workspaces, fragmentation."""


def training_memory(config: Config, phase: PhaseName) -> tuple[int, int]:
    """Weights of a phase's network, and bytes of one update in float32.

    The network runs once on torch's meta device, which computes shapes and no values; what autograd
    would keep for the backward pass is counted, and with ``model.checkpoint_activations`` what the
    largest stage computes once more.
    """
    shape = data_shape(config.data.name)
    batch = getattr(config, phase).batch_size
    with torch.device("meta"):
        model = build_network(phase, config.model, shape, seed=0)
        inputs = [torch.empty(batch, *shape)]
        if phase != "predictor":
            inputs.append(torch.empty(batch))
        activations = kept_bytes(model, *inputs)
        if config.model.checkpoint_activations:
            activations += _largest_stage(model, inputs)
    weights = count_parameters(model)
    return weights, int(weights * 4 * COPIES + MARGIN * activations)


def kept_bytes(model: nn.Module, *inputs: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass of one call, the weights not counted."""
    kept: dict[int, Tensor] = {}  # holding the tensors keeps their storages' addresses unique
    with torch.autograd.graph.saved_tensors_hooks(lambda t: _keep(t, kept), lambda t: t):
        model(*inputs)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def check_device_memory(
    config: Config, phase: PhaseName, needed: int, device: torch.device, free: int | None = None
) -> None:
    """Refuse an update that cannot fit on a CUDA device.

    Args:
        config: the experiment.
        phase: which phase.
        needed: its bytes, from :func:`training_memory`.
        device: where it shall run; only CUDA devices are checked.
        free: free bytes there; measured when not given.

    Raises:
        UserError: it does not fit; names the batch that would.
    """
    if free is None:
        if device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        batch = getattr(config, phase).batch_size
        fitting = max(1, int(batch * free / needed))
        raise UserError(
            f"{phase}.batch_size = {batch}: an update needs about {format_bytes(needed)}, the "
            f"device has {format_bytes(free)} free; try --{phase}.batch_size {fitting}"
        )


def _largest_stage(model: nn.Module, inputs: list[Tensor]) -> int:
    """Bytes that autograd keeps inside the largest stage of a UNet; 0 for other networks."""
    calls: list[tuple[nn.Module, tuple[Tensor, ...]]] = []
    for stage in model.modules():
        if isinstance(stage, Stage):
            stage.register_forward_pre_hook(lambda module, args: calls.append((module, args)))
    model(*inputs)
    return max((kept_bytes(stage, *args) for stage, args in list(calls)), default=0)


def _keep(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    kept.setdefault(tensor.untyped_storage()._cdata, tensor)
    return tensor
