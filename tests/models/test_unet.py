import pytest
import torch
from torch.nn.functional import silu

from nsgf.config.schema import UNetConfig
from nsgf.models.unet import ResBlock, Stage, UNet

SHAPES = {
    "digits": ((1, 8, 8), UNetConfig(channels=32, mult=[1, 2], attention=[4])),
    "mnist": ((1, 28, 28), UNetConfig(channels=32, mult=[1, 2, 2], attention=[14])),
    "cifar10": (
        (3, 32, 32),
        UNetConfig(channels=32, res_blocks=2, mult=[1, 2, 2, 2], attention=[16], heads=2),
    ),
    "wide at the top": ((1, 8, 8), UNetConfig(channels=32, mult=[3, 1, 2])),
    "one pixel": ((1, 8, 8), UNetConfig(channels=64, mult=[1, 1, 1, 2], attention=[1])),
}


def awake(model):
    """Give the zero-initialised layers random weights, so that every branch is heard."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def small():
    return awake(UNet((1, 8, 8), SHAPES["digits"][1])).eval()


@pytest.mark.parametrize("name", SHAPES)
def test_shape_and_gradient_of_every_weight(name):
    shape, config = SHAPES[name]
    model, x, t = UNet(shape, config), torch.randn(2, *shape), torch.tensor([0.1, 0.9])
    assert not model(x, t).any()  # zero-initialised
    y = awake(model)(x, t)
    assert y.shape == x.shape
    y.square().mean().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_classes_add_only_an_embedding():
    """Checkpoints of networks without classes fit, and begin with the same weights."""
    shape, config = SHAPES["digits"]
    torch.manual_seed(0)
    plain = UNet(shape, config).state_dict()
    torch.manual_seed(0)
    told = UNet(shape, config, 10).state_dict()
    assert told.pop("classes.weight").shape == (11, 4 * config.channels)
    assert list(told) == list(plain)
    assert all(torch.equal(told[name], weight) for name, weight in plain.items())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_output_depends_on_the_class_of_each_sample(dtype):
    model = awake(UNet((1, 8, 8), SHAPES["digits"][1], 3)).eval()
    x, t = torch.ones(5, 1, 8, 8), torch.full((5,), 0.5)
    y = model(x, t, torch.tensor([0, 1, 2, 3, 1], dtype=dtype))
    assert torch.allclose(y[1], y[4], atol=1e-5)
    for one, other in ((0, 1), (0, 3), (2, 3)):
        assert not torch.allclose(y[one], y[other], atol=1e-2)
    for network, label in ((model, None), (UNet((1, 8, 8), SHAPES["digits"][1]), t.long())):
        with pytest.raises(ValueError, match="label: needed"):
            network(x, t, label)


def test_each_sample_sees_its_own_time(small):
    x, t = torch.randn(1, 1, 8, 8).expand(3, -1, -1, -1), torch.tensor([0.0, 0.4, 1.0])
    alone = torch.cat([small(x[i : i + 1], t[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(small(x, t), alone, atol=1e-5, rtol=1e-4)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (alone[one] - alone[other]).abs().max() > 1e-3


def test_single_sample_at_one_pixel_resolution_works():
    """Groups of one channel, of which a single pixel is left: torch's own module refuses that.
    Their spread is 0, so that rounding is divided by the norm's 1e-5 alone."""
    model = awake(UNet((1, 8, 8), UNetConfig(channels=32, mult=[1, 1, 1, 1])))
    x, t = torch.randn(2, 1, 8, 8), torch.rand(2)
    alone = model(x[:1], t[:1])
    torch.testing.assert_close(alone, model(x, t)[:1], atol=1e-3, rtol=1e-2)
    alone.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_every_skip_connection_changes_the_output(small):
    """Each stage of the way up takes one kept activation, the last one first."""
    x, t = torch.randn(1, 1, 8, 8), torch.tensor([0.3])
    kept = []
    for layer in (small.stem, *small.down):
        layer.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
    expected = small(x, t)
    stages, skips = [layer for layer in small.up if isinstance(layer, Stage)], kept[::-1]
    for stage, skip in zip(stages, skips, strict=True):

        def cut(_module, inputs, skip=skip):
            assert torch.equal(inputs[2], skip)
            return *inputs[:2], torch.zeros_like(skip)

        handle = stage.register_forward_pre_hook(cut)
        assert (small(x, t) - expected).abs().max() > 1e-4
        handle.remove()


def test_attention_is_only_at_the_configured_resolutions():
    for resolutions, expected in (([], [False, False]), ([8], [True, False]), ([4], [False, True])):
        config = UNetConfig(channels=32, mult=[1, 2], attention=resolutions)
        stages = [one for one in UNet((1, 8, 8), config).down if isinstance(one, Stage)]
        assert [stage.attention is not None for stage in stages] == expected


def test_residual_block_equals_its_formula():
    """norm(h) (1 + scale) + shift; then SiLU, convolution and the shortcut."""
    block = awake(ResBlock(32, 64, 16, UNetConfig()))
    x, embedding = torch.randn(3, 32, 4, 4), torch.randn(3, 16)
    norm, _, convolution = block.first
    h = convolution(silu(norm(x)))
    time = block.time[1](silu(embedding))[:, :, None, None]
    h = block.norm(h) * (1 + time[:, :64]) + time[:, 64:]
    torch.testing.assert_close(block(x, embedding), block.shortcut(x) + block.second[2](silu(h)))


LOSSES = [4.724362, 3.019573, 2.172138, 1.030415]
"""Losses of a small network in its first updates."""


def test_losses_of_the_first_updates_are_unchanged():
    """They depend on each part of the network, also on the frequencies of its time features."""
    torch.manual_seed(0)
    model = awake(UNet(*SHAPES["digits"]))
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(2, 16, 1, 8, 8, generator=generator)
    t = torch.rand(16, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in LOSSES:
        loss = (model(x, t) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(LOSSES, rel=2e-3)


def test_dropout_acts_in_training():
    model = awake(UNet((1, 8, 8), UNetConfig(channels=32, mult=[1], dropout=0.5)))
    x, t = torch.randn(1, 1, 8, 8), torch.zeros(1)
    assert not torch.equal(model(x, t), model(x, t))
