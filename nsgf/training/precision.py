"""Precision of networks, and the settings of torch and its compiler for training."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from nsgf.system.errors import UserError

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

TENSOR_CORES = (7, 0)
"""Smallest compute capability with fast fp16."""
BFLOAT16 = (8, 0)
"""Smallest compute capability with bf16."""
BFLOAT16_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
"""Functions of ``torch.cpu`` that detect units for bf16. Old versions of torch lack these
functions."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def pick_precision(setting: str, device: torch.device, is_images: bool) -> Precision:
    """Return the precision that ``setting``, a value of ``train.precision``, selects on a device.
    The choice differs between networks for images and networks for points.

    ``torch.cuda.is_bf16_supported`` is not used, because it also accepts a slow emulation.

    Raises:
        UserError: the card does not support bf16.
    """
    if setting == "bf16" and supported_precision(setting, device) != setting:
        raise UserError(
            f"train.precision = bf16: {torch.cuda.get_device_name(device)} does not support it; "
            "use fp16 or auto"
        )
    if setting != "auto":
        return setting  # type: ignore[return-value]
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return (
            "bf16" if capability >= BFLOAT16 else "fp16" if capability >= TENSOR_CORES else "fp32"
        )
    # whether the processor has units for bf16; False if this version of torch cannot find out
    is_fast = any(getattr(torch.cpu, name, bool)() for name in BFLOAT16_CHECKS)
    return "bf16" if is_fast and is_images else "fp32"


def sampling_precision(
    setting: str, solver: str, device: torch.device, is_images: bool, trained: object = None
) -> Precision:
    """Return the precision for sampling. ``setting`` is the value of ``train.precision``. Use this
    precision if the device supports it, else fp32. If the setting is auto, a network that was
    ``trained`` in fp32 uses fp32. With auto, every other network uses the precision that auto
    selects. The solver dopri5 always uses fp32, because it would treat rounding as integration
    error."""
    if solver == "dopri5" or (setting, trained) == ("auto", "fp32"):
        return "fp32"
    if setting == "auto":
        return pick_precision(setting, device, is_images)
    return supported_precision(setting, device)


def supported_precision(trained: object, device: torch.device) -> Precision:
    """Return the precision ``trained`` if the device supports it, else fp32."""
    on_card = device.type == "cuda"
    if trained == "fp16" and on_card:
        return "fp16"
    is_old = on_card and torch.cuda.get_device_capability(device) < BFLOAT16
    return "bf16" if trained == "bf16" and not is_old else "fp32"


def precision_context(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Return the context in which a network's layers compute in this precision."""
    if precision == "fp32":
        return nullcontext()  # the meta device has no autocast
    return torch.autocast(device.type, DTYPES[precision])


def prepare_compiler() -> str:
    """Set the cache folder of torch's compiler, and return it. Call this function before the first
    use of the compiler. The folder is the user's setting, or a folder in the user's cache. The
    compiler executes code from the folder, so the folder never lies in a run folder or a shared
    folder. Raise UserError if the user has neither setting nor cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.path.expanduser(os.environ.get(COMPILED) or f"{caches}/nsgf/compiled")
    if chosen.startswith("~"):
        raise UserError(f"train.compile = true: this user has no home folder; set {COMPILED}")
    os.environ[COMPILED] = chosen
    return chosen
