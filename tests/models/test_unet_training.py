"""The UNet under autocast, in either memory layout, with recomputed activations, and compiled."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsgf.config.schema import MLPConfig, UNetConfig
from nsgf.data import DATA_SETS
from nsgf.models import TimePredictorCNN, VelocityMLP
from nsgf.models.unet import Attention, Norm, ResBlock, Stage, UNet
from tests.conftest import shipped
from tests.models.test_unet import awake

SMALL = UNetConfig(channels=32, mult=[1, 2], attention=[8], heads=2)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def small_unet(*, config=SMALL, **options):
    torch.manual_seed(0)
    return awake(UNet((1, 8, 8), config, **options))


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 1, 8, 8, generator=generator), torch.rand(4, generator=generator)


def bfloat16(device="cpu"):
    return torch.autocast(device, dtype=torch.bfloat16)


def gradients(model, *inputs):
    model.zero_grad()
    model(*inputs).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# --- autocast ---


def test_norm_runs_outside_autocast_with_weights_of_its_inputs_type(monkeypatch):
    """CUDA's autocast would promote it to float32; on the CPU only the call itself shows that."""
    seen = []
    original = torch.group_norm

    def spy(x, groups, weight, bias, *how):
        seen.append((x.dtype, weight.dtype, bias.dtype, torch.is_autocast_enabled("cpu")))
        return original(x, groups, weight, bias, *how)

    monkeypatch.setattr(torch, "group_norm", spy)
    norm, x = Norm(32, 64), 3 + torch.randn(2, 64, 4, 4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    expected = functional.group_norm(x, 32, norm.weight, norm.bias)
    torch.testing.assert_close(norm(x), expected)
    seen.clear()
    with bfloat16():
        low = norm(x.bfloat16())
    assert seen == [(torch.bfloat16, torch.bfloat16, torch.bfloat16, False)]
    torch.testing.assert_close(low.float(), expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("device", DEVICES)
def test_unet_is_16_bit_under_autocast_between_convolutions(device):
    model = small_unet(config=UNetConfig(channels=32, mult=[1, 2], attention=[4])).to(device)
    x, t = (z.to(device) for z in images())
    expected = model(x, t)
    types = {}

    def note(name, inputs, output):
        types[name] = {z.dtype for z in (*inputs, output) if torch.is_tensor(z)}

    for name, module in model.named_modules():
        if name and name not in ("stem", "embed", "embed.0"):  # these take float32
            module.register_forward_hook(lambda _, i, o, name=name: note(name, i, o))
    with bfloat16(device):
        output = model(x, t)
    assert len(types) > 50
    assert {name: seen for name, seen in types.items() if seen != {torch.bfloat16}} == {}
    assert (output.float() - expected).norm() < 0.03 * expected.norm()


# --- attention and memory layouts ---


def by_explicit_softmax(layer, x):
    batch, channels, height, width = x.shape
    qkv = layer.qkv(layer.norm(x)).contiguous()
    q, k, v = qkv.view(batch, 3, layer.heads, -1, height * width).unbind(1)
    scores = torch.einsum("bhci,bhcj->bhij", q, k) / (channels / layer.heads) ** 0.5
    h = torch.einsum("bhij,bhcj->bhci", scores.softmax(-1), v)
    return x + layer.out(h.reshape(x.shape))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_attention_and_its_gradients_in_either_layout(layout):
    layer = awake(Attention(64, UNetConfig(heads=4)))
    x = torch.randn(2, 64, 4, 3)
    mine = x.clone().contiguous(memory_format=layout).requires_grad_()
    reference = x.clone().requires_grad_()
    output, expected = layer(mine), by_explicit_softmax(layer, reference)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
    weight = torch.randn_like(x)
    parameters = list(layer.parameters())
    found = torch.autograd.grad((output * weight).sum(), [mine, *parameters])
    wanted = torch.autograd.grad((expected * weight).sum(), [reference, *parameters])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10"])
def test_every_attention_of_shipped_networks_can_use_fused_kernels(name, layout, monkeypatch):
    """torch takes plain matrix products without a word where the last stride is not 1, and kernels
    for unaligned memory where rows do not begin at multiples of 16 bytes, 8 values of 16 bit."""
    config, shape, shapes = shipped(name).model, DATA_SETS[name].shape, set()
    with torch.device("meta"):
        model = UNet(shape, config.unet)
        for layer in model.modules():
            if isinstance(layer, Attention):
                layer.register_forward_pre_hook(lambda _, inputs: shapes.add(inputs[0].shape))
        model(torch.randn(1, *shape), torch.rand(1))
    assert {pixels for *_, pixels in shapes} > set(config.unet.attention)

    original = functional.scaled_dot_product_attention

    def spy(q, k, v):
        for z in (q, k, v):
            assert z.stride(-1) == 1
            assert all(step % 8 == 0 for step in (z.storage_offset(), *z.stride()[:-1]))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where the CPU's does not take it
            return original(q, k, v)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    for size in shapes:
        Attention(size[1], config.unet)(torch.randn(size).contiguous(memory_format=layout))


# --- recomputed activations ---


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_activations_give_the_same_gradients(dropout):
    config = UNetConfig(channels=32, mult=[1, 2], attention=[8], dropout=dropout)
    found = []
    for recompute in (False, True):
        model = small_unet(config=config, checkpoint_activations=recompute)
        torch.manual_seed(5)
        found.append(gradients(model, *images()))
    plain, recomputed = found
    assert list(plain) == list(recomputed)  # the same weights under the same names
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name


def test_each_stage_is_recomputed_once_and_only_for_gradients():
    config = shipped("digits").model.unet
    model, calls = awake(UNet((1, 8, 8), config, checkpoint_activations=True)), []
    stages = [module for module in model.modules() if isinstance(module, Stage)]
    for stage in stages:
        stage.register_forward_pre_hook(lambda module, _: calls.append(id(module)))
    with torch.no_grad():
        model(*images())
    assert sorted(calls) == sorted(map(id, stages))
    calls.clear()
    gradients(model, *images())
    assert sorted(calls) == sorted(2 * list(map(id, stages)))


# --- torch.compile ---


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["unet", "recomputing unet", "mlp", "predictor"])
def test_networks_compile_as_one_graph(name):
    x, t = images()
    if name == "mlp":
        check_compiled(VelocityMLP(2, 2, MLPConfig(width=8)), x[:, 0, 0, :2], t)
    elif name == "predictor":
        check_compiled(TimePredictorCNN((1, 8, 8)), x)
    else:
        config = UNetConfig(channels=32, mult=[1, 1], attention=[4])
        recompute = name == "recomputing unet"
        check_compiled(small_unet(config=config, checkpoint_activations=recompute), x, t)


def check_compiled(model, *inputs):
    """Same output and gradients; fullgraph raises at a graph break."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    wanted = gradients(model, *inputs)
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    compiled(*inputs).square().mean().backward()  # on top of the gradients that are there
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * wanted[name], atol=1e-5, rtol=1e-3, msg=name)


def test_residual_block_compiles_as_one_graph_under_autocast():
    torch._dynamo.reset()
    block = awake(ResBlock(32, 32, 16, UNetConfig()))
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    x, embedding = torch.randn(2, 32, 4, 4), torch.randn(2, 16)
    with bfloat16():
        found, expected = compiled(x.bfloat16(), embedding), block(x.bfloat16(), embedding)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
