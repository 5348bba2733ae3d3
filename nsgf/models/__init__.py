"""The networks of NSGF++ and of the methods it is compared with."""

import torch
from torch import nn

from nsgf.config.schema import ModelConfig, PhaseName
from nsgf.models.mlp import TimePredictorMLP, VelocityMLP
from nsgf.models.time_predictor import TimePredictorCNN
from nsgf.models.unet import UNet


def build_network(
    phase: PhaseName, config: ModelConfig, shape: tuple[int, ...], seed: int
) -> nn.Module:
    """The network that a phase trains, initialised from ``seed``.

    Args:
        phase: ``predictor`` t_phi; all others have a velocity network of one architecture.
        config: architecture.
        shape: shape of one sample.
        seed: seed of the initial weights; torch's global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if phase == "predictor":
            if config.kind == "mlp":
                return TimePredictorMLP(shape[0], config.mlp)
            return TimePredictorCNN(shape, config.predictor_channels)
        if config.kind == "mlp":
            return VelocityMLP(shape[0], config.mlp)
        return UNet(shape, config.unet, checkpoint_activations=config.checkpoint_activations)


def count_parameters(model: nn.Module) -> int:
    """Number of trained values."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


__all__ = ["build_network", "count_parameters"]
