"""UNet for images, after Dhariwal and Nichol 2021 ("ADM"), written for this project.

It has GroupNorm, SiLU, residual blocks with scale and shift from the time embedding, self-attention
at chosen resolutions, and zero-initialised output layers. Time and class embeddings are summed.

B: batch size; C: channels; H: height; W: width; E: size of the time embedding.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from nsgf.config.schema import Shape, UNetConfig
from nsgf.models import Conv2d, Linear, time_features

GROUPS = 32
UNET_FASTEST = 1000.0
UNET_SLOWEST = 0.1


def zero_init(layer: nn.Module) -> nn.Module:
    """Set all parameters of a layer to zero, so that its branch adds nothing at first."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def keep_type(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which autocast does not convert a 16-bit x to float32."""
    is_short = x.dtype != torch.float32  # the meta device, where x has 32 bits, has no autocast
    return torch.autocast(x.device.type, enabled=False) if is_short else nullcontext()


class Norm(nn.GroupNorm):
    """GroupNorm that returns the type of its input, also under autocast. It accepts a single sample
    of one pixel, which ``torch.nn.GroupNorm`` refuses.

    Autocast on CUDA would run group_norm in float32. Then the tensors up to the next convolution,
    which are stored for the backward pass, would have twice the size. The result would hardly be
    more exact: for 16-bit inputs, the kernels accumulate mean and variance in float32 anyway.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(groups, channels, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> the same shape and type."""
        with keep_type(x):
            return torch.group_norm(
                x,
                self.num_groups,
                self.weight.to(x.dtype),
                self.bias.to(x.dtype),
                self.eps,
                torch.backends.cudnn.enabled,
            )


class ResBlock(nn.Module):
    """Two convolutions with a residual connection, conditioned on time."""

    def __init__(self, inputs: int, outputs: int, embedding: int, config: UNetConfig) -> None:
        super().__init__()
        self.first = nn.Sequential(
            Norm(GROUPS, inputs), nn.SiLU(), Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), Linear(embedding, 2 * outputs))
        self.norm = Norm(GROUPS, outputs)
        self.second = nn.Sequential(
            nn.SiLU(),
            nn.Dropout(config.dropout),
            zero_init(Conv2d(outputs, outputs, 3, padding=1)),
        )
        self.shortcut = Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (B, C_in, H, W), embedding (B, E) -> (B, C_out, H, W)."""
        scale, shift = self.time(embedding)[:, :, None, None].chunk(2, dim=1)
        h = torch.addcmul(shift, self.norm(self.first(x)), 1 + scale)
        return self.shortcut(x) + self.second(h)


class Attention(nn.Module):
    """Self-attention over all pixels, with a residual connection."""

    def __init__(self, channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = Norm(GROUPS, channels)
        self.qkv = Conv2d(channels, 3 * channels, 1)
        self.out = zero_init(Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, C, H, W)."""
        batch, channels, height, width = x.shape
        # fused kernels need the channels of a head contiguous in memory, so copy once
        pixels_last = self.norm(x).contiguous(memory_format=torch.channels_last)
        qkv = self.qkv(pixels_last).permute(0, 2, 3, 1)  # (B, H, W, 3C)
        qkv = qkv.reshape(batch, height * width, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, HW, C/heads)
        h = functional.scaled_dot_product_attention(q, k, v)
        h = h.transpose(1, 2).reshape(batch, height, width, channels)
        return x + self.out(h.permute(0, 3, 1, 2))


class Stage(nn.Module):
    """A residual block, followed by attention if ``attend``."""

    def __init__(
        self, inputs: int, outputs: int, embedding: int, config: UNetConfig, attend: bool
    ) -> None:
        super().__init__()
        self.block = ResBlock(inputs, outputs, embedding, config)
        self.attention = Attention(outputs, config) if attend else None

    def forward(self, embedding: Tensor, *parts: Tensor) -> Tensor:
        """embedding (B, E), parts (B, C_i, H, W) of the input -> (B, C_out, H, W). The stage
        concatenates the parts, so that a recomputed stage stores only the parts."""
        h = self.block(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], embedding)
        return h if self.attention is None else self.attention(h)


class Resize(nn.Module):
    """Halve the resolution by a strided convolution, or double it by repeated pixels and a
    convolution."""

    def __init__(self, channels: int, *, doubles: bool) -> None:
        super().__init__()
        self.doubles = doubles
        self.conv = Conv2d(channels, channels, 3, stride=1 if doubles else 2, padding=1)

    def forward(self, embedding: Tensor, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, C, H', W'); the embedding is unused."""
        if self.doubles:
            with keep_type(x):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.conv(x)


class UNet(nn.Module):
    """v_theta(x, t) or u_delta(x, t) for images. Every encoder output is concatenated to a decoder
    input, in reverse order."""

    def __init__(
        self,
        image_shape: Shape,
        config: UNetConfig,
        classes: int = 0,
        *,
        checkpoint_activations: bool = False,
    ) -> None:
        """
        Args:
            image_shape: (C, H, W), whose sides can be halved evenly at each level.
            config: architecture, checked by :func:`nsgf.settings.checks.check`.
            classes: number of classes K; 0: the network takes no labels.
            checkpoint_activations: whether training stores only the inputs of the stages, and
                computes the rest again in the backward pass (Chen et al. 2016). Gradients stay the
                same.
        """
        super().__init__()
        image_channels, height, _ = image_shape
        self.checkpoint_activations = checkpoint_activations
        self.channels = config.channels
        embedding = 4 * config.channels
        levels = range(len(config.mult))
        attends = [height >> level in config.attention for level in levels]
        sizes = [config.channels * mult for mult in config.mult]
        self.embed = nn.Sequential(
            Linear(config.channels, embedding),
            nn.SiLU(),
            Linear(embedding, embedding),
        )
        # build the encoder; `widths` lists the widths of the skip connections, the stem first
        self.stem = Conv2d(image_channels, config.channels, 3, padding=1)
        self.down = nn.ModuleList()
        widths = [config.channels]
        for level in levels:
            for _ in range(config.res_blocks):
                layer = Stage(widths[-1], sizes[level], embedding, config, attends[level])
                self.down.append(layer)
                widths.append(sizes[level])
            if level < levels[-1]:
                self.down.append(Resize(widths[-1], doubles=False))
                widths.append(widths[-1])
        width = sizes[-1]
        self.middle = nn.ModuleList(
            [Stage(width, width, embedding, config, attend) for attend in (True, False)]
        )
        # build the decoder, in which each stage takes one skip connection
        self.up = nn.ModuleList()
        for level in reversed(levels):
            for _ in range(config.res_blocks + 1):
                inputs = width + widths.pop()
                width = sizes[level]
                self.up.append(Stage(inputs, width, embedding, config, attends[level]))
            if level > 0:
                self.up.append(Resize(width, doubles=True))
        self.head = nn.Sequential(
            Norm(GROUPS, width),
            nn.SiLU(),
            zero_init(Conv2d(width, image_channels, 3, padding=1)),
        )
        # create the classes last, so that the initial weights above do not depend on classes
        self.classes = (
            nn.Embedding(classes + 1, embedding, dtype=torch.float32) if classes else None
        )

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        """x (B, C, H, W), t (B,) in [0, 1] -> velocity (B, C, H, W).

        ``label``: integers in [0, K], where K means no class, (B,); only for a network with
        classes.

        Raises:
            ValueError: labels are missing, or the network takes no labels.
        """
        if (self.classes is None) != (label is None):
            raise ValueError("label: needed if the network has classes, otherwise must be None")
        features = time_features(t, self.channels, fastest=UNET_FASTEST, slowest=UNET_SLOWEST)
        embedding = self.embed(features.to(x.dtype))
        if self.classes is not None:
            embedding = embedding + self.classes(label).to(embedding.dtype)
        recompute = self.checkpoint_activations and self.training and torch.is_grad_enabled()
        h = self.stem(x)
        skips = [h]
        encoder = len(self.down)
        decoder = encoder + len(self.middle)
        for number, layer in enumerate([*self.down, *self.middle, *self.up]):
            inputs = [embedding, h]
            if number >= decoder and isinstance(layer, Stage):
                inputs.append(skips.pop())
            # recompute only stages, because the remaining layers store only their inputs anyway
            if recompute and isinstance(layer, Stage):
                h = checkpoint(layer, *inputs, use_reentrant=False)
            else:
                h = layer(*inputs)
            if number < encoder:
                skips.append(h)
        return self.head(h)
