"""Sinusoidal features of time."""

import math

import torch
from torch import Tensor


def time_features(t: Tensor, dim: int, *, fastest: float, slowest: float) -> Tensor:
    """Cosines and sines of t (B,) at ``dim / 2`` geometrically spaced angular frequencies, radians
    per unit of t.  (B, dim)

    The design is the sinusoidal embedding of diffusion models (Dhariwal and Nichol 2021), with the
    frequencies given instead of implied.
    """
    half = dim // 2
    exponent = torch.linspace(0.0, 1.0, half, device=t.device) if half > 1 else torch.zeros(1)
    frequency = fastest * torch.exp(exponent.to(t.device) * math.log(slowest / fastest))
    angle = t.float().unsqueeze(1) * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=1)
