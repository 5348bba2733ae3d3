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


def test_velocity_network_sees_the_class():
    """Without classes, the initial weights are the same."""
    torch.manual_seed(0)
    plain = VelocityMLP(2, 2, MLPConfig(width=16))
    torch.manual_seed(0)
    model = VelocityMLP(2, 2, MLPConfig(width=16), classes=3)
    assert all(
        torch.equal(weights, model.state_dict()[name])
        for name, weights in plain.state_dict().items()
    )
    assert model.classes.num_embeddings == 4  # the last label means no class
    x = torch.randn(1, 2).expand(4, 2)
    t = torch.full((4,), 0.5)
    v = model(x, t, torch.arange(4))
    distances = torch.cdist(v, v) + torch.eye(4)
    assert distances.min() > 1e-3
    v.square().sum().backward()
    assert learns(model)
    with pytest.raises(ValueError, match="label"):
        model(x, t)
    with pytest.raises(ValueError, match="label"):
        plain(x, t, torch.arange(4))


@pytest.mark.parametrize(
    ("shape", "layers", "inputs"),
    [
        ((2,), None, None),
        ((3, 1, 5), 0, 15),
        ((3, 2, 2), 1, 32),
        ((1, 7, 15), 2, 64 * 1 * 3),
        ((1, 8, 8), 3, 128),
        ((1, 28, 28), 4, 256),
        ((3, 32, 32), 4, 1024),
    ],
)
def test_time_predictor_has_the_layers_of_the_paper_for_each_image_size(shape, layers, inputs):
    """Each halves the image, so small ones have fewer."""
    if layers is None:
        model = TimePredictorMLP(2, 1, MLPConfig())
    else:
        model = TimePredictorCNN(shape)
        kinds = [type(layer) for layer in model.features]
        assert kinds == [nn.Conv2d, nn.ReLU, nn.AvgPool2d] * layers
        assert model.head.in_features == inputs
    t = model(torch.randn(4, *shape))
    assert t.shape == (4,)
    assert 0 < t.min() <= t.max() < 1
    t.sum().backward()
    assert learns(model)
