"""What one update needs of the device, estimated before anything runs."""

import weakref
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nsgf.config.schema import Config, ModelConfig, PhaseName
from nsgf.data import shape_and_classes
from nsgf.models import count_parameters
from nsgf.models.unet import Stage
from nsgf.system.errors import UserError
from nsgf.system.hardware import format_bytes
from nsgf.training.precision import Precision, pick_precision
from nsgf.training.task import Batch

COPIES = 5
"""Values kept per weight while training: weight, average, gradient, two moments of Adam."""
MARGIN = 1.3
"""Over what autograd keeps: gradients of activations, workspaces, fragmentation."""


class Trainable(Protocol):
    """What the estimate needs to know of a phase."""

    @property
    def name(self) -> PhaseName:
        """Names its settings."""
        ...

    @property
    def divisible(self) -> bool:
        """Whether its batches may be split."""
        ...

    def network(self, config: ModelConfig, shape: tuple[int, ...], classes: int = 0) -> nn.Module:
        """What it trains."""
        ...

    def example(self, size: int, shape: tuple[int, ...], classes: int = 0) -> Batch:
        """A batch in the shapes of a real one, on torch's default device."""
        ...


class TrainingMemory(NamedTuple):
    """Estimated bytes of one update."""

    weights: int
    """Number of trained values."""
    fixed: int
    """Bytes that do not depend on the batch."""
    activations: int
    """Bytes of the whole batch at once."""
    samples: int
    """Samples of that batch on this device."""
    precision: Precision
    """Arithmetic of the layers, which halves what they keep."""
    accumulate: int
    """Parts that the batch is split into."""
    divisible: bool = True
    """Whether it can be split into more of them."""

    @property
    def total(self) -> int:
        """With the batch in its parts."""
        return self.fixed + self.activations // self.accumulate

    @property
    def smallest(self) -> int:
        """One sample at a time, or the whole batch where it cannot be split."""
        return self.fixed + self.activations // (self.samples if self.divisible else 1)


def training_memory(
    config: Config, phase: Trainable, device: torch.device, processes: int = 1
) -> TrainingMemory:
    """What one update of a phase needs of the device, of so many processes that share a batch.

    The network runs once on torch's meta device, which computes shapes and no values; what autograd
    would keep for the backward pass is counted, and with ``model.checkpoint_activations`` what the
    largest stage computes once more.

    Raises:
        UserError: the precision does not exist on this device.
    """
    precision = pick_precision(config.train.precision, device)
    batch = -(-getattr(config, phase.name).batch_size // processes)
    weights, activations = _kept_by_autograd(config, phase, batch)
    if precision != "fp32":
        activations //= 2
    return TrainingMemory(
        weights=weights,
        fixed=weights * 4 * COPIES,
        activations=int(MARGIN * activations),
        samples=batch,
        precision=precision,
        accumulate=min(config.train.accumulate, batch),
        divisible=phase.divisible,
    )


def _kept_by_autograd(config: Config, phase: Trainable, batch: int) -> tuple[int, int]:
    """Trained values of the phase's network, and bytes it keeps for a backward pass in float32."""
    form = shape_and_classes(config.data)
    with torch.device("meta"):
        model, inputs = phase.network(config.model, *form), phase.example(batch, *form).inputs
        activations = kept_bytes(model, *inputs)
        if config.model.checkpoint_activations:
            activations += _largest_stage(model, inputs)
    return count_parameters(model), activations


def kept_bytes(model: nn.Module, *inputs: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass of one call, the weights not counted."""
    kept: dict[int, Tensor] = {}  # holding the tensors keeps their storages' addresses unique

    def keep(tensor: Tensor) -> Tensor:
        return kept.setdefault(tensor.untyped_storage()._cdata, tensor)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*inputs)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def inference_bytes(config: Config, phase: Trainable) -> float:
    """Bytes that a sample takes of the device while a phase's network is asked, in float32 and
    without gradients: the most that is there at once, with the same margin as an update.
    """
    form, batch = shape_and_classes(config.data), 8
    with torch.device("meta"), torch.no_grad():
        model, inputs = phase.network(config.model, *form), phase.example(batch, *form).inputs
        with LiveBytes() as live:
            model.eval()(*inputs)
    return MARGIN * live.peak / batch


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that were made under it and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        before = {id(storage) for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in {storage for storage in _storages(out) if id(storage) not in before}:
            self._count(storage.nbytes())
            weakref.finalize(storage, self._count, -storage.nbytes())
        return out

    def _count(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)


def _storages(values: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def check_device_memory(
    phase: PhaseName, needed: TrainingMemory, device: torch.device, free: int | None = None
) -> None:
    """Refuse a network that cannot train on a CUDA device, not even with a batch in many parts.

    ``free`` bytes are measured when not given, on CUDA devices alone.

    Raises:
        UserError: one sample does not fit.
    """
    if free is None:
        if device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(device)
    if needed.smallest > free:
        least = "even one sample at a time" if needed.divisible else "a batch, which is not split,"
        raise UserError(
            f"{phase}: {least} needs about {format_bytes(needed.smallest)}, the "
            f"device has {format_bytes(free)} free; try a smaller model, or another --device"
        )


def _largest_stage(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Bytes that autograd keeps inside the largest stage of a UNet; 0 for other networks."""
    calls: list[tuple[nn.Module, tuple[Tensor, ...]]] = []
    for stage in model.modules():
        if isinstance(stage, Stage):
            stage.register_forward_pre_hook(lambda module, args: calls.append((module, args)))
    model(*inputs)
    return max((kept_bytes(stage, *args) for stage, args in list(calls)), default=0)
