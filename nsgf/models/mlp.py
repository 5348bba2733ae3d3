"""Networks for points, time predictors, and sinusoidal time features."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from nsgf.config.schema import MLPConfig, Shape

FASTEST = 25.0
SLOWEST = 0.5
TIME_FEATURES = 32
"""Number of cosines and sines of t that are appended to the input."""
HIDDEN_LAYERS = 3


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


def _layers(inputs: int, outputs: int, config: MLPConfig) -> nn.Sequential:
    widths = [inputs, *[config.width] * HIDDEN_LAYERS]
    hidden = [part for w in pairwise(widths) for part in (nn.Linear(*w), nn.SiLU())]
    return nn.Sequential(*hidden, nn.Linear(config.width, outputs))


class VelocityMLP(nn.Module):
    """v_theta(x, t) or u_delta(x, t) for x in R^D."""

    def __init__(self, dim: int, config: MLPConfig) -> None:
        super().__init__()
        self.layers = _layers(dim + TIME_FEATURES, dim, config)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x (B, D), t (B,) in [0, 1] -> velocity (B, D)."""
        features = time_features(t, TIME_FEATURES, fastest=FASTEST, slowest=SLOWEST)
        return self.layers(torch.cat([x, features.to(x.dtype)], dim=1))


class TimePredictorMLP(nn.Module):
    """t_phi(x) for x in R^D."""

    def __init__(self, dim: int, config: MLPConfig) -> None:
        super().__init__()
        self.layers = _layers(dim, 1, config)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, D) -> time in (0, 1), (B,)."""
        return self.layers(x).squeeze(1).sigmoid()


class TimePredictorCNN(nn.Module):
    """t_phi(x) for images (appendix of the paper): layers of 3x3 convolution, ReLU and 2x2 average
    pool, then a linear map and a sigmoid."""

    def __init__(self, image_shape: Shape, channels: list[int]) -> None:
        """``image_shape``: (C, H, W); ``channels``: output channels of each convolution."""
        super().__init__()
        inputs, height, width = image_shape
        layers: list[nn.Module] = []
        for outputs in channels:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
            inputs = outputs
            height = height // 2
            width = width // 2
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs * height * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> time in (0, 1), (B,)."""
        return self.head(self.features(x).flatten(1)).squeeze(1).sigmoid()
