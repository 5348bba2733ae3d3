import pytest
import torch
from torch import nn

from nsgf.models.time_predictor import TimePredictorCNN


@pytest.mark.parametrize(
    ("shape", "channels", "inputs"),
    [
        ((1, 8, 8), [32, 64, 128], 128),
        ((1, 28, 28), [32, 64, 128, 256], 256),
        ((3, 32, 32), [32, 64, 128, 256], 1024),
    ],
)
def test_the_papers_layers_for_each_image_size(shape, channels, inputs):
    model = TimePredictorCNN(shape, channels)
    kinds = [type(layer) for layer in model.features]
    assert kinds == [nn.Conv2d, nn.ReLU, nn.AvgPool2d] * len(channels)
    assert model.head.in_features == inputs
    t = model(torch.randn(4, *shape))
    assert t.shape == (4,)
    assert t.min() > 0
    assert t.max() < 1
    t.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_output_saturates_at_one_not_beyond():
    model = TimePredictorCNN((1, 8, 8), [4])
    nn.init.constant_(model.head.bias, 50.0)
    assert model(torch.zeros(1, 1, 8, 8)).item() == 1.0


@pytest.mark.parametrize("channels", [[], [8, 8, 8, 8]])
def test_too_many_or_no_layers_are_refused(channels):
    with pytest.raises(ValueError, match="do not fit"):
        TimePredictorCNN((1, 8, 8), channels)
