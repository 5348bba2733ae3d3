import pytest
import torch
from torch import nn

from nsgf.config.schema import MLPConfig
from nsgf.models import TimePredictorCNN, TimePredictorMLP, VelocityMLP


def learns(model):
    """Whether every weight got a gradient."""
    return all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_velocity_network_has_the_layers_of_the_paper_and_sees_place_and_time():
    model, x, t = VelocityMLP(2, 2, MLPConfig(width=256)), torch.randn(5, 2), torch.rand(5)
    linear = [layer for layer in model.layers if isinstance(layer, nn.Linear)]
    assert linear[0].in_features == 34
    assert [layer.out_features for layer in linear] == [256, 256, 256, 2]
    v = model(x, t)
    assert v.shape == (5, 2)
    assert (v - model(x, t + 0.1)).abs().max() > 1e-3
    assert (v - model(x + 1.0, t)).abs().max() > 1e-3
    v.square().sum().backward()
    assert learns(model)


@pytest.mark.parametrize(
    ("shape", "channels", "inputs"),
    [
        ((2,), None, None),
        ((1, 8, 8), [32, 64, 128], 128),
        ((1, 28, 28), [32, 64, 128, 256], 256),
        ((3, 32, 32), [32, 64, 128, 256], 1024),
    ],
)
def test_time_predictor_has_the_layers_of_the_paper_for_each_image_size(shape, channels, inputs):
    if channels is None:
        model = TimePredictorMLP(2, 1, MLPConfig())
    else:
        model = TimePredictorCNN(shape, channels)
        kinds = [type(layer) for layer in model.features]
        assert kinds == [nn.Conv2d, nn.ReLU, nn.AvgPool2d] * len(channels)
        assert model.head.in_features == inputs
    t = model(torch.randn(4, *shape))
    assert t.shape == (4,)
    assert 0 < t.min() <= t.max() < 1
    t.sum().backward()
    assert learns(model)
