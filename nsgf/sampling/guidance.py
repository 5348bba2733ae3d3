"""Classes of samples, and classifier-free guidance (Ho and Salimans 2022).

Shapes: B batch, n samples, *shape one sample.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from nsgf.config.schema import Config
from nsgf.data import class_labels, data_classes
from nsgf.system.errors import UserError

WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Labels = Callable[[range], Tensor]
"""Classes of the samples at some positions, in [0, K - 1], int64, (n,)."""


def asked_labels(config: Config) -> Labels | None:
    """Return the classes that ``sampling.label`` asks for; None if networks are given no
    classes."""
    classes, label = data_classes(config.data), config.sampling.label
    if not classes:
        return None
    if label is None:
        return lambda positions: class_labels(positions, classes).long()
    return lambda positions: torch.full((len(positions),), label)


def checked_labels(config: Config, labels: object, count: int) -> Tensor:
    """Return classes that a caller gives for ``count`` samples.  int64, (count,)

    Raises:
        UserError: networks are told no classes, or these are not ``count`` whole numbers in a
            tensor, in [0, K - 1].
    """
    classes = data_classes(config.data)
    if not classes:
        raise UserError(
            "labels: have no effect without data.conditional, with which a run is trained; leave "
            "them out"
        )
    wanted = f"must be a tensor of whole numbers, ({count},), one for each sample"
    if not isinstance(labels, Tensor):
        raise UserError(f"labels: {wanted}, not {type(labels).__name__}")
    if labels.shape != (count,) or labels.dtype not in WHOLE_NUMBERS:
        kind = str(labels.dtype).removeprefix("torch.")
        raise UserError(f"labels: {wanted}, not {kind}, {tuple(labels.shape)}")
    labels = labels.long()
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(f"labels = {int(wrong[0])}: must be of 0 to {classes - 1}")
    return labels


def told(
    network: Callable[..., Tensor], labels: Tensor, config: Config
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the velocity (x, t) of samples with these labels, (B,), under
    ``sampling.guidance``."""
    classes, weight = data_classes(config.data), config.sampling.guidance
    return partial(guided, network, labels, torch.full_like(labels, classes), weight)


def guided(
    network: Callable[..., Tensor],
    labels: Tensor,
    none: Tensor,
    weight: float,
    x: Tensor,
    t: Tensor,
) -> Tensor:
    """Return a + w (b - a) with a = network(x, t, none) and b = network(x, t, labels); b for w = 1,
    which takes one call.

    Args:
        network: of states x (B, *shape), times t (B,) and labels (B,).
        labels, none: classes, and what stands for none of them, (B,).
        weight: w.
        x, t: states and their times.
    """
    answer = network(x, t, labels)
    if weight == 1:
        return answer
    free = network(x, t, none)
    return free + weight * (answer - free)


def calls_per_answer(config: Config) -> int:
    """Return the number of network calls for one velocity."""
    return 2 if data_classes(config.data) and config.sampling.guidance != 1 else 1
