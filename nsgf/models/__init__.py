"""Networks for points, time predictors and affine starts. The module ``unet`` has the network for
images."""

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from nsgf.config.schema import MLPConfig, Shape

Linear = partial(nn.Linear, dtype=torch.float32)
Conv2d = partial(nn.Conv2d, dtype=torch.float32)
"""Layers in float32, independent of the caller's default dtype."""

UserNetwork = nn.Module | Callable[[], nn.Module]
"""A caller's network, or a function that makes a network. Each phase trains a copy. The network
maps x (B, *shape) and t (B,) to (B, *shape). With classes it also takes labels (B,), where K means
no class."""
MOST_VALUES = 4096
"""Largest number D of values in a sample for an affine map. The map needs a matrix (D, D)."""
PREDICTOR_CHANNELS = 32, 64, 128, 256
"""Channels of the time predictor's convolutions, as in the paper. A pooling layer after each
convolution halves the resolution."""
MLP_FASTEST = 25.0
MLP_SLOWEST = 0.5
TIME_FEATURES = 32
"""Number of cosines and sines of t that are appended to the input."""


def make_network(user_network: UserNetwork) -> nn.Module:
    """Return a copy of a caller's network, or the network that a caller's function makes, with its
    weights in float32."""
    if isinstance(user_network, nn.Module):
        return copy.deepcopy(user_network).float()
    network = user_network()
    return network.float() if isinstance(network, nn.Module) else network


class AffineStartNetwork(nn.Module):
    """A velocity network with the map z -> z A + b, which is saved with the weights.

    The map covers the fraction a of the way from a standard Gaussian to the Gaussian with the
    data's mean m and covariance C: A = (1 - a) I + a C^(1/2) and b = a m. For a source with mean n
    and covariance S, C^(1/2) becomes M = S^(-1/2) (S^(1/2) C S^(1/2))^(1/2) S^(-1/2), and b = a (m
    - n M). This is the displacement interpolation (McCann 1997) of the optimal transport between
    the two Gaussians.
    """

    matrix: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, shape: Shape) -> None:
        """Start with the identity as the map. ``shape``: shape of one sample."""
        super().__init__()
        self.network = network
        self.register_buffer("matrix", torch.eye(math.prod(shape), dtype=torch.float32))
        self.register_buffer("shift", torch.zeros(math.prod(shape), dtype=torch.float32))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the velocity of the network.  (B, *shape)"""
        return self.network(*inputs)

    def start(self, noise: Tensor, *labels: Tensor) -> Tensor:
        """Return the start of each line for noise (B, *shape). Labels have no effect."""
        return torch.addmm(self.shift, noise.flatten(1), self.matrix).view_as(noise)

    def set_map(
        self,
        mean: Tensor,
        covariance: Tensor,
        part: float,
        source: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Set the map. ``mean`` (D,) and ``covariance`` (D, D), float64, are those of the data.
        ``part`` in [0, 1] is the fraction a. ``source``: mean and covariance of the source; None: a
        standard Gaussian."""
        identity = torch.eye(len(mean), dtype=torch.float32)
        if source is None:
            matrix = covariance_root(covariance)
            shift = mean
        else:
            source_mean, source_covariance = source
            root = covariance_root(source_covariance)
            inverse = torch.linalg.pinv(root, rtol=1e-6, hermitian=True)
            matrix = inverse @ covariance_root(root @ covariance @ root) @ inverse
            # directions in which the source has no spread keep their values
            matrix += torch.eye(len(mean), dtype=mean.dtype) - inverse @ root
            shift = mean - source_mean @ matrix
        self.matrix.copy_((1 - part) * identity + part * matrix)
        self.shift.copy_(part * shift)


def covariance_root(covariance: Tensor) -> Tensor:
    """Return the symmetric square root of a covariance (D, D), float64."""
    values, vectors = torch.linalg.eigh(covariance)
    # rounding can make values negative
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def time_features(t: Tensor, dim: int, *, fastest: float, slowest: float) -> Tensor:
    """Return cosines and sines of t (B,) at ``dim / 2`` geometrically spaced angular frequencies,
    radians per unit of t.  (B, dim)

    This is the sinusoidal embedding of diffusion models (Dhariwal and Nichol 2021), with explicit
    frequencies.
    """
    exponent = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float32, device=t.device)
    frequency = fastest * torch.exp(exponent * math.log(slowest / fastest))
    angle = t.float().unsqueeze(1) * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1)


class PointNetwork(nn.Module):
    """Linear layers for points x in R^D, with SiLU between them."""

    features = 0
    """Number of inputs besides x."""

    def __init__(self, dim: int, outputs: int, config: MLPConfig) -> None:
        super().__init__()
        width = config.width
        self.layers = nn.Sequential(
            Linear(dim + self.features, width),
            nn.SiLU(),
            Linear(width, width),
            nn.SiLU(),
            Linear(width, width),
            nn.SiLU(),
            Linear(width, outputs),
        )


class VelocityMLP(PointNetwork):
    """v_theta(x, t) or u_delta(x, t) for x in R^D."""

    features = TIME_FEATURES

    def __init__(self, dim: int, outputs: int, config: MLPConfig, classes: int = 0) -> None:
        """``classes``: number of classes K; 0: the network takes no labels."""
        super().__init__(dim, outputs, config)
        # create the classes last, so that the initial weights above do not depend on classes
        self.classes = (
            nn.Embedding(classes + 1, TIME_FEATURES, dtype=torch.float32) if classes else None
        )

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """x (B, D), t (B,) in [0, 1] -> velocity (B, D).

        ``label``: integers in [0, K], where K means no class, (B,); only for a network with
        classes.

        Raises:
            ValueError: labels are missing, or the network takes no labels.
        """
        if (self.classes is None) != (label is None):
            raise ValueError("label: needed if the network has classes, otherwise must be None")
        features = time_features(t, TIME_FEATURES, fastest=MLP_FASTEST, slowest=MLP_SLOWEST)
        if self.classes is not None:
            features = features + self.classes(label)
        return self.layers(torch.cat([x, features.to(x.dtype)], dim=1))


class TimePredictorMLP(PointNetwork):
    """t_phi(x) for x in R^D."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, D) -> time in (0, 1), (B,)."""
        return self.layers(x).squeeze(1).sigmoid()


class TimePredictorCNN(nn.Module):
    """t_phi(x) for images (appendix of the paper): layers of 3x3 convolution, ReLU and 2x2 average
    pool, then a linear map and a sigmoid."""

    def __init__(self, image_shape: Shape) -> None:
        """``image_shape``: (C, H, W). Images with a side of fewer than 16 pixels have fewer
        layers."""
        super().__init__()
        inputs, height, width = image_shape
        channels = PREDICTOR_CHANNELS[: min(height, width).bit_length() - 1]
        layers = []
        for outputs in channels:
            layers += [Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        shrunk = 2 ** len(channels)
        self.head = Linear(inputs * (height // shrunk) * (width // shrunk), 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> time in (0, 1), (B,)."""
        return self.head(self.features(x).flatten(1)).squeeze(1).sigmoid()
