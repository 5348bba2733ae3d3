import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from nsgf.config.schema import UNetConfig
from nsgf.models.unet import Attention, Downsample, ResBlock, Stage, UNet, Upsample

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


def awake(model: nn.Module) -> nn.Module:
    """Give the zero-initialised layers random weights, so that every branch is heard."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture
def small() -> nn.Module:
    return awake(UNet((1, 8, 8), SHAPES["digits"][1])).eval()


@pytest.mark.parametrize("name", SHAPES)
def test_shape_and_gradient_of_every_weight(name):
    shape, config = SHAPES[name]
    model = awake(UNet(shape, config))
    x = torch.randn(2, *shape)
    y = model(x, torch.tensor([0.1, 0.9]))
    assert y.shape == x.shape
    y.square().mean().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_classes_add_an_embedding_and_nothing_else():
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
def test_answer_depends_on_the_class_of_each_sample(dtype):
    model = awake(UNet((1, 8, 8), SHAPES["digits"][1], 3)).eval()
    x, t = torch.ones(5, 1, 8, 8), torch.full((5,), 0.5)
    y = model(x, t, torch.tensor([0, 1, 2, 3, 1], dtype=dtype))
    assert torch.allclose(y[1], y[4], atol=1e-5)
    for one, other in ((0, 1), (0, 3), (2, 3)):
        assert not torch.allclose(y[one], y[other], atol=1e-2)


@pytest.mark.parametrize(("classes", "told"), [(3, ()), (0, (torch.zeros(2).long(),))])
def test_labels_belong_to_networks_with_classes(classes, told):
    model = UNet((1, 8, 8), SHAPES["digits"][1], classes)
    with pytest.raises(ValueError, match="labels are for networks with classes"):
        model(torch.zeros(2, 1, 8, 8), torch.zeros(2), *told)


def test_paper_sized_networks_have_the_known_number_of_weights():
    cifar10 = UNetConfig(channels=128, res_blocks=2, mult=[1, 2, 2, 2], attention=[16], heads=4)
    with torch.device("meta"):
        count = sum(p.numel() for p in UNet((3, 32, 32), cifar10).parameters())
    assert 38e6 < count < 38.6e6


def test_output_starts_at_zero():
    model = UNet((1, 8, 8), SHAPES["digits"][1])
    assert not model(torch.randn(2, 1, 8, 8), torch.rand(2)).any()


def test_time_changes_the_output(small):
    x = torch.randn(1, 1, 8, 8)
    a, b, c = (small(x, torch.tensor([t])) for t in (0.0, 0.2, 1.0))
    for one, other in ((a, b), (b, c), (a, c)):
        assert (one - other).abs().max() > 1e-3


def test_each_sample_sees_its_own_time(small):
    x, t = torch.randn(3, 1, 8, 8), torch.tensor([0.0, 0.4, 1.0])
    alone = torch.cat([small(x[i : i + 1], t[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(small(x, t), alone, atol=1e-5, rtol=1e-4)


def test_single_sample_may_be_halved_down_to_one_pixel():
    """Groups of one channel, of which a single pixel is left: torch's own module refuses that.
    Their spread is 0, so that rounding is divided by the norm's 1e-5 alone."""
    model = awake(UNet((1, 8, 8), UNetConfig(channels=32, mult=[1, 1, 1, 1])))
    x, t = torch.randn(2, 1, 8, 8), torch.rand(2)
    alone = model(x[:1], t[:1])
    torch.testing.assert_close(alone, model(x, t)[:1], atol=1e-3, rtol=1e-2)
    alone.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_every_skip_connection_changes_the_output(small):
    """Replace one kept activation at a time by zeros where the way up takes it."""
    x, t = torch.randn(1, 1, 8, 8), torch.tensor([0.3])
    expected = small(x, t)
    stages = [layer for layer in small.up if isinstance(layer, Stage)]
    kept = 1 + len(small.down)
    assert len(stages) == kept
    for stage in stages:
        skip_width = stage.block.first[0].num_channels - _incoming(small, stage)

        def cut(_module, inputs, width=skip_width):
            h = inputs[0].clone()
            h[:, -width:] = 0
            return h, inputs[1]

        handle = stage.register_forward_pre_hook(cut)
        assert (small(x, t) - expected).abs().max() > 1e-4
        handle.remove()


def _incoming(model: UNet, stage: Stage) -> int:
    """Channels that reach a stage of the way up from the layer before it."""
    width = model.middle[-1].block.second[-1].out_channels
    for layer in model.up:
        if layer is stage:
            return width
        if isinstance(layer, Stage):
            width = layer.block.second[-1].out_channels
    raise AssertionError


def test_skips_are_joined_last_first(small):
    """The first stage of the way up receives the last activation of the way down."""
    seen: dict[str, torch.Tensor] = {}
    small.down[-1].register_forward_hook(lambda m, i, o: seen.update(last=o))
    small.up[0].register_forward_pre_hook(lambda m, i: seen.update(joined=i[0]))
    small.stem.register_forward_hook(lambda m, i, o: seen.update(stem=o))
    small.up[-1].register_forward_pre_hook(lambda m, i: seen.update(final=i[0]))
    small(torch.randn(1, 1, 8, 8), torch.tensor([0.5]))
    width = seen["last"].shape[1]
    assert torch.equal(seen["joined"][:, -width:], seen["last"])
    assert torch.equal(seen["final"][:, -32:], seen["stem"])


def test_attention_sits_where_it_is_asked_for():
    def attended(resolutions):
        config = UNetConfig(channels=32, mult=[1, 2], attention=resolutions)
        return [
            stage.attention is not None
            for stage in UNet((1, 8, 8), config).down
            if isinstance(stage, Stage)
        ]

    assert attended([]) == [False, False]
    assert attended([8]) == [True, False]
    assert attended([4]) == [False, True]


def test_attention_is_softmax_over_all_pixels():
    torch.manual_seed(0)
    layer = awake(Attention(64, UNetConfig(heads=2)))
    x = torch.randn(2, 64, 3, 3)
    q, k, v = layer.qkv(layer.norm(x)).reshape(2, 3, 2, 32, 9).unbind(1)
    weights = torch.softmax(torch.einsum("bhci,bhcj->bhij", q, k) / 32**0.5, dim=-1)
    mixed = torch.einsum("bhij,bhcj->bhci", weights, v).reshape(2, 64, 3, 3)
    torch.testing.assert_close(layer(x, None), x + layer.out(mixed), atol=1e-5, rtol=1e-4)


def test_residual_block_is_its_formula():
    """norm(h) (1 + scale) + shift; then SiLU, convolution and the shortcut."""
    block = awake(ResBlock(32, 64, 16, UNetConfig()))
    x, embedding = torch.randn(3, 32, 4, 4), torch.randn(3, 16)
    norm, _, convolution = block.first
    h = convolution(silu(norm(x)))
    time = block.time[1](silu(embedding))[:, :, None, None]
    h = block.norm(h) * (1 + time[:, :64]) + time[:, 64:]
    expected = block.shortcut(x) + block.second[2](silu(h))
    torch.testing.assert_close(block(x, embedding), expected)


def test_down_and_up_change_the_resolution_by_two():
    x = torch.randn(1, 4, 14, 14)
    assert Downsample(4)(x, None).shape == (1, 4, 7, 7)
    assert Upsample(4)(x).shape == (1, 4, 28, 28)


def test_dropout_acts_in_training_only():
    model = awake(UNet((1, 8, 8), UNetConfig(channels=32, mult=[1], dropout=0.5)))
    x, t = torch.randn(1, 1, 8, 8), torch.zeros(1)
    assert not torch.equal(model(x, t), model(x, t))
    model.eval()
    assert torch.equal(model(x, t), model(x, t))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (UNetConfig(channels=48), "multiple of 32"),
        (UNetConfig(mult=[1, 1, 1, 1, 1]), "levels"),
        (UNetConfig(mult=[]), "levels"),
        (UNetConfig(attention=[5]), "attention"),
        (UNetConfig(heads=3), "heads"),
    ],
)
def test_impossible_architectures_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        UNet((1, 8, 8), config)
