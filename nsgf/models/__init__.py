"""Networks for points and images."""

import copy
from collections.abc import Callable

from torch import nn

from nsgf.config.schema import ModelConfig
from nsgf.models.mlp import TimePredictorCNN, TimePredictorMLP, VelocityMLP
from nsgf.models.unet import UNet

OwnNetwork = nn.Module | Callable[[], nn.Module]
"""A caller's network, of which each phase trains a copy, or a function that makes one. It maps
x (B, *shape), t (B,) and with classes labels (B,), 0 to K (K: no class), to (B, *shape)."""


def make_own(own: OwnNetwork) -> nn.Module:
    """Return a copy of a caller's network, or a new one."""
    return copy.deepcopy(own) if isinstance(own, nn.Module) else own()


def velocity_network(config: ModelConfig, shape: tuple[int, ...], classes: int = 0) -> nn.Module:
    """Return a network that maps x and t (and labels, if ``classes`` > 0) to a velocity. Networks
    for points take no labels."""
    if len(shape) == 1:
        return VelocityMLP(shape[0], config.mlp)
    recompute = config.checkpoint_activations
    return UNet(shape, config.unet, classes, checkpoint_activations=recompute)


def time_network(config: ModelConfig, shape: tuple[int, ...]) -> nn.Module:
    """Return a network that maps x to a time."""
    if len(shape) == 1:
        return TimePredictorMLP(shape[0], config.mlp)
    return TimePredictorCNN(shape, config.predictor_channels)
