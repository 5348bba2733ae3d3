"""Precision of networks, and the settings of torch and its compiler for training."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal

import torch

from nsgf.config.schema import Config, TrainConfig
from nsgf.system.errors import UserError

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

TENSOR_CORES, BFLOAT16 = (7, 0), (8, 0)
"""Smallest compute capabilities with fast fp16, and with bf16."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def pick_precision(wanted: str, device: torch.device) -> Precision:
    """Return the precision that the setting ``train.precision`` selects on a device.

    ``torch.cuda.is_bf16_supported`` is not used, because it also accepts a slow emulation.

    Raises:
        UserError: the card does not support bf16.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if wanted == "bf16" and capability and capability < BFLOAT16:
        raise UserError(
            f"train.precision = bf16: {torch.cuda.get_device_name(device)} (compute capability "
            f"{capability[0]}.{capability[1]}) does not support it; use fp16 or auto"
        )
    if wanted in ("fp32", "bf16", "fp16"):
        return wanted  # type: ignore[return-value]
    if capability is None or capability < TENSOR_CORES:
        return "fp32"
    return "bf16" if capability >= BFLOAT16 else "fp16"


def sampling_precision(config: Config, device: torch.device) -> Precision:
    """Return the precision for sampling: ``train.precision`` if it is fast on the device, else
    fp32. dopri5 always uses fp32, because it would treat rounding as integration error."""
    is_adaptive = config.sampling.solver == "dopri5"
    return "fp32" if is_adaptive else supported_precision(config.train.precision, device)


def supported_precision(trained: object, device: torch.device) -> Precision:
    """Return the precision ``trained`` if it is fast on the device, else fp32."""
    if isinstance(trained, str) and not (trained == "fp16" and device.type == "cpu"):
        with suppress(UserError):  # the training device may have supported more
            return pick_precision(trained, device)
    return "fp32"


def precision_context(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the context in which a network's layers compute in this precision."""
    if precision == "fp32":
        return nullcontext()  # the meta device has no autocast
    return torch.autocast(device.type, DTYPES[precision])


@contextmanager
def device_settings() -> Iterator[None]:
    """Context with cuDNN's benchmark mode and with TF32 for float32 layers."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32)
    cudnn.benchmark = cudnn.allow_tf32 = matmul.allow_tf32 = True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def prepare_environment(config: TrainConfig) -> None:
    """Set the cache folder of torch's compiler before its first use."""
    if config.compile:
        os.environ[COMPILED] = compiled_folder()


def compiled_folder() -> str:
    """Return the cache folder of torch's compiler: the user's setting, or the user's cache. The
    compiler executes code from there, so the folder is never in a run folder or a shared folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return os.environ.get(COMPILED) or str(Path(caches, "nsgf", "compiled"))
