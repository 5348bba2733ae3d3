"""Networks for points and images."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nsgf.config.schema import ModelConfig, Shape
from nsgf.models.mlp import TimePredictorCNN, TimePredictorMLP, VelocityMLP

OwnNetwork = nn.Module | Callable[[], nn.Module]
"""A caller's network, of which each phase trains a copy, or a function that makes one. It maps
x (B, *shape), t (B,) and with classes labels (B,), 0 to K (K: no class), to (B, *shape)."""


MOST_VALUES = 4096
"""Largest number of values D of a sample for an affine map; it needs a matrix (D, D)."""


def make_own(own: OwnNetwork) -> nn.Module:
    """Return a copy of a caller's network, or a new one."""
    return copy.deepcopy(own) if isinstance(own, nn.Module) else own()


def velocity_network(config: ModelConfig, shape: Shape, classes: int = 0) -> nn.Module:
    """Return a network that maps x and t (and labels, if ``classes`` > 0) to a velocity. Networks
    for points take no labels."""
    if len(shape) == 1:
        return VelocityMLP(shape[0], config.mlp)
    from nsgf.models.unet import UNet

    recompute = config.checkpoint_activations
    return UNet(shape, config.unet, classes, checkpoint_activations=recompute)


def time_network(config: ModelConfig, shape: Shape) -> nn.Module:
    """Return a network that maps x to a time."""
    if len(shape) == 1:
        return TimePredictorMLP(shape[0], config.mlp)
    return TimePredictorCNN(shape, config.predictor_channels)


class AffineStartNetwork(nn.Module):
    """A velocity network with the map z -> z A + b, which is saved with the weights.

    The map goes a part a of the way from a standard Gaussian to the Gaussian with the data's mean m
    and covariance C: A = (1 - a) I + a C^(1/2) and b = a m. This is the displacement interpolation
    (McCann 1997) of the optimal transport between the two Gaussians.
    """

    matrix: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, shape: Shape) -> None:
        """Start with the identity as the map. ``shape``: shape of one sample."""
        super().__init__()
        self.network = network
        self.register_buffer("matrix", torch.eye(math.prod(shape)))
        self.register_buffer("shift", torch.zeros(math.prod(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the velocity of the network.  (B, *shape)"""
        return self.network(*inputs)

    def start(self, noise: Tensor, *labels: Tensor) -> Tensor:
        """Return the start of each line for noise (B, *shape). Labels have no effect."""
        return torch.addmm(self.shift, noise.flatten(1), self.matrix).view_as(noise)

    def set_map(self, mean: Tensor, covariance: Tensor, part: float) -> None:
        """Set the map from the data's moments, float64, (D,) and (D, D), and ``part`` in [0, 1]."""
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T  # rounding can give values < 0
        self.matrix.copy_((1 - part) * torch.eye(len(mean)) + part * root)
        self.shift.copy_(part * mean)
